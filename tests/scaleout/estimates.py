"""Helper for tests of what the launcher plans."""

from artifacts.settings import make_config
from scaleout import launch


def estimate_of(folder, address="", **settings):
    """(config, Estimate) as the launcher makes them, on assumed H100s if there are GPUs."""
    config = make_config({"model": str(folder), "name": "none"} | settings)
    return config, launch.plan(config, address=address)
