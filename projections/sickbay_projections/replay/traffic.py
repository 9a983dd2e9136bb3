"""Calls over time, target by target, in buckets that grow with the history: a drawing needs no more."""

from __future__ import annotations

from typing import Final

BUCKETS_MAX: Final = 160
"""A history is never drawn in more."""
TARGETS_MAX: Final = 2_000
"""Targets that are drawn; calls of later ones are in every count, and in no drawing."""
_PLACES: Final = {"success": 0, "neutral": 2}


class Traffic:
    """Good, dead and neutral calls by bucket of log time."""

    def __init__(self) -> None:
        self.bucket_ms = 1_000
        self._first: int | None = None
        self._last = 0
        self._counts: dict[str, dict[int, list[int]]] = {}

    def add(self, key: str, time_ms: int, group: str) -> None:
        """One call of a target."""
        bucket = time_ms // self.bucket_ms
        if self._first is None:
            self._first = self._last = bucket
        elif not self._first <= bucket <= self._last:
            self._first, self._last = min(self._first, bucket), max(self._last, bucket)
            while self._last - self._first >= BUCKETS_MAX:
                self._widen()
            bucket = time_ms // self.bucket_ms
        counts = self._counts.get(key)
        if counts is None:
            if len(self._counts) >= TARGETS_MAX:
                return
            counts = self._counts[key] = {}
        cell = counts.get(bucket)
        if cell is None:
            cell = counts[bucket] = [0, 0, 0]
        cell[_PLACES.get(group, 1)] += 1

    def of(self, key: str) -> list[tuple[int, int, int, int]]:
        """Buckets of one target in order: their beginning in milliseconds, good, dead, neutral."""
        return [
            (bucket * self.bucket_ms, good, dead, neutral)
            for bucket, (good, dead, neutral) in sorted(self._counts.get(key, {}).items())
        ]

    def _widen(self) -> None:
        assert self._first is not None
        self.bucket_ms *= 2
        self._first, self._last = self._first // 2, self._last // 2
        for key, counts in self._counts.items():
            wide: dict[int, list[int]] = {}
            for bucket, cell in counts.items():
                into = wide.setdefault(bucket // 2, [0, 0, 0])
                for place in (0, 1, 2):
                    into[place] += cell[place]
            self._counts[key] = wide
