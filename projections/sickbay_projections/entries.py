"""Gate entries: what a gate must know of one scope, as a function of the state alone."""

from __future__ import annotations

from typing import Final

from sickbay_events.derived import RULES
from sickbay_events.names import untoken
from sickbay_events.times import rfc3339
from sickbay_events.view import AllowView, GateEntry, HoldView

from .rules import holds, ramp
from .state.limits import RELEASE_SHOWN_MS
from .state.model import Hold, Node, Operator, ScopeState

REASONS: Final = {
    "quarantine": "quarantined",
    "throttle": "throttled",
    "breaker": "breaker_open",
    "degraded": "degraded",
    "credential": "credential",
    "operator": "held_by_operator",
}


def expires_ms(state: ScopeState) -> int:
    """Log time after which the scope's entry says nothing any more."""
    at_ms = [hold.shown_over_ms for hold in (state.holds or {}).values()]
    if state.operator is not None:
        at_ms.append(state.operator.end_ms)
    if state.ramp is not None:
        at_ms.append(state.ramp.end_ms)
    if state.cleared_shown_ms:
        at_ms.append(state.cleared_shown_ms)
    if state.released_by is not None:
        at_ms.append(state.changed_ms + RELEASE_SHOWN_MS)
    return max(at_ms, default=0)


def gate_entry(node: Node) -> GateEntry:
    """The entry as it goes to the gates."""
    state = node.state
    views = _views(node, state, exact=False)
    operator = state.operator
    allow = operator if operator is not None and operator.allow else None
    in_ramp = ramp.view(node)
    last = max(views, key=lambda view: view.end_ms, default=None)
    reason = REASONS[last.rule] if last else "allowed_by_operator" if allow else "ramp" if in_ramp else "released"
    until_ms = max(last.end_ms if last else 0, allow.end_ms if allow else 0, in_ramp.end_ms if in_ramp else 0)
    return GateEntry(
        provider=node.scope.provider,
        model=node.scope.model,
        scope=node.scope.name,
        until=rfc3339(until_ms) if until_ms else "",
        reason=reason,
        holds=views,
        allow=_allow_view(allow) if allow else None,
        ramp=in_ramp,
        cleared_seq=state.cleared_seq or None,
        by=None if views or allow else state.released_by,
        seq=state.changed_seq,
        time_ms=state.changed_ms,
        expires_ms=expires_ms(state),
        at=rfc3339(state.changed_ms),
    )


def exact_entry(node: Node) -> GateEntry:
    """The same for a decision from the state itself: ends of probations to the millisecond, no words."""
    state = node.state
    operator = state.operator
    return GateEntry(
        provider=node.scope.provider,
        model=node.scope.model,
        scope=node.scope.name,
        holds=_views(node, state, exact=True),
        allow=_allow_view(operator) if operator is not None and operator.allow else None,
        ramp=ramp.view(node),
        cleared_seq=state.cleared_seq or None,
    )


def _views(node: Node, state: ScopeState, *, exact: bool) -> list[HoldView]:
    found = sorted((state.holds or {}).values(), key=lambda hold: RULES.index(hold.rule))
    views = [_hold_view(node, hold, exact=exact) for hold in found]
    operator = state.operator
    if operator is not None and not operator.allow:
        views.append(_operator_view(operator))
    return views


def _hold_view(node: Node, hold: Hold, *, exact: bool) -> HoldView:
    return HoldView(
        rule=hold.rule,
        began_seq=hold.began_seq,
        end_ms=hold.end_ms,
        over_ms=holds.over_ms(hold, node.limits) if exact else hold.shown_over_ms,
        proof=hold.proof,
        until="" if exact else rfc3339(hold.end_ms),
        kind=hold.kind,
        status=hold.status,
        count=hold.count,
        by=untoken(hold.by) if hold.by else "",
        n=hold.nth,
        trial_from_ms=hold.trial_from_ms,
        every_ms=hold.every_ms,
        last=untoken(hold.last) if hold.last else "",
        behind_ms=node.limits.behind_ms,
        began_ms=hold.began_ms,
        enforced=hold.rule not in node.limits.shadowed,
    )


def _operator_view(operator: Operator) -> HoldView:
    return HoldView(
        rule="operator",
        began_seq=operator.seq,
        end_ms=operator.end_ms,
        over_ms=operator.end_ms,
        until=rfc3339(operator.end_ms),
        began_ms=operator.time_ms,
        reason=operator.reason,
        actor=operator.actor,
    )


def _allow_view(operator: Operator) -> AllowView:
    return AllowView(
        seq=operator.seq,
        end_ms=operator.end_ms,
        until=rfc3339(operator.end_ms),
        reason=operator.reason,
        actor=operator.actor,
    )
