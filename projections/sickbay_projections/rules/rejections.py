"""Rejections that name the model -> strikes -> quarantine -> probation (SPEC 4.1)."""

from __future__ import annotations

from sickbay_events.derived import TargetHeld

from ..state.limits import RuleLimits, grown_ms
from ..state.model import Hold, ScopeState, Strikes
from . import holds, witnesses
from .context import FoldContext

RULE = "quarantine"


def fold(case: FoldContext) -> None:
    """Fold one outcome of a target. Reads and writes `state.strikes` and the hold `quarantine`."""
    state = case.state
    if state.strikes is not None:
        _age(state, state.strikes, case.now_ms, case.limits)
    if case.queued_ms > case.limits.strikes_window_ms:
        return
    if case.row.strikes == "clears":
        _answered(case, state)
    hold = (state.holds or {}).get(RULE)
    if case.row.quarantine == "strike":
        _rejected(case, state, hold)
    elif hold is not None and case.row.quarantine == "lifts":
        if holds.is_after(case, RULE, state):
            holds.lift(case, case.node, hold)
    elif hold is not None and holds.begins_again(case, case.node, hold):
        state.strikes = None


def live_strikes(state: ScopeState, at_ms: int, limits: RuleLimits) -> int:
    """Strikes that still count at this time."""
    strikes = state.strikes
    if strikes is None or at_ms >= strikes.newest_ms + limits.strikes_window_ms:
        return 0
    return sum(strikes.plain.values()) + sum(strikes.permission.values())


def _age(state: ScopeState, strikes: Strikes, now_ms: int, limits: RuleLimits) -> None:
    """Strikes live for one window after the newest; a lone one that aged out leaves nothing behind."""
    if now_ms >= strikes.newest_ms + limits.strikes_window_ms:
        _no_strikes(strikes)
    witnesses.age(strikes.witnesses, now_ms, limits)
    _drop_if_empty(state, strikes)


def _answered(case: FoldContext, state: ScopeState) -> None:
    """An answer of any replica clears the strikes, after a hold or not; a good one its replica's own word too."""
    strikes = state.strikes
    if strikes is None:
        return
    _no_strikes(strikes)
    if case.group == "success":
        witnesses.forget_like(strikes.witnesses, case.replica)
    _drop_if_empty(state, strikes)


def _rejected(case: FoldContext, state: ScopeState, hold: Hold | None) -> None:
    if hold is not None and case.now_ms < hold.end_ms:
        hold.later += 1
        if hold.early and holds.is_early_trial(case, state, hold):
            hold.early = False
            case.changed(case.node)
        return
    if not holds.is_after(case, RULE, state):
        return
    if hold is not None and holds.is_leased(case, RULE, hold.began_seq):
        hold.neutral = 0
    strikes = _strike(case, state)
    if _is_everyones(case, state, strikes):
        _quarantine(case, state, strikes)


def _strike(case: FoldContext, state: ScopeState) -> Strikes:
    strikes = state.strikes
    if strikes is None:
        strikes = state.strikes = Strikes()
    if not strikes.plain and not strikes.permission:
        strikes.early = 0 < state.good_ms <= case.now_ms < state.good_ms + case.limits.early_trial_ms
    by = strikes.permission if case.event.kind == "permission_model" else strikes.plain
    by[case.replica] = by.get(case.replica, 0) + 1
    strikes.newest_ms = case.now_ms
    witnesses.note_like(strikes.witnesses, case.replica, case.now_ms)
    return strikes


def _is_everyones(case: FoldContext, state: ScopeState, strikes: Strikes) -> bool:
    """Whether the evidence holds the whole fleet; if it holds its one replica only, tells that."""
    plain, permission, seen = strikes.plain, strikes.permission, strikes.witnesses
    if witnesses.is_second(seen, case.replica):
        return True
    count = sum(plain.values())
    if count + sum(permission.values()) < case.limits.strikes:
        return False
    if case.overlay or len(plain.keys() | permission.keys()) > 1 or witnesses.has_second(seen, case.replica):
        return True
    if count >= case.limits.strikes:
        alone = witnesses.has_other_good(state, case.replica, case.now_ms, case.limits)
    else:
        alone = case.store.heard(case.now_ms) > 1
    if alone:
        _hold_alone(case, strikes)
    return not alone


def _hold_alone(case: FoldContext, strikes: Strikes) -> None:
    """The threshold was reached by one replica while others had good answers: its own overlay holds it."""
    seen = strikes.witnesses
    if not witnesses.note_alone(seen, case.replica, case.now_ms, case.limits.quarantine_ms):
        return
    case.out.append(
        TargetHeld(
            scope=case.node.scope,
            rule=RULE,
            cause_seq=case.seq,
            time_ms=case.now_ms,
            enforced=RULE not in case.limits.shadowed,
            numbers=_numbers(strikes),
            began_seq=case.seq,
            end_ms=seen.alone_end_ms,
            proof=True,
            kind=case.event.kind,
            status=case.status,
            replica=case.replica_name,
        )
    )


def _quarantine(case: FoldContext, state: ScopeState, strikes: Strikes) -> None:
    limits = case.limits
    nth = holds.nth(state, RULE, case.now_ms, limits)
    length_ms = grown_ms(limits.quarantine_ms, limits.quarantine_growth_milli, nth, limits.quarantine_cap_ms)
    numbers = _numbers(strikes)
    state.strikes = None
    hold = Hold(
        rule=RULE,
        began_seq=case.seq,
        began_ms=case.now_ms,
        end_ms=case.now_ms + length_ms,
        length_ms=length_ms,
        proof=True,
        kind=case.event.kind,
        status=case.status,
        count=numbers["strikes"],
        nth=nth,
        early=strikes.early,
    )
    holds.begin(case, case.node, hold, numbers)


def _numbers(strikes: Strikes) -> dict[str, int]:
    total = sum(strikes.plain.values()) + sum(strikes.permission.values())
    witnesses_seen = strikes.plain.keys() | strikes.permission.keys() | strikes.witnesses.likes.keys()
    return {"strikes": total, "replicas": len(witnesses_seen)}


def _no_strikes(strikes: Strikes) -> None:
    strikes.plain, strikes.permission = {}, {}
    strikes.newest_ms, strikes.early = 0, False


def _drop_if_empty(state: ScopeState, strikes: Strikes) -> None:
    if not strikes.plain and not strikes.permission and witnesses.is_empty(strikes.witnesses):
        state.strikes = None
