"""What a rule is: one value that says all that the fold, a clear, a clock that steps back and `explain` ask of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..state.limits import RuleLimits
from ..state.model import Node, ScopeState
from .context import FoldContext
from .scoring import Evidence


def _no(_case: FoldContext) -> bool:
    return False


def _nothing(_case: FoldContext) -> None:
    pass


def _forgets_nothing(_state: ScopeState) -> None:
    pass


def _remembers_no_time(_node: Node, _now_ms: int) -> None:
    pass


def _no_document(_node: Node, _state: ScopeState, _at_ms: int) -> dict[str, Any]:
    return {}


class Rule(NamedTuple):
    """One rule. Its file makes it, `catalog.RULES` lists it."""

    name: str
    clear: Callable[[ScopeState], None] = _forgets_nothing
    """Forget all that this rule remembers of a scope, but for its holds and points."""
    step_back: Callable[[Node, int], None] = _remembers_no_time
    """No time that this rule remembers of a scope, but for those of holds and points, lies ahead of this log time."""
    document: Callable[[Node, ScopeState, int], dict[str, Any]] = _no_document
    """Its counters of a scope at a log time, for `explain`. The state is an empty one where a clear made it void."""
    evidence: tuple[Evidence, ...] = ()
    """What scores points here, and holds by them."""
    cap_ms: Callable[[RuleLimits], int] | None = None
    """The longest that a hold of it may be; None: it holds nothing."""
    concerns: Callable[[FoldContext], bool] = _no
    """Whether an outcome may do anything here, where no hold of this rule stands."""
    fold: Callable[[FoldContext], None] = _nothing
    """Fold one outcome that counts."""
    take_back: Callable[[FoldContext], None] = _nothing
    """What an ordinary success does where something is remembered and nothing is held: as `fold` does it."""
