"""Durations counted by bounds: what a projector measures and metrics show. Knows nothing of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class DurationHistogram:
    """Durations in seconds, counted by `BOUNDS_S`."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """(upper bound, how many up to it), as Prometheus wants it."""
        found: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found
