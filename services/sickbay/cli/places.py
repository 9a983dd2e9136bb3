"""Places in a log as people name them: a sequence (digits alone), or a time."""

from __future__ import annotations

import time

from nats.aio.client import Client

from ..control.acts import log_now_ms
from ..log.folding import Bound
from ..when import when_ms


def read_place(text: str, now_ms: int) -> Bound:
    """`4711` is a sequence, anything else a time. Raises `InvalidValue` with the accepted forms."""
    word = text.strip()
    return Bound(seq=int(word)) if word.isdecimal() else Bound(time_ms=when_ms(word, now_ms=now_ms))


async def place_of(client: Client | None, text: str) -> Bound:
    """The same, by the log's clock; by this machine's without a client."""
    return read_place(text, int(time.time() * 1000) if client is None else await log_now_ms(client))
