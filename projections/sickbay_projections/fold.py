"""The one loop: every event of the log, in order, into the state of the fleet (Rule 4).

How a rule plugs in: its file in `rules` makes one `RULE` (`rules.rule.Rule`), which `catalog.RULES` lists. It keeps
what it needs in a slot of `ScopeState` that stays None until needed, and begins and ends holds through `holds`.
What an ordinary success must do stands in `Fleet._outcome` before the quick exit, in place, without a call or an
allocation; the slow way (`outcomes.fold_all`) leaves the same state behind.
Host and credential are nodes like the model: `case.node.host`, `case.node.credential`; holds of theirs begin by
`holds.begin(case, that_node, ...)` and are told with its scope. Their good answers are the newest of their
`children`, kept for each model so that an ordinary success touches one state. A provider without an alias has no
credential scope unless the policy's `single_credential` names its host (Rule 1): the model is held then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sickbay_events.codec import read_subject
from sickbay_events.derived import DerivedEvent
from sickbay_events.errors import NameRefused, Poison, PolicyRefused
from sickbay_events.names import Scope, Target, token, untoken
from sickbay_events.outcome import CallAnswered, CallOutcome, CallsRefused, Event, Override, PolicyChanged, ProbeResult
from sickbay_events.policy import Policy
from sickbay_events.view import Decision, GateEntry

from . import entries
from .alone import AloneHold, HeldAlone
from .decide import decide_entries
from .document import target_document
from .rules import catalog, health, holds, overrides, witnesses
from .rules import warnings as notices
from .rules.columns import GROUPS
from .rules.context import FoldContext
from .rules.evidence import as_outcome, is_repeat
from .rules.health import Health
from .rules.outcomes import fold_all, good_health, take_back
from .state import snapshot
from .state.bounds import Dropped
from .state.dedup import is_first
from .state.limits import HOUR_MS, STEP_BACK_MS
from .state.model import Node, Recorded, Replica, hash_of
from .state.store import Store

ROUTES_MAX: Final = 131_072
"""Subjects whose replica and target are kept at hand."""
SKIPPED_MAX: Final = 32
"""Distinct reasons under which passed messages are counted."""


class Fleet:
    """The whole state: a pure function of the events folded so far."""

    def __init__(self, policy: Policy | None = None, *, overlay: bool = False, store: Store | None = None) -> None:
        """`overlay`: a gate's own fold, where one witness is enough and its own counter is `seq` and `seen_seq`.
        `store`: a state to go on with."""
        self.overlay = overlay
        self.seq = 0
        """Last sequence that was folded or passed."""
        self.time_ms = 0
        """Log time (Rule 6)."""
        self.policy_seq = 0
        self.repeated = 0
        """Events that had been folded before (Rule 4, Once)."""
        self.skipped: dict[str, int] = {}
        """Poison and gaps by reason."""
        self.passed_over: dict[int, str] = {}
        """Sequences of the last call that folded no target, and why: `repeated`, `other` (no room), or the reason of a
        poison. No part of the state."""
        self.alone = HeldAlone()
        """What single replicas keep themselves from, as they said lately. No part of the state."""
        self.store = store or Store(policy if policy is not None else Policy())
        self._routes: dict[str, tuple[Replica, Node]] = {}
        self._case = FoldContext()
        self._case.store, self._case.overlay = self.store, overlay

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.store.policy

    def apply(self, recorded: Recorded) -> list[DerivedEvent]:
        """Fold one event and return what follows from it, in order.

        An event at or below the fleet's own sequence was folded before and changes nothing. Raises
        `NameRefused` for a name too long to be in the log.
        """
        scope, target = recorded.scope, recorded.target
        if isinstance(recorded.event, Override) and scope is None and target is not None:
            scope = target.scope
        key, replica = (target or scope).key if target or scope else "", token(recorded.replica)  # type: ignore[union-attr]
        out = self._case.out = []
        self.passed_over = {}
        if self._advances(recorded.seq, recorded.time_ms):
            self._event(recorded.event, replica, key, target, scope)
        return out

    def apply_many(
        self, subjects: Sequence[str], events: Sequence[Event | Poison], seqs: Sequence[int], times_ms: Sequence[int]
    ) -> list[DerivedEvent]:
        """Fold many events as the log has them; the same as `apply` one by one, and `passed` for poison."""
        out = self._case.out = []
        self.passed_over = {}
        routes, advances, outcome = self._routes, self._advances, self._outcome
        store = self.store
        for subject, event, seq, time_ms in zip(subjects, events, seqs, times_ms, strict=True):
            if self.seq < seq and self.time_ms <= time_ms < store.due_ms:
                self.seq, self.time_ms = seq, time_ms  # as `_advances` does where nothing is due
            elif not advances(seq, time_ms):
                continue
            route = routes.get(subject)
            if route is not None and type(event) is CallOutcome and not route[1].gone:
                outcome(route[0], route[1], event)
            else:
                self._route(subject, event)
        self._case.out = []  # what was told is the caller's alone
        return out

    def passed(self, seq: int, time_ms: int, reason: str) -> None:
        """Go past poison or a gap: it moves the position, is counted, and is part of the state."""
        self.passed_over = {}
        if self._advances(seq, time_ms):
            self._skip(reason)

    # -- the loop ------------------------------------------------------------------------------------

    def _advances(self, seq: int, time_ms: int) -> bool:
        """Move position and log time on to an event; False if it was folded before."""
        if seq > self.seq:
            self.seq = seq
        elif seq:
            return False
        else:
            self.seq += 1
        now_ms = self.time_ms
        if time_ms > now_ms:
            self.time_ms = now_ms = time_ms
        elif now_ms - time_ms >= STEP_BACK_MS:
            self.time_ms = now_ms = time_ms
            self.store.step_back(self.seq, now_ms, catalog.step_back)
        store = self.store
        if now_ms >= store.due_ms:
            swept_hour = store.swept_hour
            store.clean(now_ms)
            if store.swept_hour != swept_hour:
                self._routes.clear()  # replicas may have left
        return True

    def _skip(self, reason: str) -> None:
        self.passed_over[self.seq] = reason
        name = token(reason[:64])
        if name not in self.skipped and len(self.skipped) >= SKIPPED_MAX:
            name = "other"
        self.skipped[name] = self.skipped.get(name, 0) + 1

    def _route(self, subject: str, event: Event | Poison) -> None:
        """Fold an event whose subject was not met before, or that is no plain outcome."""
        if isinstance(event, Poison):
            self._skip(event.reason)
            return
        try:
            address = read_subject(subject)
        except Poison as poison:
            self._skip(poison.reason)
            return
        replica, scope = token(address.replica), address.target or address.scope
        node = self._event(event, replica, scope.key if scope else "", address.target, address.scope)
        if node is not None and isinstance(event, CallOutcome):
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[subject] = (self.store.replicas[replica], node)

    def _event(
        self, event: Event, replica_key: str, key: str, target: Target | None, scope: Scope | None
    ) -> Node | None:
        """Fold one event; the node is the target's, where the event is a replica's and the state has room."""
        if isinstance(event, PolicyChanged):
            self._policy_changed(event)
        elif isinstance(event, Override):
            self._override(event, scope)
        elif target is None or target.is_empty:
            self._skip("subject")
        else:
            replica, node = self.store.replica(replica_key), self.store.nodes.get(key)
            if isinstance(event, CallOutcome):
                return self._outcome(replica, node, event, target)
            return self._told(replica, node, event, target)
        return None

    def _outcome(
        self, replica: Replica, node: Node | None, event: CallOutcome, target: Target | None = None
    ) -> Node | None:
        """Fold an outcome. Runs for every event of the log: an ordinary success leaves by the quick exit."""
        now_ms, event_id = self.time_ms, event.id
        if event_id == replica.next_id and (run := replica.run) is not None:
            # As `is_first` does for the next one of an unbroken run.
            run.highest = n = run.highest + 1
            run.heard_ms = now_ms
            replica.next_id = replica.prefix + str(n + 1)
        elif not is_first(replica, event_id, now_ms):
            self.repeated += 1
            self.passed_over[self.seq] = "repeated"
            return node
        replica.heard_ms = now_ms
        if not replica.dirty:
            self.store.touch_replica(replica)
        if node is None:
            assert target is not None
            is_refused = GROUPS.get(event.kind) == "rejection"
            node = self.store.new_target(target, replica, now_ms, is_refused=is_refused)
            if node is None:
                self.passed_over[self.seq] = "other"
                return None
        state = node.state
        state.last_ms, state.last_seq = now_ms, self.seq
        state.outcomes += 1
        if not node.dirty:
            self.store.touch(node)
        if event.kind == "ok":
            state.answers += 1
            waited_ms, limits = event.queued_ms, node.limits
            is_fresh = waited_ms is None or waited_ms <= limits.quick_ms
            if is_fresh or (waited_ms or 0) <= limits.good_answer_ms:
                # As `witnesses.note_good` and `note_clean` do.
                key = replica.key
                if state.good_by != key:
                    state.other_good_ms, state.other_good_by, state.good_by = state.good_ms, state.good_by, key
                state.good_ms = now_ms
                if event.checkable:
                    if state.clean_by != key:
                        state.other_clean_ms, state.clean_by = state.clean_ms, key
                    state.clean_ms = now_ms
            if event.route is not None and not self.overlay:
                self._on_route(node, event)
            if is_fresh and node.is_quick and ((signature := event.signature) is None or signature in notices.ROUTINE):
                # Of an ordinary target: nothing is counted beyond what stands above.
                if event.request_hash is not None:
                    is_repeat(state, event, now_ms, limits)
                if node.has_pending_evidence:
                    take_back(self._case, node, replica, event, (self.seq, now_ms))
                if now_ms >= node.health_unchanged_until_ms:
                    good_health(self._case, node, event, (self.seq, now_ms))
                return node
        fold_all(self._case, node, replica, event, (self.seq, now_ms))
        if state.outcomes == 1:
            self.store.told(node)
        return node

    def _on_route(self, node: Node, event: CallOutcome) -> None:
        """An answer to a call of a chain (Rule 4.5, Sustained fallback)."""
        if event.route is not None and (event.queued_ms or 0) <= HOUR_MS:
            self._case.seq, self._case.now_ms = self.seq, self.time_ms
            notices.fold_answered(self._case, node, event.route, event.rank)

    def _told(
        self, replica: Replica, node: Node | None, event: CallAnswered | ProbeResult | CallsRefused, target: Target
    ) -> Node | None:
        """Fold what is no attempt: a first content is a good answer, a probe counts only as a leased trial."""
        now_ms = self.time_ms
        if not is_first(replica, event.id, now_ms):
            self.repeated += 1
            self.passed_over[self.seq] = "repeated"
            return node
        if not isinstance(event, ProbeResult):
            replica.heard_ms = now_ms  # who only probes is no router: it must not turn a fleet of one into two
        self.store.touch_replica(replica)
        if isinstance(event, CallsRefused):
            if not self.overlay:
                self.alone.note(target.key, replica.key, event, self.seq, now_ms)
                self._case.seq, self._case.now_ms = self.seq, now_ms
                if not self._holds(target.key, event.rule, now_ms, told_seq=self.seq):
                    notices.fold_refused(self._case, replica, target.scope, event)
            return node
        node = node or self.store.new_target(target, replica, now_ms)
        if node is None:
            self.passed_over[self.seq] = "other"
            return None
        node.state.last_ms, node.state.last_seq = now_ms, self.seq
        self.store.touch(node)
        is_probe = isinstance(event, ProbeResult)
        if isinstance(event, ProbeResult) and not self.overlay:
            self._probed(node, event)
        if not is_probe or event.trial:
            outcome = as_outcome(event)
            if outcome.kind == "ok" and (outcome.queued_ms or 0) <= node.limits.good_answer_ms:
                witnesses.note_good(node.state, replica.key, now_ms)
                if is_probe:
                    witnesses.note_clean(node.state, replica.key, now_ms)
            fold_all(self._case, node, replica, outcome, (self.seq, now_ms), is_attempt=is_probe)
        return node

    def _probed(self, node: Node, event: ProbeResult) -> None:
        """An active check is evidence for the health of its target; without a lease for nothing else (Rule 4.6)."""
        case = self._case
        case.seq, case.now_ms = self.seq, self.time_ms
        overrides.catch_up(case, node)
        health.probed(case, node, event)
        if not event.trial:
            health.tell(case, node)

    def _override(self, event: Override, scope: Scope | None) -> None:
        if scope is None:
            self._skip("subject")
            return
        if self._is_repeated_act(event, scope.key):
            return
        case, node = self._case, self.store.node(scope, self.time_ms)
        case.seq, case.now_ms = self.seq, self.time_ms
        overrides.catch_up(case, node)
        try:
            overrides.fold(case, node, event)
        except ValueError:
            self._skip("override")
        if scope.model is not None and not self.overlay:
            health.tell(case, node)
        node.state.last_ms, node.state.last_seq = self.time_ms, self.seq
        self.store.touch(node)

    def _policy_changed(self, event: PolicyChanged) -> None:
        """The whole policy from here on. Holds keep their ends; a policy that is refused is passed over."""
        try:
            policy = Policy.from_data(event.policy)
        except PolicyRefused:
            self._skip("policy")
            return
        if self._is_repeated_act(event, ""):
            return
        self.policy_seq = self.seq
        for node in self.store.set_policy(policy):
            for hold in (node.state.holds or {}).values():
                hold.shown_over_ms = holds.over_ms(hold, node.limits)
            if node.state.holds is not None or node.state.ramp is not None:
                self.store.entry_changed(node, self.seq, self.time_ms)

    def _is_repeated_act(self, event: Override | PolicyChanged, key: str) -> bool:
        """A log that was restored, or sources its control stream anew, brings every act once more (Rule 4, Once)."""
        if self.store.acts.is_first(event, key, self.time_ms):
            return False
        self.repeated += 1
        self.passed_over[self.seq] = "repeated"
        return True

    # -- what others read ------------------------------------------------------------------------------

    @property
    def counts(self) -> dict[str, int]:
        """`targets` and `replicas` in the state; events that were `repeated` or `other`; `skipped.<reason>`."""
        store = self.store
        found = {"targets": store.targets, "replicas": len(store.replicas), "repeated": self.repeated}
        found["other"] = store.other
        return found | {f"skipped.{reason}": count for reason, count in sorted(self.skipped.items())}

    def dropped(self, at_ms: int) -> list[Dropped]:
        """Of whose events some found no room at this log time: those with most first (Rule 4.8)."""
        found = self.store.dropping(at_ms)
        return [Dropped(untoken(one.key), one.dropped, one.dropped_since_ms) for one in found]

    def take_changed(self) -> list[str]:
        """Scope keys whose gate entry changed since the last take, in order of change."""
        return self.store.take_changed()

    def entry(self, scope_key: str) -> GateEntry | None:
        """The gate entry of a scope; None where a gate needs none (usable, or expired at the fleet's time)."""
        node = self.store.nodes.get(scope_key)
        if node is None or entries.expires_ms(node.state) <= self.time_ms:
            return None
        return entries.gate_entry(node)

    def entries(self) -> Iterator[tuple[str, GateEntry]]:
        """Every scope key that has an entry, with it, in order of the keys."""
        for key in self.keys():
            entry = self.entry(key)
            if entry is not None:
                yield key, entry

    def keys(self) -> Iterator[str]:
        """Scope keys in the state, in order."""
        return iter(sorted(self.store.nodes))

    def document(self, scope_key: str, at_ms: int) -> dict[str, Any] | None:
        """All counters of a target or a wider scope at a log time; None if it is not in the state."""
        node = self.store.nodes.get(scope_key)
        return None if node is None else target_document(node, self.seq, at_ms)

    def held_alone(self, at_ms: int) -> list[AloneHold]:
        """What single replicas keep from themselves at a log time, and the fleet does not hold by that rule. An
        operator's clear ends it there too."""
        standing = self.alone.standing(at_ms)
        return [one for one in standing if not self._holds(one.scope, one.rule, at_ms, told_seq=one.seq)]

    def _holds(self, scope_key: str, rule: str, at_ms: int, *, told_seq: int) -> bool:
        """Whether the fleet holds a target by this rule, or a clear came after what a replica told."""
        found = [self.store.nodes.get(key) for key in Target.of_key(scope_key).keys]
        states = [node.state for node in found if node is not None]
        held = [state.holds[rule] for state in states if state.holds and rule in state.holds]
        is_held = any(at_ms < hold.end_ms for hold in held)
        return is_held or any(state.cleared_seq > told_seq for state in states)

    def decide(self, target: Target, at_ms: int, replica: str = "") -> Decision:
        """May this target be called at this log time? To the millisecond, from the state itself."""
        try:
            keys = () if target.is_empty else target.keys
        except NameRefused:
            keys = ()
        if not keys:
            return Decision(allowed=True, reason="no_target", seq=self.seq)
        found = [self._exact(key) for key in keys]
        counts = any(entry is not None and (entry.ramp or any(hold.last for hold in entry.holds)) for entry in found)
        replicas = self.replicas(at_ms) if counts else 0
        return decide_entries(found, at_ms, replica, replicas=replicas, seq=self.seq)

    def health(self, target: Target, at_ms: int) -> Health:
        """The one word for a target at this log time, with the age of its evidence (Rule 4.6)."""
        try:
            key = "" if target.is_empty else target.key
        except NameRefused:
            key = ""
        return health.health(self.store.nodes.get(key), at_ms)

    def replicas(self, at_ms: int) -> int:
        """How many replicas were heard of in the 10 min before this log time."""
        return self.store.heard(at_ms)

    def _exact(self, key: str) -> GateEntry | None:
        node = self.store.nodes.get(key)
        if node is None:
            return None
        state = node.state
        says = state.holds or state.operator or state.ramp or state.cleared_seq
        return entries.exact_entry(node) if says else None

    def digest(self) -> str:
        """Sum mod 2^128 of one hash a scope, one a replica and one for the rest; 32 hex digits."""
        return self.store.digest(hash_of("fleet", snapshot.rest(self._position(), self.store)))

    def encode(self) -> bytes:
        """The whole state as bytes: equal states give equal bytes in every process."""
        return snapshot.encode(self._position(), self.store)

    def _position(self) -> snapshot.Position:
        return snapshot.Position(self.overlay, self.seq, self.time_ms, self.policy_seq, self.repeated, self.skipped)

    @classmethod
    def decode(cls, data: bytes) -> Fleet:
        """Read `encode` back. Raises ValueError for bytes of another fold version, or that are no state."""
        position, store = snapshot.decode(data)
        fleet = cls(overlay=position.overlay, store=store)
        fleet.seq, fleet.time_ms, fleet.policy_seq = position.seq, position.time_ms, position.policy_seq
        fleet.repeated, fleet.skipped = position.repeated, position.skipped
        return fleet
