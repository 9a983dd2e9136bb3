"""What a gate knows of the cluster: the entries, the policy in force, their age, and the log's time.

No network in here: the mirror reads the bucket and puts in what it finds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from sys import intern
from typing import Any, Final

import msgspec

from sickbay_events import Checkpoint, GateEntry, Policy, PolicyRefused
from sickbay_events.view import CHECKPOINT_KEY, POLICY_KEY, PolicyInForce

from ..bus.link import call_listeners
from ..loggers import logger
from ..throttled import Throttled
from .clock import LogClock
from .digest_map import Change

_log = logger("sickbay.mirror")

STALE_S: Final = 3.0
"""An older answer is called stale (Rule 5.3); a standby takes over within this time."""
SWEEP_S: Final = 5.0
"""How often expired entries are dropped."""
SAY_EVERY_S: Final = 60.0
"""What is not readable is said at most so often, of each sort."""
VERSION: Final = 1

Changed = Callable[[str, GateEntry | None, GateEntry | None], None]
"""Called with the scope key, the entry before and the entry now."""
PolicyTaken = Callable[[Policy, int], None]
"""Called with the policy in force and its log sequence."""
Passed = Callable[[int], None]
"""Called with the log sequence up to which the cluster has folded, at each checkpoint of a live projector."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_entry: Final = msgspec.json.Decoder(GateEntry)
_checkpoint: Final = msgspec.json.Decoder(Checkpoint)
_policy: Final = msgspec.json.Decoder(PolicyInForce)


class View:
    """The cluster's entries by scope key, with their age and the log's time.

    Changed in one event loop; reading `entries`, `seq`, `age_s()` and `now_ms()` is safe from any thread.
    """

    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.entries: dict[str, GateEntry] = {}
        self.seq = 0
        """The largest log sequence in an entry or a checkpoint: `seen_seq` of a call that starts (Rule 4, After)."""
        self.policy = Policy()
        self.policy_seq = 0
        self.checkpoint: Checkpoint | None = None
        self.is_loaded = False
        """Whether the bucket was read once; before that nothing is known."""
        self.is_heard = False
        """Whether it was read and something came by the feed, so that the log's time is known too."""
        self.fresh_at_s = monotonic()
        """Monotonic time of the last checkpoint that a live projector wrote; before the first, of the beginning."""
        self.counts: Counter[str] = Counter()
        """How many entries were not readable: `body`, `version`, `policy`."""
        self.resyncs = 0
        """How often the bucket was paged through; never, for a view that follows nothing."""
        self.clock = LogClock(monotonic, wall)
        self._monotonic = monotonic
        self._changed: list[Changed] = []
        self._policy_taken: list[PolicyTaken] = []
        self._passed: list[Passed] = []
        self._on_loaded: list[Callable[[], None]] = []
        self._lines = Throttled(SAY_EVERY_S, monotonic)
        self._sweep_at_s = monotonic() + SWEEP_S

    def start(self) -> None:
        """Begin to follow the cluster. This class follows nothing; `Mirror` does."""

    async def stop(self) -> None:
        """Stop following; what is known stays and grows old. Never raises."""

    async def wait_loaded(self, timeout_s: float | None = None) -> bool:  # noqa: ARG002 - for `Mirror`
        """Wait until the bucket was read once; False if that took longer than `timeout_s` (None: no limit)."""
        return self.is_loaded

    def listen(
        self,
        *,
        changed: Changed | None = None,
        policy: PolicyTaken | None = None,
        passed: Passed | None = None,
        loaded: Callable[[], None] | None = None,
    ) -> None:
        """Add listeners, called in the loop; what they raise is logged. `is_loaded` is False in the first load."""
        if changed is not None:
            self._changed.append(changed)
        if policy is not None:
            self._policy_taken.append(policy)
        if passed is not None:
            self._passed.append(passed)
        if loaded is not None:
            self._on_loaded.append(loaded)

    def age_s(self) -> float:
        """Seconds since the last checkpoint that a live projector wrote; before the first, since this began."""
        return self._monotonic() - self.fresh_at_s

    def now_ms(self) -> int:
        """Asked-at in log time (Rule 6), ms since the epoch."""
        return self.clock.now_ms()

    @property
    def is_stale(self) -> bool:
        """Whether what is said of these entries is stale (Rule 5.3): they are old, or nothing was heard yet."""
        return not self.is_heard or self.age_s() > STALE_S

    def put(self, key: str, entry: GateEntry | None) -> None:
        """Set the entry of a scope key and call the listeners."""
        old = self.entries.get(key)
        if entry is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = entry
            self.seq = max(self.seq, entry.seq)
        if old is not None or entry is not None:
            self._call(self._changed, key, old, entry)

    def take(self, change: Change) -> None:
        """Take one changed entry, or the policy in force; a checkpoint is taken by `take_checkpoint`."""
        if change.key == CHECKPOINT_KEY:
            return
        if change.key == POLICY_KEY:
            self._take_policy(change)
            return
        entry = None
        if change.value is not None:
            try:
                entry = _entry.decode(change.value)
            except _UNREADABLE as error:
                self._unreadable("body", change, str(error))
            else:
                if entry.v > VERSION:
                    self._unreadable("version", change, f"v {entry.v} is higher than {VERSION}")
                    entry = None
        if entry is not None:
            _slim(entry)
        self.put(change.key, entry)

    def _take_policy(self, change: Change) -> None:
        if change.value is None:
            return
        try:
            in_force = _policy.decode(change.value)
            if in_force.v > VERSION:
                self._unreadable("version", change, f"v {in_force.v} is higher than {VERSION}")
                return
            self.policy, self.policy_seq = Policy.from_data(in_force.policy), in_force.seq
        except (*_UNREADABLE, PolicyRefused) as error:
            self._unreadable("policy", change, str(error))
            return
        self._call(self._policy_taken, self.policy, self.policy_seq)

    def take_checkpoint(self, change: Change, now_s: float, *, fetched_ms: int | None = None) -> Checkpoint | None:
        """Take a checkpoint; None if it is not readable. `fetched_ms` is the server's time of one that was fetched."""
        checkpoint = self._read_checkpoint(change)
        if checkpoint is None:
            return None
        before, self.checkpoint = self.checkpoint, checkpoint
        if before is not None and (before.log_created != checkpoint.log_created or checkpoint.seq < before.seq):
            # Another log, or one that lost its end. It gives its sequences again, and a call must not claim to have
            # seen an event that only has the number of an old one.
            self.seq = 0
        self.seq = max(self.seq, checkpoint.seq)
        if checkpoint.live:
            age_s = 0.0 if fetched_ms is None else max(0.0, (self.now_ms() - fetched_ms) / 1000)
            # The first checkpoint tells how old the view is. Later a fetched one can only make it younger.
            known_s = now_s - age_s if before is None else self.fresh_at_s
            self.fresh_at_s = max(known_s, now_s - age_s)
            self._call(self._passed, checkpoint.seq)
        return checkpoint

    def _read_checkpoint(self, change: Change) -> Checkpoint | None:
        if change.value is None:
            return None
        try:
            checkpoint = _checkpoint.decode(change.value)
        except _UNREADABLE as error:
            self._unreadable("body", change, str(error))
            return None
        if checkpoint.v > VERSION:
            self._unreadable("version", change, f"v {checkpoint.v} is higher than {VERSION}")
            return None
        return checkpoint

    def loaded(self) -> None:
        """The bucket was read."""
        if not self.is_loaded:
            self._call(self._on_loaded)
        self.is_loaded = True
        self.is_heard = self.clock.heard

    def sweep(self) -> None:
        """Drop expired entries, at most every `SWEEP_S` seconds, however often it is called."""
        now_s = self._monotonic()
        if now_s < self._sweep_at_s:
            return
        self._sweep_at_s = now_s + SWEEP_S
        now_ms = self.now_ms()
        for key in [key for key, entry in self.entries.items() if 0 < entry.expires_ms <= now_ms]:
            del self.entries[key]

    def _call(self, listeners: list[Any], *arguments: object) -> None:
        call_listeners(_log, "the mirror", listeners, *arguments)

    def _unreadable(self, what: str, change: Change, why: str) -> None:
        self.counts[what] += 1
        if self._lines.due(what):
            _log.warning(
                "entry %s (revision %d) is not readable and ignored: %s (%s so far: %d)",
                change.key, change.revision, why, what, self.counts[what],
            )  # fmt: skip


def _slim(entry: GateEntry) -> None:
    """Drop the texts that are for people only and share those that repeat, which saves half of an entry's memory."""
    force = msgspec.structs.force_setattr
    force(entry, "until", "")
    force(entry, "at", "")
    force(entry, "provider", intern(entry.provider))
    force(entry, "reason", intern(entry.reason))
    for hold in entry.holds:
        force(hold, "until", "")
        force(hold, "rule", intern(hold.rule))
        if hold.kind is not None:
            force(hold, "kind", intern(hold.kind))
