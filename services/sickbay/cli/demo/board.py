"""What the demonstration has seen so far, and how it is shown."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ..base import plain_table, rows
from .router import REPLICAS

REFRESH_PER_S: Final = 8


class Phase(NamedTuple):
    """One of the two lives of the fleet."""

    name: str
    title: str


class PhaseCounts:
    """Counts of one phase, as the replicas told them."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.dead_at_s: dict[str, list[float]] = {}
        self.dead_ms, self.trials = 0.0, 0
        self.refuses_at_s: dict[str, float] = {}


class Board:
    """Counts what replicas tell, and shows it: a live table on a terminal, plain lines elsewhere."""

    def __init__(self, out: Console, phases: tuple[Phase, ...], *, quiet: bool) -> None:
        self._out, self._quiet = out, quiet
        self._seen = {phase.name: PhaseCounts() for phase in phases}
        self._phase: Phase | None = None
        self._began_s = time.monotonic()
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """One line of the story, with the time since it began."""
        if not self._quiet:
            self._out.print(f"{time.monotonic() - self._began_s:5.1f} s  {text}")

    def begin(self, phase: Phase) -> None:
        """From now on this phase is shown."""
        self._phase = phase
        self.say(f"now {phase.title}")

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the table while the phases run, where there is a terminal."""
        if self._quiet or not self._out.is_terminal:
            yield
            return
        with Live(console=self._out, get_renderable=self._table, refresh_per_second=REFRESH_PER_S, transient=True):
            yield

    def take(self, replica: str, fact: dict[str, Any]) -> None:
        """One thing a replica did."""
        seen = self._seen.get(fact.get("phase", ""))
        if seen is None:
            return
        if fact["event"] == "refused":
            seen.refused[replica] += 1
        elif fact["event"] == "refuses":
            seen.refuses_at_s[replica] = fact["at_s"]
            if len(seen.refuses_at_s) == REPLICAS:
                self.say("every replica refuses it now and goes to provider 2 at once")
        elif fact["event"] == "called":
            self._take_call(seen, replica, fact)

    def _take_call(self, seen: PhaseCounts, replica: str, fact: dict[str, Any]) -> None:
        if fact["kind"] == "ok":
            seen.answered[replica] += 1
            return
        seen.dead[replica] += 1
        seen.dead_at_s.setdefault(replica, []).append(fact["at_s"])
        seen.dead_ms += fact["took_ms"]
        seen.trials += fact["trial"]
        self.say(f"{replica}: {'trial' if fact['trial'] else 'dead call'}, {fact['kind']}, {fact['took_ms']} ms lost")

    def measured(self, phase: Phase, deciding: tuple[str, int] | None = None) -> dict[str, Any]:
        """What a phase came to.

        `spread_ms` runs from the deciding rejection to the last replica's refusal: `deciding` says which it was, by
        replica and how many rejections that one had got before it. Where nobody decides for all, it is the second
        rejection that anybody got. None if not every replica came to refuse.
        """
        seen = self._seen[phase.name]
        in_order = sorted(at_s for times in seen.dead_at_s.values() for at_s in times)
        spread_ms: float | None = None
        if len(seen.refuses_at_s) == REPLICAS and len(in_order) > 1:
            decided_s = in_order[1] if deciding is None else seen.dead_at_s[deciding[0]][deciding[1]]
            spread_ms = round((max(seen.refuses_at_s.values()) - decided_s) * 1000, 1)
        return {
            "answered": seen.answered.total(),
            "dead": seen.dead.total(),
            "dead_by": dict(seen.dead),
            "dead_ms": round(seen.dead_ms, 1),
            "trials": seen.trials,
            "refused": seen.refused.total(),
            "spread_ms": spread_ms,
        }

    def _table(self) -> Table:
        phase = self._phase
        made = plain_table(
            "replica", "answered", "dead calls", "refused by its gate", "first choice is", title=phase and phase.title
        )
        if phase is None:
            return made
        seen = self._seen[phase.name]
        names = sorted({*seen.answered, *seen.dead, *seen.refused})
        cells = (
            (
                name,
                seen.answered[name],
                seen.dead[name],
                seen.refused[name],
                "refused" if name in seen.refuses_at_s else "called",
            )
            for name in names
        )
        return rows(made, cells)
