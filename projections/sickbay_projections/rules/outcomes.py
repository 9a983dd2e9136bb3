"""What an outcome does to its target, fold by fold, where it does not leave by the quick exit of `Fleet._outcome`.

`fold_all` is the whole way. `take_back` and `good_health` are the parts of it that an ordinary success may still owe,
and `mark` says of a target whether it does: what they leave behind is what `fold_all` would. `at` is the sequence and
log time of the event.
"""

from __future__ import annotations

from typing import Final

from sickbay_events.outcome import CallOutcome

from ..state.model import Node, Replica, ScopeState
from . import health, holds, overrides, scoring
from . import warnings as notices
from .catalog import HOLDING
from .columns import GROUPS, REPEATABLE, TABLE
from .context import FoldContext, http_status
from .evidence import is_repeat, judged

_SUCCESS: Final = (GROUPS["ok"], TABLE[GROUPS["ok"]])


def fold_all(
    case: FoldContext, node: Node, replica: Replica, event: CallOutcome, at: tuple[int, int], *, is_attempt: bool = True
) -> None:
    """Everything that is not an ordinary success of an ordinary target: fold by fold."""
    state, host, credential_of = node.state, node.host, node.credential
    assert host is not None and credential_of is not None  # a target has both
    case.node, case.state, case.limits = node, state, node.limits
    case.event, case.replica = event, replica.key
    case.seq, case.now_ms = at
    case.queued_ms, case.is_attempt = event.queued_ms or 0, is_attempt
    case.kind = judged(event, node.limits, overlay=case.overlay)
    case.group = group = GROUPS[case.kind]
    case.row = TABLE[group]
    scopes, at_host, at_wide = (node, host, credential_of), host.state, credential_of.state
    if at_host.cleared_seq or at_wide.cleared_seq:
        for scope in scopes:
            overrides.catch_up(case, scope)
    if state.holds is not None or at_host.holds is not None or at_wide.holds is not None:
        for scope in scopes:
            holds.expire(case, scope)
    if group != "success":
        state.bad_kind, state.bad_status, state.bad_ms = event.kind, http_status(event.status), case.now_ms
        if group == "rejection":
            state.rejections += 1
        else:
            state.failed_otherwise = True
    repeats = event.request_hash is not None and is_repeat(state, event, case.now_ms, node.limits)
    # A bad outcome of a forced call is statistics; so is the same request over again.
    counts = not (repeats and case.kind in REPEATABLE) and not (event.forced and group != "success")
    if case.queued_ms <= node.limits.points_ms:
        if counts:
            _count(case, node, host, credential_of)
        elif event.trial:
            _tell_nothing(case, scopes)
    if group != "success" or event.signature is not None:
        notices.fold(case)
    if group != "neutral" and (state.holds is not None or at_host.holds is not None or at_wide.holds is not None):
        for scope in scopes:
            if scope.state.holds is not None:
                holds.note_evidence(case, scope)
                case.store.touch(scope)
    health.fold(case, counts=counts)
    mark(node)


def _count(case: FoldContext, node: Node, host: Node, wide: Node) -> None:
    """Fold by fold, but for those that have nothing to do with such an outcome where nothing is remembered."""
    standing: set[str] | tuple[str, ...] = ()
    if node.state.holds is not None or host.state.holds is not None or wide.state.holds is not None:
        standing = {rule for scope in (node, host, wide) for rule in scope.state.holds or ()}
    for rule in HOLDING:
        if rule.name in standing or rule.concerns(case):
            rule.fold(case)


def _tell_nothing(case: FoldContext, scopes: tuple[Node, ...]) -> None:
    """A leased trial whose outcome does not count: the next one waits all the same."""
    for rule in HOLDING:
        for scope in scopes:
            for evidence in rule.evidence[:1]:
                scoring.told_nothing(case, scope, evidence)


def take_back(case: FoldContext, node: Node, replica: Replica, event: CallOutcome, at: tuple[int, int]) -> None:
    """What an ordinary success does where there are points and nothing is held, as `fold_all` does it."""
    case.node, case.state, case.limits = node, node.state, node.limits
    case.event, case.replica = event, replica.key
    case.seq, case.now_ms = at
    case.queued_ms, case.is_attempt, case.kind, case.group, case.row = event.queued_ms or 0, True, "ok", *_SUCCESS
    for rule in HOLDING:
        rule.take_back(case)
    mark(node)


def good_health(case: FoldContext, node: Node, event: CallOutcome, at: tuple[int, int]) -> None:
    """What an ordinary success does to the word for its target's health, and nothing else of `fold_all`."""
    case.node, case.state, case.limits = node, node.state, node.limits
    case.event = event
    case.seq, case.now_ms = at
    case.queued_ms, case.group = event.queued_ms or 0, "success"
    health.fold(case, counts=True)


def mark(node: Node) -> None:
    """Say what the next success of a target may do: `is_quick` and `has_pending_evidence`.

    A function of the state and the policy, kept with the node: `Store.invalidate_fast_path` says when it is found anew.
    """
    node.is_quick = node.has_pending_evidence = False
    state, host, wide = node.state, node.host, node.credential
    if host is None or wide is None or node.limits.slow_ttft_ms:
        return
    at_host, at_wide = host.state, wide.state
    if state.holds is not None or at_host.holds is not None or at_wide.holds is not None:
        return
    if state.refusals is not None or at_wide.refusals is not None:
        return
    node.is_quick = True
    node.has_pending_evidence = _has_points(state) or _has_points(at_host) or _has_points(at_wide)


def _has_points(state: ScopeState) -> bool:
    return state.points is not None and any([slot.points for slot in state.points.values()])  # noqa: C419 - cheaper
