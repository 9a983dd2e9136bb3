"""Who had a good answer lately: it speaks against the word of one replica (Rule 4.0, Whose word)."""

from __future__ import annotations

from ..state.model import ScopeState


def note_good(state: ScopeState, replica: str, now_ms: int) -> None:
    """A replica had a good answer of this scope."""
    if state.good_by != replica:
        state.other_good_ms, state.other_good_by = state.good_ms, state.good_by
        state.good_by = replica
    state.good_ms = now_ms


def note_clean(state: ScopeState, replica: str, now_ms: int) -> None:
    """A replica had a clean sample of this scope, the good answer of Rule 4.4."""
    if state.clean_by != replica:
        state.other_clean_ms, state.clean_by = state.clean_ms, replica
    state.clean_ms = now_ms


def other_clean_ms(state: ScopeState, replica: str) -> int:
    """The newest clean sample of this scope that was not this replica's; 0: none."""
    return state.other_clean_ms if state.clean_by == replica else state.clean_ms


def other_good_ms(state: ScopeState, replica: str) -> int:
    """The newest good answer of this scope that was not this replica's; 0: none."""
    return state.other_good_ms if state.good_by == replica else state.good_ms
