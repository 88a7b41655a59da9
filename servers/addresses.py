"""addresses.py: where servers listen, and how trainers hear of it. A vLLM server has no password on
the routes that change its weights: private networks only.
"""

import contextlib
import re
import sys
import time
from pathlib import Path

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def written_addresses(path, urls):
    """A file with an address a line, for as long as the servers run."""
    aside = path.with_suffix(".tmp")    # whoever reads finds all of them, or no file
    aside.write_text("".join(f"{url}\n" for url in urls))
    aside.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def read_addresses(vllm_url, limit_s):
    """The addresses that `vllm_url` names, by commas: "http://a:8000", or "@FILE", which is waited
    for. Raises TimeoutError after limit_s; ValueError: something else."""
    urls, end = [], time.monotonic() + limit_s
    for part in map(str.strip, vllm_url.split(",")):
        if not part.startswith("@"):
            urls.append(part)
            continue
        path = Path(part[1:])
        if not path.is_file():
            print(f"servers: waiting for {path}, which --serve-only writes", file=sys.stderr)
        while not path.is_file():
            if time.monotonic() > end:
                raise TimeoutError(f"start: {path} has not appeared for {limit_s:g} s: does "
                                   "--serve-only run, in a folder that both see?")
            time.sleep(0.2)
        urls += path.read_text(errors="replace").split() or [""]
    for url in urls:
        if not re.fullmatch(r"https?://[\w.:\[\]-]+:[1-9]\d*/?", url):
            raise ValueError(f"vllm_url = {vllm_url!r}: should give addresses like "
                             f"http://10.0.0.2:8100, not {url!r:.60}")
    return urls
