"""Storing events for a caller that waits for the answer: many at once, each followed to its acknowledgement.

Not the routers' reporter, which queues, sends again for as long as it lives and never makes its caller wait. Here the
caller keeps what was not stored, and sends it again under the same ids, which the log knows.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Final, NamedTuple

import msgspec
import nats.errors

from ..bus.connect import BusError
from ..bus.link import Link
from ..bus.publish import Ack, AckedPublisher, Outgoing

ACK_S: Final = 3.0
"""All of it is answered within this, one way or the other."""
CHUNK: Final = 250
PENDING_BYTES_MAX: Final = 32 << 20
"""So much may wait for acknowledgements, of all requests together."""
RETRY_S: Final = 0.05


class EventToStore(NamedTuple):
    """One event to store."""

    subject: str
    msg_id: str
    data: bytes


class SendResult(msgspec.Struct):
    """What became of one. `seq` 0: not in the log, or nobody knows, for the reason `why`; `is_refused` if the server
    will not take it at all."""

    seq: int = 0
    duplicate: bool = False
    why: str = ""
    is_refused: bool = False


class Busy(BusError):
    """More waits to be stored than may."""

    def __init__(self) -> None:
        super().__init__(f"over {PENDING_BYTES_MAX >> 20} MiB of events wait to be stored")


class NotConnected(BusError):
    """There is no connection to NATS at this moment."""

    def __init__(self) -> None:
        super().__init__("there is no connection to NATS")


class _Results:
    """What became of the messages of one request, by their place in it."""

    def __init__(self) -> None:
        self.known: dict[int, SendResult] = {}
        self.awaited = 0
        """How many were written and are not answered."""
        self.changed = asyncio.Event()

    def answered(self, place: int, ack: Ack) -> None:
        """One is answered, or its answer lost with the connection."""
        error = ack.error
        if error is None:
            self.known[place] = SendResult(seq=ack.seq, duplicate=ack.duplicate)
        elif error.is_denied:
            self.known[place] = SendResult(why="this service's NATS user may not report that")
        elif not error.is_lost:
            self.known[place] = SendResult(why=str(error), is_refused=not error.blocked)
        self.awaited -= 1
        self.changed.set()


class Sender:
    """Stores events over `link`. Belongs to the link's event loop."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._publisher = AckedPublisher(link, timeout_s=ACK_S)
        self._pending_bytes = 0
        link.listen(disconnected=partial(self._publisher.lose, "connection lost"), error=self._publisher.on_error)

    async def send(self, messages: list[EventToStore], *, timeout_s: float = ACK_S) -> list[SendResult]:
        """Store them and wait for the server's word on each, `timeout_s` at most; the answers in their order.

        Written again over the next connection if one is lost meanwhile. Raises `NotConnected`, `Busy`.
        """
        if self._link.client is None:
            raise NotConnected
        size = sum([len(one.data) for one in messages])
        if self._pending_bytes + size > PENDING_BYTES_MAX:
            raise Busy
        self._publisher.sweep()
        results = _Results()
        self._pending_bytes += size
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while len(results.known) < len(messages):
                        await self._write(messages, results)
        finally:
            self._pending_bytes -= size
        unknown = SendResult(why=f"no acknowledgement in {timeout_s:g} s")
        return [results.known.get(place, unknown) for place in range(len(messages))]

    async def close(self) -> None:
        """Take no more answers. Never raises."""
        await self._publisher.close()

    async def _write(self, messages: list[EventToStore], results: _Results) -> None:
        """Write what has no result over the connection that stands; wait until all of it is answered, or lost."""
        client = await self._link.wait_connected()
        try:
            await self._publisher.open(client)
        except (nats.errors.Error, OSError):
            await asyncio.sleep(RETRY_S)
            return
        left = [
            Outgoing(one.subject, one.data, {"Nats-Msg-Id": one.msg_id}, partial(results.answered, place))
            for place, one in enumerate(messages)
            if place not in results.known
        ]
        for at in range(0, len(left), CHUNK):
            chunk = left[at : at + CHUNK]
            if not self._publisher.send_all(chunk):
                await asyncio.sleep(RETRY_S)
                break
            results.awaited += len(chunk)
            await asyncio.sleep(0)  # others have their turn, acknowledgements among them
        while results.awaited:
            results.changed.clear()
            await results.changed.wait()
