"""What a projector counts for its metrics, outside of the fold: by chunks, so that an event costs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from sickbay_events import CallOutcome, DerivedEvent

from ..log.decode import DecodedBatch
from ..metrics.sample import Histogram


class Counters:
    """Counts since the process was up with the log: what it read before that is a replay of what others counted."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        """By kind, without those that had been folded before."""
        self.transitions: Counter[tuple[str, str]] = Counter()
        """By type and rule."""
        self.commits = Histogram()
        self.is_live = False

    def count(self, batch: DecodedBatch, bad: Sequence[str], others: int, passed_over: Mapping[int, str]) -> None:
        """Take the outcomes of a batch: `bad` are the kinds of those that are not ok, `others` are no outcomes, `passed_over`
        says what the fold left out, by sequence."""
        if not self.is_live:
            return
        if passed_over and "repeated" in passed_over.values():
            for seq, event in zip(batch.seqs, batch.events, strict=True):
                if type(event) is CallOutcome and passed_over.get(seq) != "repeated":
                    self.outcomes[event.kind] += 1
            return
        self.outcomes["ok"] += len(batch.events) - len(bad) - others
        if bad:
            self.outcomes.update(bad)

    def told(self, derived: Iterable[DerivedEvent]) -> None:
        """Take what followed from a batch."""
        if self.is_live:
            self.transitions.update((str(event.__struct_config__.tag), event.rule) for event in derived)
