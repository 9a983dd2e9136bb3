"""Arithmetic of points and of the record of what a target got over by itself (Rule 4.0). No holds, no rules."""

from __future__ import annotations

from typing import Final

from .limits import RuleLimits, Scoring
from .model import Points, ScopeState

REPLICAS_MAX: Final = 16
"""Replicas that are counted by name; all others are counted together."""
OTHERS: Final = ""
"""In place of a replica's name: all beyond those."""


def live(state: ScopeState, name: str, at_ms: int) -> Points | None:
    """The points of one sort of evidence, if there are any at this log time."""
    slot = state.points.get(name) if state.points is not None else None
    return slot if slot is not None and slot.points and not is_over(slot, at_ms) else None


def is_over(slot: Points, at_ms: int) -> bool:
    """Whether they were dropped by this log time, if nothing came: they have lived their life after the newest."""
    return at_ms >= slot.newest_ms + slot.life_ms


def record(slot: Points, at_ms: int, limits: RuleLimits) -> int:
    """The most failures in a row that the target lately got over by itself."""
    if not slot.record:
        return 0
    half, this, before = slot.record
    ago = at_ms // limits.record_ms - half
    return max(this, before) if ago == 0 else this if ago == 1 else 0


def remember(slot: Points, failures: int, at_ms: int, limits: RuleLimits) -> None:
    """The target got over so many failures in a row by itself."""
    half = at_ms // limits.record_ms
    if not slot.record or slot.record[0] != half:
        before = slot.record[1] if slot.record and slot.record[0] == half - 1 else 0
        slot.record = [half, 0, before]
    slot.record[1] = max(slot.record[1], failures)


def needed(least: int, scoring: Scoring, most: int, limits: RuleLimits) -> int:
    """How many failures in a row hold a target that got over `most`; `least` without that."""
    return min(least + scoring.above_max, max(least, most + limits.above)) if most else least


def note(slot: Points, replica: str, at_ms: int, *, is_permission: bool) -> None:
    """One more failure of a replica."""
    counts = _of(slot, replica)
    counts[0] += 1
    counts[2] = slot.newest_ms = at_ms
    slot.permission += is_permission


def subtract(slot: Points, replica: str, scoring: Scoring, at_ms: int, limits: RuleLimits) -> bool:
    """One more answer of a replica, where there are points; whether none is left. What is got over is remembered."""
    if is_over(slot, at_ms):
        return True
    slot.points -= 1
    slot.events += 1
    _of(slot, replica)[1] += 1
    if slot.points:
        return False
    most = -(-slot.top // scoring.weight)
    if most >= 2 and not slot.told:
        remember(slot, most, at_ms, limits)
    return True


def drop(state: ScopeState, name: str) -> None:
    """Points and the counts that belong to them are gone; the record stays."""
    slots = state.points
    slot = slots.pop(name, None) if slots is not None else None
    if slots is None or slot is None:
        return
    if slot.record:
        slots[name] = Points(record=slot.record)
    elif not slots:
        state.points = None


def step_back(slot: Points, now_ms: int, limits: RuleLimits) -> None:
    """The log's clock is believed: no time of theirs lies ahead of it."""
    slot.since_ms, slot.newest_ms = min(slot.since_ms, now_ms), min(slot.newest_ms, now_ms)
    for counts in slot.by.values():
        counts[2] = min(counts[2], now_ms)
    if slot.record:
        slot.record[0] = min(slot.record[0], now_ms // limits.record_ms)


def _of(slot: Points, replica: str) -> list[int]:
    counts = slot.by.get(replica)
    if counts is None:
        name = replica if len(slot.by) - (OTHERS in slot.by) < REPLICAS_MAX else OTHERS
        counts = slot.by.setdefault(name, [0, 0, 0])
    return counts
