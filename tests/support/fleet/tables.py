"""The tables of the stories, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .figures import Figure, Telling, mean
from .rivals import RIVALS
from .scenarios import Group, Scenario
from .world import SIDES, TOGETHER, Told

ROOT: Final = Path(__file__).parents[3]
BEGIN: Final = "<!-- written by make fleet -->"
END: Final = "<!-- end of what make fleet writes -->"
BETTER: Final = 0.9
"""A rival with less than this part of Sickbay's cost is named."""

_OUTAGE: Final = (
    "dead calls (of them trials) + good calls refused; held after the beginning; free after the end; held when well"
)
_WELL: Final = "calls that got no answer (of them trials) + good calls refused; held when well"
_ANSWERED: Final = "calls answered; calls that got none (of them trials) + good calls refused"
HEADS: Final[dict[Group, tuple[str, str]]] = {
    "dead": ("Dead targets", _OUTAGE),
    "partly dead": ("Partly dead targets", _OUTAGE),
    "flapping": ("Flapping targets", _WELL),
    "recovery": ("Cold starts", _OUTAGE),
    "noise": ("Noise of a healthy target", _WELL),
    "broken uplink": ("A broken uplink", _WELL + ", at the other replicas"),
    "429": ("Nothing but 429 for 40 s", _OUTAGE),
    "limited": ("Limited providers", _ANSWERED),
}
SHORT: Final = (
    "dead 5 s, 500, 12/s",
    "dead 40 s, 500, 12/s",
    "dead 10 min, 500, 12/s",
    "dead 40 s, hangs 12 s, 12/s",
    "dead 40 s, unknown model, 12/s",
    "429 for 40 s, does not say when, 36/s, 20 replicas",
    "noise: 5% failed, 4/s, 1 h",
)
"""Stories of the README."""


class Measured(NamedTuple):
    """A scenario with what came of it."""

    scenario: Scenario
    tellings: list[Telling]

    def tolds(self, side: str) -> list[Told]:
        """Those of one side."""
        return [telling[side] for telling in self.tellings]

    def cost(self, side: str) -> float:
        """Dead calls and good calls refused, the mean."""
        return mean([told.cost for told in self.tolds(side)])

    @property
    def better(self) -> list[str]:
        """Rivals that do better by more than a tenth. Where a provider is limited: that answer more calls."""
        if self.scenario.group == "limited":
            answers = {side: mean([told.counts["ok"] for told in self.tolds(side)]) for side in SIDES}
            return [side for side in RIVALS if answers[side] * BETTER > answers[TOGETHER]]
        return [side for side in RIVALS if self.cost(side) < BETTER * self.cost(TOGETHER)]

    @property
    def is_explained(self) -> bool:
        """Whether it is said why rivals are better, if any are."""
        return not self.better or bool(self.scenario.better)


def long_table(measured: Sequence[Measured]) -> Iterator[str]:
    """All stories of all sides, by group."""
    for group, (head, cells) in HEADS.items():
        rows = [one for one in measured if one.scenario.group == group]
        if not rows:
            continue
        yield from ("", f"### {head}", "", f"A cell: {cells}.", "")
        yield from _head(("story", *SIDES, "a rival is better"))
        for one in rows:
            better = ", ".join(one.better) + (f" ({one.scenario.better})" if one.better else "")
            yield _row((one.scenario.story.name, *(_cell(one.tolds(side), group) for side in SIDES), better))


def bounds_table(measured: Sequence[Measured]) -> Iterator[str]:
    """Every bound."""
    yield from _head(("story", "figure", "measured", "bound", ""))
    for one in measured:
        for figure in one.scenario.measure(one.tellings):
            yield _row((one.scenario.story.name, *_figure(figure)))


def short_table(measured: Sequence[Measured]) -> Iterator[str]:
    """A handful of stories."""
    yield from _head(("story", *SIDES))
    for name in SHORT:
        one = next(one for one in measured if one.scenario.story.name == name)
        yield _row((name, *(_short(one.tolds(side)) for side in SIDES)))


def write(page: Path, lines: Sequence[str]) -> None:
    """Put lines between the page's two marks. Raises `ValueError` where there are none."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: no place for the table: {BEGIN} ... {END}")
    page.write_text("\n".join([before + begin, *lines, end + after]), encoding="utf-8")


def _cell(tolds: Sequence[Told], group: Group) -> str:
    calls = _calls(tolds)
    if group == "limited":
        return f"{mean([told.counts['ok'] for told in tolds]):,.0f}; {calls}"
    if HEADS[group][1] != _OUTAGE:
        return f"{calls}; {_well(tolds)}"
    return f"{calls}; {_seconds([told.held_after_s for told in tolds])}; {_free(tolds)}; {_well(tolds)}"


def _calls(tolds: Sequence[Told]) -> str:
    bad, trials, lost = (mean([told.counts[name] for told in tolds]) for name in ("bad", "bad_trials", "lost"))
    return f"{bad:,.0f}{f' ({trials:,.0f})' if round(trials) else ''} + {lost:,.0f}"


def _short(tolds: Sequence[Told]) -> str:
    after = f", free after {_free(tolds)}" if tolds[0].outage_s else ""
    bad, lost = (mean([told.counts[name] for told in tolds]) for name in ("bad", "lost"))
    return f"{bad:,.0f} + {lost:,.0f}{after}"


def _free(tolds: Sequence[Told]) -> str:
    return _seconds([told.free_after_s for told in tolds])


def _seconds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _number(mean(known), "s") if len(known) == len(values) else "-"


def _well(tolds: Sequence[Told]) -> str:
    return _number(100 * mean([told.held_well for told in tolds]), "%")


def _figure(figure: Figure) -> tuple[str, str, str, str]:
    verdict = "met" if figure.is_met else "missed"
    verdict += f" ({figure.miss})" if figure.miss and not figure.is_met else ""
    sign = ">=" if figure.is_least else "<="
    value, bound = _number(figure.value, figure.unit), _number(figure.bound, figure.unit)
    return figure.what, value, f"{sign} {bound}", verdict


def _number(value: float, unit: str) -> str:
    if math.isinf(value):
        return "not in the story"
    number = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2g}"
    return f"{number} {unit}".strip()


def _head(names: Sequence[str]) -> tuple[str, str]:
    return _row(names), "|" + "---|" * len(names)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
