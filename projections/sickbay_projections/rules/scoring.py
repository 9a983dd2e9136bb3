"""What a failure and an answer do to points and to the hold that rests on them (Rule 4.0), for every sort of evidence.

THROTTLES = _Throttles("throttles", "throttle", lambda limits: limits.throttles)   # its rule's own `Evidence`
scoring.failed(case, node, THROTTLES)     # a failure: counts, is a trial, or scores and may hold
scoring.answered(case, node, THROTTLES)   # an answer: ends the hold that it is after, or takes a point off
scoring.told_nothing(case, node, rule)    # neither: a leased trial moves the next one
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from sickbay_events.names import untoken
from sickbay_events.outcome import RETRY_AFTER_S_MAX

from ..state import points
from ..state.limits import RuleLimits, Scoring
from ..state.model import Hold, Node, Points, ScopeState
from . import holds, ramp, scopes
from .context import FoldContext

_DOUBLINGS_MAX = 20


class Evidence(ABC):
    """One sort of evidence and the rule whose hold it begins. A rule's file makes it, and says here what is its own."""

    is_ramped = False
    """Its hold ends into a ramp."""
    is_shared = False
    """A failed trial of its hold is everyone's; and one replica's word alone makes that replica no suspect."""

    def __init__(self, name: str, rule: str, scoring: Callable[[RuleLimits], Scoring]) -> None:
        self.name, self.rule, self.scoring = name, rule, scoring

    @abstractmethod
    def length_ms(self, _case: FoldContext, _node: Node, _nth: int) -> int:
        """Length of the `nth` hold that begins at this event."""

    def wait_ms(self, case: FoldContext, node: Node, _nth: int, distance_ms: int) -> int:
        """How long the next trial waits: the distance of trials, or what the answer asked for."""
        return max(distance_ms, min(retry_after_ms(case), node.limits.held_max_ms))

    def has_other_good(self, case: FoldContext, node: Node, replica: str) -> bool:
        """Whether a replica other than this one was answered lately."""
        return scopes.has_other_good(case, node, replica)

    def is_ready(self, _case: FoldContext, _node: Node) -> bool:
        """Whether points that suffice may hold; else each further failure asks again."""
        return True

    def settle(self, case: FoldContext, node: Node, hold: Hold) -> None:
        """What an answer that ended a hold leaves: half of the points, to be made good like any."""
        state, scoring = node.state, self.scoring(node.limits)
        failures = hold.score // scoring.weight
        points.drop(state, self.name)
        if failures < 2:
            return
        slot = slot_of(state, self.name)
        slot.points = slot.top = scoring.weight * (failures // 2)
        if hold.nth == 1:
            slot.top = scoring.weight * failures
        slot.since_ms = slot.newest_ms = case.now_ms
        slot.life_ms = node.limits.points_ms


def slot_of(state: ScopeState, name: str) -> Points:
    """The points of one sort of evidence, made where there are none."""
    if state.points is None:
        state.points = {}
    slot = state.points.get(name)
    if slot is None:
        slot = state.points[name] = Points()
    return slot


def retry_after_ms(case: FoldContext) -> int:
    """What the answer asks to wait; 0: nothing, or nothing that makes sense."""
    retry_s = case.event.retry_after_s
    return max(1, round(min(retry_s, RETRY_AFTER_S_MAX) * 1000)) if retry_s is not None and retry_s > 0 else 0


# -- answers ---------------------------------------------------------------------------------------------


def answered(case: FoldContext, node: Node, evidence: Evidence) -> None:
    """An answer: it ends the hold that it is after, or takes a point off where none stands."""
    hold = (node.state.holds or {}).get(evidence.rule)
    if hold is None:
        take_off(case, node, evidence)
    elif holds.is_after(case, evidence.rule, node.state):
        end_hold(case, node, hold, evidence)


def take_off(case: FoldContext, node: Node, evidence: Evidence) -> None:
    """Take a point off, whenever the call began. What came down to 0 by itself is remembered."""
    slots = node.state.points
    slot = slots.get(evidence.name) if slots is not None else None
    limits = node.limits
    if slot is None or not slot.points or case.queued_ms > limits.fresh_ms:
        return
    case.store.touch(node)
    node.health_unchanged_until_ms = 0
    if points.subtract(slot, case.replica, evidence.scoring(limits), case.now_ms, limits):
        points.drop(node.state, evidence.name)


def end_hold(
    case: FoldContext, node: Node, hold: Hold, evidence: Evidence, *, by: str = "success", ring_seq: int = 0
) -> None:
    """An answer ends this hold. `ring_seq`: the ring of the ramp, where it is another hold's."""
    if evidence.is_ramped:
        ramp.begin_ramp(case, node, hold, ring_seq or hold.began_seq)
    evidence.settle(case, node, hold)
    holds.lift(case, node, hold, by)


# -- failures --------------------------------------------------------------------------------------------


def failed(
    case: FoldContext,
    node: Node,
    evidence: Evidence,
    *,
    least: int = 0,
    most: int = 0,
    life_ms: int = 0,
    is_everyones: bool = False,
) -> bool:
    """A failure; False if it is not after the newest hold, and so a count only.

    least         failures in a row that hold without a record, where it is not the evidence's own number
    most          the same whatever the record
    life_ms       how long the points live after it, where it is not the policy's time
    is_everyones  whose word it is, is not asked
    """
    hold = (node.state.holds or {}).get(evidence.rule)
    if hold is not None:
        case.store.touch(node)
    if not holds.is_after(case, evidence.rule, node.state):
        if hold is not None and case.now_ms < hold.end_ms:
            hold.later += 1
        return False
    if hold is not None and is_trial(case, hold):
        tried(case, node, hold, evidence)
    elif hold is not None and case.now_ms < hold.end_ms:
        hold.later += 1
        _note(case, slot_of(node.state, evidence.name))
        confirm(case, node, hold)
    elif case.queued_ms <= node.limits.fresh_ms and _scores(case, node, evidence, life_ms, least=least, most=most):
        _weigh(case, node, evidence, hold, is_everyones=is_everyones)
    return True


def confirm(case: FoldContext, node: Node, hold: Hold) -> None:
    """A replica saw what another's word alone holds the target for: it is everyone's now."""
    if hold.by not in ("", case.replica):
        hold.by = ""
        case.changed(node)


def is_trial(case: FoldContext, hold: Hold) -> bool:
    """Whether a call after this hold is its trial.

    Leases name the cluster's holds, so in an overlay it is also any call that began when one was wanted.
    """
    if holds.is_leased(case, hold.rule, hold.began_seq):
        return True
    return case.overlay and 0 < hold.trial_from_ms <= _began_ms(case)


def tried(case: FoldContext, node: Node, hold: Hold, evidence: Evidence) -> None:
    """A leased trial failed: the hold begins again, on the word of those who saw it."""
    slot = slot_of(node.state, evidence.name)
    _note(case, slot)
    by, last = _word_of_trial(case, node, evidence, slot), "" if case.overlay else case.replica
    begin_hold(case, node, evidence, hold, by, last=last, start_ms=_began_ms(case))


def _word_of_trial(case: FoldContext, node: Node, evidence: Evidence, slot: Points) -> str:
    """This replica's alone, or "" where another one failed in the last 10 min too, or one's word is all there is."""
    if evidence.is_shared or case.overlay or case.store.heard(case.now_ms) < 2:
        return ""
    for name, counts in slot.by.items():
        if name != case.replica and counts[0] and case.now_ms < counts[2] + node.limits.points_ms:
            return ""
    return case.replica


def _scores(case: FoldContext, node: Node, evidence: Evidence, life_ms: int, *, least: int, most: int) -> bool:
    """Score; whether the points are as many as are needed."""
    state, limits, now_ms = node.state, node.limits, case.now_ms
    scoring = evidence.scoring(limits)
    slot = slot_of(state, evidence.name)
    if slot.newest_ms and points.is_over(slot, now_ms):
        points.drop(state, evidence.name)
        slot = slot_of(state, evidence.name)
    slot.life_ms = life_ms or limits.points_ms
    if not slot.points:
        slot.since_ms, slot.events = now_ms, 0
        if node.scope.model is None:
            case.store.invalidate_fast_path(node)
    case.store.touch(node)
    slot.points += scoring.weight
    slot.top = max(slot.top, slot.points)
    slot.events += 1
    _note(case, slot)
    needed = most or points.needed(least or scoring.needed, scoring, points.record(slot, now_ms, limits), limits)
    slot.points = min(slot.points, scoring.weight * needed)
    return slot.points >= scoring.weight * needed and evidence.is_ready(case, node)


def _weigh(case: FoldContext, node: Node, evidence: Evidence, hold: Hold | None, *, is_everyones: bool) -> None:
    """There are points enough: hold, or tell that it is one replica's own trouble (Rule 4.0, Whose word)."""
    slot = slot_of(node.state, evidence.name)
    by = "" if is_everyones else _word(case, node, evidence, slot)
    if by is not None:
        begin_hold(case, node, evidence, hold, by)
        return
    if slot.told:
        return
    slot.told = True
    numbers, replica = numbers_of(case, node, evidence, slot, score=slot.points, nth=1), _most(slot)
    end_ms = case.now_ms + evidence.length_ms(case, node, 1)
    case.held_alone(node, evidence.rule, end_ms, numbers, replica)
    if not evidence.is_shared:
        case.warned(node.scope, "replica_suspect", numbers, replica=replica)


def _most(slot: Points) -> str:
    """The replica with most of the failures; at equal counts the greater token."""
    return max(slot.by, key=lambda name: (slot.by[name][0], name))


def _word(case: FoldContext, node: Node, evidence: Evidence, slot: Points) -> str | None:
    """Empty: everyone's. A token: the word of that replica, on which the target is held. None: that one alone is."""
    if case.overlay or case.store.heard(case.now_ms) < 2:
        return ""
    most, by = _most(slot), slot.by
    failures = sum([counts[0] for name, counts in by.items() if name != most])
    answers = sum([counts[1] for name, counts in by.items() if name != most])
    if (failures and failures >= answers) or most == points.OTHERS:
        return ""
    is_permission = slot.permission == failures + by[most][0]
    return None if answers or is_permission or evidence.has_other_good(case, node, most) else most


# -- holds -----------------------------------------------------------------------------------------------


def begin_hold(
    case: FoldContext,
    node: Node,
    evidence: Evidence,
    old: Hold | None,
    by: str,
    *,
    last: str = "",
    start_ms: int | None = None,
    numbers: dict[str, int] | None = None,
) -> None:
    """A hold begins, or begins again (`old`). `start_ms`: when the trial that failed began; `by` and `last` as in
    `Hold`; `numbers` where it rests on others than its points."""
    limits, now_ms, state = node.limits, case.now_ms, node.state
    scoring = evidence.scoring(limits)
    slot = (state.points or {}).get(evidence.name) or Points()
    if old is not None:
        nth, score, first_ms, every_ms = old.nth + 1, old.score, old.first_ms, old.every_ms
    else:
        nth, score, first_ms = 1, slot.points, now_ms
        pace_ms = (now_ms - slot.since_ms) // max(1, slot.events - 1) if slot.points else 0
        every_ms = max(scoring.every_ms, min(limits.pace_max_ms, limits.trial_calls * pace_ms))
    distance_ms = _distance_ms(case, scoring, nth, first_ms, every_ms)
    wait_ms = evidence.wait_ms(case, node, nth, distance_ms)
    numbers = numbers or numbers_of(case, node, evidence, slot, score=slot.points or score, nth=nth)
    slot.points = slot.top = 0
    state.ramp = None
    holds.begin(
        case,
        node,
        evidence.rule,
        evidence.length_ms(case, node, nth),
        numbers,
        count=numbers.get("failures", 0),
        nth=nth,
        evidence=evidence.name,
        score=score,
        first_ms=first_ms,
        every_ms=every_ms,
        trial_from_ms=max(now_ms, (now_ms if start_ms is None else start_ms) + wait_ms),
        by=by,
        last=last,
    )


def told_nothing(case: FoldContext, node: Node, evidence: Evidence) -> None:
    """A leased trial that tells nothing of its rule: the next one waits as after a failed one, under the same name.
    Three that told nothing at all, after the end, begin the hold again."""
    hold = (node.state.holds or {}).get(evidence.rule)
    if hold is None or not holds.is_leased(case, hold.rule, hold.began_seq):
        return
    case.store.touch(node)
    scoring = evidence.scoring(node.limits)
    distance_ms = _distance_ms(case, scoring, hold.nth, hold.first_ms, hold.every_ms)
    trial_from_ms = _began_ms(case) + distance_ms
    if hold.trial_from_ms and trial_from_ms > hold.trial_from_ms:
        hold.trial_from_ms = trial_from_ms
        case.changed(node)
    slot = (node.state.points or {}).get(hold.evidence)
    if holds.begins_again(case, node, hold) and slot is not None:
        slot.points = slot.top = 0


def numbers_of(
    case: FoldContext, node: Node, evidence: Evidence, slot: Points, *, score: int, nth: int
) -> dict[str, int]:
    """The numbers of a `TargetHeld`: what was needed, and what was there."""
    counts = slot.by.values()
    return {
        "points": score,
        "needed": score // evidence.scoring(node.limits).weight,
        "record": points.record(slot, case.now_ms, node.limits),
        "failures": sum([each[0] for each in counts]),
        "answers": sum([each[1] for each in counts]),
        "replicas": sum([1 for each in counts if each[0]]),
        "since_ms": slot.since_ms,
        "n": nth,
    }


def evidence_document(node: Node, state: ScopeState, at_ms: int, evidence: Evidence) -> dict[str, Any]:
    """The points of one sort of evidence at a log time, for `explain`: {} where there is nothing to say."""
    slot, limits = (state.points or {}).get(evidence.name), node.limits
    if slot is None:
        return {}
    scoring, most = evidence.scoring(limits), points.record(slot, at_ms, limits)
    is_live = points.live(state, evidence.name, at_ms) is not None
    is_held = any(hold.evidence == evidence.name for hold in (state.holds or {}).values())
    by = slot.by if is_live or is_held else {}
    return {
        "points": slot.points if is_live else 0,
        "weight": scoring.weight,
        "needed": points.needed(scoring.needed, scoring, most, limits),
        "record": most,
        "failures": sum([counts[0] for counts in by.values()]),
        "answers": sum([counts[1] for counts in by.values()]),
        "by": {untoken(name) if name else "(others)": by[name][:2] for name in sorted(by)},
        "since_ms": slot.since_ms if is_live else None,
        "until_ms": slot.newest_ms + slot.life_ms if is_live else None,
        "alone": untoken(_most(slot)) if is_live and slot.told else None,
    }


def _note(case: FoldContext, slot: Points) -> None:
    points.note(slot, case.replica, case.now_ms, is_permission=case.kind == "permission_model")


def _began_ms(case: FoldContext) -> int:
    return case.now_ms - int(case.event.took_ms or 0)


def _distance_ms(case: FoldContext, scoring: Scoring, nth: int, first_ms: int, every_ms: int) -> int:
    """How far apart the trials of a hold are by now."""
    limits = case.limits
    part = limits.held_part_own if case.overlay else limits.held_part
    most_ms = max(every_ms, min(limits.held_max_ms, (case.now_ms - first_ms) // part))
    return min(most_ms, scoring.first_ms << min(max(0, nth - limits.equal_trials), _DOUBLINGS_MAX))
