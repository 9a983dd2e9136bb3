"""Operators' acts: hold, allow, clear (Rule 4.7). One record a scope; what lies below compares when it is folded."""

from __future__ import annotations

from sickbay_events.derived import Released, TargetHeld
from sickbay_events.outcome import Override
from sickbay_events.times import parse_rfc3339

from ..state.limits import CLEAR_SHOWN_MS, OVERRIDE_MS_MAX
from ..state.model import Node, Operator
from . import catalog, holds, witnesses
from .context import FoldContext

RULE = "operator"


def fold(case: FoldContext, node: Node, event: Override) -> None:
    """Fold one override of this scope. Raises ValueError if `until` is no time."""
    state = node.state
    case.store.invalidate_fast_path(node)
    if event.action == "clear":
        ends_ms = [_last_ms(child) for child in node.children.values()]
        state.cleared_shown_ms = max([case.now_ms + CLEAR_SHOWN_MS, *ends_ms])
        _empty(case, node, case.seq, case.now_ms, event)
    else:
        _record(case, node, event, min(parse_rfc3339(event.until or ""), case.now_ms + OVERRIDE_MS_MAX))
    case.changed(node)


def catch_up(case: FoldContext, node: Node) -> None:
    """A scope takes note of a clear of a wider one; called before anything is folded into it."""
    state = node.state
    for wider in (node.host, node.credential):
        if wider is not None and wider.state.cleared_seq > state.cleared_seq:
            had_entry = bool(state.holds or state.operator or state.ramp or state.cleared_seq)
            _empty(case, node, wider.state.cleared_seq, wider.state.cleared_ms, None)
            case.store.touch(node)
            if had_entry:
                case.changed(node)


def _record(case: FoldContext, node: Node, event: Override, end_ms: int) -> None:
    """The newest override of a scope replaces the one before."""
    state, before = node.state, node.state.operator
    stood = before if before is not None and not before.allow and case.now_ms < before.end_ms else None
    state.operator, state.released_by = None, "replaced" if stood else None
    if end_ms > case.now_ms:
        state.operator = Operator(
            allow=event.action == "allow",
            seq=case.seq,
            time_ms=case.now_ms,
            end_ms=end_ms,
            reason=event.reason,
            actor=event.actor,
        )
    if stood is not None:
        case.out.append(_released(case, node, (RULE, stood.seq, stood.end_ms), "replaced", event))
    if state.operator is not None and not state.operator.allow:
        case.out.append(
            TargetHeld(
                scope=node.scope,
                rule=RULE,
                cause_seq=case.seq,
                time_ms=case.now_ms,
                began_seq=case.seq,
                end_ms=end_ms,
                reason=event.reason,
                actor=event.actor,
            )
        )


def _empty(case: FoldContext, node: Node, cleared_seq: int, cleared_ms: int, event: Override | None) -> None:
    """A clear ends every hold and record of the scope and empties its folds; it is a name for the rule After."""
    state = node.state
    for rule, hold in sorted((state.holds or {}).items()):
        if case.now_ms < holds.over_ms(hold, node.limits):
            case.out.append(_released(case, node, (rule, hold.began_seq, hold.end_ms), "clear", event))
    operator = state.operator
    if operator is not None and not operator.allow and case.now_ms < operator.end_ms:
        case.out.append(_released(case, node, (RULE, operator.seq, operator.end_ms), "clear", event))
    state.holds = state.past = state.operator = state.ramp = None
    catalog.clear(state)
    state.released_by = "clear"
    # A wide clear is noted late: what an ordinary success left behind since then stays. Within its millisecond nobody
    # can say any more what came first, and an answer counts; of the scope's own clear all came before.
    if event is not None and node.credential is not None:
        _keep_above(case, node)
    before_ms = cleared_ms if event is None else cleared_ms + 1
    later = {name: at_ms for name, at_ms in (state.requests or {}).items() if at_ms >= before_ms}
    state.requests = later or None
    if state.good_ms < before_ms:
        state.good_ms, state.good_by = 0, ""
    if state.other_good_ms < before_ms:
        state.other_good_ms, state.other_good_by = 0, ""
    if state.clean_ms < before_ms:
        state.clean_ms, state.clean_by = 0, ""
    if state.other_clean_ms < before_ms:
        state.other_clean_ms = 0
    state.cleared_seq, state.cleared_ms = cleared_seq, cleared_ms


def _keep_above(case: FoldContext, node: Node) -> None:
    """A clear empties a model and nothing above it: that its credential answered stays known there."""
    state, above = node.state, node.credential
    assert above is not None
    for at_ms, by in ((state.other_good_ms, state.other_good_by), (state.good_ms, state.good_by)):
        if at_ms > above.state.good_ms:
            witnesses.note_good(above.state, by, at_ms)
            case.store.touch(above)


def _released(case: FoldContext, node: Node, hold: tuple[str, int, int], by: str, event: Override | None) -> Released:
    rule, began_seq, end_ms = hold
    return Released(
        scope=node.scope,
        rule=rule,
        cause_seq=case.seq,
        time_ms=case.now_ms,
        enforced=rule not in node.limits.shadowed,
        began_seq=began_seq,
        end_ms=end_ms,
        by=by,
        reason=event.reason if event else None,
        actor=event.actor if event else None,
    )


def _last_ms(node: Node) -> int:
    """Until when this scope's own entry may say something that a wider clear makes void."""
    ends_ms = [hold.shown_over_ms for hold in (node.state.holds or {}).values()]
    ends_ms.append(node.state.ramp.end_ms if node.state.ramp else 0)
    return max([*ends_ms, node.state.operator.end_ms if node.state.operator else 0])
