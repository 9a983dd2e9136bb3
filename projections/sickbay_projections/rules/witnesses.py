"""Two witnesses (Rule 4): one replica's word holds the fleet only if nobody else had a good answer."""

from __future__ import annotations

from ..state.limits import RuleLimits
from ..state.model import ScopeState, Witnesses

LIKES_MAX = 8
"""Replicas remembered as having seen the like; the newest stay."""


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


def has_other_good(state: ScopeState, replica: str, now_ms: int, limits: RuleLimits) -> bool:
    """Whether a replica other than this one had a good answer of this scope lately."""
    good_ms = other_good_ms(state, replica)
    return 0 < good_ms <= now_ms < good_ms + limits.good_answer_ms


def note_like(witnesses: Witnesses, replica: str, now_ms: int) -> None:
    """A replica saw evidence of this sort."""
    likes = witnesses.likes
    likes[replica] = now_ms
    if len(likes) > LIKES_MAX:
        del likes[min(likes, key=lambda name: (likes[name], name))]


def note_alone(witnesses: Witnesses, replica: str, now_ms: int, hold_ms: int) -> bool:
    """A replica reached the threshold alone; whether a hold of its own begins with it."""
    begins = witnesses.alone != replica or now_ms >= witnesses.alone_end_ms
    if begins:
        witnesses.alone, witnesses.alone_end_ms = replica, now_ms + hold_ms
    witnesses.alone_ms = now_ms
    return begins


def age(witnesses: Witnesses, now_ms: int, limits: RuleLimits) -> None:
    """Drop what was seen too long ago to confirm anything. Call before anything else."""
    likes, since_ms = witnesses.likes, now_ms - limits.good_answer_ms
    for name in [name for name, at_ms in likes.items() if at_ms <= since_ms]:
        del likes[name]
    if witnesses.alone is not None and now_ms >= witnesses.alone_ms + limits.good_answer_ms:
        _forget_alone(witnesses)


def is_empty(witnesses: Witnesses) -> bool:
    """Whether nothing is remembered."""
    return not witnesses.likes and witnesses.alone is None


def forget_like(witnesses: Witnesses, replica: str) -> None:
    """A good answer of this replica takes its own word back, and the hold it had alone."""
    witnesses.likes.pop(replica, None)
    if witnesses.alone == replica:
        _forget_alone(witnesses)


def has_second(witnesses: Witnesses, replica: str) -> bool:
    """Whether a replica other than this one has seen the like lately. Call `age` before."""
    likes = witnesses.likes
    return len(likes) > (1 if replica in likes else 0)


def is_second(witnesses: Witnesses, replica: str) -> bool:
    """Whether this replica's like event confirms what another reached alone. Call `age` before."""
    return witnesses.alone is not None and witnesses.alone != replica


def _forget_alone(witnesses: Witnesses) -> None:
    witnesses.alone, witnesses.alone_ms, witnesses.alone_end_ms = None, 0, 0


def step_back(witnesses: Witnesses, now_ms: int, longest_ms: int) -> None:
    """No time of theirs lies ahead of this log time, and no hold of a lone one lasts longer than one of its rule."""
    witnesses.likes = {name: min(at_ms, now_ms) for name, at_ms in witnesses.likes.items()}
    witnesses.alone_ms = min(witnesses.alone_ms, now_ms)
    witnesses.alone_end_ms = min(witnesses.alone_end_ms, now_ms + longest_ms)
