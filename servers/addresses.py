"""addresses.py: where servers listen, who may reach them there, and how trainers hear of it.

A vLLM server has no password on the routes that change its weights: it listens on loopback, or
both sides show a certificate (`make certs`), or the user says tls = "none".
"""

import contextlib
import ssl
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def client_context(urls, tls):
    """A client's side of mutual TLS; None where all speak plain http. Raises ValueError."""
    for url in urls:
        if not is_address(url):
            raise ValueError(f"vllm_url = {url!r}: give addresses like http://127.0.0.1:8100")
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname not in LOOPBACK and tls != "none":
            raise ValueError(f"vllm_url = {url!r}: everybody who reaches that port can change the "
                             'weights; use https with tls, or tls = "none" on a network you trust')
    if not any(url.startswith("https") for url in urls):
        return None
    try:
        context = ssl.create_default_context(cafile=Path(tls) / "ca.pem")
        context.load_cert_chain(Path(tls) / "cert.pem", Path(tls) / "key.pem")
    except OSError as error:            # ssl.SSLError is one
        raise ValueError(f"tls = {tls!r}: ca.pem, cert.pem and key.pem (make certs) cannot be "
                         f"read from it ({error})") from None
    return context


def is_address(url):
    """
    >>> is_address("https://10.0.0.2:8100"), is_address("10.0.0.2:8100"), is_address("http://a:b")
    (True, False, False)
    """
    with contextlib.suppress(ValueError):               # a port that is no number
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname and parts.port)
    return False


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
    for. Raises TimeoutError after limit_s; ValueError: the file holds something else."""
    urls, end = [], time.monotonic() + limit_s
    for part in map(str.strip, vllm_url.split(",")):
        path = Path(part[1:])
        if not part.startswith("@"):
            urls.append(part)
            continue
        if not path.is_file():
            print(f"servers: waiting for {path}, which --serve-only writes", file=sys.stderr)
        while not path.is_file():
            if time.monotonic() > end:
                raise TimeoutError(f"start: {path} has not appeared for {limit_s:g} s: does "
                                   "--serve-only run, with this --name and in a folder that both "
                                   "see? Its addresses may also be given as vllm_url themselves")
            time.sleep(0.2)
        words = path.read_text(errors="replace").split()
        if not words or not all(map(is_address, words)):
            raise ValueError(f"vllm_url = {part!r}: should hold addresses like http://10.0.0.2:"
                             f"8100, as --serve-only writes them, not {' '.join(words)[:60]!r}")
        urls += words
    return urls
