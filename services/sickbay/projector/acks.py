"""Publishing to streams with one inbox for all acknowledgements, many in flight, each answer told to its sender.

nats-py's own ways wait for each acknowledgement or lose the refusals. Nothing is resent here: what a lost
acknowledgement means is for the sender to find out, since every message here compares before it sets.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec
from nats.aio.client import Client

from ..bus.bulk import BulkSubscription, Item, header_status, subscribe_bulk
from ..bus.link import Link
from ..bus.write import hpub, write_now

WRONG_LAST_SEQUENCE: Final = (10071, 10164)
"""The second is a cluster's, when the message that came first is still on its way to the other nodes."""
NO_STREAM: Final = 503
LOST: Final = 0
ACK_TIMEOUT_S: Final = 2.0
FLUSH_S: Final = 2


class Stored(msgspec.Struct, frozen=True, gc=False):
    """It stands in the stream at `seq`; `duplicate` if an equal Msg-Id stood there before."""

    seq: int
    duplicate: bool


class PublishRefused(msgspec.Struct, frozen=True, gc=False):
    """Not stored, or nobody can say. `code`: the server's error code, 503 if no stream took it, 0 if no
    acknowledgement came."""

    code: int
    why: str


Ack: TypeAlias = Stored | PublishRefused
Done: TypeAlias = Callable[[Ack], None]


class Acks:
    """Publisher with its own inbox; belongs to one event loop. `open` it on each new client."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._client: Client | None = None
        self._subscription: BulkSubscription | None = None
        self._inbox = b""
        self._count = 0
        self._waiting: dict[int, tuple[float, Done]] = {}

    async def open(self, client: Client) -> None:
        """Take acknowledgements by this client from now on. Raises `nats.errors.Error` if it is gone already."""
        await self.close()
        inbox = client.new_inbox()
        self._inbox = inbox.encode() + b"."
        self._subscription = await subscribe_bulk(client, f"{inbox}.*", self._on_items)
        # Publishes go past the client's buffer, in which the subscription may still wait.
        await client.flush(FLUSH_S)
        self._client = client

    async def close(self) -> None:
        """Drop the inbox; whoever still waits is told that the answer is lost."""
        subscription, self._subscription, self._client = self._subscription, None, None
        if subscription is not None:
            await subscription.close()
        self.lose("connection lost")

    def lose(self, why: str) -> None:
        """The connection broke: no answer will come to what is under way."""
        waiting, self._waiting = self._waiting, {}
        for _, done in waiting.values():
            done(PublishRefused(LOST, why))

    def sweep(self) -> None:
        """Give up on what has waited for more than 2 s. Call it now and then."""
        before = time.monotonic() - ACK_TIMEOUT_S
        late = [number for number, (sent_s, _) in self._waiting.items() if sent_s < before]
        for number in late:
            self._waiting.pop(number)[1](PublishRefused(LOST, f"no acknowledgement in {ACK_TIMEOUT_S:.0f} s"))

    def send(self, subject: str, payload: bytes, headers: Mapping[str, str], done: Done) -> None:
        """Publish now or not at all; `done` is called once with the answer, at once if there is no connection."""
        client = self._link.client
        if client is None or client is not self._client:
            done(PublishRefused(LOST, "not connected"))
            return
        self._count = number = self._count + 1
        self._waiting[number] = (time.monotonic(), done)
        if not write_now(client, hpub(subject, self._inbox + b"%d" % number, headers, payload)):
            del self._waiting[number]
            done(PublishRefused(LOST, "not connected"))

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> Ack:
        """Publish and wait for the answer."""
        answer: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()

        def done(ack: Ack) -> None:
            if not answer.done():
                answer.set_result(ack)

        self.send(subject, payload, headers, done)
        return await answer

    def _on_items(self, items: list[Item]) -> None:
        start = len(self._inbox)
        for subject, _, headers, payload in items:
            waiting = self._waiting.pop(int(subject[start:]), None)
            if waiting is not None:
                waiting[1](_read(headers, payload))


def _read(headers: bytes | None, payload: bytes) -> Ack:
    status = header_status(headers)
    if status:
        return PublishRefused(status, "no stream takes this subject")
    answer = json.loads(payload)
    error = answer.get("error")
    if error:
        return PublishRefused(int(error.get("err_code") or error.get("code", 0)), str(error.get("description", "")))
    return Stored(int(answer["seq"]), bool(answer.get("duplicate")))
