"""Which scope an outcome speaks of, and who was answered there."""

from __future__ import annotations

from collections.abc import Iterator

from sickbay_events.kinds import KINDS

from ..state.model import Node, ScopeState
from . import witnesses
from .context import FoldContext


def spoken_of(case: FoldContext) -> Node:
    """The scope that a throttle or a refused credential is about: as classified, the model or its credential.

    A provider without an alias may stand for many credentials: the model then (Rule 1). Never a host.
    """
    credential = case.node.credential
    if credential is None or (case.event.scope or KINDS[case.kind].scope) == "model":
        return case.node
    is_one = credential.scope.alias or credential.scope.host in case.store.policy.single_credential
    return credential if is_one else case.node


def is_behind(node: Node) -> bool:
    """Whether a clear of a wider scope made void what stands here, and the scope has not taken note of it yet."""
    cleared_seq, host, credential = node.state.cleared_seq, node.host, node.credential
    if host is not None and host.state.cleared_seq > cleared_seq:
        return True
    return credential is not None and credential.state.cleared_seq > cleared_seq


def has_other_good(case: FoldContext, node: Node, replica: str) -> bool:
    """Whether a replica other than this one had a good answer of this scope in the last 10 min."""
    within_ms = node.limits.good_answer_ms
    return any(_is_lately(case, node, witnesses.other_good_ms(each, replica), within_ms) for each in _states(node))


def _states(node: Node) -> Iterator[ScopeState]:
    """A model's own state; or those of a credential's models, where good answers are kept, and its own, which has those
    of models that were cleared."""
    yield node.state
    yield from (child.state for child in node.children.values())


def _is_lately(case: FoldContext, node: Node, good_ms: int, within_ms: int) -> bool:
    # What lies before a clear of this scope is void, also where the model has not taken note of that yet.
    return node.state.cleared_ms <= good_ms <= case.now_ms < good_ms + within_ms
