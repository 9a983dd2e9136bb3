"""May this target be called now? Answered from memory: what the mirror holds, and what this replica saw itself."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from sickbay_events import Decision, NameRefused, Target, TokenRefused
from sickbay_events.names import at_machine
from sickbay_events.view import HoldView
from sickbay_projections import decide_entries
from sickbay_projections.weighing import (
    Entries,
    LeaseNeeded,
    alive,
    denying,
    leases_needed,
    moments,
    stricter,
    without_shared,
)

from ..loggers import logger
from ..view.entries import STALE_S, View
from .denials import SAY_EVERY_S, DenialCount, Denials, KeptAway
from .overlay import Overlay

_log = logger("sickbay.gate")

KNOWN_MAX: Final = 131_072
"""Up to so many targets have their scope keys kept; with more, all are dropped and computed again."""
KEPT_MS: Final = 60_000
"""A cached decision is made anew after so long at the latest."""
STALE_AGAIN_MS: Final = 1_000
"""So often a decision by a stale view and this replica's own holds is made anew."""


class _Known(NamedTuple):
    """What is remembered of a target that was asked about."""

    keys: tuple[str, str, str]
    """Scope keys of host, credential and model."""
    canonical: Target | None


class CachedDecision:
    """A decision as it stands for a while: until something of the target changes, or a moment at which time alone
    changes it. All that a denial costs then is a comparison and the `Decision` itself."""

    __slots__ = ("count", "decision", "end_ms", "from_ms", "is_local", "is_shadowed", "until_ms")

    def __init__(self, decision: Decision, from_ms: int, until_ms: int) -> None:
        self.decision = decision
        self.from_ms, self.until_ms = from_ms, until_ms
        self.end_ms = from_ms + round(decision.retry_in_s * 1000)
        self.is_local = decision.source == "local"
        self.is_shadowed = False
        self.count: DenialCount | None = None


class Inspection(NamedTuple):
    """The state of a target, without a call being counted."""

    decision: Decision
    stands_s: float
    """Seconds for which time alone does not change the decision."""
    holds: list[HoldView]
    """Holds that deny now, of every scope and rule."""


Denied = Callable[[Target, Decision, int], None]


class Gate:
    """One replica's decisions. `decide` may be called from any thread.

    replica, machine   names of this replica and of the machine it runs on
    counts             `no_target`, `name_refused`, `denied`, `shadow` (let pass, but a rule in shadow holds),
                       `failed` (an error in the gate itself: the call was allowed)
    """

    def __init__(
        self,
        view: View,
        overlay: Overlay,
        *,
        replica: str = "",
        machine: str = "",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._view, self._overlay = view, overlay
        self._replica, self._machine = replica, machine
        self.on_denied: Denied | None = None
        """Called with the first denial of a target and rule, then once a minute with how many there were since."""
        self.on_touched: Callable[[str], None] | None = None
        """Called with the scope key of everything that changed, in the thread that changed it."""
        self.denials = Denials()
        self._monotonic = monotonic
        self._entries = view.entries
        self._marked = overlay.marked
        self._keys: dict[Target, _Known] = {}
        # Targets of which nothing is held or pending: for most decisions a look into this set is enough. Every change
        # to a target removes it. The generation is raised between the change and the removal, so that a thread that
        # adds the target at that moment notices.
        self._free: set[Target] = set()
        self._generation = 0
        self._cached: dict[Target, CachedDecision] = {}
        self._replicas = 0
        view.listen(changed=lambda key, _old, _new: self._touch(key), passed=self._on_checkpoint)
        overlay.on_changed = self._touch

    def decide(self, target: Target) -> Decision:
        """Decide by Rule 5.1. No I/O, never raises: an error in the gate itself is logged, and the call allowed."""
        try:
            if target in self._free:
                return self._pass()
            cached = self._cached.get(target)
            if cached is not None:
                now_s = self._monotonic()
                clock = self._view.clock
                now_ms = int(clock.offset_ms + now_s * 1000) if clock.heard else self._view.now_ms()
                if cached.from_ms <= now_ms < cached.until_ms:
                    return self._repeat(cached, now_s, now_ms)
            if self._is_free(target):
                return self._pass()
            return self._weigh(target)
        except Exception:  # noqa: BLE001 - nothing on a router's request path raises
            self.counts["failed"] += 1
            if self.counts["failed"] in (1, 10, 100) or self.counts["failed"] % 1000 == 0:
                _log.exception("a decision failed (%d so far); the call is let pass", self.counts["failed"])
            return self._allow("ok")

    def _pass(self) -> Decision:
        view = self._view
        age_s = self._monotonic() - view.fresh_at_s
        return Decision(
            allowed=True,
            reason="ok",
            seq=view.seq,
            age_s=age_s,
            source="cluster" if view.is_heard and age_s <= STALE_S else "stale",
        )

    def target_of(self, target: Target) -> Target:
        """The target as the log knows it: a loopback provider gets this machine's name."""
        provider = at_machine(target.provider, self._machine)
        return target if provider is target.provider or provider == target.provider else Target(provider, target.model)

    def _allow(self, reason: str) -> Decision:
        age_s = self._view.age_s()
        return Decision(allowed=True, reason=reason, seq=self._view.seq, age_s=age_s, source=self._source())

    def _source(self) -> Literal["cluster", "stale"]:
        return "stale" if self._view.is_stale else "cluster"

    def _touch(self, key: str) -> None:
        """Something of this scope changed: decisions about its targets are made anew."""
        self._generation += 1
        self._forget(key)
        if self.on_touched is not None:
            self.on_touched(key)

    def _forget(self, key: str) -> None:
        if not self._free and not self._cached:
            return
        if key.count(".") < 2:
            self._free.clear()
            self._cached.clear()
        else:
            with suppress(TokenRefused):  # no target has such a key
                target = Target.of_key(key)
                self._free.discard(target)
                self._cached.pop(target, None)

    def _on_checkpoint(self, _seq: int) -> None:
        """A checkpoint came. How many replicas it counts decides whether there is a ramp."""
        checkpoint = self._view.checkpoint
        replicas = checkpoint.replicas if checkpoint is not None else 0
        if replicas != self._replicas:
            self._replicas = replicas
            self._generation += 1
            self._cached.clear()

    def _is_free(self, target: Target) -> bool:
        """Whether nothing is known of any of the target's scopes; remembers it if so."""
        generation = self._generation
        known = self._keys.get(target) or self._learn(target)
        if known is None:
            return False
        for key in known.keys:
            if key in self._entries or key in self._marked:
                return False
        if known.canonical is not None:
            self._free.add(known.canonical)
            if generation != self._generation:
                self._free.discard(known.canonical)
        return True

    def _learn(self, target: Target) -> _Known | None:
        """Scope keys of a target; None if it is none."""
        if target.is_empty:
            self.counts["no_target"] += 1
            return None
        try:
            named = self.target_of(target)
            keys = named.keys
        except NameRefused as error:
            if not self.counts["name_refused"]:
                _log.warning("asked about a target whose name cannot be used (further ones are counted): %s", error)
            self.counts["name_refused"] += 1
            return None
        if len(self._keys) >= KNOWN_MAX:
            self._keys.clear()
            self._free.clear()
            self._cached.clear()
        # A change names a key. Only a target that can be found from its key may be cached.
        canonical = named if named == target and Target.of_key(keys[2]) == target else None
        known = self._keys[target] = _Known(keys, canonical)
        return known

    def _weigh(self, target: Target) -> Decision:
        generation = self._generation
        known = self._keys.get(target)
        if known is None:
            return self._allow("no_target")
        cluster, own, now_ms = self._entries_of(known)
        decision = self._decide(cluster, own, now_ms)
        until_ms = min(self._moments(cluster, own, now_ms), default=now_ms + KEPT_MS)
        cached = CachedDecision(decision, now_ms, min(until_ms, now_ms + KEPT_MS))
        cached.is_shadowed = decision.reason == "ok" and any(
            not hold.enforced and now_ms < hold.end_ms for entry in (*cluster, *own) if entry for hold in entry.holds
        )
        if not decision.allowed:
            cached.count = self.denials.count_of(self.target_of(target), decision.rule or "", decision.reason)
            is_own = decision.source == "local"
            ends_ms = [hold.end_ms for hold in denying(own, now_ms, self._replica)] if is_own else []
            cached.count.alone_until_ms = max(ends_ms, default=0)
        if known.canonical is not None:
            self._cached[known.canonical] = cached
            if generation != self._generation:
                self._cached.pop(known.canonical, None)
        return self._repeat(cached, self._monotonic(), now_ms)

    def _entries_of(self, known: _Known) -> tuple[Entries, Entries, int]:
        """What stands for host, credential and model: the cluster's entries, this replica's own, and at what time."""
        if self._overlay.is_pending:
            self._overlay.fold()
        now_ms = self._view.now_ms()
        cluster = [alive(self._entries.get(key), now_ms) for key in known.keys]
        own: Entries = [self._overlay.entry(key, now_ms) if key in self._marked else None for key in known.keys]
        return cluster, own if self._view.is_stale else without_shared(cluster, own, now_ms), now_ms

    def _decide(self, cluster: Entries, own: Entries, now_ms: int) -> Decision:
        checkpoint = self._view.checkpoint
        replicas = checkpoint.replicas if checkpoint is not None else 0
        decision = decide_entries(cluster, now_ms, self._replica, replicas=replicas)
        if any(own) and decision.reason != "allowed_by_operator":
            decision = stricter(decision, decide_entries(own, now_ms, self._replica, source="local"))
        return decision

    def _moments(self, cluster: Entries, own: Entries, now_ms: int) -> Iterator[int]:
        """The moments after `now_ms` at which time alone may change the decision."""
        yield from moments(cluster, now_ms, self._replica)
        yield from moments(own, now_ms, self._replica)
        if any(own):  # which of them are silent changes when the view becomes stale, and when it no longer is
            left_ms = math.ceil(1000 * (STALE_S - self._view.age_s()))
            yield now_ms + (STALE_AGAIN_MS if self._view.is_stale else left_ms + 1)

    def _repeat(self, cached: CachedDecision, now_s: float, now_ms: int) -> Decision:
        """The cached decision as of now; a denial is counted."""
        view, said, denial = self._view, cached.decision, cached.count
        age_s = now_s - view.fresh_at_s
        if cached.is_shadowed:
            self.counts["shadow"] += 1
        decision = Decision(
            allowed=said.allowed,
            reason=said.reason,
            scope=said.scope,
            rule=said.rule,
            retry_in_s=0.0 if denial is None else (cached.end_ms - now_ms) / 1000,
            trial=said.trial,
            began_seq=said.began_seq,
            seq=view.seq,
            age_s=age_s,
            source="local" if cached.is_local else "cluster" if view.is_heard and age_s <= STALE_S else "stale",
        )
        if denial is not None:
            self.counts["denied"] += 1
            denial.count += 1
            if now_s >= denial.log_at_s:
                self._report_denial(denial, decision, now_s)
        return decision

    def look(self, target: Target) -> Inspection:
        """What `decide` would say, for how long, and all holds behind it; counts no call. Never raises."""
        try:
            if target in self._free or self._is_free(target):
                return Inspection(self._pass(), math.inf, [])
            known = self._keys.get(target)
            if known is None:
                return Inspection(self._allow("no_target"), math.inf, [])
            cluster, own, now_ms = self._entries_of(known)
            until_ms = min(self._moments(cluster, own, now_ms), default=now_ms + KEPT_MS)
            holds = [*denying(cluster, now_ms, self._replica), *denying(own, now_ms, self._replica)]
            return Inspection(self._decide(cluster, own, now_ms), (until_ms - now_ms) / 1000, holds)
        except Exception:  # noqa: BLE001 - see decide
            self.counts["failed"] += 1
            return Inspection(self._allow("ok"), math.inf, [])

    def count_denial(self, target: Target, decision: Decision) -> None:
        """Count a call that was kept away though `decide` allowed it: another router makes the trial."""
        self.counts["denied"] += 1
        denial = self.denials.count_of(self.target_of(target), decision.rule or "", decision.reason)
        denial.count += 1
        if (now_s := self._monotonic()) >= denial.log_at_s:
            self._report_denial(denial, decision, now_s)

    def uncount_denial(self, target: Target, decision: Decision) -> None:
        """Take a counted denial back: the call is made all the same, as an early trial or a forced call."""
        self.counts["denied"] -= 1
        self.denials.count_of(self.target_of(target), decision.rule or "", decision.reason).count -= 1

    def _report_denial(self, denial: DenialCount, decision: Decision, now_s: float) -> None:
        count, denial.logged = denial.count - denial.logged, denial.count
        denial.log_at_s = now_s + SAY_EVERY_S
        if self.on_denied is not None:
            self.on_denied(denial.target, decision, count)

    def take_denials(self) -> list[KeptAway]:
        """Calls that holds kept away since the last take."""
        taken = self.denials.take()
        if self.denials.drop_idle():
            self._generation += 1
            self._cached.clear()
        return taken

    def wanted(self, target: Target) -> list[LeaseNeeded]:
        """The leases that a trial of this target needs now, widest scope first; empty if no trial is possible."""
        known = self._keys.get(target) or self._learn(target)
        if known is None:
            return []
        cluster, own, now_ms = self._entries_of(known)
        checkpoint = self._view.checkpoint
        replicas = checkpoint.replicas if checkpoint is not None else 0
        return leases_needed(known.keys, cluster, own, now_ms, replica=self._replica, replicas=replicas)
