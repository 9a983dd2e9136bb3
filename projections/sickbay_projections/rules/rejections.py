"""Rejections that name the model -> strikes -> quarantine -> probation (Rule 4.1)."""

from __future__ import annotations

from typing import Any, Final

from sickbay_events.names import untoken

from ..state.limits import RuleLimits, grown_ms
from ..state.model import Hold, Node, ScopeState, Strikes
from . import holds, witnesses
from .context import FoldContext
from .rule import Rule

NAME: Final = "quarantine"


def fold(case: FoldContext) -> None:
    """Fold one outcome of a target. Reads and writes `state.strikes` and the hold `quarantine`."""
    state = case.state
    if state.strikes is not None:
        _age(state, state.strikes, case.now_ms, case.limits)
    if case.queued_ms > case.limits.strikes_window_ms:
        return
    if case.row.strikes == "clears":
        _answered(case, state)
    hold = (state.holds or {}).get(NAME)
    if case.row.quarantine == "strike":
        _rejected(case, state, hold)
    elif hold is not None and case.row.quarantine == "lifts":
        if holds.is_after(case, NAME, state):
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
    if not holds.is_after(case, NAME, state):
        return
    if hold is not None and holds.is_leased(case, NAME, hold.began_seq):
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
    case.held_alone(case.node, NAME, seen.alone_end_ms, _numbers(strikes), case.replica)


def _quarantine(case: FoldContext, state: ScopeState, strikes: Strikes) -> None:
    limits = case.limits
    nth = holds.nth(state, NAME, case.now_ms, limits)
    length_ms = grown_ms(limits.quarantine_ms, limits.quarantine_growth_milli, nth, limits.quarantine_cap_ms)
    numbers = _numbers(strikes)
    state.strikes = None
    holds.begin(case, case.node, NAME, length_ms, numbers, count=numbers["strikes"], nth=nth, early=strikes.early)


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


def _clear(state: ScopeState) -> None:
    state.strikes = None


def _step_back(node: Node, now_ms: int) -> None:
    strikes = node.state.strikes
    if strikes is not None:
        strikes.newest_ms = min(strikes.newest_ms, now_ms)
        witnesses.step_back(strikes.witnesses, now_ms, node.limits.quarantine_cap_ms)


def _document(node: Node, state: ScopeState, at_ms: int) -> dict[str, Any]:
    found: dict[str, Any] = {"strikes": live_strikes(state, at_ms, node.limits), "threshold": node.limits.strikes}
    strikes = state.strikes
    if strikes is None or not found["strikes"]:
        return found
    replicas = sorted(strikes.plain.keys() | strikes.permission.keys())
    seen = strikes.witnesses
    return found | {
        "strikes_by": {
            untoken(name): strikes.plain.get(name, 0) + strikes.permission.get(name, 0) for name in replicas
        },
        "strikes_until_ms": strikes.newest_ms + node.limits.strikes_window_ms,
        "held_alone": untoken(seen.alone) if seen.alone is not None and at_ms < seen.alone_end_ms else None,
    }


def _concerns(case: FoldContext) -> bool:
    return case.group == "rejection" or case.state.strikes is not None


def _take_back(case: FoldContext) -> None:
    if case.state.strikes is not None:
        fold(case)
        case.node.health_unchanged_until_ms = 0


RULE: Final = Rule(
    name=NAME,
    clear=_clear,
    step_back=_step_back,
    document=_document,
    cap_ms=lambda limits: limits.quarantine_cap_ms,
    concerns=_concerns,
    fold=fold,
    take_back=_take_back,
)
