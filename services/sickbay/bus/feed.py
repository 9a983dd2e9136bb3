"""What feeds a log reader: one pull consumer, the requests to it that are outstanding, and what has arrived."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque

import msgspec
import nats.errors
from nats.aio.client import Client

from .bulk import STATUS_START, BulkSubscription, Item, header_status, header_value, status_text

BATCH = 5_000  # messages a pull request asks for
AHEAD = 3  # pull requests outstanding; BATCH_BYTES x AHEAD stays far below the server's max_pending, 64 MiB
BATCH_BYTES = 8 << 20
BATCH_BYTES_MAX = 48 << 20
QUEUE_BYTES = 32 << 20  # what may wait here for a slow caller before no more is asked for
EXPIRES_S = 30.0
HEARTBEAT_S = 0.5


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Messages in stream order, as parallel lists. `subjects` raw bytes, `seqs` stream sequences, `times_ns` the
    server's times since the epoch, `payloads`, `headers` raw blocks or None. `pending` says how many messages
    the stream had behind the last one when that was sent; `size` is the payloads' bytes."""

    subjects: list[bytes]
    seqs: list[int]
    times_ns: list[int]
    payloads: list[bytes]
    headers: list[bytes | None]
    pending: int
    size: int


class Feed:
    """One consumer and the subscription its messages come by; replaced as a whole when anything is wrong."""

    def __init__(self, client: Client, consumer: str, wake: asyncio.Event) -> None:
        self.client = client
        self.consumer = consumer
        self.reconnects = client.stats["reconnects"]
        self.wake = wake
        self.queue: deque[list[Item]] = deque()
        self.queued_bytes = 0
        self.outstanding = 0  # messages that the server may still send without being asked again
        self.consumer_seq = 0
        self.batch_bytes = BATCH_BYTES
        self.broken = ""
        self.last_heard = time.monotonic()
        self.subscription: BulkSubscription | None = None
        self.inbox = ""
        self.ready = False  # subscription and consumer stand

    def on_items(self, items: list[Item]) -> None:
        """The sink: called by the parser for everything that arrived together."""
        self.last_heard = time.monotonic()
        statuses = [item for item in items if item[2] is not None and item[2][:9] == STATUS_START]
        if statuses:
            items = [item for item in items if item not in statuses]
            for status in statuses:
                self._take_status(status[2] or b"")
        if items:
            self.outstanding -= len(items)
            self.queued_bytes += sum([len(item[3]) for item in items])
            self.queue.append(items)
        self.wake.set()

    def _take_status(self, headers: bytes) -> None:
        status, text = header_status(headers), status_text(headers)
        if status == 408 or (status == 409 and ("MaxBytes" in text or "Batch Completed" in text)):
            # A pull request ended; what it has not brought by now will not come.
            unused = int(header_value(headers, b"Nats-Pending-Messages") or 0)
            self.outstanding -= unused
            if status == 409 and unused >= BATCH:
                self.batch_bytes = min(self.batch_bytes * 2, BATCH_BYTES_MAX)  # one message is larger than all
        elif status != 100:
            self.broken = f"{status} {text}".strip()

    async def pull(self, stream: str) -> None:
        """Ask for more as long as little is outstanding and the caller keeps up."""
        while self.outstanding <= BATCH * (AHEAD - 1) and self.queued_bytes < QUEUE_BYTES and not self.broken:
            body = {
                "batch": BATCH,
                "max_bytes": self.batch_bytes,
                "expires": int(EXPIRES_S * 1e9),
                "idle_heartbeat": int(HEARTBEAT_S * 1e9),
            }
            if self.outstanding <= 0:
                self.last_heard = time.monotonic()  # nothing was owed to us until now
                self.outstanding = 0
            self.outstanding += BATCH
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{self.consumer}"
            await self.client.publish(subject, json.dumps(body).encode(), reply=self.inbox)


def chunk_of(items: list[Item]) -> tuple[Chunk, list[int]]:
    """Items as a chunk, and their sequences at the consumer."""
    subjects, replies, headers, payloads = map(list, zip(*items, strict=True))
    # $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>, or with a domain and
    # an account hash before the stream and at times a token at the end: seen by the number of tokens.
    tokens = b".".join(replies).split(b".")
    per, extra = divmod(len(tokens), len(items))
    if extra or per not in (9, 11, 12):
        raise nats.errors.Error(f"unknown form of acknowledgement subject: {replies[0]!r}")
    at = 5 if per == 9 else 7
    chunk = Chunk(
        subjects,
        list(map(int, tokens[at::per])),
        list(map(int, tokens[at + 2 :: per])),
        payloads,
        headers,
        int(tokens[len(tokens) - per + at + 3]),
        sum(map(len, payloads)),
    )
    return chunk, list(map(int, tokens[at + 1 :: per]))


def piece(chunk: Chunk, begin: int, end: int) -> Chunk:
    """The messages of a chunk from index `begin` to before `end`."""
    part = slice(begin, end)
    return Chunk(
        chunk.subjects[part],
        chunk.seqs[part],
        chunk.times_ns[part],
        chunk.payloads[part],
        chunk.headers[part],
        chunk.pending + len(chunk.seqs) - end,
        sum(map(len, chunk.payloads[part])),
    )
