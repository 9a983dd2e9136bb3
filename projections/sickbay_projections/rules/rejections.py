"""Rejections that name the model -> strikes -> quarantine -> probation (Rule 4.1)."""

from __future__ import annotations

from typing import Final

from ..state.limits import grown_ms
from ..state.model import Node
from . import scoring
from .context import FoldContext
from .rule import Rule
from .scoring import Evidence

NAME: Final = "quarantine"


class _Strikes(Evidence):
    def length_ms(self, _case: FoldContext, node: Node, nth: int) -> int:
        limits = node.limits
        return grown_ms(limits.quarantine_ms, limits.quarantine_growth_milli, nth, limits.quarantine_cap_ms)


STRIKES: Final = _Strikes("strikes", NAME, lambda limits: limits.strikes)


def fold(case: FoldContext) -> None:
    """Fold one outcome of a target."""
    if case.row.strikes == "answer":
        scoring.answered(case, case.node, STRIKES)
    elif case.row.strikes == "failure":
        scoring.failed(case, case.node, STRIKES)
    else:
        scoring.told_nothing(case, case.node, STRIKES)


RULE: Final = Rule(
    name=NAME,
    evidence=(STRIKES,),
    cap_ms=lambda limits: limits.quarantine_cap_ms,
    concerns=lambda case: case.row.strikes != "none",
    fold=fold,
    take_back=lambda case: scoring.take_off(case, case.node, STRIKES),
)
