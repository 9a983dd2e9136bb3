"""Calls of which no outcome is known, and how many of them would have been good.

A call that was refused left no outcome. What is known of it is its target and its minute (`CallsRefused`), and how that
target answered right before and after. The share of good answers there, with its 95 % interval by Wilson's score, is
the estimate; where nothing was answered nearby the calls are `blind`, and the interval is all or none of them.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import msgspec

Z: Final = 1.959964
"""95 % of a normal distribution lie within so many standard deviations."""
NEAR_MS: Final = 300_000
"""Answers so far from the minute count as right before and after it."""
NEAR_MAX: Final = 20
"""And at most so many of each side."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """`count` of `of`, and the 95 % interval of the share behind it; without any, 0 to 1."""

    count: int
    of: int
    share: float | None
    low: float
    high: float


def share(count: int, of: int) -> Share:
    """Wilson's score interval: it stays within 0 and 1, and is honest at few samples and at shares near the ends."""
    if not of:
        return Share(count=0, of=0, share=None, low=0.0, high=1.0)
    found, square = count / of, Z * Z
    middle = (found + square / (2 * of)) / (1 + square / of)
    half = Z * math.sqrt(found * (1 - found) / of + square / (4 * of * of)) / (1 + square / of)
    low = 0.0 if not count else max(0.0, middle - half)
    high = 1.0 if count == of else min(1.0, middle + half)
    return Share(count=count, of=of, share=round(found, 6), low=round(low, 6), high=round(high, 6))


class Unanswered(msgspec.Struct, kw_only=True):
    """Calls without an outcome, and how many of them would have been good: `low` to `high`, `good` in between."""

    calls: int = 0
    good: float = 0.0
    low: float = 0.0
    high: float = 0.0
    blind: int = 0
    """Calls near which nothing was answered; their part of `low` is none, of `high` all, and of `good` half."""

    def add(self, calls: int, near: Share) -> None:
        """Some calls of one target and minute. The bounds are added as if all of them erred the same way."""
        self.calls += calls
        self.low += calls * near.low
        self.high += calls * near.high
        self.good += calls * (0.5 if near.share is None else near.share)
        self.blind += calls if near.share is None else 0


class _Waiting:
    """Refused calls of one minute, until enough was answered after it."""

    __slots__ = ("after", "calls", "good", "minute_ms", "near", "sums")

    def __init__(self, calls: int, minute_ms: int, sums: list[Unanswered], before: list[bool]) -> None:
        self.calls, self.minute_ms, self.sums = calls, minute_ms, sums
        self.good, self.near, self.after = sum(before), len(before), 0

    def close(self) -> None:
        for one in self.sums:
            one.add(self.calls, share(self.good, self.near))


class Nearby:
    """How each target answered lately, and the refused calls that wait for what is answered next."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[tuple[int, bool]]] = {}
        self._waiting: dict[str, list[_Waiting]] = {}

    def answered(self, key: str, time_ms: int, *, good: bool) -> None:
        """An answer that says something of its target: good or bad, not the caller's own fault."""
        recent = self._recent.get(key)
        if recent is None:
            recent = self._recent[key] = deque(maxlen=NEAR_MAX)
        recent.append((time_ms, good))
        if key in self._waiting:
            self._waiting[key] = [one for one in self._waiting[key] if _waits(one, time_ms, good)]
            if not self._waiting[key]:
                del self._waiting[key]

    def refused(self, key: str, calls: int, minute_ms: int, sums: list[Unanswered]) -> None:
        """Calls that were refused in a minute; their estimate is added to `sums` when it can be made."""
        before = [good for time_ms, good in self._recent.get(key, ()) if time_ms >= minute_ms - NEAR_MS]
        self._waiting.setdefault(key, []).append(_Waiting(calls, minute_ms, sums, before))

    def finish(self) -> None:
        """Nothing more is answered."""
        for waiting in self._waiting.values():
            for one in waiting:
                one.close()
        self._waiting.clear()


def _waits(one: _Waiting, time_ms: int, good: bool) -> bool:
    is_near = time_ms < one.minute_ms + 60_000 + NEAR_MS
    if is_near:
        one.good, one.near, one.after = one.good + good, one.near + 1, one.after + 1
    if is_near and one.after < NEAR_MAX:
        return True
    one.close()
    return False
