"""Holds, whatever their rule: how they begin, what comes after them, how they are over (Rule 4)."""

from __future__ import annotations

from ..state import points
from ..state.limits import NEUTRAL_TRIALS, RuleLimits
from ..state.model import Hold, Node, Past, ScopeState
from .context import FoldContext

SHOWN_SLACK_MS = 60_000
"""Evidence on probation moves its end; the gate entry follows in steps of this, not with every event."""


def over_ms(hold: Hold, limits: RuleLimits) -> int:
    """When a hold is over if nothing comes: its end, or that of its probation."""
    if not hold.proof:
        return hold.end_ms
    return max(hold.end_ms, hold.evidence_ms) + limits.probation_ms


def is_leased(case: FoldContext, rule: str, began_seq: int) -> bool:
    """Whether the call ran under a trial lease of this hold."""
    trial = case.event.trial
    return trial is not None and any(lease.rule == rule and lease.began_seq == began_seq for lease in trial)


def is_after(case: FoldContext, rule: str, state: ScopeState) -> bool:
    """Rule 4, After: whether the call began knowing the newest hold of this rule, or the newest clear."""
    if state.holds is None and state.past is None and not state.cleared_seq:
        return True
    hold: Hold | Past | None = (state.holds or {}).get(rule) or (state.past or {}).get(rule)
    began_seq, end_ms = (hold.began_seq, hold.end_ms) if hold else (0, 0)
    if state.cleared_seq > began_seq:
        began_seq, end_ms = state.cleared_seq, state.cleared_ms
    elif hold is None or is_leased(case, rule, began_seq):
        return True
    seen_seq = case.event.seen_seq
    if seen_seq is not None and seen_seq < case.seq:
        return seen_seq >= began_seq
    took_ms = case.event.took_ms
    return case.now_ms - (case.limits.took_ms if took_ms is None else took_ms) >= end_ms


def begin(
    case: FoldContext,
    node: Node,
    rule: str,
    length_ms: int,
    numbers: dict[str, int],
    *,
    count: int,
    nth: int = 1,
    proof: bool = True,
    evidence: str = "",
    score: int = 0,
    first_ms: int = 0,
    every_ms: int = 0,
    trial_from_ms: int = 0,
    by: str = "",
    last: str = "",
) -> None:
    """A hold begins at this event, in the place of the one before, whose end it is never before.

    The fields are those of `Hold`.
    """
    old = (node.state.holds or {}).get(rule)
    hold = Hold(
        rule=rule,
        began_seq=case.seq,
        began_ms=case.now_ms,
        end_ms=max(case.now_ms + length_ms, old.end_ms if old is not None else 0),
        length_ms=length_ms,
        proof=proof,
        kind=case.kind,
        status=case.status,
        count=count,
        nth=nth,
        evidence=evidence,
        score=score,
        first_ms=first_ms,
        every_ms=every_ms,
        trial_from_ms=trial_from_ms,
        by=by,
        last=last,
    )
    _stand(case, node, hold, numbers)


def _stand(case: FoldContext, node: Node, hold: Hold, numbers: dict[str, int]) -> None:
    """This hold stands from this event on, in the place of the one before."""
    state = node.state
    hold.shown_over_ms = over_ms(hold, node.limits)
    old = (state.holds or {}).get(hold.rule)
    old_end_ms = old.end_ms if old is not None and case.now_ms < old.end_ms else None
    if state.holds is None:
        state.holds = {}
    state.holds[hold.rule] = hold
    if state.past is not None:
        state.past.pop(hold.rule, None)
        state.past = state.past or None
    state.released_by = None
    case.store.invalidate_fast_path(node)
    case.held(node, hold, numbers, old_end_ms)


def nth(state: ScopeState, rule: str, now_ms: int, limits: RuleLimits) -> int:
    """How many holds in a row the next one makes: forgotten after 10 min without a hold (Rule 4, Growth)."""
    hold = (state.holds or {}).get(rule)
    if hold is not None:
        return hold.nth + 1
    past = (state.past or {}).get(rule)
    return past.nth + 1 if past is not None and now_ms < past.over_ms + limits.forget_ms else 1


def lift(case: FoldContext, node: Node, hold: Hold, by: str = "success") -> None:
    """A success after the hold ends it, also before its end."""
    state = node.state
    _retire(state, hold, case.now_ms)
    state.released_by = by
    case.released(node, hold, by)


def expire(case: FoldContext, node: Node) -> None:
    """Holds that are over by time alone become names."""
    state, standing, now_ms = node.state, node.state.holds, case.now_ms
    if standing is None:
        return
    for hold in standing.values():
        if now_ms >= hold.end_ms:
            break
    else:
        return  # none has even ended
    for hold in list(standing.values()):
        at_ms = over_ms(hold, node.limits)
        if now_ms >= at_ms:
            _retire(state, hold, at_ms)
            points.drop(state, hold.evidence)
            case.store.touch(node)
            if now_ms < hold.shown_over_ms:
                state.released_by = "evidence_gone"
                case.changed(node)


def note_evidence(case: FoldContext, node: Node) -> None:
    """An outcome that is not neutral: holds on probation stay on probation for another hour.

    But not a hold for degraded output, which an hour on probation ends (Rule 4.4): who never asks for a lease can
    never prove three clean trials.
    """
    state = node.state
    for hold in (state.holds or {}).values():
        if not hold.proof or case.now_ms < hold.end_ms or hold.rule == "degraded":
            continue
        hold.evidence_ms = case.now_ms
        at_ms = over_ms(hold, node.limits)
        if at_ms > hold.shown_over_ms:
            hold.shown_over_ms = at_ms + SHOWN_SLACK_MS
            case.changed(node)


def begins_again(case: FoldContext, node: Node, hold: Hold) -> bool:
    """Three leased trials in a row that tell nothing, after the end: same length, new name, no growth."""
    if case.now_ms < hold.end_ms or not is_leased(case, hold.rule, hold.began_seq):
        return False
    hold.neutral = hold.neutral + 1 if case.group == "neutral" else 0
    if hold.neutral < NEUTRAL_TRIALS:
        return False
    hold.began_seq, hold.began_ms = case.seq, case.now_ms
    hold.end_ms = case.now_ms + hold.length_ms
    hold.neutral = hold.later = hold.evidence_ms = hold.clean = hold.uncheckable = 0
    _stand(case, node, hold, {"neutral_trials": NEUTRAL_TRIALS})
    return True


def _retire(state: ScopeState, hold: Hold, at_ms: int) -> None:
    assert state.holds is not None
    del state.holds[hold.rule]
    state.holds = state.holds or None
    if state.past is None:
        state.past = {}
    state.past[hold.rule] = Past(began_seq=hold.began_seq, end_ms=min(hold.end_ms, at_ms), over_ms=at_ms, nth=hold.nth)
