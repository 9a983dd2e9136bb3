"""Health: one word for people, with the age of its evidence (Rule 4.6).

A function of the state and a log time: whoever asks computes it. The state keeps the word as it was last told, so
that an event which changes it says so. Newest evidence that speaks against a target makes it `degraded` until
something good comes or a day is over; a hold of its credential is `unhealthy` (Rule 4.6).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from sickbay_events.derived import HealthChanged
from sickbay_events.kinds import Group
from sickbay_events.outcome import ProbeResult

from ..state import points
from ..state.limits import RuleLimits
from ..state.model import NEVER, Hold, Node, Points, ProbeState, ScopeState
from . import credential, holds, samples, scopes
from .circuit import FAULTS
from .context import FoldContext
from .degraded import BAD, DAMAGE
from .rejections import STRIKES
from .rule import Rule
from .scoring import Evidence

WORDS: Final = (
    "held",
    "quarantined",
    "throttled",
    "unhealthy",
    "degraded",
    "live",
    "healthy",
    "idle",
    "unknown",
)
FAULT_SHOWN_MS: Final = 60_000
"""A fault makes it `degraded` for so long, so that the word does not change with each call."""
_RANKS: Final = {word: rank for rank, word in enumerate(WORDS)}
_HOLD_WORDS: Final = {
    "quarantine": "quarantined",
    "throttle": "throttled",
    "breaker": "unhealthy",
    "credential": "unhealthy",
    "degraded": "degraded",
}
_AGAINST: Final[dict[Group, str]] = {"rejection": "quarantine", "fault": "breaker", "degraded": "degraded"}
"""Groups that speak against a target, with the rule that says which of them came after what."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How a target is at a log time."""

    word: str
    """One of `WORDS`."""
    why: str
    """What says so: `operator`, a rule, `readiness`, `liveness`, `strikes`, `faults`, `bad_answers`, `last_outcome`,
    `answer` or `nothing`."""
    age_s: float | None
    """Age of that evidence; None if there is none."""
    since_ms: int | None
    """Log time of the event that made it so; None for what became so by time alone."""


class HealthFinding(NamedTuple):
    """A word, what says so, since when, and until when a success that only counts leaves it as it is."""

    word: str
    why: str
    evidence_ms: int
    health_unchanged_until_ms: int = 0


def fold(case: FoldContext, *, counts: bool) -> None:
    """Take an outcome as evidence and tell if the word changed. `counts`: it is evidence for the other folds too."""
    if case.overlay:
        case.node.health_unchanged_until_ms = NEVER
        return
    state = case.state
    if case.queued_ms <= case.limits.good_answer_ms:
        if case.group == "success":
            _is_good(state)
        elif counts and _is_against(case):
            state.against_ms, state.is_against = case.now_ms, True
    tell(case, case.node)


def probed(case: FoldContext, node: Node, probe: ProbeResult) -> None:
    """Take an active check as evidence."""
    if (probe.queued_ms or 0) > node.limits.good_answer_ms:
        return
    state, now_ms = node.state, case.now_ms
    found = state.probes = state.probes or ProbeState()
    if probe.level == "liveness":
        found.live_ms, found.not_live_ms = (now_ms, 0) if probe.ok else (found.live_ms, now_ms)
    elif probe.ok:
        found.ready_ms = now_ms
        _is_good(state)
    else:
        found.not_ready_ms = now_ms
        found.failures += 1


def tell(case: FoldContext, node: Node) -> None:
    """Tell if this event made the word another one."""
    state = node.state
    found = _judge(node, state, case.now_ms)
    node.health_unchanged_until_ms = (
        0 if state.is_against or _is_failing(state.probes) else found.health_unchanged_until_ms
    )
    if found.word == state.word:
        return
    old, state.word, state.word_ms = state.word, found.word, case.now_ms
    case.store.touch(node)
    case.out.append(
        HealthChanged(
            scope=node.scope,
            rule="health",
            cause_seq=case.seq,
            time_ms=case.now_ms,
            numbers={"age_ms": case.now_ms - found.evidence_ms} if found.evidence_ms else {},
            old=old,
            new=found.word,
        )
    )


def health(node: Node | None, at_ms: int) -> Health:
    """The word for a target at a log time; None stands for a target without a state."""
    if node is None:
        return Health(word="unknown", why="nothing", age_s=None, since_ms=None)
    # What lies before a clear of a wider scope is void.
    state = ScopeState() if scopes.is_behind(node) else node.state
    found = _judge(node, state, at_ms)
    age_s = max(0, at_ms - found.evidence_ms) / 1000 if found.evidence_ms else None
    since_ms = state.word_ms if found.word == state.word and state.word_ms else None
    return Health(word=found.word, why=found.why, age_s=age_s, since_ms=since_ms)


# -- the first that fits ---------------------------------------------------------------------------------


def _judge(node: Node, state: ScopeState, at_ms: int) -> HealthFinding:
    wide = node.credential
    if node.host is None or wide is None or _may_be_held(state) or _may_be_held(node.host.state, wide.state):
        found = _held(node, state, at_ms)
        if found is not None:
            return found
    limits, probes = node.limits, state.probes
    day_ms = at_ms - limits.unknown_ms
    failures = probes.failures if probes is not None and probes.not_ready_ms > day_ms else 0
    if probes is not None and failures >= limits.readiness_failures:
        return HealthFinding("unhealthy", "readiness", probes.not_ready_ms)
    if (strikes := _live(state, STRIKES, at_ms)) is not None:
        return HealthFinding("degraded", "strikes", strikes.newest_ms)
    if state.refusals is not None or (wide is not None and wide.state.refusals is not None):
        for scope in (node, wide):
            if scope is not None and scope.state.refusals is not None and not scopes.is_behind(scope):
                mine = state if scope is node else scope.state
                if credential.strikes(mine, at_ms, scope.limits) and mine.refusals is not None:
                    return HealthFinding("degraded", "strikes", mine.refusals.newest_ms)
    if state.points is not None and (_is_half(state, BAD, at_ms, limits) or _is_half(state, DAMAGE, at_ms, limits)):
        return HealthFinding("degraded", "bad_answers", state.against_ms)
    if _live(state, FAULTS, at_ms) is not None:
        return HealthFinding("degraded", "faults", state.against_ms)
    if state.fault_ms and at_ms < state.fault_ms + FAULT_SHOWN_MS:
        return HealthFinding("degraded", "faults", state.fault_ms, state.fault_ms + FAULT_SHOWN_MS)
    if probes is not None and probes.not_live_ms > day_ms:
        return HealthFinding("degraded", "liveness", probes.not_live_ms)
    if probes is not None and failures:
        return HealthFinding("degraded", "readiness", probes.not_ready_ms)
    if state.is_against and state.against_ms > day_ms:
        return HealthFinding("degraded", "last_outcome", state.against_ms)
    return _by_age(state, at_ms, limits.idle_ms, day_ms)


def _by_age(state: ScopeState, at_ms: int, idle_ms: int, day_ms: int) -> HealthFinding:
    """Nothing speaks against it: how old is what speaks for it?"""
    probes = state.probes
    good_ms = state.good_ms
    if probes is not None and probes.ready_ms > good_ms:
        good_ms = probes.ready_ms
    why = "answer" if good_ms == state.good_ms else "readiness"
    if good_ms and at_ms < good_ms + idle_ms:
        return HealthFinding("healthy", why, good_ms, NEVER)
    if good_ms and good_ms > day_ms:
        return HealthFinding("idle", why, good_ms)
    if probes is not None and probes.live_ms and probes.live_ms > day_ms:
        return HealthFinding("live", "liveness", probes.live_ms)
    return HealthFinding("unknown", "nothing", 0)


def _may_be_held(*states: ScopeState) -> bool:
    return any([state.holds is not None or state.operator is not None for state in states])  # noqa: C419 - cheaper


def _held(node: Node, state: ScopeState, at_ms: int) -> HealthFinding | None:
    """The first word that a hold of the target or of a wider scope gives."""
    found: HealthFinding | None = None
    for scope in (node.host, node.credential, node):
        if scope is None:
            continue
        mine = state if scope is node else scope.state
        if (mine.operator is None and mine.holds is None) or (scope is not node and scopes.is_behind(scope)):
            continue
        if mine.operator is not None and not mine.operator.allow and at_ms < mine.operator.end_ms:
            return HealthFinding("held", "operator", mine.operator.time_ms)
        for hold in (mine.holds or {}).values():
            if _stands(scope, hold, at_ms):
                word = _HOLD_WORDS[hold.rule]
                if found is None or _RANKS[word] < _RANKS[found.word]:
                    found = HealthFinding(word, hold.rule, hold.began_ms)
    return found


def _stands(scope: Node, hold: Hold, at_ms: int) -> bool:
    """Whether a hold makes the word: before its end; one for degraded output on its probation too."""
    return at_ms < (holds.over_ms(hold, scope.limits) if hold.rule == "degraded" else hold.end_ms)


def _live(state: ScopeState, evidence: Evidence, at_ms: int) -> Points | None:
    """Points that count, if there was a failure since the last hold: what that left is no word against the target."""
    slot = points.live(state, evidence.name, at_ms)
    return slot if slot is not None and any(counts[0] for counts in slot.by.values()) else None


def _is_half(state: ScopeState, evidence: Evidence, at_ms: int, limits: RuleLimits) -> bool:
    """Whether half of the points are there that hold."""
    slot = _live(state, evidence, at_ms)
    if slot is None:
        return False
    scoring = evidence.scoring(limits)
    needed = points.needed(scoring.needed, scoring, points.record(slot, at_ms, limits), limits)
    return slot.points * 2 >= scoring.weight * needed


# -- what speaks for and against it ----------------------------------------------------------------------


def _is_good(state: ScopeState) -> None:
    """A success, or a check that truly round-trips: newer than all that spoke against the target."""
    state.is_against = False
    probes = state.probes
    if probes is not None and _is_failing(probes):
        probes.failures = probes.not_ready_ms = probes.not_live_ms = 0


def _is_failing(probes: ProbeState | None) -> bool:
    return probes is not None and (probes.failures > 0 or probes.not_live_ms > 0)


def _is_against(case: FoldContext) -> bool:
    if case.group == "auth":
        return True
    rule = _AGAINST.get(case.group)
    if rule is None or (rule == "degraded" and samples.says(case) not in ("bad", "damage")):
        return False
    hold = (case.state.holds or {}).get(rule)
    return (hold is not None and hold.began_seq == case.seq) or holds.is_after(case, rule, case.state)


def _clear(state: ScopeState) -> None:
    state.probes = None
    state.against_ms, state.is_against = 0, False


def _step_back(node: Node, now_ms: int) -> None:
    state = node.state
    state.against_ms = min(state.against_ms, now_ms)
    if state.probes is not None:
        for name in ("live_ms", "not_live_ms", "ready_ms", "not_ready_ms"):
            setattr(state.probes, name, min(getattr(state.probes, name), now_ms))


def _document(node: Node, _state: ScopeState, at_ms: int) -> dict[str, Any]:
    if node.scope.model is None:
        return {}
    found, probes = health(node, at_ms), node.state.probes
    return {
        "health": found.word,
        "health_why": found.why,
        "health_age_s": found.age_s,
        "health_since_ms": found.since_ms,
        "readiness_failures": probes.failures if probes is not None else 0,
        "last_ready_ms": (probes.ready_ms if probes is not None else 0) or None,
        "last_live_ms": (probes.live_ms if probes is not None else 0) or None,
    }


RULE: Final = Rule(name="health", clear=_clear, step_back=_step_back, document=_document)
