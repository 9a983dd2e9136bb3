"""One row of the budget table: what every bench module hands to `bench/run.py`.

A bench module (`bench_decide.py`, `bench_fold.py`, ...) exposes one function, `measure(quick)`, that
returns its rows. Run alone, a module prints them with `print_rows(measure(quick=False))`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Row:
    """A measured value beside its budget.

    `unit` is what both numbers are in ("us", "ms", "events/s", "MB", "x"); `budget` is None where the
    budget table sets none; `better` says which way is better, so that a miss can be told from a hit;
    `ratio_text` compares within the same run ("120x cheaper than a Redis GET"), empty where there is
    nothing to compare with.
    """

    name: str
    value: float
    unit: str
    budget: float | None = None
    ratio_text: str = ""
    better: Literal["lower", "higher"] = "lower"

    def met(self) -> bool | None:
        """Whether the budget is met; None where there is no budget."""
        if self.budget is None:
            return None
        return self.value <= self.budget if self.better == "lower" else self.value >= self.budget

    def share(self) -> str:
        """The value against its budget, so that a reader sees by how much: `0.42 of budget`."""
        if not self.budget:
            return ""
        return f"{self.value / self.budget:.2f} of budget"


def percentile(samples: Sequence[float], share: float) -> float:
    """The sample below which `share` (0..1) of the samples lie (nearest rank); ValueError if empty."""
    ordered = sorted(samples)
    if not ordered:
        raise ValueError("samples: expected at least one")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(samples: Sequence[float]) -> float:
    """The median of the samples."""
    return statistics.median(samples)


def number(value: float) -> str:
    """A number with about three digits that tell something: `0.42`, `5.31`, `1,234`."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def print_rows(rows: Iterable[Row]) -> None:
    """Print rows as an aligned table: name, value, budget, verdict, ratio."""
    table = [("what", "measured", "budget", "", "in the same run")]
    for row in rows:
        verdict = {None: "", True: "met", False: "MISSED"}[row.met()]
        budget = "" if row.budget is None else f"{number(row.budget)} {row.unit}"
        share = f"{verdict} ({row.share()})" if verdict else ""
        table.append((row.name, f"{number(row.value)} {row.unit}", budget, share, row.ratio_text))
    widths = [max(len(line[column]) for line in table) for column in range(5)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
