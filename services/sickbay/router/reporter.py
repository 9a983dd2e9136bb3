"""The reporter: outcomes from the router's code to the log, without ever being in the router's way.

    reporter = Reporter(link, replica="router-1")
    reporter.start()                                # in the link's event loop; a connection may come later
    reporter.enqueue(target, CallOutcome(kind="ok")) # from any thread; only queues
    left = await reporter.close(limit_s=5)          # what could not be handed over, by kind

`enqueue` checks, numbers and queues; `in_flight` sends. What waits is bounded: at most 1,000 events on their
way (the fold's own window) and `capacity` behind them; when that is full, successes go before failures.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias
from weakref import WeakSet

import msgspec

from sickbay_events import NameRefused, Target, token

from ..bus.link import Link
from ..loggers import logger
from ..throttled import Throttled
from .in_flight import InFlight
from .outbox import Backlog, NotReportable, QueuedEvent, Reportable, count_by_label, fit, label

_log = logger("sickbay.reporter")

CAPACITY: Final = 10_000
CLOSE_LIMIT_S: Final = 5.0
SAY_EVERY_S: Final = 30.0

OnAck: TypeAlias = Callable[[Target, Reportable, int, int], None]
"""Called in the loop with target, event, its number here, and its sequence in the log."""


class Counts(msgspec.Struct, frozen=True):
    """What became of all that was recorded: `recorded` = `acked` + dropped + given up + queued + unacknowledged."""

    recorded: int
    """Numbered and queued; what was rejected is not in it."""
    acked: int
    """In the log for certain; repeats that the server knew by their id are `duplicates`, counted in it."""
    duplicates: int
    resent: int
    late: int
    """Acknowledgements that came again, or for an event no longer waited for."""
    queued: int
    unacknowledged: int
    rejected: dict[str, int]
    """Bad input by field, `closed` or `forked`."""
    dropped: dict[str, int]
    """For want of room, by kind."""
    given_up: dict[str, int]
    """Refused by the server while it took others, by kind."""
    blocked: str
    """Why the log takes nothing at present: empty, `no_answer`, `no_stream`, `stream_full`, `server_error`."""
    why: str
    """What the server says to it."""


class Left(msgspec.Struct, frozen=True):
    """What a closed reporter could not hand over. False if there is nothing."""

    by_kind: dict[str, int]
    unacknowledged: int = 0
    """How many of them were sent, so that they may have arrived all the same."""

    @property
    def total(self) -> int:
        """How many events are left."""
        return sum(self.by_kind.values())

    def __bool__(self) -> bool:
        return bool(self.by_kind)


class Outbox(Protocol):
    """Where outcomes go: a `Reporter`, or what `sickbay.testing` puts in its place."""

    def enqueue(self, target: Target, event: Reportable) -> int:
        """Queue one event; its number, or 0 if it was rejected."""
        ...

    def start(self) -> None:
        """Begin to send."""
        ...

    async def close(self, limit_s: float = CLOSE_LIMIT_S) -> Left:
        """Hand over what is there; what is left."""
        ...

    @property
    def counts(self) -> Counts:
        """What became of all that was recorded."""
        ...

    @property
    def is_forked(self) -> bool:
        """Whether this is a child process, and the connection its parent's: nothing of it may be touched."""
        ...


class Reporter:
    """The outbox of one process. `enqueue` and `counts` may be used from any thread, the rest belongs to the
    link's event loop.

    replica    name of this machine in the fleet; raises `NameRefused` if it is empty or over 256 bytes
    capacity   events that wait behind those on their way, 1 or more
    on_ack     called in the loop for each event that is in the log
    """

    def __init__(self, link: Link, *, replica: str, capacity: int = CAPACITY, on_ack: OnAck | None = None) -> None:
        try:
            named = bool(token(replica)) and bool(replica.encode())
        except (NameRefused, UnicodeEncodeError):
            named = False
        if not named:
            raise NameRefused("replica", replica, "a name of 1 to 256 bytes, unique in the fleet")
        self.boot = os.urandom(8).hex()
        """16 hex digits that tell this process's events from all others; an event's id is `<boot>-<n>`."""
        self.replica = replica
        self._on_ack = on_ack
        # Re-entrant: a signal handler or a destructor may record while its own thread records.
        self._lock = threading.RLock()
        self._link, self._capacity = link, capacity
        self._backlog = Backlog(capacity)
        self._n = 0
        self._rejected: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._given_up: Counter[str] = Counter()
        self._acked = 0
        self._lines = Throttled(SAY_EVERY_S)
        self._closing = ""  # why nothing is taken any more
        self._empty: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._woken = False
        self._flight = self._new_flight()
        _alive.add(self)

    def _new_flight(self) -> InFlight:
        return InFlight(
            self._link,
            self._take,
            boot=self.boot,
            replica=self.replica,
            acked=self._on_acked,
            given_up=self._on_given_up,
            say=self._say,
        )

    def enqueue(self, target: Target, event: Reportable) -> int:
        """Queue one event. Never blocks and never raises. `id` and `queued_ms` are the reporter's to fill.

        Returns the event's number, from 1, or 0 if it was rejected: bad input is counted under its field in
        `counts.rejected` and logged, with the field and the accepted form.
        """
        try:
            if self._closing:
                return self._reject(self._closing, _CLOSED[self._closing])
            return self._queue(target, fit(target, event))
        except NotReportable as error:
            return self._reject(error.field.partition("[")[0], str(error))
        except Exception as error:  # noqa: BLE001 - nothing on a router's request path raises
            return self._reject("event", f"{type(error).__name__}: {error}")

    def _queue(self, target: Target, event: Reportable) -> int:
        with self._lock:
            self._n += 1
            n = self._n
            dropped = self._backlog.add(QueuedEvent(n, target, event, time.monotonic()))
            if dropped is not None:
                self._dropped[label(dropped.event)] += 1
            wake = not self._woken and self._loop is not None
            self._woken = self._woken or wake
        if dropped is not None:
            self._say(logging.WARNING, "dropped", "the outbox is full: outcomes are dropped, successes first")
        if wake:
            self._wake()
        return n

    def start(self) -> None:
        """Begin to send, in the running event loop, which is the link's. A second call does nothing."""
        if self._loop is not None or self._closing:
            return
        self._loop_thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        self._flight.start()
        self._loop.call_soon(self._run)

    async def close(self, limit_s: float = CLOSE_LIMIT_S) -> Left:
        """Take nothing more, hand over what is there within `limit_s` seconds, say what is left. Never raises.

        A second call says the same again at once.
        """
        first = not self._closing
        if self._closing == "forked":
            return Left({})
        with self._lock:
            self._closing = "closed"
        if first and self._loop is not None:
            self._empty = asyncio.Event()
            self._run()
            try:
                await asyncio.wait_for(self._empty.wait(), limit_s)
            except TimeoutError:
                pass
            finally:
                await self._flight.close()
        left = self.left()
        if first and left:
            kinds = ", ".join(f"{count} {kind}" for kind, count in left.by_kind.items())
            _log.warning("closed with %d outcomes left: %s", left.total, kinds, extra={"left": left.by_kind})
        return left

    @property
    def is_forked(self) -> bool:
        """Whether this is a child process, and the connection another's: nothing of it may be touched."""
        return self._closing == "forked"

    @property
    def counts(self) -> Counts:
        """The counts as they stand now."""
        flight = self._flight
        with self._lock:
            return Counts(
                recorded=self._n,
                acked=self._acked,
                duplicates=flight.duplicates,
                resent=flight.resent,
                late=flight.late,
                queued=len(self._backlog),
                unacknowledged=len(flight.entries),
                rejected=dict(self._rejected),
                dropped=dict(self._dropped),
                given_up=dict(self._given_up),
                blocked=flight.blocked,
                why=flight.why,
            )

    def left(self) -> Left:
        """What is not handed over at this moment. From any thread."""
        with self._lock:
            waiting = self._backlog.entries()
        on_way = list(self._flight.entries.values())
        return Left(count_by_label([*on_way, *waiting]), sum(entry.sends > 0 for entry in on_way))

    def _wake(self) -> None:
        loop = self._loop
        assert loop is not None
        try:
            if threading.get_ident() == self._loop_thread:
                loop.call_soon(self._run)
            else:
                loop.call_soon_threadsafe(self._run)
        except RuntimeError:
            pass  # the loop is closed and the reporter was not: what is queued stays queued

    def _run(self) -> None:
        with self._lock:
            self._woken = False
        self._flight.pump()
        self._check_empty()

    def _take(self, count_max: int, oldest_n: int | None) -> list[QueuedEvent]:
        with self._lock:
            return self._backlog.take(count_max, oldest_n)

    def _on_acked(self, entry: QueuedEvent, seq: int) -> None:
        with self._lock:
            self._acked += 1
        if self._on_ack is not None:
            try:
                self._on_ack(entry.target, entry.event, entry.n, seq)
            except Exception:  # noqa: BLE001 - the event is in the log whatever its listener does
                _log.exception("the listener for acknowledgements failed")
        self._check_empty()

    def _on_given_up(self, entry: QueuedEvent, why: str) -> None:
        name = label(entry.event)
        with self._lock:
            self._given_up[name] += 1
        self._say(logging.ERROR, "given up", f"outcome {name} given up: {why}")
        self._check_empty()

    def _check_empty(self) -> None:
        if self._empty is not None and not self._flight.entries and not len(self._backlog):
            self._empty.set()

    def _reject(self, field: str, why: str) -> int:
        try:
            with self._lock:
                self._rejected[field] += 1
            self._say(logging.ERROR, f"rejected {field}", f"outcome rejected: {why}")
        except Exception:  # noqa: BLE001, S110 - see enqueue
            pass
        return 0

    def _say(self, level: int, key: str, text: str) -> None:
        """Log, but each key at most once in `SAY_EVERY_S`, with the count of those in between."""
        if count := self._lines.due(key):
            more = f" ({count - 1} more like this since the last line)" if count > 1 else ""
            _log.log(level, "%s%s", text, more, extra={"reporter": key, "replica": self.replica, "quiet": count - 1})

    def _forked(self) -> None:
        """In a child process: the connection, the loop and the boot are the parent's, unless it had not begun yet."""
        self._lock = threading.RLock()  # another thread of the parent may hold the old one for ever
        if self._loop is not None or self._closing:
            self._closing = "forked"
            return
        self.boot, self._n, self._backlog = os.urandom(8).hex(), 0, Backlog(self._capacity)
        self._flight = self._new_flight()


_CLOSED: Final = {
    "closed": "the reporter is closed",
    "forked": (
        "this connection belongs to the parent process; after a fork call sickbay.connect() in the child"
        " (sickbay.sync does so by itself)"
    ),
}
_alive: Final[WeakSet[Reporter]] = WeakSet()


def _after_fork_in_child() -> None:
    for reporter in list(_alive):
        reporter._forked()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
