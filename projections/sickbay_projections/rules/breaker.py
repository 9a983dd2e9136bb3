"""Faults -> breaker (Rule 4.3); where a policy says so, slow first contents too."""

from __future__ import annotations

from typing import Any, Final

from ..state.limits import RuleLimits
from ..state.model import Node, ScopeState
from . import circuit, holds, scoring, spread
from .circuit import FAULTS, NAME, SLOW
from .context import FoldContext
from .rule import Rule


def fold(case: FoldContext) -> None:
    """Fold one outcome of a target."""
    cell = case.row.faults
    if cell == "failure":
        _fault(case)
    elif cell == "none":
        scoring.told_nothing(case, case.node, FAULTS)
        spread.trial_told_nothing(case)
    else:
        _came_through(case)


def _fault(case: FoldContext) -> None:
    if scoring.failed(case, case.node, circuit.evidence_of(circuit.breaker_hold(case.node))):
        case.state.fault_ms = case.now_ms
    spread.wide_failed(case)
    hold = circuit.breaker_hold(case.node)
    if hold is not None and hold.began_seq == case.seq:
        spread.open_models(case)


def _came_through(case: FoldContext) -> None:
    """What came through closes; a success takes points off as well."""
    spread.closed(case)
    node, hold = case.node, circuit.breaker_hold(case.node)
    if hold is not None:
        if holds.is_after(case, NAME, node.state):
            circuit.close(case, node, hold)
    elif case.row.faults == "answer":
        scoring.take_off(case, node, FAULTS)
        if not case.is_attempt or not case.limits.slow_ttft_ms:
            return
        if (case.event.ttft_ms or 0) > case.limits.slow_ttft_ms:
            scoring.failed(case, node, SLOW)
        else:
            scoring.take_off(case, node, SLOW)


def _clear(state: ScopeState) -> None:
    state.fault_ms = 0


def _cap_ms(limits: RuleLimits) -> int:
    jitter_ms = limits.breaker_cap_ms * limits.jitter_percent // 100
    return max(limits.breaker_cap_ms + jitter_ms, limits.retry_after_cap_ms)


def _document(_node: Node, state: ScopeState, at_ms: int) -> dict[str, Any]:
    ramp = state.ramp
    return {"ramp_until_ms": ramp.end_ms if ramp is not None and at_ms < ramp.end_ms else None}


RULE: Final = Rule(
    name=NAME,
    evidence=(FAULTS, SLOW),
    clear=_clear,
    document=_document,
    cap_ms=_cap_ms,
    concerns=lambda case: case.row.faults != "none",
    fold=fold,
    take_back=lambda case: scoring.take_off(case, case.node, FAULTS),
)
