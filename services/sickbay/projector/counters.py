"""What a projector counts for its metrics, outside of the fold: by chunk, so that an event costs almost nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from sickbay_events import CallOutcome, DerivedEvent

from ..durations import DurationHistogram
from ..log.decode import DecodedBatch


class Counters:
    """Counts since the projector caught up with the log: other processes counted what it replayed before that."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        """By kind, without those that had been folded before."""
        self.transitions: Counter[tuple[str, str]] = Counter()
        """By type and rule."""
        self.commits = DurationHistogram()
        self.is_live = False

    def count(self, batch: DecodedBatch, bad: Sequence[str], others: int, passed_over: Mapping[int, str]) -> None:
        """Count the outcomes of a batch. `bad`: the kinds of those that are not ok. `others`: how many events are no
        outcomes. `passed_over`: why the fold left an event out, by sequence."""
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

    def count_derived(self, derived: Iterable[DerivedEvent]) -> None:
        """Count what followed from a batch."""
        if self.is_live:
            self.transitions.update((str(event.__struct_config__.tag), event.rule) for event in derived)
