"""What an answer says of a target's output (Rule 4.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from sickbay_events.outcome import CallOutcome

from ..state import points
from ..state.model import Node
from . import scopes, witnesses
from .context import FoldContext

Sample: TypeAlias = Literal["clean", "bad", "damage", "unchecked", "nothing"]
"""`bad` is the model's own, `damage` damaged encoding; `unchecked` was answered but proves nothing either way."""
ENCODING: Final = frozenset({"double_encoded", "replacement_char"})
"""Signatures of damaged encoding."""
DAMAGE: Final = "damage"
"""The evidence of damaged encoding, of a model and of its host."""


def says(case: FoldContext) -> Sample:
    """What this outcome is as a sample.

    Damaged encoding that may be an echo of the prompt proves nothing: a model that echoes what it was given
    behaves correctly (Rule 3).
    """
    if case.row.sample == "none":
        return "nothing"
    if not case.event.checkable:
        return "unchecked"
    if case.row.sample == "clean":
        return "clean"
    if is_encoding(case.event):
        return "damage" if case.event.attributable else "unchecked"
    return "bad"


def is_encoding(event: CallOutcome) -> bool:
    """Whether the text was damaged on its way through an encoding."""
    return event.kind == "mangled_output" and (event.signature in ENCODING or event.scope == "host")


def damaged_models(case: FoldContext, host: Node) -> int:
    """Models of a host that had enough damaged answers, this one included, since their own points were last 0."""
    models = _live_models(host)
    return sum(1 for model in models if _damaged(model, case.now_ms) + (model is case.node) >= host.limits.host_bad)


def has_other_clean(case: FoldContext, scope: Node, replica: str) -> bool:
    """Whether a replica other than this one had a clean sample of this scope lately."""
    models = (scope,) if scope.scope.model is not None else _live_models(scope)
    return any(
        0 < clean_ms <= case.now_ms < clean_ms + scope.limits.good_answer_ms
        for clean_ms in (witnesses.other_clean_ms(model.state, replica) for model in models)
    )


def _damaged(model: Node, at_ms: int) -> int:
    slot = (model.state.points or {}).get(DAMAGE)
    if slot is None or points.is_over(slot, at_ms):
        return 0
    return sum(counts[0] for counts in slot.by.values())


def _live_models(host: Node) -> Iterator[Node]:
    """The models of a host that no clear of a wider scope has made void."""
    return (child for child in host.children.values() if child.scope.model is not None and not scopes.is_behind(child))
