"""Operators' acts: hold, allow, clear (SPEC 4.7). One record a scope; what lies below compares when it is folded."""

from __future__ import annotations

from sickbay_events.derived import DerivedEvent, Held, Released
from sickbay_events.outcome import Override
from sickbay_events.times import parse_rfc3339

from . import holds
from .case import FleetView
from .limits import CLEAR_SHOWN_MS, OVERRIDE_MS_MAX
from .state import Node, Operator, ScopeState

RULE = "operator"


def fold(fleet: FleetView, node: Node, event: Override, seq: int, now_ms: int, out: list[DerivedEvent]) -> None:
    """Fold one override of this scope. Raises ValueError if `until` is no time."""
    state = node.state
    assert state is not None
    if event.action == "clear":
        shown_ms = max([now_ms + CLEAR_SHOWN_MS, *(_last_ms(child) for child in (node.children or {}).values())])
        _empty(fleet, node, state, seq, now_ms, out, event)
        state.cleared_seq, state.cleared_ms, state.cleared_shown_ms = seq, now_ms, shown_ms
        state.released_by = "clear"
    else:
        end_ms = min(parse_rfc3339(event.until or ""), now_ms + OVERRIDE_MS_MAX)
        _record(node, state, event, end_ms, seq, now_ms, out)
    fleet.entry_changed(node, seq, now_ms)


def catch_up(fleet: FleetView, node: Node, seq: int, now_ms: int, out: list[DerivedEvent]) -> None:
    """A target takes note of a clear of a wider scope; called before anything is folded into it."""
    state = node.state
    assert state is not None
    for wider in (node.host, node.credential):
        above = wider.state if wider is not None else None
        if above is not None and above.cleared_seq > state.cleared_seq:
            had = state.holds is not None or state.operator is not None
            _empty(fleet, node, state, seq, now_ms, out, None, above)
            state.cleared_seq, state.cleared_ms = above.cleared_seq, above.cleared_ms
            if had:
                state.released_by = "clear"
                fleet.entry_changed(node, seq, now_ms)


def _record(
    node: Node, state: ScopeState, event: Override, end_ms: int, seq: int, now_ms: int, out: list[DerivedEvent]
) -> None:
    before = state.operator
    stood = before if before is not None and not before.allow and now_ms < before.end_ms else None
    allow = event.action == "allow"
    state.operator = Operator(
        allow=allow, seq=seq, time_ms=now_ms, end_ms=end_ms, reason=event.reason, actor=event.actor
    )
    if not allow and end_ms > now_ms:
        out.append(
            Held(
                scope=node.scope,
                rule=RULE,
                cause_seq=seq,
                time_ms=now_ms,
                began_seq=seq,
                end_ms=end_ms,
                old_end_ms=stood.end_ms if stood else None,
                reason=event.reason,
                actor=event.actor,
            )
        )
    elif stood is not None:
        out.append(_released(node, RULE, stood.seq, stood.end_ms, "replaced", seq, now_ms, event))
    if end_ms <= now_ms:
        state.operator = None
        state.released_by = "replaced"


def _empty(
    fleet: FleetView,
    node: Node,
    state: ScopeState,
    seq: int,
    now_ms: int,
    out: list[DerivedEvent],
    event: Override | None,
    above: ScopeState | None = None,
) -> None:
    """End every hold and record of the scope and empty its folds; `above` where a wider clear does it."""
    before_seq, at_ms = (above.cleared_seq, above.cleared_ms) if above else (seq, now_ms)
    for rule, hold in sorted((state.holds or {}).items()):
        if now_ms < holds.over_ms(hold, node.limits) and hold.began_seq < before_seq:
            out.append(_released(node, rule, hold.began_seq, hold.end_ms, "clear", seq, now_ms, event))
    operator = state.operator
    if operator is not None and operator.seq < before_seq:
        if not operator.allow and now_ms < operator.end_ms:
            out.append(_released(node, RULE, operator.seq, operator.end_ms, "clear", seq, now_ms, event))
        state.operator = None
    state.holds = state.past = state.strikes = state.requests = None
    if state.good_ms <= at_ms:
        state.good_ms, state.good_by = 0, ""
    if state.other_good_ms <= at_ms:
        state.other_good_ms, state.other_good_by = 0, ""


def _released(
    node: Node, rule: str, began_seq: int, end_ms: int, by: str, seq: int, now_ms: int, event: Override | None
) -> Released:
    return Released(
        scope=node.scope,
        rule=rule,
        cause_seq=seq,
        time_ms=now_ms,
        enforced=rule not in node.limits.shadowed,
        began_seq=began_seq,
        end_ms=end_ms,
        by=by,
        reason=event.reason if event else None,
        actor=event.actor if event else None,
    )


def _last_ms(node: Node) -> int:
    """Until when this scope's own entry may say something that a wider clear makes void."""
    state = node.state
    assert state is not None
    ends = [hold.shown_over_ms for hold in (state.holds or {}).values()]
    return max([*ends, state.operator.end_ms if state.operator else 0])
