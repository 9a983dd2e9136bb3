"""One sample of a metric; nothing in here knows of Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple

from sickbay_projections import FOLD_VERSION

from ..durations import DurationHistogram
from .table import BUILD


class Sample(NamedTuple):
    """A value under a name of the table, with the values of its labels."""

    name: str
    value: float | DurationHistogram
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
