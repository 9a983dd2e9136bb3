"""One sample of a metric; nothing in here knows of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final, NamedTuple

from sickbay_projections import FOLD_VERSION

from .table import BUILD

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Histogram:
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


class Sample(NamedTuple):
    """A value under a name of the table, with the values of its labels."""

    name: str
    value: float | Histogram
    labels: tuple[str, ...] = ()


def samples_by_label(name: str, counts: Mapping[str, int], known: Sequence[str], other: str = "") -> list[Sample]:
    """One sample for each known label, 0 where nothing was counted: an increase from nothing is seen by no rule.

    Labels that are not known are added up under `other`, or each told where that is empty: they are of a short list.
    """
    told = dict.fromkeys(known, 0)
    for label, count in counts.items():
        at = label if label in told or not other else other
        told[at] = told.get(at, 0) + count
    return [Sample(name, value, (label,)) for label, value in told.items()]


def build_sample() -> Sample:
    """The version of this process."""
    return Sample(BUILD.name, 1, (version("sickbay"), str(FOLD_VERSION)))
