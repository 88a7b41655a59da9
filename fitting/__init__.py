"""The command of fit.py (command.py): logs (readers.py), the verdict (forecast.py, like.py,
plan.py, callback.py), comparison of recipes (compare.py), pictures (figures.py)."""
