"""Publishing to streams: many messages on their way at once, each acknowledgement told to its sender.

    publisher = AckedPublisher(link)
    await publisher.open(client)                                  # on each new client of the link
    publisher.send(subject, payload, {"Nats-Msg-Id": "a-1"}, lambda ack: ...)
    ack = await publisher.publish(subject, payload, {})           # the same, for a caller that waits

nats-py's own ways wait for each acknowledgement or lose the refusals. What its buffer holds when a connection breaks it
sends after the reconnect; so messages are written past that buffer (`bus.write`), and nothing is sent again here: the
sender knows what a lost acknowledgement means for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
from nats.aio.client import Client

from .bulk import BulkSubscription, Item, header_status, subscribe_bulk
from .connect import PermissionDenied
from .link import Link
from .write import hpub, write_now

ACK_TIMEOUT_S: Final = 2.0
FLUSH_S: Final = 5
WRONG_LAST_SEQUENCE: Final = (10071, 10164)
"""Codes of a compare-and-set that lost: the other message is stored; or, in a cluster, it is still on its way."""
Blocked: TypeAlias = Literal["", "no_answer", "no_stream", "stream_full", "server_error"]
"""Why a stream takes nothing at present, though it may again."""
_STREAM_FULL: Final = (10023, 10047, 10077)
_NO_STREAM: Final = (10059, 10039, 10076)
_LOST, _DENIED, _NO_RESPONDERS = 0, 403, 503


class AckError(msgspec.Struct, frozen=True):
    """Why a message was not stored, or why that is not known. The codes are the server's; 0 where it gave none."""

    code: int = 500
    err_code: int = 0
    description: str = ""

    @property
    def is_lost(self) -> bool:
        """Whether no answer came: the message may be stored all the same."""
        return self.code == _LOST

    @property
    def is_denied(self) -> bool:
        """Whether the NATS user may not publish this subject."""
        return self.code == _DENIED and not self.err_code

    @property
    def is_without_stream(self) -> bool:
        """Whether no stream takes the subject, or the one that does has no leader."""
        return self.code == _NO_RESPONDERS and not self.err_code

    @property
    def is_wrong_last_sequence(self) -> bool:
        """Whether another message came first, where this one named the sequence that it follows."""
        return self.err_code in WRONG_LAST_SEQUENCE

    @property
    def blocked(self) -> Blocked:
        """Why the stream stores nothing at present; empty if the server refuses this one message."""
        if self.err_code in _STREAM_FULL:
            return "stream_full"
        if self.err_code in _NO_STREAM or self.is_without_stream:
            return "no_stream"
        if self.is_lost:
            return "no_answer"
        return "server_error" if self.code >= 500 or self.code in (408, 429) else ""

    def __str__(self) -> str:
        return f"{self.description} ({self.code}, {self.err_code})" if self.err_code else self.description


class Ack(msgspec.Struct, frozen=True):
    """The answer to a published message. `seq` is its sequence in the stream, 0 if there is an error; `duplicate`: the
    stream had it already, by its Nats-Msg-Id."""

    seq: int = 0
    duplicate: bool = False
    error: AckError | None = None


Done: TypeAlias = Callable[[Ack], None]
"""Called once with the answer, in the link's event loop."""


class Outgoing(NamedTuple):
    """A message to publish. Subject and headers are not checked: no spaces in the subject, no line ends."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]
    done: Done


class _Unanswered(NamedTuple):
    sent_s: float
    subject: str
    done: Done


class AckedPublisher:
    """Publisher with an inbox of its own for acknowledgements. Belongs to the link's event loop.

    timeout_s   `sweep` gives up on what has waited for longer
    """

    def __init__(self, link: Link, *, timeout_s: float = ACK_TIMEOUT_S) -> None:
        self.late = 0
        """Answers that nothing waits for: repeated, too late, or somebody else's."""
        self._link, self._timeout_s = link, timeout_s
        self._client: Client | None = None  # the one that has the inbox
        self._subscription: BulkSubscription | None = None
        self._opening = asyncio.Lock()
        self._inbox = b""
        self._count = 0
        self._unanswered: dict[int, _Unanswered] = {}  # by number, so the oldest first

    @property
    def client(self) -> Client | None:
        """The client by which a message can be sent now, else None."""
        client = self._link.client
        return client if client is self._client else None

    async def open(self, client: Client) -> None:
        """Take acknowledgements by this client from now on; a second call does nothing. Raises what nats-py does if the
        connection breaks meanwhile."""
        async with self._opening:
            if client is self._client:
                return
            await self.close()
            inbox = client.new_inbox()
            self._inbox = f"{inbox}.".encode()
            self._subscription = await subscribe_bulk(client, f"{inbox}.*", self._on_items)
            # Messages go past the client's buffer, in which the subscription may still wait.
            await client.flush(FLUSH_S)
            self._client = client

    async def close(self) -> None:
        """Drop the inbox; the answers that are still to come are lost. Never raises."""
        subscription, self._subscription, self._client = self._subscription, None, None
        if subscription is not None:
            await subscription.close()
        self.lose("connection lost")

    def lose(self, why: str) -> None:
        """The connection broke: no answer will come to what is on its way."""
        unanswered, self._unanswered = self._unanswered, {}
        for one in unanswered.values():
            one.done(_lost(why))

    def sweep(self) -> None:
        """Give up on what has waited too long. Call it now and then."""
        before_s = time.monotonic() - self._timeout_s
        while self._unanswered:
            number = next(iter(self._unanswered))
            if self._unanswered[number].sent_s >= before_s:
                return
            self._unanswered.pop(number).done(_lost(f"no acknowledgement in {self._timeout_s:g} s"))

    def send_all(self, messages: Sequence[Outgoing]) -> bool:
        """Write messages to the connection, all together. False if there is none: nothing is sent, no `done` called."""
        client, now_s = self.client, time.monotonic()
        if client is None:
            return False
        first = self._count + 1
        parts: list[bytes] = []
        for number, message in enumerate(messages, first):
            parts.append(hpub(message.subject, b"%b%d" % (self._inbox, number), message.headers, message.payload))
            self._unanswered[number] = _Unanswered(now_s, message.subject, message.done)
        self._count += len(parts)
        if write_now(client, b"".join(parts)):
            return True
        for number in range(first, self._count + 1):
            del self._unanswered[number]
        return False

    def send(self, subject: str, payload: bytes, headers: Mapping[str, str], done: Done) -> None:
        """Publish now or not at all; without a connection `done` is called at once."""
        if not self.send_all([Outgoing(subject, payload, headers, done)]):
            done(_lost("not connected"))

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> Ack:
        """Publish and wait for the answer, which comes at the latest by `sweep`."""
        answer: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()

        def done(ack: Ack) -> None:
            if not answer.done():
                answer.set_result(ack)

        self.send(subject, payload, headers, done)
        return await answer

    def on_error(self, error: Exception) -> None:
        """A listener for the link's errors, for senders that want to know at once what they may not publish. The server
        answers nothing to that; only the client's error callback hears of it, by subject."""
        if isinstance(error, PermissionDenied) and error.action == "publish":
            for number, one in self._unanswered.items():
                if one.subject == error.subject:
                    del self._unanswered[number]
                    one.done(Ack(error=AckError(_DENIED, 0, str(error))))
                    return

    def _on_items(self, items: list[Item]) -> None:
        start = len(self._inbox)
        for subject, _reply, headers, payload in items:
            try:
                number, ack = int(subject[start:]), _read(headers, payload)
            except ValueError:
                number, ack = 0, None  # not a server's answer
            one = self._unanswered.pop(number, None) if ack is not None else None
            if one is None or ack is None:
                self.late += 1
            else:
                one.done(ack)


_decode: Final = msgspec.json.Decoder(Ack).decode


def _read(headers: bytes | None, payload: bytes) -> Ack | None:
    """The answer; None if it is none. Raises `ValueError`."""
    if header_status(headers) == _NO_RESPONDERS:
        why = "no stream takes its subject, or it has no leader"
        return Ack(error=AckError(_NO_RESPONDERS, 0, why))
    ack = _decode(payload) if payload else None
    return ack if ack is not None and (ack.seq > 0 or ack.error is not None) else None


def _lost(why: str) -> Ack:
    return Ack(error=AckError(_LOST, 0, why))
