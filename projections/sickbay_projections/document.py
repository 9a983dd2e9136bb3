"""All counters of one scope, for `status` and `explain`."""

from __future__ import annotations

from typing import Any

from sickbay_events.names import untoken
from sickbay_events.times import rfc3339

from .entries import REASONS
from .rules import catalog, holds
from .state.model import Hold, Node, ScopeState


def target_document(node: Node, seq: int, at_ms: int) -> dict[str, Any]:
    """What is known of a scope at a log time, as plain data.

    Times are milliseconds of log time with `_ms`, RFC 3339 beside them where a person reads; None: never.
    """
    state = node.state
    cleared_seq = max([0, *(wider.state.cleared_seq for wider in (node.host, node.credential) if wider)])
    void = cleared_seq > state.cleared_seq
    found: dict[str, Any] = {
        "provider": node.scope.provider,
        "model": node.scope.model,
        "scope": node.scope.name,
        "key": node.scope.key,
        "seq": seq,
        "at_ms": at_ms,
        "outcomes": state.outcomes,
        "answers": state.answers,
        "rejections": state.rejections,
        **catalog.document(node, ScopeState() if void else state, at_ms),
        "last_event_ms": state.last_ms or None,
        "last_event_seq": state.last_seq or None,
        "last_answer_ms": state.good_ms or None,
        "last_answer_by": untoken(state.good_by) if state.good_by else None,
        "last_bad_kind": state.bad_kind,
        "last_bad_status": state.bad_status,
        "last_bad_ms": state.bad_ms or None,
        "holds": [],
        "operator": None,
        "cleared_seq": max(cleared_seq, state.cleared_seq) or None,
    }
    if not void:
        live = [hold for hold in (state.holds or {}).values() if at_ms < holds.over_ms(hold, node.limits)]
        found["holds"] = [_hold(node, hold, at_ms) for hold in sorted(live, key=lambda hold: hold.rule)]
        found["operator"] = _operator(state, at_ms)
        found["past"] = {rule: {"began_seq": past.began_seq, "end_ms": past.end_ms} for rule, past in _past(state)}
    return found


def _past(state: ScopeState) -> list[tuple[str, Any]]:
    return sorted((state.past or {}).items())


def _hold(node: Node, hold: Hold, at_ms: int) -> dict[str, Any]:
    return {
        "rule": hold.rule,
        "reason": REASONS[hold.rule],
        "phase": "held" if at_ms < hold.end_ms else "probation",
        "began_seq": hold.began_seq,
        "began_ms": hold.began_ms,
        "end_ms": hold.end_ms,
        "until": rfc3339(hold.end_ms),
        "over_ms": holds.over_ms(hold, node.limits),
        "left_s": max(0, hold.end_ms - at_ms) / 1000,
        "kind": hold.kind,
        "status": hold.status,
        "count": hold.count,
        "evidence": hold.evidence or None,
        "by": untoken(hold.by) if hold.by else None,
        "last": untoken(hold.last) if hold.last else None,
        "first_ms": hold.first_ms or None,
        "trial_from_ms": hold.trial_from_ms or None,
        "every_ms": hold.every_ms or None,
        "clean_trials": hold.clean,
        "uncheckable": hold.uncheckable,
        "later": hold.later,
        "nth": hold.nth,
        "enforced": hold.rule not in node.limits.shadowed,
    }


def _operator(state: ScopeState, at_ms: int) -> dict[str, Any] | None:
    operator = state.operator
    if operator is None or at_ms >= operator.end_ms:
        return None
    return {
        "action": "allow" if operator.allow else "hold",
        "seq": operator.seq,
        "began_ms": operator.time_ms,
        "end_ms": operator.end_ms,
        "until": rfc3339(operator.end_ms),
        "left_s": (operator.end_ms - at_ms) / 1000,
        "reason": operator.reason,
        "actor": operator.actor,
    }
