"""tls.py: mutual TLS between trainers and vLLM servers, and the addresses that do without it.

A vLLM server has no password on the routes that change its weights. So a server listens on
loopback, or both sides show a certificate of one authority (`make certs` writes the folder), or
the user says tls = "none" on a network that nobody else can reach.
"""

import ssl
from pathlib import Path
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def client_context(urls, tls):
    """A client's side of mutual TLS with these servers; None where all of them speak plain http.
    Raises ValueError: an address that is none, or is not safe; a folder without certificates."""
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
            raise ValueError(f"vllm_url = {url!r}: give addresses like http://127.0.0.1:8100")
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
