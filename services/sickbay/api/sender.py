"""Storing events for somebody who waits for the answer: many at once, each followed to its acknowledgement.

Not the routers' reporter, which queues, sends again for as long as it lives and never makes its caller wait. Here
whoever asked keeps what was not stored, and sends it again under the same ids, which the log knows.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client

from ..bus.bulk import BulkSubscription, Item, header_status, subscribe_bulk
from ..bus.connect import BusError, PermissionDenied
from ..bus.link import Link
from ..bus.publish import decode_ack, message
from ..bus.write import write_now

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


class _Waiting:
    """The messages of one request that are not answered yet, by number."""

    def __init__(self) -> None:
        self.open: dict[int, EventToStore] = {}
        self.answers: dict[int, SendResult] = {}
        self.changed = asyncio.Event()
        """Set when all are answered, or the connection is lost."""

    def settle(self, number: int, answer: SendResult) -> None:
        """One is answered."""
        if self.open.pop(number, None) is not None:
            self.answers[number] = answer
            if not self.open:
                self.changed.set()


class Sender:
    """Stores events over `link`. Belongs to the link's event loop."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._n = 0
        self._pending_bytes = 0
        self._waiting: dict[int, _Waiting] = {}
        self._inbox = b""
        self._subscription: BulkSubscription | None = None
        self._lock = asyncio.Lock()
        link.listen(disconnected=self._lost, error=self._error)

    async def send(self, messages: list[EventToStore], *, timeout_s: float = ACK_S) -> list[SendResult]:
        """Store them and wait for the server's word on each, `timeout_s` at most; the answers in their order.

        Written again over the next connection if one is lost meanwhile. Raises `NotConnected`, `Busy`.
        """
        if self._link.client is None:
            raise NotConnected
        size = sum([len(one.data) for one in messages])
        if self._pending_bytes + size > PENDING_BYTES_MAX:
            raise Busy
        waiting = _Waiting()
        numbers = range(self._n, self._n + len(messages))
        self._n += len(messages)
        waiting.open.update(zip(numbers, messages, strict=True))
        self._pending_bytes += size
        self._waiting.update(dict.fromkeys(numbers, waiting))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while waiting.open:
                        await self._write(waiting)
        finally:
            self._pending_bytes -= size
            for number in numbers:
                self._waiting.pop(number, None)
        why = f"no acknowledgement in {timeout_s:g} s"
        return [waiting.answers.get(number) or SendResult(why=why) for number in numbers]

    async def close(self) -> None:
        """Take no more answers. Never raises."""
        if self._subscription is not None:
            await self._subscription.close()

    async def _write(self, waiting: _Waiting) -> None:
        """Write what is open over the connection that stands; wait until that is answered or the connection lost."""
        waiting.changed.clear()
        client = await self._link.wait_connected()
        if not await self._listens(client):
            await asyncio.sleep(RETRY_S)
            return
        rows = list(waiting.open.items())
        for at in range(0, len(rows), CHUNK):
            parts = [
                message(one.subject, b"%b%d" % (self._inbox, number), one.msg_id, one.data)
                for number, one in rows[at : at + CHUNK]
            ]
            if not write_now(client, b"".join(parts)):
                await asyncio.sleep(RETRY_S)
                return
            await asyncio.sleep(0)  # others have their turn, acknowledgements among them
        if waiting.open:
            await waiting.changed.wait()

    async def _listens(self, client: Client) -> bool:
        """Whether acknowledgements that come over this client reach us."""
        async with self._lock:
            if self._subscription is not None and self._subscription.client is client:
                return True
            inbox = client.new_inbox()
            try:
                subscription = await subscribe_bulk(client, f"{inbox}.*", self._on_acks)
                await client.flush(1)  # it lies on the wire now, ahead of any event
            except (nats.errors.Error, OSError, TimeoutError):
                return False
            self._inbox, self._subscription = f"{inbox}.".encode(), subscription
            return self._link.client is client

    def _on_acks(self, items: list[Item]) -> None:
        for subject, _reply, headers, payload in items:
            try:
                number = int(subject.rpartition(b".")[2])
                ack = decode_ack(payload) if payload else None
            except ValueError:
                continue
            waiting = self._waiting.get(number)
            if waiting is None:
                continue
            if ack is None:
                if header_status(headers) == 503:
                    waiting.settle(number, SendResult(why="no stream takes it, or it has no leader"))
            elif ack.error is not None:
                waiting.settle(number, SendResult(why=str(ack.error), is_refused=not ack.error.blocked))
            elif ack.seq > 0:
                waiting.settle(number, SendResult(seq=ack.seq, duplicate=ack.duplicate))

    def _lost(self) -> None:
        for waiting in set(self._waiting.values()):
            waiting.changed.set()

    def _error(self, error: Exception) -> None:
        # A refused publish is not answered; only the client's error callback hears of it, by subject.
        if isinstance(error, PermissionDenied) and error.action == "publish":
            for number, waiting in list(self._waiting.items()):
                one = waiting.open.get(number)
                if one is not None and one.subject == error.subject:
                    waiting.settle(number, SendResult(why="this service's NATS user may not report that"))
