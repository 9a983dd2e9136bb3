"""Refused credentials -> strikes -> a hold of the credential -> probation (Rule 4.1, Credential strikes)."""

from __future__ import annotations

from typing import Final

from ..state.limits import RuleLimits, grown_ms
from ..state.model import Node, Refusals, ScopeState
from . import holds, scopes
from .context import FoldContext
from .rule import Rule

NAME: Final = "credential"


def fold(case: FoldContext) -> None:
    """Fold one outcome: `state.refusals` and the holds `credential` of a credential, or of a model without one."""
    for node in (case.node, case.node.credential):
        if node is None:
            continue
        _age(case, node)
        if case.row.credential == "answer":
            _answered(case, node)
        elif case.row.credential != "failure":
            hold = (node.state.holds or {}).get(NAME)
            if hold is not None:
                case.store.touch(node)
                if holds.begins_again(case, node, hold):
                    node.state.refusals = None
    if case.row.credential == "failure":
        _refused(case, scopes.spoken_of(case))


def strikes(state: ScopeState, at_ms: int, limits: RuleLimits) -> int:
    """Strikes of the credential that still count at this time."""
    refusals = state.refusals
    if refusals is None or at_ms >= refusals.newest_ms + limits.refusals_window_ms:
        return 0
    return sum(refusals.by.values())


def _age(case: FoldContext, node: Node) -> None:
    refusals = node.state.refusals
    if refusals is not None and not strikes(node.state, case.now_ms, node.limits):
        node.state.refusals = None
        case.store.touch(node)


def _answered(case: FoldContext, node: Node) -> None:
    """What was answered at all proves the credential: it clears strikes, and lifts the hold that it is after."""
    state = node.state
    if state.refusals is not None:
        state.refusals = None
        case.store.touch(node)
    hold = (state.holds or {}).get(NAME)
    if hold is not None and holds.is_after(case, NAME, state):
        holds.lift(case, node, hold)


def _refused(case: FoldContext, node: Node) -> None:
    state, limits = node.state, node.limits
    hold = (state.holds or {}).get(NAME)
    if hold is not None and case.now_ms < hold.end_ms:
        hold.later += 1
        case.store.touch(node)
        return
    if not holds.is_after(case, NAME, state):
        return
    if hold is not None and holds.is_leased(case, NAME, hold.began_seq):
        hold.neutral = 0
    refusals = _strike(case, node)
    count, replicas = sum(refusals.by.values()), len(refusals.by)
    # Where only one replica is heard of, as in every overlay, its word is enough.
    needed = min(limits.refusals_replicas, case.store.heard(case.now_ms))
    if count >= limits.refusals and replicas >= needed:
        _hold(case, node, {"strikes": count, "replicas": replicas})


def _strike(case: FoldContext, node: Node) -> Refusals:
    state = node.state
    if state.refusals is None:
        state.refusals = Refusals()
        case.store.invalidate_fast_path(node)
    refusals = state.refusals
    refusals.by[case.replica] = refusals.by.get(case.replica, 0) + 1
    refusals.newest_ms = case.now_ms
    case.store.touch(node)
    return refusals


def _hold(case: FoldContext, node: Node, numbers: dict[str, int]) -> None:
    state, limits = node.state, node.limits
    nth = holds.nth(state, NAME, case.now_ms, limits)
    length_ms = grown_ms(limits.credential_ms, limits.credential_growth_milli, nth, limits.credential_cap_ms)
    state.refusals = None
    holds.begin(case, node, NAME, length_ms, numbers, count=numbers["strikes"], nth=nth)


def _clear(state: ScopeState) -> None:
    state.refusals = None


def _step_back(node: Node, now_ms: int) -> None:
    refusals = node.state.refusals
    if refusals is not None:
        refusals.newest_ms = min(refusals.newest_ms, now_ms)


def _concerns(case: FoldContext) -> bool:
    wide = case.node.credential
    return (
        case.group == "auth"
        or case.state.refusals is not None
        or (wide is not None and wide.state.refusals is not None)
    )


RULE: Final = Rule(
    name=NAME,
    clear=_clear,
    step_back=_step_back,
    document=lambda node, state, at_ms: {"credential_strikes": strikes(state, at_ms, node.limits)},
    cap_ms=lambda limits: limits.credential_cap_ms,
    concerns=_concerns,
    fold=fold,
)
