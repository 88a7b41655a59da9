"""What Python runs first in every process of a stormed run (bench/chaos.py): two doors for faults
that no signal can bring. Files in the folder $CHAOS open them, from outside and at any moment.

    clock       seconds to add to time.time(), which the run may use and must not rely on
    answers     how servers' answers reach rank 0: a kind of ANSWERS and how many of them
"""

import os
import time
from pathlib import Path

FOLDER = Path(os.environ.get("CHAOS", "."))
ANSWERS = ("garbled", "delayed", "cut off", "of another request", "a failure", "impossible numbers")
real_time = time.time


def moved_time():
    """The clock of the machine, as somebody else has set it."""
    try:
        return real_time() + float((FOLDER / "clock").read_text())
    except (OSError, ValueError):
        return real_time()


def spoil_answers():
    """Between the socket and servers/server.py: an answer is read, and something else is given."""
    import asyncio
    import re

    import aiohttp
    plain = aiohttp.ClientResponse.text

    async def text(response, *args, **more):
        said, order = await plain(response, *args, **more), FOLDER / "answers"
        if not response.url.path.endswith("/generate") or not order.exists():
            return said
        kind, _, left = order.read_text().rpartition(" ")
        if int(left) > 1:
            order.write_text(f"{kind} {int(left) - 1}")
        else:
            order.unlink()
        if kind == "delayed":
            await asyncio.sleep(5)
        elif kind == "cut off":
            return said[: len(said) // 2]
        elif kind == "garbled":
            return said.translate({ord("["): "{", ord("7"): "x"})
        elif kind == "of another request":
            return re.sub(r'"request_id":\s*"[^"]*"', '"request_id": "another"', said)
        elif kind == "impossible numbers":
            return re.sub(r'"logprob":\s*-?[0-9.e-]+', '"logprob": 7.0', said)
        elif kind == "a failure":
            raise aiohttp.ClientPayloadError("the connection was closed in an answer")
        return said
    aiohttp.ClientResponse.text = text


if "CHAOS" in os.environ:
    time.time = moved_time
    if os.environ.get("RANK") == "0":
        spoil_answers()
