"""Changes as they happen, to every watcher: server-sent events.

    entry        a gate entry changed: `{"key", "provider", "model", ...}`, `"gone": true` when nothing stands there
    transition   a hold, a release, a change of health, a warning, as the log's derived events say it
    beat         every second: `{"seq", "time_ms", "age_s", "source"}`
    reset        what follows is everything that stands: forget what you had

The id of an event is the log sequence known when it was sent, and the process that sent it. A watcher that returns to
the same process with an id gets what was sent since. A watcher that missed more than is kept, or that comes to another
process, begins anew.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client

from sickbay_events import GateEntry, Scope, TokenRefused, rfc3339

from ..bus.bulk import Item, subscribe_bulk
from ..bus.link import Link
from ..bus.topology import HEALTH_PREFIX, HELD_PREFIX, RELEASED_PREFIX, WARNING_PREFIX
from ..log.transitions import fact_of
from ..loggers import logger
from ..view.mirror import Mirror
from .problems import unavailable

_log = logger("sickbay.api")

KEPT: Final = 2_000
"""Events that are kept for returning watchers."""
BACKLOG_BYTES_MAX: Final = 16 << 20
"""A watcher this far behind is dropped: it may return, and delays no other. Watchers share the bytes that wait."""
CHUNK_BYTES: Final = 1 << 16
WATCHERS_MAX: Final = 500
WATCHERS_NAMED: Final = 100
"""Places that only those with a token can take, so that a crowd without one does not shut operators out."""
BEAT_S: Final = 1.0
RETRY_S: Final = 0.5
ID_DIGITS_MAX: Final = 20
SUBJECTS: Final = tuple(f"{prefix}>" for prefix in (HELD_PREFIX, RELEASED_PREFIX, HEALTH_PREFIX, WARNING_PREFIX))


class Watcher:
    """One watcher: what is still to be sent to it."""

    def __init__(self, first: tuple[bytes, ...]) -> None:
        """`first` comes before all else. It is shared with others, and does not count as lying behind."""
        self.wake = asyncio.Event()
        self.is_over = False
        self._first = iter(first)
        self._queue: deque[bytes] = deque()
        self._bytes = 0

    def put(self, data: bytes) -> None:
        """Queue an event. A watcher that does not keep up is ended."""
        if self._bytes + len(data) > BACKLOG_BYTES_MAX:
            if not self.is_over:
                _log.info("a watcher that did not read is dropped")
            self.end()
            return
        self._bytes += len(data)
        self._queue.append(data)
        self.wake.set()

    def take(self) -> bytes:
        """Some of what waits, oldest first; empty if nothing does."""
        taken: list[bytes] = []
        size = 0
        for data in self._first:
            taken.append(data)
            size += len(data)
            if size >= CHUNK_BYTES:
                return b"".join(taken)
        size = 0
        while self._queue and size < CHUNK_BYTES:
            taken.append(self._queue.popleft())
            size += len(taken[-1])
        self._bytes -= size
        return b"".join(taken)

    def end(self) -> None:
        """Send nothing more."""
        self.is_over = True
        self._first = iter(())
        self._queue.clear()
        self._bytes = 0
        self.wake.set()


class Hub:
    """All watchers, and what is sent to them. Belongs to the link's event loop."""

    def __init__(self, link: Link, mirror: Mirror) -> None:
        self._link, self._mirror = link, mirror
        self._watchers: set[Watcher] = set()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._from_seq = 0
        """From this sequence on everything is kept."""
        self._seq = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._was_connected = False
        self._is_stopped = False
        self._process = secrets.token_hex(4)
        """In every id: what another process sent under the same sequence need not be what this one did."""
        self._encoded: dict[str, tuple[GateEntry, bytes]] = {}
        """Entries as they were last sent to a new watcher."""

    @property
    def watchers(self) -> int:
        """Number of watchers."""
        return len(self._watchers)

    def start(self) -> None:
        """Begin to listen."""
        self._mirror.listen(changed=self._changed, loaded=self._loaded)
        self._link.listen(connected=self._connected)
        self._spawn(self._beats(), "sickbay-api-beats")

    async def stop(self) -> None:
        """End every stream. Never raises."""
        self._is_stopped = True
        for watcher in list(self._watchers):
            watcher.end()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def watch(self, last_id: str, *, is_anonymous: bool = False) -> AsyncIterator[bytes]:
        """What is sent to one watcher, from the event of that id on if it is known here."""
        watcher = self.join(last_id, is_anonymous=is_anonymous)
        try:
            while not watcher.is_over:
                if data := watcher.take():
                    yield data
                else:
                    watcher.wake.clear()
                    await watcher.wake.wait()
        finally:
            self._watchers.discard(watcher)

    def join(self, last_id: str, *, is_anonymous: bool = False) -> Watcher:
        """Somebody new. Raises `Problem` when there are too many, or this process ends."""
        most = WATCHERS_MAX - WATCHERS_NAMED if is_anonymous else WATCHERS_MAX
        if self._is_stopped or len(self._watchers) >= most:
            raise unavailable("too many watch already", retry_after_s=10)
        last_seq = self._seq_of(last_id)
        if last_seq is not None and self._from_seq <= last_seq <= self._seq:
            # Several events share a sequence, so those of the last one come again: they say the same twice.
            first = tuple([data for seq, data in self._kept if seq >= last_seq])
        else:
            first = self._standing()
        watcher = Watcher(first)
        watcher.put(self._beat())
        self._watchers.add(watcher)
        return watcher

    def _tell(self, data: bytes) -> None:
        if len(self._kept) == KEPT:
            self._from_seq = self._kept[0][0] + 1
        self._kept.append((self._seq, data))
        self._put(data)

    def _put(self, data: bytes) -> None:
        for watcher in tuple(self._watchers):
            watcher.put(data)
            if watcher.is_over:
                self._watchers.discard(watcher)

    def _seq_of(self, event_id: str) -> int | None:
        """The sequence of an event that this process sent, None for any other."""
        seq, mark, process = event_id.partition("-")
        known = bool(mark) and process == self._process and seq.isascii() and seq.isdigit() and len(seq) < ID_DIGITS_MAX
        return int(seq) if known else None

    def _standing(self) -> tuple[bytes, ...]:
        """All current entries, for a new watcher. They carry no id, so a watcher cut off within them begins anew."""
        entries = self._mirror.entries
        if len(self._encoded) > 2 * len(entries) + KEPT:
            self._encoded.clear()
        found = [event("reset", "", {"seq": self._mirror.seq})]
        for key, entry in entries.items():
            known = self._encoded.get(key)
            if known is None or known[0] is not entry:
                known = self._encoded[key] = (entry, event("entry", "", entry_fact(key, entry)))
            found.append(known[1])
        return tuple(found)

    def _passed(self) -> int:
        """The sequence as of now. It steps back only when the log does."""
        if self._mirror.seq < self._seq:
            # Another log, or one that lost its tail: its sequences say nothing of what is kept.
            self._kept.clear()
            self._seq, self._from_seq = self._mirror.seq, self._mirror.seq + 1
        self._seq = max(self._seq, self._mirror.seq)
        return self._seq

    def _changed(self, key: str, _old: GateEntry | None, entry: GateEntry | None) -> None:
        if self._mirror.is_loaded:
            self._passed()
            self._tell(self._entry(key, entry))

    def _loaded(self) -> None:
        """The history has a gap: connected and returning watchers must begin anew."""
        self._from_seq = self._passed() + 1
        for data in self._standing():
            self._put(data)

    def _id(self) -> str:
        return f"{self._seq}-{self._process}"

    def _entry(self, key: str, entry: GateEntry | None) -> bytes:
        return event("entry", self._id(), entry_fact(key, entry))

    def _beat(self) -> bytes:
        mirror = self._mirror
        self._passed()
        source = "stale" if mirror.is_stale else "cluster"
        age_s = round(mirror.age_s(), 3)
        fact = {"seq": mirror.seq, "time_ms": mirror.now_ms(), "age_s": age_s, "source": source}
        return event("beat", self._id(), fact)

    async def _beats(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._put(self._beat())

    # Transitions.

    def _connected(self, client: Client, fresh: bool) -> None:
        if self._was_connected:
            # What was told while it was away did not come here, and nobody sends it again.
            self._loaded()
        self._was_connected = True
        if fresh:
            self._spawn(self._subscribe(client), "sickbay-api-transitions")

    async def _subscribe(self, client: Client) -> None:
        missing = list(SUBJECTS)
        while missing and self._link.client is client:
            try:
                await subscribe_bulk(client, missing[0], self._on_items)
            except (nats.errors.Error, OSError):
                await asyncio.sleep(RETRY_S)
            else:
                missing.pop(0)

    def _on_items(self, items: list[Item]) -> None:
        for subject, _reply, _headers, payload in items:
            try:
                fact = fact_of(subject, payload)
            except ValueError:  # not a projector's
                continue
            self._passed()
            self._tell(event("transition", self._id(), fact))

    def _spawn(self, work: Any, name: str) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def event(name: str, event_id: str, fact: dict[str, Any]) -> bytes:
    """One event on the wire: JSON has no line ends of its own."""
    return b"event: %b\nid: %b\ndata: %b\n\n" % (name.encode(), event_id.encode(), msgspec.json.encode(fact))


def entry_fact(key: str, entry: GateEntry | None) -> dict[str, Any]:
    """A gate entry for people and machines, with the times that the mirror let go of."""
    if entry is None:
        try:
            scope = Scope.of_key(key)
        except TokenRefused:
            return {"key": key, "provider": "", "model": None, "gone": True}
        return {"key": key, "provider": scope.provider, "model": scope.model, "gone": True}
    fact: dict[str, Any] = {"key": key, **msgspec.to_builtins(entry)}
    fact["model"] = entry.model
    fact["holds"] = [
        {**msgspec.to_builtins(hold), "until": rfc3339(hold.end_ms), "enforced": hold.enforced} for hold in entry.holds
    ]
    return fact
