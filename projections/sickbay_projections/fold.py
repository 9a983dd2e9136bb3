"""The one loop: every event of the log, in order, into the state of the fleet (SPEC 4).

How a fold plugs in. A fold is a small file with one `fold(case)`; it reads its own columns of
`table.TABLE[case.group]`, keeps what it needs in a slot of `ScopeState` that stays None until needed, and
begins and ends holds through `holds.begin`, `holds.lift` and `holds.is_after`. To add one: the columns in
`table.py`, the slot in `state.py`, its numbers in `limits.py`, its call in `Fleet._folds`, its times in
`bounds.step_back` and its cap in `bounds.cap_ms`, its lines in `overrides._empty` and `document.py`. What a
success of an ordinary target must do (a count in a window) goes before the quick exit of `Fleet._outcome`, in
place, without a call. Host and credential are nodes like the model (`node.host`, `node.credential`); their good
answers are the newest of their `children`, kept per model so that an ordinary success touches one state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from sickbay_events.codec import read_subject
from sickbay_events.derived import DerivedEvent
from sickbay_events.errors import NameRefused, Poison, PolicyRefused
from sickbay_events.kinds import Group
from sickbay_events.names import Scope, Target, token
from sickbay_events.outcome import CallAnswered, CallOutcome, CallsRefused, Event, Override, PolicyChanged, ProbeResult
from sickbay_events.policy import Policy
from sickbay_events.view import Decision, GateEntry

from . import bounds, entries, holds, overrides, rejections, witnesses
from .case import Case, http_status
from .decide import decide_entries
from .document import document
from .limits import HOUR_MS, STEP_BACK_MS, UNHEARD_MS, Limits
from .once import is_first
from .state import Node, Recorded, Replica, ScopeState, encode, hash_of
from .table import GROUPS, REPEATABLE, TABLE

FOLD_VERSION: Final = 1
"""Rises whenever the same log gives another state: snapshots of another version are not read."""
ROUTES_MAX: Final = 131_072
REQUESTS_MAX: Final = 128
"""Request hashes remembered for one target."""
PASSED_MAX: Final = 32
_DIGEST_MASK: Final = (1 << 128) - 1


class Fleet:
    """The whole state: a pure function of the events folded so far."""

    def __init__(self, policy: Policy | None = None, *, overlay: bool = False) -> None:
        """`overlay`: a gate's own fold, where one witness is enough and its own counter is `seq` and `seen_seq`."""
        self.policy = policy if policy is not None else Policy()
        self.policy_seq = 0
        self.overlay = overlay
        self.seq = 0
        self.time_ms = 0
        self.repeated = 0
        self.other = 0
        self.skipped: dict[str, int] = {}
        self.nodes: dict[str, Node] = {}
        self.replicas: dict[str, Replica] = {}
        self.targets = 0
        self._swept_hour = 0
        self._case = Case()
        self._case.fleet = self
        self._forget_caches()

    # -- the loop ------------------------------------------------------------------------------------

    def apply(self, recorded: Recorded) -> list[DerivedEvent]:
        """Fold one event and return what follows from it, in order.

        An event at or below the fleet's own sequence was folded before and changes nothing. Raises
        `NameRefused` for a name too long to be in the log.
        """
        key = recorded.target.key if recorded.target is not None else ""
        replica = token(recorded.replica)
        out: list[DerivedEvent] = []
        if self._advances(recorded.seq, recorded.time_ms):
            self._event(recorded.event, recorded.target, key, recorded.scope, replica, recorded.seq, out)
        return out

    def apply_many(
        self, subjects: Sequence[str], events: Sequence[Event | Poison], seqs: Sequence[int], times_ms: Sequence[int]
    ) -> list[DerivedEvent]:
        """Fold many events as the log has them; the same as `apply` one by one, and `passed` for poison."""
        out: list[DerivedEvent] = []
        routes = self._routes
        for subject, event, seq, time_ms in zip(subjects, events, seqs, times_ms, strict=True):
            if not self._advances(seq, time_ms):
                continue
            route = routes.get(subject)
            if route is not None and type(event) is CallOutcome and route[1].state is not None:
                self._outcome(route[0], route[1], event, seq, out)
            else:
                self._route(subject, event, seq, out)
        return out

    def passed(self, seq: int, time_ms: int, reason: str) -> None:
        """Go past poison or a gap: it moves the position, is counted, and is part of the state."""
        if self._advances(seq, time_ms):
            self._skip(reason)

    def _advances(self, seq: int, time_ms: int) -> bool:
        """Move position and log time on to an event; False if it was folded before."""
        if seq:
            if seq <= self.seq:
                return False
            self.seq = seq
        now_ms = self.time_ms
        if time_ms > now_ms:
            self.time_ms = now_ms = time_ms
        elif now_ms - time_ms >= STEP_BACK_MS:
            self._step_back(time_ms)
            now_ms = time_ms
        if now_ms >= self._due_ms:
            self._clean(now_ms)
        return True

    def _skip(self, reason: str) -> None:
        name = token(reason[:64])
        if name not in self.skipped and len(self.skipped) >= PASSED_MAX:
            name = "other"
        self.skipped[name] = self.skipped.get(name, 0) + 1

    def _route(self, subject: str, event: Event | Poison, seq: int, out: list[DerivedEvent]) -> None:
        """Fold an event whose subject was not met before, or that is no plain outcome."""
        if isinstance(event, Poison):
            self._skip(event.reason)
            return
        try:
            address = read_subject(subject)
        except Poison as poison:
            self._skip(poison.reason)
            return
        replica, target = token(address.replica), address.target
        node = self._event(event, target, target.key if target else "", address.scope, replica, seq, out)
        if node is not None and isinstance(event, CallOutcome):
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[subject] = (self.replicas[replica], node)

    def _event(
        self,
        event: Event,
        target: Target | None,
        key: str,
        scope: Scope | None,
        replica_key: str,
        seq: int,
        out: list[DerivedEvent],
    ) -> Node | None:
        """Fold one event; the node is the target's, if the event is a replica's and its target is in the state."""
        if isinstance(event, PolicyChanged):
            self._policy_changed(event, seq)
        elif isinstance(event, Override):
            self._override(event, scope if scope is not None else target.scope if target else None, seq, out)
        elif target is None or target.is_empty:
            self._skip("subject")
        else:
            replica = self._replica(replica_key)
            if isinstance(event, CallOutcome):
                return self._outcome(replica, self.nodes.get(key), event, seq, out, key, target)
            if not is_first(replica, event.id, self.time_ms):
                self.repeated += 1
            else:
                self._heard(replica)
                if not isinstance(event, CallsRefused):
                    return self._told(replica, key, target, event, seq, out)
        return None

    def _outcome(
        self,
        replica: Replica,
        node: Node | None,
        event: CallOutcome,
        seq: int,
        out: list[DerivedEvent],
        key: str = "",
        target: Target | None = None,
    ) -> Node | None:
        """Fold an outcome. Runs for every event of the log: an ordinary success leaves by the quick exit."""
        now_ms = self.time_ms
        if not is_first(replica, event.id, now_ms):
            self.repeated += 1
            return node
        replica.heard_ms = now_ms
        if not replica.dirty:
            self._heard(replica)
        if node is None:
            assert target is not None
            node = self._new_target(key, target, replica)
            if node is None:
                return None
        state = node.state
        assert state is not None
        state.seen_ms, state.seen_seq = now_ms, seq
        state.outcomes += 1
        if not node.dirty:
            self._touch(node)
        if event.kind == "ok":
            state.answers += 1
            waited_ms = event.queued_ms
            if waited_ms is None or waited_ms <= node.limits.good_answer_ms:
                if state.good_by != replica.key:
                    witnesses.note_good(state, replica.key, now_ms)
                else:
                    state.good_ms = now_ms
            if state.strikes is None and state.holds is None and event.request_hash is None:
                return node
        self._folds(node, state, replica, event, seq, out)
        return node

    def _folds(
        self, node: Node, state: ScopeState, replica: Replica, event: CallOutcome, seq: int, out: list[DerivedEvent]
    ) -> None:
        """Everything that is not an ordinary success of an ordinary target: fold by fold."""
        case, now_ms = self._case, self.time_ms
        overrides.catch_up(self, node, seq, now_ms, out)
        case.node, case.state, case.limits = node, state, node.limits
        case.event, case.replica, case.seq, case.now_ms, case.out = event, replica.key, seq, now_ms, out
        case.queued_ms = event.queued_ms or 0
        case.group = _group(event, node.limits, overlay=self.overlay)
        case.row = TABLE[case.group]
        if case.group != "success":
            state.bad_kind, state.bad_status, state.bad_ms = event.kind, http_status(event.status), now_ms
        if case.group == "rejection":
            state.rejections += 1
        holds.expire(case, node)
        repeats = _is_repeat(state, event, now_ms, node.limits)
        # A bad outcome of a forced call is statistics; so is the same request over again.
        if not (repeats and event.kind in REPEATABLE) and not (event.forced and case.group != "success"):
            rejections.fold(case)
        if case.group != "neutral":
            holds.note_evidence(case, node)

    def _told(
        self,
        replica: Replica,
        key: str,
        target: Target,
        event: CallAnswered | ProbeResult,
        seq: int,
        out: list[DerivedEvent],
    ) -> Node | None:
        """Fold a first content, or a probe: as an outcome only where it ran as a leased trial (SPEC 4)."""
        node = self.nodes.get(key) or self._new_target(key, target, replica)
        if node is None:
            return None
        state = node.state
        assert state is not None
        state.seen_ms, state.seen_seq = self.time_ms, seq
        self._touch(node)
        if isinstance(event, CallAnswered):
            self._good(state, replica, event.queued_ms, node.limits)
            outcome = CallOutcome(kind="ok", queued_ms=event.queued_ms, seen_seq=event.seen_seq, trial=event.trial)
        elif event.trial:
            if event.kind == "ok":
                self._good(state, replica, event.queued_ms, node.limits)
            outcome = CallOutcome(
                kind=event.kind,
                status=event.status,
                took_ms=event.took_ms,
                limit_ms=event.limit_ms,
                queued_ms=event.queued_ms,
                seen_seq=event.seen_seq,
                trial=event.trial,
            )
        else:
            return node
        self._folds(node, state, replica, outcome, seq, out)
        return node

    def _good(self, state: ScopeState, replica: Replica, waited_ms: float | None, limits: Limits) -> None:
        if waited_ms is None or waited_ms <= limits.good_answer_ms:
            witnesses.note_good(state, replica.key, self.time_ms)

    def _override(self, event: Override, scope: Scope | None, seq: int, out: list[DerivedEvent]) -> None:
        if scope is None:
            self._skip("subject")
            return
        node = self._node(scope)
        state = node.state
        assert state is not None
        overrides.catch_up(self, node, seq, self.time_ms, out)
        try:
            overrides.fold(self, node, event, seq, self.time_ms, out)
        except ValueError:
            self._skip("override")
            return
        state.seen_ms, state.seen_seq = self.time_ms, seq

    def _policy_changed(self, event: PolicyChanged, seq: int) -> None:
        """The whole policy from here on. Holds keep their ends; one that is refused is passed over."""
        try:
            policy = Policy.from_data(event.policy)
        except PolicyRefused:
            self._skip("policy")
            return
        self.policy, self.policy_seq = policy, seq
        self._limits.clear()
        self._policy_data = policy.to_data()
        for node in self.nodes.values():
            before, node.limits = node.limits, self._limits_of(node.scope)
            state = node.state
            if state is None or state.holds is None or before == node.limits:
                continue
            for hold in state.holds.values():
                hold.shown_over_ms = holds.over_ms(hold, node.limits)
            self.entry_changed(node, seq, self.time_ms)
        self._queue_idle()

    # -- scopes and replicas ---------------------------------------------------------------------------

    def _node(self, scope: Scope) -> Node:
        """The node of a scope, made with those of its wider scopes where it is new."""
        key = scope.key
        node = self.nodes.get(key)
        if node is None:
            host = self._node(Scope(scope.host)) if scope.alias is not None else None
            credential = self._node(Scope(scope.host, scope.alias)) if scope.model is not None else None
            node = self.nodes[key] = Node(key, scope, self._limits_of(scope), host, credential)
            self._link(node)
            self._dirty.append(node)
        return node

    def _link(self, node: Node) -> None:
        for wider in (node.host, node.credential):
            if wider is not None and wider.children is not None:
                wider.children[node.key] = node
        if node.children is None:
            self.targets += 1

    def _new_target(self, key: str, target: Target, replica: Replica) -> Node | None:
        """A target that is new to the state; None if the bounds leave no room (SPEC 4.8)."""
        limits = self.policy.bounds
        hour = self.time_ms // HOUR_MS
        if replica.hour != hour:
            replica.hour, replica.new_targets = hour, 0
        if self.targets >= limits.targets or replica.new_targets >= limits.new_targets_per_hour:
            self.other += 1
            return None
        replica.new_targets += 1
        node = self._node(target.scope)
        assert node.state is not None
        node.state.seen_ms, node.state.seen_seq = self.time_ms, self.seq
        self._idle.add(node, self._idle_ms)
        self._next_cleaning()
        return node

    def _replica(self, key: str) -> Replica:
        replica = self.replicas.get(key)
        if replica is None:
            replica = self.replicas[key] = Replica(key)
            self._dirty_replicas.append(replica)
        return replica

    def _heard(self, replica: Replica) -> None:
        replica.heard_ms = self.time_ms
        if not replica.dirty:
            replica.dirty = True
            self._dirty_replicas.append(replica)

    def _touch(self, node: Node) -> None:
        if not node.dirty:
            node.dirty = True
            self._dirty.append(node)

    def heard(self, now_ms: int) -> int:
        """Replicas heard of in the last 10 min."""
        within_ms = round(self.policy.witnesses.heard_s * 1000)
        return sum(1 for replica in self.replicas.values() if now_ms < replica.heard_ms + within_ms)

    def entry_changed(self, node: Node, seq: int, now_ms: int) -> None:
        """The gate entry of this scope is another one from this event on."""
        state = node.state
        assert state is not None
        state.changed_seq, state.changed_ms = seq, now_ms
        if state.operator is not None and now_ms >= state.operator.end_ms:
            state.operator = None
        self._changed.pop(node.key, None)
        self._changed[node.key] = None
        self._touch(node)

    def _limits_of(self, scope: Scope) -> Limits:
        model = scope.model or ""
        names = (scope.host if scope.host in self.policy.host else "", model if model in self.policy.model else "")
        limits = self._limits.get(names)
        if limits is None:
            limits = self._limits[names] = Limits.of(self.policy.for_target(scope.host, model))
        return limits

    # -- time and bounds -------------------------------------------------------------------------------

    def _clean(self, now_ms: int) -> None:
        """Evict up to two targets that are due, and once an hour what was unheard of for 48 h."""
        for node in self._idle.due(self.nodes, now_ms, self._idle_ms):
            self._drop(node, now_ms)
        hour = now_ms // HOUR_MS
        if hour > self._swept_hour:
            self._swept_hour = hour
            self._sweep(now_ms)
        self._next_cleaning()

    def _sweep(self, now_ms: int) -> None:
        for replica in list(self.replicas.values()):
            if now_ms >= replica.heard_ms + UNHEARD_MS:
                self._digest -= replica.hashed
                del self.replicas[replica.key]
                self._dirty_replicas = [other for other in self._dirty_replicas if other is not replica]
                self._routes.clear()
                continue
            for boot in bounds.unheard_boots(replica, now_ms):
                del replica.boots[boot]
                if not replica.dirty:
                    replica.dirty = True
                    self._dirty_replicas.append(replica)
        wide = [node for node in self.nodes.values() if node.children is not None]
        for node in sorted(wide, key=lambda node: node.scope.alias is None):
            if bounds.is_blank(node, now_ms):
                self._drop(node, now_ms)

    def _drop(self, node: Node, now_ms: int) -> None:
        """Let a scope leave the state, and wider ones that then have nothing to say."""
        del self.nodes[node.key]
        if node.children is None:
            self.targets -= 1
        node.state = None
        if node.hashed:
            self._digest -= node.hashed
        for wider in (node.credential, node.host):
            if wider is not None and wider.children is not None:
                del wider.children[node.key]
                if wider.key in self.nodes and bounds.is_blank(wider, now_ms):
                    self._drop(wider, now_ms)

    def _step_back(self, now_ms: int) -> None:
        self.time_ms = now_ms
        self._swept_hour = min(self._swept_hour, now_ms // HOUR_MS)
        for node in self.nodes.values():
            before = bounds.ends(node)
            bounds.step_back(node, now_ms)
            self._touch(node)
            if bounds.ends(node) != before:
                self.entry_changed(node, self.seq, now_ms)
        for replica in self.replicas.values():
            self._heard(replica)
            for boot in replica.boots.values():
                boot.heard_ms = min(boot.heard_ms, now_ms)
        self._queue_idle()

    def _queue_idle(self) -> None:
        self._idle_ms = round(self.policy.bounds.idle_s * 1000)
        self._idle = bounds.IdleQueue()
        for node in self.nodes.values():
            if node.children is None:
                self._idle.add(node, self._idle_ms)
        self._next_cleaning()

    def _next_cleaning(self) -> None:
        sweep_ms = (self._swept_hour + 1) * HOUR_MS
        idle_ms = self._idle.next_ms
        self._due_ms = sweep_ms if idle_ms is None else min(sweep_ms, idle_ms)

    # -- what others read ------------------------------------------------------------------------------

    def take_changed(self) -> list[str]:
        """Scope keys whose gate entry changed since the last take, in order of change."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def entry(self, scope_key: str) -> GateEntry | None:
        """The gate entry of a scope; None where a gate needs none (usable, or expired at the fleet's time)."""
        node = self.nodes.get(scope_key)
        if node is None or node.state is None or entries.expires_ms(node.state) <= self.time_ms:
            return None
        return entries.gate_entry(node, node.state)

    def entries(self) -> Iterator[tuple[str, GateEntry]]:
        """Every scope key that has an entry, with it, in order of the keys."""
        for key in sorted(self.nodes):
            entry = self.entry(key)
            if entry is not None:
                yield key, entry

    def keys(self) -> Iterator[str]:
        """Scope keys in the state, in order."""
        return iter(sorted(self.nodes))

    def document(self, scope_key: str, at_ms: int) -> dict[str, Any] | None:
        """All counters of a target or a wider scope at a log time; None if it is not in the state."""
        node = self.nodes.get(scope_key)
        return None if node is None or node.state is None else document(node, node.state, self.seq, at_ms)

    def decide(self, target: Target, at_ms: int, replica: str = "") -> Decision:
        """May this target be called at this log time? To the millisecond, from the state itself."""
        try:
            keys = () if target.is_empty else target.keys
        except NameRefused:
            keys = ()
        if not keys:
            return Decision(allowed=True, reason="no_target", seq=self.seq)
        return decide_entries([self._exact(key) for key in keys], at_ms, replica, seq=self.seq)

    def _exact(self, key: str) -> GateEntry | None:
        node = self.nodes.get(key)
        state = node.state if node is not None else None
        if node is None or state is None:
            return None
        if state.holds is None and state.operator is None and not state.cleared_seq:
            return None
        return entries.exact_entry(node, state)

    # -- the state as bytes ----------------------------------------------------------------------------

    def digest(self) -> str:
        """Sum mod 2^128 of one hash a scope, one a replica and one for the rest; 32 hex digits."""
        parts: list[Node | Replica] = [node for node in self._dirty if node.state is not None]
        for part in (*parts, *self._dirty_replicas):
            self._digest -= part.hashed
            part.hashed = part.digest()
            self._digest += part.hashed
            part.dirty = False
        self._dirty, self._dirty_replicas = [], []
        return f"{(self._digest + hash_of('fleet', self._rest())) & _DIGEST_MASK:032x}"

    def encode(self) -> bytes:
        """The whole state as bytes: equal states give equal bytes in every process."""
        replicas = {key: replica.to_data() for key, replica in self.replicas.items()}
        scopes = {key: node.state for key, node in self.nodes.items()}
        return encode({**self._rest(), "replicas": replicas, "scopes": scopes})

    @classmethod
    def decode(cls, data: bytes) -> Fleet:
        """Read `encode` back. Raises ValueError for bytes of another fold version, or that are no state."""
        try:
            found = _decode_state(data)
            if found.fold != FOLD_VERSION:
                raise ValueError(f"state of fold version {found.fold}, this is version {FOLD_VERSION}")
            fleet = cls(Policy.from_data(found.policy), overlay=found.overlay)
        except (msgspec.DecodeError, PolicyRefused) as error:
            raise ValueError(f"these bytes are no state of a fleet: {error}") from error
        fleet.policy_seq, fleet.seq, fleet.time_ms = found.policy_seq, found.seq, found.time_ms
        fleet.repeated, fleet.other, fleet.skipped = found.repeated, found.other, found.skipped
        fleet._swept_hour = found.swept_hour
        for key, state in found.scopes.items():
            node = fleet._node(Scope.of_key(key))
            node.state = state
        for key, replica in found.replicas.items():
            fleet.replicas[key] = Replica.from_data(key, replica)
        fleet._dirty_replicas = list(fleet.replicas.values())
        fleet._queue_idle()
        return fleet

    def _rest(self) -> dict[str, Any]:
        """What belongs to no scope and no replica."""
        return {
            "fold": FOLD_VERSION,
            "overlay": self.overlay,
            "policy": self._policy_data,
            "policy_seq": self.policy_seq,
            "seq": self.seq,
            "time_ms": self.time_ms,
            "repeated": self.repeated,
            "other": self.other,
            "skipped": self.skipped,
            "swept_hour": self._swept_hour,
        }

    def _forget_caches(self) -> None:
        self._policy_data = self.policy.to_data()
        self._limits: dict[tuple[str, str], Limits] = {}
        self._routes: dict[str, tuple[Replica, Node]] = {}
        self._dirty: list[Node] = []
        self._dirty_replicas: list[Replica] = []
        self._changed: dict[str, None] = {}
        self._digest = 0
        self._queue_idle()


class _State(msgspec.Struct, kw_only=True):
    """The shape of the encoded state."""

    fold: int
    overlay: bool
    policy: dict[str, Any]
    policy_seq: int
    seq: int
    time_ms: int
    repeated: int
    other: int
    skipped: dict[str, int]
    swept_hour: int
    replicas: dict[str, list[Any]]
    scopes: dict[str, ScopeState]


_decode_state: Final = msgspec.msgpack.Decoder(_State).decode


def _group(event: CallOutcome, limits: Limits, *, overlay: bool) -> Group:
    """The event's row of the table, after the rules of SPEC 3 on who is to blame."""
    kind = event.kind
    if event.scope == "none" and kind != "ok":
        return "neutral"
    if kind == "cancelled" and event.ttft_ms is None and (event.took_ms or 0) >= limits.impatience_ms:
        kind = "timeout"
    if kind == "timeout" and not overlay and event.limit_ms is not None and event.limit_ms < limits.impatience_ms:
        return "neutral"
    return GROUPS[kind]


def _is_repeat(state: ScopeState, event: CallOutcome, now_ms: int, limits: Limits) -> bool:
    """Whether the target had an outcome of the same request less than 60 s ago; takes note of this one."""
    if event.request_hash is None:
        return False
    requests = state.requests
    if requests is None:
        requests = state.requests = {}
    name = f"{crc32(event.request_hash.encode('utf-8', 'surrogatepass')):08x}"
    before_ms = requests.get(name)
    requests[name] = now_ms
    if len(requests) > REQUESTS_MAX:
        newest = sorted(requests.items(), key=lambda item: (item[1], item[0]))[-(REQUESTS_MAX // 2) :]
        state.requests = {key: at_ms for key, at_ms in newest if now_ms < at_ms + limits.same_request_ms}
    return before_ms is not None and now_ms < before_ms + limits.same_request_ms
