"""Degraded output -> a hold of the model, or of the host for damaged encoding -> probation (Rule 4.4).

Held like a breaker: 30 s doubling to 10 min, to the millisecond (a hold of one fleet needs no jitter: what keeps
its end from being a herd are the leases of its trials).
"""

from __future__ import annotations

from typing import Final

from ..state import points
from ..state.limits import grown_ms
from ..state.model import Hold, Node
from . import holds, samples, scoring
from .context import FoldContext
from .rule import Rule
from .samples import Sample
from .scoring import Evidence

NAME: Final = "degraded"


class _Bad(Evidence):
    def length_ms(self, _case: FoldContext, node: Node, nth: int) -> int:
        limits = node.limits
        return grown_ms(limits.degraded_ms, limits.degraded_growth_milli, nth, limits.degraded_cap_ms)

    def has_other_good(self, case: FoldContext, node: Node, replica: str) -> bool:
        return samples.has_other_clean(case, node, replica)


class _OfHost(_Bad):
    def is_ready(self, case: FoldContext, node: Node) -> bool:
        return samples.damaged_models(case, node) >= node.limits.host_models


BAD: Final = _Bad("bad", NAME, lambda limits: limits.bad)
DAMAGE: Final = _Bad(samples.DAMAGE, NAME, lambda limits: limits.bad)
HOST: Final = _OfHost(samples.DAMAGE, NAME, lambda limits: limits.host)


def fold(case: FoldContext) -> None:
    """Fold one outcome: a sample of its target's output, and in its encoding of its host's."""
    if not case.is_attempt:
        return
    node, host, sample = case.node, case.node.host, samples.says(case)
    is_hosts = False
    if host is not None and degraded_hold(host) is not None:
        # The model's own output says nothing of its host.
        is_hosts = True
        _on_hold(case, host, "unchecked" if sample == "bad" else sample)
    if degraded_hold(node) is not None:
        _on_hold(case, node, sample)
    elif sample == "clean":
        _clean(case)
    elif sample == "bad":
        scoring.failed(case, node, BAD)
    elif sample == "damage" and not is_hosts:
        _damaged(case)


def degraded_hold(scope: Node) -> Hold | None:
    """The hold of this rule, before its end or on probation."""
    return (scope.state.holds or {}).get(NAME)


def _clean(case: FoldContext) -> None:
    node, host = case.node, case.node.host
    scoring.take_off(case, node, BAD)
    if case.event.attributable:
        scoring.take_off(case, node, DAMAGE)
        if host is not None:
            scoring.take_off(case, host, HOST)


def _damaged(case: FoldContext) -> None:
    """Damaged encoding of several models is the host's; else it is the model's."""
    host = case.node.host
    if host is not None and (not scoring.failed(case, host, HOST) or degraded_hold(host) is not None):
        return
    scoring.failed(case, case.node, DAMAGE)


# -- while a hold stands ---------------------------------------------------------------------------------


def _on_hold(case: FoldContext, scope: Node, sample: Sample) -> None:
    """What a sample does to the hold of this scope, and to the evidence that it rests on."""
    hold = degraded_hold(scope)
    assert hold is not None
    case.store.touch(scope)
    evidence = BAD if hold.evidence == BAD.name else DAMAGE if scope.scope.model is not None else HOST
    if sample in ("bad", "damage"):
        scoring.failed(case, scope, evidence)
    elif sample == "nothing":
        scoring.told_nothing(case, scope, evidence)
    elif not holds.is_after(case, NAME, scope.state):
        pass  # it says how the output was before
    elif sample == "unchecked":
        _unchecked(case, scope, hold, evidence)
    elif scoring.is_trial(case, hold):
        hold.neutral = 0
        hold.clean += 1
        if hold.clean >= scope.limits.clean_trials:
            scoring.end_hold(case, scope, hold, evidence)
        else:
            hold.trial_from_ms = case.now_ms
            case.changed(scope)


def _unchecked(case: FoldContext, scope: Node, hold: Hold, evidence: Evidence) -> None:
    """It was answered, and proves nothing: many such answers on probation end it."""
    scoring.told_nothing(case, scope, evidence)
    if case.now_ms < hold.end_ms:
        return
    hold.uncheckable += 1
    if hold.uncheckable >= scope.limits.uncheckable:
        points.drop(scope.state, hold.evidence)
        holds.lift(case, scope, hold, "uncheckable")


RULE: Final = Rule(
    name=NAME,
    evidence=(BAD, DAMAGE),
    cap_ms=lambda limits: limits.degraded_cap_ms,
    concerns=lambda case: case.row.sample != "none",
    fold=fold,
    take_back=lambda case: _clean(case) if case.event.checkable else None,
)
