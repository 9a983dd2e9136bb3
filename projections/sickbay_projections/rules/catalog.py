"""The one list of rules, and what is done to a scope rule by rule."""

from __future__ import annotations

from typing import Any, Final

from ..state import bounds
from ..state.model import Node, ScopeState
from . import breaker, credential, degraded, health, rejections, scoring, throttles, warnings
from .rule import Rule

RULES: Final[tuple[Rule, ...]] = (
    rejections.RULE,
    throttles.RULE,
    breaker.RULE,
    degraded.RULE,
    credential.RULE,
    warnings.RULE,
    health.RULE,
)
"""In the order in which they fold an outcome, and so tell what follows from it."""
HOLDING: Final = tuple(rule for rule in RULES if rule.cap_ms is not None)
"""Those that hold."""


def clear(state: ScopeState) -> None:
    """Empty every rule's part of a scope."""
    state.points = None
    for rule in RULES:
        rule.clear(state)


def step_back(node: Node, now_ms: int) -> None:
    """The log's clock went back: no time of the scope lies ahead of it."""
    caps_ms = {rule.name: rule.cap_ms(node.limits) for rule in RULES if rule.cap_ms is not None}
    bounds.step_back(node, now_ms, caps_ms)
    for rule in RULES:
        rule.step_back(node, now_ms)


def document(node: Node, state: ScopeState, at_ms: int) -> dict[str, Any]:
    """Every rule's counters of a scope; those by points under `evidence`, where there are any."""
    found: dict[str, Any] = {"evidence": {}}
    for rule in RULES:
        found |= rule.document(node, state, at_ms)
        for evidence in rule.evidence:
            if says := scoring.evidence_document(node, state, at_ms, evidence):
                found["evidence"][evidence.name] = says
    return found
