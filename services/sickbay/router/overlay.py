"""This replica's own outcomes, folded at once: it reacts without a round trip, and goes on alone when NATS is gone.

The folds are the cluster's, on this replica's own outcomes, with its own counter as sequence and `seen_seq`. A local
hold is tried and ends by the same times as one of the cluster's, and ends by a release or clear of the cluster that is
later in the log than the hold's evidence (Rule 5.3). Where the cluster holds the same scope by the same rule, the local
hold says nothing (`without_shared`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from sickbay_events import CallAnswered, CallOutcome, Event, GateEntry, Override, Policy, PolicyChanged, Scope, Target
from sickbay_events.outcome import Lease
from sickbay_events.view import HoldView
from sickbay_projections import Fleet, Recorded

from ..loggers import logger

_log = logger("sickbay.overlay")

TARGETS_MAX: Final = 10_000
"""Targets a router remembers by itself at most; the cluster remembers more."""
IDLE_S_MAX: Final = 3_600.0
"""A target that this replica did not call for so long, and that has no hold, leaves the overlay."""
PENDING_MAX: Final = 1_000
"""Without an event loop the queue is folded when it is this long."""
UNACKNOWLEDGED_MAX: Final = 12_000
"""More than a reporter keeps. The oldest are forgotten; their holds then run to their own end."""
_OWN_END: Final = ("throttle",)
"""Rules whose local holds run to their own end, unless the cluster held the same scope by that rule and released it."""


class Mark(msgspec.Struct):
    """What the overlay knows of one local hold, beside the state of the fold."""

    key: str
    rule: str
    began_seq: int
    log_seq: int | None = None
    """Log sequence of the event that began it; None until that is acknowledged."""


class Overlay:
    """One replica's own fold.

    now_ms     the time now, in log time
    cluster    the mirror's entries by scope key
    `observe` may be called from any thread; the fold is guarded by a lock.
    """

    def __init__(self, *, now_ms: Callable[[], int], cluster: Mapping[str, GateEntry], replica: str = "") -> None:
        self.marked: set[str] = set()
        """Scope keys with an entry here, or with outcomes that are not folded yet: a decision has to look at them."""
        self.on_changed: Callable[[str], None] = _ignore
        """Called with each scope key whose decisions may have changed."""
        self.seq = 0
        """This replica's own counter; its value when a call starts is the call's local `seen_seq`."""
        self.counts: Counter[str] = Counter()
        """`folded`, `failed`, `ended_by_cluster`."""
        self._now_ms, self._cluster, self._replica = now_ms, cluster, replica
        self._policy = Policy()
        self._fleet = Fleet(router_policy(self._policy), overlay=True)
        self.lock = threading.RLock()
        """To be held from the reporter's numbering of an event until `observe` has noted the number. Otherwise the
        acknowledgement could come first, and find nothing (`Sickbay._report`)."""
        self._pending: deque[tuple[int, int, Target, Event]] = deque()
        self._unacknowledged: OrderedDict[int, int] = OrderedDict()
        self._marks: dict[str, dict[str, Mark]] = {}
        self._by_began: dict[int, list[Mark]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._ticking = False

    def start(self) -> None:
        """Fold by the ticks of the running event loop from now on."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()

    def observe(
        self,
        target: Target,
        event: Event,
        *,
        seen: int | None = None,
        trial: list[Lease] | None = None,
        n: int = 0,
    ) -> None:
        """Queue one own outcome. `seen` is `seq` when the call started, `trial` names the holds of this overlay whose
        trial it was (the event's own names are the cluster's), `n` is the reporter's number of it."""
        if isinstance(event, CallOutcome | CallAnswered):
            event = msgspec.structs.replace(event, seen_seq=seen, trial=trial, id=None)
        with self.lock:
            self.seq += 1
            self._pending.append((self.seq, self._now_ms(), target, event))
            self.marked.add(target.key)
            self.on_changed(target.key)
            if n:
                self._unacknowledged[n] = self.seq
                if len(self._unacknowledged) > UNACKNOWLEDGED_MAX:
                    self._unacknowledged.popitem(last=False)
            tick = not self._ticking and self._loop is not None
            self._ticking = self._ticking or tick
        if tick:
            self._schedule()
        elif len(self._pending) > PENDING_MAX:
            self.fold()

    def _schedule(self) -> None:
        assert self._loop is not None
        try:
            if threading.get_ident() == self._loop_thread:
                self._loop.call_soon(self.fold)
            else:
                self._loop.call_soon_threadsafe(self.fold)
        except RuntimeError:
            self._loop = None  # closed: from now on decisions fold what is pending

    @property
    def is_pending(self) -> bool:
        """Whether outcomes wait to be folded."""
        return bool(self._pending)

    def fold(self) -> None:
        """Fold what is pending. Never raises: an outcome that cannot be folded is counted and dropped."""
        with self.lock:
            self._ticking = False
            touched: set[str] = set()
            while self._pending:
                seq, time_ms, target, event = self._pending.popleft()
                touched.update(target.keys)
                try:
                    self._fleet.apply(Recorded(event, target=target, replica=self._replica, seq=seq, time_ms=time_ms))
                    self.counts["folded"] += 1
                except Exception:  # noqa: BLE001 - a router goes on whatever the fold does
                    self.counts["failed"] += 1
                    _log.exception("the overlay could not fold an outcome")
            changed = self._fleet.take_changed()
            touched.update(changed)
            for key in touched:
                self._sync(key)
            for key in changed:
                self.on_changed(key)

    def entry(self, key: str, now_ms: int) -> GateEntry | None:
        """This replica's own entry of a scope, without what has ended; None if there is nothing."""
        with self.lock:
            entry = self._fleet.entry(key)
            if entry is not None and entry.expires_ms <= now_ms:
                entry = None
            if entry is None:
                self.marked.discard(key)
                return None
            return entry

    def set_policy(self, policy: Policy, _seq: int = 0) -> None:
        """Use another policy from now on; what was folded stands."""
        with self.lock:
            self.fold()
            self._policy = policy
            self._apply(PolicyChanged(policy=router_policy(policy).to_data()))

    # What the cluster says.

    def acknowledged(self, _target: Target, _event: Event, n: int, log_seq: int) -> None:
        """The reporter's event number `n` stands in the log at `log_seq`."""
        with self.lock:
            own_seq = self._unacknowledged.pop(n, 0)
            if not own_seq:
                return
            if self._pending:
                self.fold()
            for mark in self._by_began.get(own_seq, ()):
                mark.log_seq = log_seq
                self._review(mark)

    def cluster_changed(self, key: str, old: GateEntry | None, new: GateEntry | None) -> None:
        """An entry of the cluster changed: a release or clear may end local holds of this scope or below."""
        if new is None or not self._marks:
            return
        with self.lock:
            if old is not None:
                self._released(key, old, new)
            if new.holds and new.cleared_seq is None:
                return
            for at in list(self._marks):
                if at == key or at.startswith(key + "."):
                    for mark in list(self._marks.get(at, {}).values()):
                        self._review(mark)

    def _released(self, key: str, old: GateEntry, new: GateEntry) -> None:
        """End the local throttle if the cluster's was released. No other release concerns it."""
        gone = {hold.rule for hold in old.holds} - {hold.rule for hold in new.holds}
        for rule in gone.intersection(_OWN_END):
            mark = self._mark(key, rule)
            if mark is not None and mark.log_seq is not None and new.seq > mark.log_seq:
                self.counts["ended_by_cluster"] += 1
                self._end(mark)

    def _review(self, mark: Mark) -> None:
        if mark.log_seq is None or self._mark(mark.key, mark.rule) is not mark:
            return
        if self._released_after(mark, mark.log_seq):
            self.counts["ended_by_cluster"] += 1
            self._end(mark)

    def _released_after(self, mark: Mark, log_seq: int) -> bool:
        own = self._cluster.get(mark.key)
        if own is not None and not own.holds and own.by is not None and own.seq > log_seq and mark.rule not in _OWN_END:
            return True
        entries = [self._cluster.get(key) for key in _nested(mark.key)]
        return any(entry is not None and (entry.cleared_seq or 0) > log_seq for entry in entries)

    def _end(self, mark: Mark) -> None:
        # By a clear: the next hold needs the full evidence again.
        self._apply(
            Override(action="clear", reason="the cluster holds nothing", actor="overlay"), Scope.of_key(mark.key)
        )
        self._drop(mark)

    def _apply(self, event: Event, scope: Scope | None = None) -> None:
        self.seq += 1
        try:
            self._fleet.apply(Recorded(event, scope=scope, replica=self._replica, seq=self.seq, time_ms=self._now_ms()))
        except Exception:  # noqa: BLE001 - see fold
            self.counts["failed"] += 1
            _log.exception("the overlay could not take an act")
        self._take_changed()

    def _take_changed(self) -> None:
        for key in self._fleet.take_changed():
            self._sync(key)
            self.on_changed(key)

    # Marks.

    def _sync(self, key: str) -> None:
        """Bring `marked` and the marks of one scope in line with the state of the fold."""
        entry = self._fleet.entry(key)
        holds: dict[str, HoldView] = {hold.rule: hold for hold in entry.holds} if entry is not None else {}
        if entry is None:
            self.marked.discard(key)
        else:
            self.marked.add(key)
        for rule, hold in holds.items():
            mark = self._mark(key, rule)
            if mark is None or mark.began_seq != hold.began_seq:
                if mark is not None:
                    self._drop(mark)
                mark = Mark(key, rule, hold.began_seq)
                self._marks.setdefault(key, {})[rule] = mark
                self._by_began.setdefault(hold.began_seq, []).append(mark)
        for mark in [mark for rule, mark in self._marks.get(key, {}).items() if rule not in holds]:
            self._drop(mark)

    def _mark(self, key: str, rule: str) -> Mark | None:
        return self._marks.get(key, {}).get(rule)

    def _drop(self, mark: Mark) -> None:
        marks = self._marks.get(mark.key, {})
        if marks.get(mark.rule) is mark:
            del marks[mark.rule]
        if not marks:
            self._marks.pop(mark.key, None)
        same = self._by_began.get(mark.began_seq, [])
        if mark in same:
            same.remove(mark)
        if not same:
            self._by_began.pop(mark.began_seq, None)


def _ignore(_key: str) -> None:
    """There is no listener yet."""


def _nested(key: str) -> list[str]:
    """A scope key and those of the scopes around it, widest first."""
    parts = key.split(".")
    return [".".join(parts[: depth + 1]) for depth in range(len(parts))]


def router_policy(policy: Policy) -> Policy:
    """A policy with the bounds of a router instead of the fleet's."""
    bounds = policy.bounds
    smaller = msgspec.structs.replace(
        bounds,
        targets=min(bounds.targets, TARGETS_MAX),
        idle_s=min(bounds.idle_s, IDLE_S_MAX),
        new_targets_per_hour=TARGETS_MAX,  # they are this replica's own calls
    )
    return msgspec.structs.replace(policy, bounds=smaller)
