"""One history under two policies, from a file or the live log (see `sickbay_projections.replay.compare`).

comparing = Comparing(world_of("a.toml"), world_of("none"))
fold_file(LogFile(Path("last-week.jsonl.zst")), comparing)
comparing.comparison.result()
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from sickbay_events import Poison, Policy, rfc3339
from sickbay_projections import Fleet
from sickbay_projections.replay.compare import Comparison
from sickbay_projections.replay.compared import Result
from sickbay_projections.replay.counterfactual import World

from ..bus.reader import Chunk
from ..invalid import InvalidValue
from ..log.decode import DecodedBatch
from ..log.folding import TO_THE_END, Bound, Folding

NONE: Final = "none"
DEFAULT: Final = "default"
LOG: Final = "log"
ACCEPTED: Final = f"a policy file (TOML), {DEFAULT}, {LOG} (what the log says was in force) or {NONE} (nothing is held)"


def world_of(option: str, value: str) -> World:
    """The world of a policy as the command line names it. Raises `InvalidValue`, `PolicyRefused`, `OSError`."""
    if value == NONE:
        return World(NONE, None)
    if value == DEFAULT:
        return World(DEFAULT, Policy())
    if value == LOG:
        return World(LOG, Policy(), pinned=False)
    path = Path(value)
    if not path.is_file():
        raise InvalidValue(option, value, ACCEPTED)
    return World(path.name, Policy.from_toml(path.read_text(encoding="utf-8")))


class Comparing(Folding):
    """Two worlds on their way through a log, wherever it is read from; its own fleet is the position only."""

    def __init__(self, one: World, other: World, *, first: Bound = TO_THE_END, last: Bound = TO_THE_END) -> None:
        """`first`: what lies before is folded and not counted."""
        super().__init__(Fleet(), end=last)
        if one.name == other.name:
            other.name += " (2)"
        self.comparison = Comparison(one, other, from_seq=first.seq or 0, from_ms=first.time_ms or 0)

    def take_lost(self, chunk: Chunk) -> None:
        """Both worlds learn what operators decided before the first event that the log still has."""
        batch = self._intake.batch(chunk)
        self.comparison.take(*batch)
        self.fleet.passed(batch.seqs[-1], max(batch.times_ms), "compared")

    def _apply(self, batch: DecodedBatch, begin: int, end: int) -> int:
        if end <= begin:
            return begin
        part = batch.cut(begin, end)
        self.comparison.take(*part)
        self.fleet.passed(part.seqs[-1], max(part.times_ms), "compared")
        self.poison.update(event.reason for event in part.events if isinstance(event, Poison))
        self.events += end - begin
        return end


def compared_facts(result: Result) -> dict[str, Any]:
    """What `replay --against --json` prints: the result, with times for people beside those for machines."""
    facts: dict[str, Any] = msgspec.to_builtins(result)
    if result.events:
        facts["from"], facts["to"] = rfc3339(result.from_ms), rfc3339(result.to_ms)
    first = facts["first_difference"]
    if first is not None:
        first["time"] = rfc3339(first["time_ms"])
    return facts
