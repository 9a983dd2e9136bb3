"""Reading a stream from a given position, fast, without acknowledgements, and with every gap reported.

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
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
import nats.errors
from nats.aio.client import Client

from .bulk import Item, subscribe_bulk
from .connect import BusError, PermissionDenied
from .feed import Chunk, Feed, chunk_of, piece
from .jetstream import JetStreamApi, StreamAt

__all__ = ["CaughtUp", "Chunk", "ConnectionSource", "Event", "Gap", "Interrupted", "LogChanged", "LogReader", "Resumed"]

CHUNK_MESSAGES = 5_000  # chunks that wait are joined up to about this size
SILENCE_S = 1.5  # nothing at all, not even a heartbeat: the consumer is taken for lost
CHECK_S = 0.05  # how often the connection is looked at while nothing arrives
REQUEST_TIMEOUT_S = 2.0
RETRY_MIN_S, RETRY_MAX_S = 0.02, 1.0
INACTIVE_S = 30  # the server drops a consumer without pulls for so long


class ConnectionSource(Protocol):
    """Where the reader takes its connection from: a `Link`, or a `BorrowedConnection` over another's client."""

    @property
    def client(self) -> Client | None:
        """The client while it is connected, else None."""
        ...


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


class LogReader:
    """Async iterator over a stream, from `after_seq` + 1 on, for ever; see the module's text for its items.

    source      a `Link` or a `BorrowedConnection`
    after_seq   the position: the last sequence that is done with, 0 for the beginning
    created_at  the creation time (RFC 3339, as the server says it) that the stream must have, or "" for any
    time_ns     the server's time of the message at `after_seq`, or 0: with it a rewritten log is noticed
    filters     subjects; with them sequences jump as a matter of course, and no `Gap` is reported

    `seq` is the sequence last handed out, `age_s` the seconds since the server was last heard of.
    """

    def __init__(
        self,
        source: ConnectionSource,
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
        self._feed: Feed | None = None
        self._ready: deque[Event] = deque()
        self._caught_up = False
        self._interrupted = False
        self._retry_s = RETRY_MIN_S
        self._ended = False
        self._last_heard = self._looked_at = self._looking_since = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since anything was heard from the server, heartbeats included."""
        last_seen_s = max(self._last_heard, self._feed.last_heard if self._feed else 0.0)
        return time.monotonic() - last_seen_s

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
        if feed is None or not feed.ready:
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
            await feed.pull(self.stream)
            await self._wake.wait()
        except (nats.errors.Error, OSError) as error:
            await self._interrupt(f"connection: {error or type(error).__name__}")
        finally:
            check.cancel()

    def _trouble(self, feed: Feed) -> str:
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
        except (BusError, nats.errors.Error, OSError) as error:  # a TimeoutError is an OSError
            if isinstance(error, PermissionDenied) and not self.resumes:
                raise  # it has never been otherwise, and no wait makes it so
            await self._interrupt(str(error) or type(error).__name__)
            await self._wait_to_retry()

    async def _open(self, client: Client) -> None:
        """Make a consumer after the position, once it is certain that this is the same log."""
        await self._drop_feed(delete=False)  # one whose making was cancelled half-way
        api = JetStreamApi(client, timeout_s=REQUEST_TIMEOUT_S)
        at = await api.stream_at(self.stream)
        changed = await self._changed(api, at)
        if changed:
            self._ready.append(LogChanged(changed, at))
            return
        self._created_at = at.created_at
        consumer = f"{self._name}-{client._nuid.next().decode()}"
        feed = Feed(client, consumer, self._wake)
        self._feed = feed  # from here on whatever fails, `_drop_feed` cleans up
        feed.inbox = client.new_inbox()
        feed.subscription = await subscribe_bulk(client, feed.inbox, feed.on_items)
        pending = await api.create_consumer(self.stream, self._consumer_config(consumer))
        feed.last_heard = time.monotonic()
        feed.ready = True
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

    # -- what arrived ----------------------------------------------------------------------------------

    async def _read(self, feed: Feed) -> None:
        """Turn what waits into chunks and gaps."""
        items: list[Item] = []
        while feed.queue and len(items) < CHUNK_MESSAGES:
            items.extend(feed.queue.popleft())
        chunk, consumer_seqs = chunk_of(items)
        feed.queued_bytes -= chunk.size
        count = len(items)
        await feed.pull(self.stream)
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
                except (BusError, nats.errors.Error, OSError) as error:
                    gap, reason = None, str(error) or type(error).__name__
                else:
                    reason = f"sequence {expected} was not sent"
                if gap is None:
                    await self._interrupt(reason)
                    return False
                if index > begin:
                    made.append(piece(chunk, begin, index))
                made.append(gap)
                begin = index
            expected = seq + 1
        made.append(piece(chunk, begin, len(chunk.seqs)))
        self._ready.extend(made)
        return True

    async def _gap(self, api: JetStreamApi, first: int, last: int) -> Gap | None:
        """Ask the stream once for what is missing (Rule 7); None if it has it after all."""
        there = await api.message_at(self.stream, first, or_next=True)
        if there is not None and there.seq <= last:
            return None
        at = await api.stream_at(self.stream)
        return Gap(first, last, "trimmed" if last < at.first_seq else "deleted")

    def _say_caught_up(self, seq: int) -> None:
        if not self._caught_up:
            self._caught_up = True
            self._ready.append(CaughtUp(seq))
