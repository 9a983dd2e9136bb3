"""Reading a stream from a position of one's own, fast, without acknowledgements, and never past a gap unseen.

    reader = LogReader(link, "SICKBAY_LOG", after_seq=checkpoint)
    async for item in reader:
        match item:
            case Chunk():       fold it; item.seqs, item.times_ns, item.subjects, item.payloads, item.headers
            case Gap():         sequences that the stream no longer has; note and go on
            case CaughtUp():    everything there was at this moment has been handed out
            case Interrupted(): the feed stopped; the reader is at work on it
            case Resumed():     the feed goes on; chunks follow
            case LogChanged():  it is not the same log any more; the iteration ends after this
    await reader.close()

Under it is an ephemeral pull consumer in the server's memory; when it is lost (restart, new leader, deleted)
the reader makes another one at its position.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
import nats.errors
from nats.aio.client import Client

from .bulk import STATUS_START, BulkSubscription, Item, header_value, status_of, status_text, subscribe_bulk
from .jetstream import ApiError, JetStreamApi, StreamAt

BATCH = 5_000  # messages a pull request asks for
AHEAD = 3  # pull requests outstanding; BATCH_BYTES x AHEAD stays far below the server's max_pending, 64 MiB
BATCH_BYTES = 8 << 20
BATCH_BYTES_MAX = 48 << 20
QUEUE_BYTES = 32 << 20  # what may wait here for a slow caller before no more is asked for
CHUNK_MESSAGES = 5_000  # chunks that wait are joined up to about this size
EXPIRES_S = 30.0
HEARTBEAT_S = 0.5
SILENCE_S = 1.5  # nothing at all, not even a heartbeat: the consumer is taken for lost
CHECK_S = 0.05  # how often the connection is looked at while nothing arrives
REQUEST_TIMEOUT_S = 2.0
RETRY_MIN_S, RETRY_MAX_S = 0.02, 1.0
INACTIVE_S = 30  # the server drops a consumer of which nobody pulls for so long


class Source(Protocol):
    """Where the reader takes its connection from: a `Link`, or a `ClientSource` over another's client."""

    @property
    def client(self) -> Client | None:
        """The client while it is connected, else None."""
        ...


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


class Gap(msgspec.Struct, frozen=True):
    """The stream has no messages from `first` to `last` (both included); the server was asked. `reason` is
    "trimmed" (they lie before its first one: limits) or "deleted" (taken out of its middle)."""

    first: int
    last: int
    reason: str


class CaughtUp(msgspec.Struct, frozen=True):
    """Nothing was pending at the server; all up to `seq` has been handed out. Once after each start and resume."""

    seq: int


class Interrupted(msgspec.Struct, frozen=True):
    """The feed stopped for `reason`. Once per interruption; `Resumed` or `LogChanged` follows."""

    reason: str


class Resumed(msgspec.Struct, frozen=True):
    """The feed goes on after `after_seq`, also said at the first start. `stream` is what the stream looked like."""

    after_seq: int
    stream: StreamAt


class LogChanged(msgspec.Struct, frozen=True):
    """The stream is another one than before; the reader ends. `reason`: "recreated" (another creation time),
    "shorter" (its last sequence lies before the position: an older store was put in place) or "rewritten" (the
    message at the position has another time)."""

    reason: str
    stream: StreamAt


Event = Chunk | Gap | CaughtUp | Interrupted | Resumed | LogChanged


class _Feed:
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
        status, text = status_of(headers), status_text(headers)
        if status == 408 or (status == 409 and ("MaxBytes" in text or "Batch Completed" in text)):
            # A pull request ended; what it has not brought by now will not come.
            unused = int(header_value(headers, b"Nats-Pending-Messages") or 0)
            self.outstanding -= unused
            if status == 409 and unused >= BATCH:
                self.batch_bytes = min(self.batch_bytes * 2, BATCH_BYTES_MAX)  # one message is larger than all
        elif status != 100:
            self.broken = f"{status} {text}".strip()


class LogReader:
    """Async iterator over a stream, from `after_seq` + 1 on, for ever; see the module's text for its items.

    source      a `Link` or a `ClientSource`
    after_seq   the position: the last sequence that is done with, 0 for the beginning
    created_at  the creation time (RFC 3339, as the server says it) that the stream must have, or "" for any
    time_ns     the server's time of the message at `after_seq`, or 0: with it a rewritten log is noticed
    filters     subjects; with them sequences jump as a matter of course, and no `Gap` is reported

    `seq` is the sequence last handed out, `age_s` the seconds since the server was last heard of.
    """

    def __init__(
        self,
        source: Source,
        stream: str,
        *,
        after_seq: int,
        created_at: str = "",
        time_ns: int = 0,
        filters: tuple[str, ...] = (),
        name: str = "reader",
    ) -> None:
        self.stream = stream
        self.seq = after_seq
        self.resumes = 0
        self._source = source
        self._created_at = created_at
        self._time_ns = time_ns
        self._filters = filters
        self._name = name
        self._wake = asyncio.Event()
        self._feed: _Feed | None = None
        self._ready: deque[Event] = deque()
        self._caught_up = False
        self._interrupted = False
        self._retry_s = RETRY_MIN_S
        self._ended = False
        self._last_heard = self._looked_at = self._looking_since = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since anything was heard from the server, heartbeats included."""
        heard = max(self._last_heard, self._feed.last_heard if self._feed else 0.0)
        return time.monotonic() - heard

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """The next item; waits for ever if nothing comes. Cancelling it loses nothing."""
        while True:
            if self._ready:
                event = self._ready.popleft()
                if isinstance(event, LogChanged):
                    self._ended = True
                elif isinstance(event, Chunk):
                    self.seq, self._time_ns = event.seqs[-1], event.times_ns[-1]
                return event
            if self._ended:
                raise StopAsyncIteration
            await self._advance()

    async def close(self) -> None:
        """End the iteration and drop the consumer. Never raises."""
        self._ended = True
        await self._drop_feed(delete=True)
        self._wake.set()

    # -- making progress -------------------------------------------------------------------------------

    async def _advance(self) -> None:
        """Do the next thing that may bring items: connect the feed, read from it, or wait for it."""
        feed = self._feed
        if feed is None:
            await self._start()
            return
        if feed.queue:
            await self._read(feed)
            return
        reason = self._trouble(feed)
        if reason:
            await self._interrupt(reason)
            return
        self._wake.clear()
        check = asyncio.get_running_loop().call_later(CHECK_S, self._wake.set)
        try:
            await self._pull(feed)
            await self._wake.wait()
        except (nats.errors.Error, OSError) as error:
            await self._interrupt(f"connection: {error or type(error).__name__}")
        finally:
            check.cancel()

    def _trouble(self, feed: _Feed) -> str:
        if self._source.client is not feed.client or feed.client.stats["reconnects"] != feed.reconnects:
            return "connection lost"
        if feed.broken:
            return f"consumer lost: {feed.broken}"
        now = time.monotonic()
        if now - self._looked_at > SILENCE_S / 3:
            # Nobody asked for items for a while, or the loop was blocked: what came meanwhile is not read yet.
            self._looking_since = now
        self._looked_at = now
        if feed.outstanding > 0 and now - max(feed.last_heard, self._looking_since) > SILENCE_S:
            return f"no heartbeat for {SILENCE_S} s"
        return ""

    async def _interrupt(self, reason: str) -> None:
        await self._drop_feed(delete=False)
        if not self._interrupted:
            self._interrupted = True
            self._ready.append(Interrupted(reason))

    async def _drop_feed(self, *, delete: bool) -> None:
        feed, self._feed = self._feed, None
        if feed is None:
            return
        self._last_heard = feed.last_heard
        if feed.subscription is not None:
            await feed.subscription.close()
        if delete and self._source.client is feed.client:
            await JetStreamApi(feed.client, timeout_s=0.5).delete_consumer(self.stream, feed.consumer)

    async def _wait_to_retry(self) -> None:
        await asyncio.sleep(self._retry_s)
        self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)

    async def _start(self) -> None:
        client = self._source.client
        if client is None:
            if self.resumes:
                await self._interrupt("connection lost")
            await asyncio.sleep(CHECK_S / 2)
            return
        try:
            await self._open(client)
        except (ApiError, nats.errors.Error, OSError) as error:  # a TimeoutError is an OSError
            await self._interrupt(str(error) or type(error).__name__)
            await self._wait_to_retry()

    async def _open(self, client: Client) -> None:
        """Make a consumer after the position, once it is certain that this is the same log."""
        api = JetStreamApi(client, timeout_s=REQUEST_TIMEOUT_S)
        at = await api.stream_at(self.stream)
        changed = await self._changed(api, at)
        if changed:
            self._ready.append(LogChanged(changed, at))
            return
        self._created_at = at.created_at
        consumer = f"{self._name}-{client._nuid.next().decode()}"
        feed = _Feed(client, consumer, self._wake)
        self._feed = feed  # from here on whatever fails, `_drop_feed` cleans up
        feed.inbox = client.new_inbox()
        feed.subscription = await subscribe_bulk(client, feed.inbox, feed.on_items)
        pending = await api.create_consumer(self.stream, self._consumer_config(consumer))
        feed.last_heard = time.monotonic()
        self._caught_up = self._interrupted = False
        self._retry_s = RETRY_MIN_S
        self.resumes += 1
        self._ready.append(Resumed(self.seq, at))
        if pending == 0:
            self._say_caught_up(self.seq)

    async def _changed(self, api: JetStreamApi, at: StreamAt) -> str:
        if self._created_at and at.created_at != self._created_at:
            return "recreated"
        if at.last_seq < self.seq:
            return "shorter"
        if self._time_ns and self.seq >= at.first_seq:
            there = await api.message_at(self.stream, self.seq)
            if there is not None and there.seq == self.seq and there.time_ns != self._time_ns:
                return "rewritten"
        return ""

    def _consumer_config(self, consumer: str) -> dict[str, Any]:
        config: dict[str, Any] = {
            "name": consumer,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.seq + 1,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE_S * 1_000_000_000,
        }
        if len(self._filters) == 1:
            config["filter_subject"] = self._filters[0]
        elif self._filters:
            config["filter_subjects"] = list(self._filters)
        return config

    async def _pull(self, feed: _Feed) -> None:
        """Ask for more as long as little is outstanding and the caller keeps up."""
        while feed.outstanding <= BATCH * (AHEAD - 1) and feed.queued_bytes < QUEUE_BYTES and not feed.broken:
            body = {
                "batch": BATCH,
                "max_bytes": feed.batch_bytes,
                "expires": int(EXPIRES_S * 1e9),
                "idle_heartbeat": int(HEARTBEAT_S * 1e9),
            }
            if feed.outstanding <= 0:
                feed.last_heard = time.monotonic()  # nothing was owed to us until now
                feed.outstanding = 0
            feed.outstanding += BATCH
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{feed.consumer}"
            await feed.client.publish(subject, json.dumps(body).encode(), reply=feed.inbox)

    # -- what arrived ----------------------------------------------------------------------------------

    async def _read(self, feed: _Feed) -> None:
        """Turn what waits into chunks and gaps."""
        items: list[Item] = []
        while feed.queue and len(items) < CHUNK_MESSAGES:
            items.extend(feed.queue.popleft())
        chunk, consumer_seqs = _chunk_of(items)
        feed.queued_bytes -= chunk.size
        count = len(items)
        await self._pull(feed)
        contiguous = consumer_seqs[0] == feed.consumer_seq + 1 and consumer_seqs[-1] == feed.consumer_seq + count
        if not contiguous:
            # Messages were lost between the server and here (a slow consumer): read them again.
            await self._interrupt(f"consumer sequence {consumer_seqs[0]} after {feed.consumer_seq}")
            return
        feed.consumer_seq = consumer_seqs[-1]
        if self._filters or (chunk.seqs[0] == self.seq + 1 and chunk.seqs[-1] == self.seq + count):
            self._ready.append(chunk)
        elif not await self._split(feed.client, chunk):
            return
        if chunk.pending == 0:
            self._say_caught_up(chunk.seqs[-1])

    async def _split(self, client: Client, chunk: Chunk) -> bool:
        """Queue the chunk in pieces with its gaps between them. False if the server has what was not sent."""
        api = JetStreamApi(client, timeout_s=REQUEST_TIMEOUT_S)
        made: list[Event] = []
        expected, begin = self.seq + 1, 0
        for index, seq in enumerate(chunk.seqs):
            if seq != expected:
                try:
                    gap = await self._gap(api, expected, seq - 1)
                except (ApiError, nats.errors.Error, OSError) as error:
                    gap, reason = None, str(error) or type(error).__name__
                else:
                    reason = f"sequence {expected} was not sent"
                if gap is None:
                    await self._interrupt(reason)
                    return False
                if index > begin:
                    made.append(_piece(chunk, begin, index))
                made.append(gap)
                begin = index
            expected = seq + 1
        made.append(_piece(chunk, begin, len(chunk.seqs)))
        self._ready.extend(made)
        return True

    async def _gap(self, api: JetStreamApi, first: int, last: int) -> Gap | None:
        """Ask the stream once for what is missing (SPEC 7); None if it has it after all."""
        there = await api.message_at(self.stream, first, or_next=True)
        if there is not None and there.seq <= last:
            return None
        at = await api.stream_at(self.stream)
        return Gap(first, last, "trimmed" if last < at.first_seq else "deleted")

    def _say_caught_up(self, seq: int) -> None:
        if not self._caught_up:
            self._caught_up = True
            self._ready.append(CaughtUp(seq))


def _chunk_of(items: list[Item]) -> tuple[Chunk, list[int]]:
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


def _piece(chunk: Chunk, begin: int, end: int) -> Chunk:
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
