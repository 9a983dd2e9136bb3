"""The fold of a log, from a file or a server, to any point in it: what the live projector concludes from the same.

    replayed = replay(LogFile(Path("log.jsonl.zst")))
    replayed.fleet, replayed.derived, replayed.poison

The same decoding, the same fold, the same treatment of poison and gaps as live (Rule 7). A `Folding` goes
through a log once, stops at a `Bound`, and shows its state to callbacks on the way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

from sickbay_events import DerivedEvent, Event, Override, Poison, Policy, PolicyChanged
from sickbay_projections import Fleet

from ..bus.reader import Chunk
from .decode import DecodedBatch, Intake
from .file import Columns, LogFile, LogFileError

GAP_REASON: Final = "gap"


class Bound(NamedTuple):
    """A place in a log: up to a sequence, or before the first event later than a log time; both None: its end."""

    seq: int | None = None
    time_ms: int | None = None

    def end_in(self, batch: DecodedBatch, latest_ms: int) -> int:
        """Index of the first message that lies beyond; their number if none does.

        `latest_ms` is the latest log time before the batch. The log's clock may step back: what comes after an event
        beyond the bound is beyond it too.
        """
        if self.seq is not None:
            return bisect_right(batch.seqs, self.seq)
        if self.time_ms is None:
            return len(batch.seqs)
        if latest_ms > self.time_ms:
            return 0
        times_ms = batch.times_ms
        if max(times_ms) <= self.time_ms:
            return len(times_ms)
        return bisect_right(list(accumulate(times_ms, max)), self.time_ms)


TO_THE_END: Final = Bound()


class InspectAt(NamedTuple):
    """Somebody wants to see the state at a place."""

    at: Bound
    see: Callable[[Fleet], None]


class Folding:
    """A state on its way through a log.

    end      where it stops
    looks    in the order of their places; each is called once, at the latest by `finish`
    told     gets what follows from the events, in order of cause
    pinned   a policy that counts in the place of every one in the log
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        end: Bound = TO_THE_END,
        looks: Iterable[InspectAt] = (),
        told: Callable[[list[DerivedEvent]], None] | None = None,
        pinned: Policy | None = None,
    ) -> None:
        self.fleet = fleet
        self.events = 0
        """Messages folded, unreadable ones among them."""
        self.first_seq = self.first_ms = 0
        """The first of them, and the log time of the first that is no operator's act; 0: none yet."""
        self.gaps = 0
        """Sequences missing inside the log."""
        self.poison: Counter[str] = Counter()
        """Messages that could not be read, by reason."""
        self.is_over = end.seq is not None and fleet.seq >= end.seq
        """The end was reached: what comes is not taken any more."""
        self.latest_ms = fleet.time_ms
        self._end, self._told = end, told
        self._looks = list(looks)
        self._looks.reverse()
        self.pinned = pinned
        self._intake = Intake(pinned)

    def take(self, chunk: Chunk | Columns) -> None:
        """Fold a chunk, as far as the end lets."""
        batch = self._intake.batch(chunk)
        self.first_seq = self.first_seq or batch.seqs[0]
        if not self.first_ms:
            # Acts that the log had lost are put before its first event, with the times they had.
            own = (at_ms for event, at_ms in zip(batch.events, batch.times_ms, strict=True) if not _is_act(event))
            self.first_ms = next(own, 0)
        stop = self._end.end_in(batch, self.latest_ms)
        begin = 0
        while self._looks:
            look = self._looks[-1]
            beyond = look.at.end_in(batch, self.latest_ms)
            if beyond >= len(batch.seqs):
                break
            begin = self._apply(batch, begin, min(beyond, stop))
            if beyond > stop:
                break
            self._looks.pop().see(self.fleet)
        self._apply(batch, begin, stop)
        latest_ms = max(batch.times_ms)
        self.latest_ms = max(self.latest_ms, latest_ms)
        self.is_over = stop < len(batch.seqs) or batch.seqs[-1] == self._end.seq

    def take_lost(self, chunk: Chunk) -> None:
        """Fold what operators decided before the first event that the log still has; counted as no event of it."""
        self.tell(self.fleet.apply_many(*self._intake.batch(chunk)))

    def _apply(self, batch: DecodedBatch, begin: int, end: int) -> int:
        if end <= begin:
            return begin
        part = batch if end - begin == len(batch.seqs) else batch.cut(begin, end)
        self.tell(self.fleet.apply_many(*part))
        if Poison in set(map(type, part.events)):
            self.poison.update(event.reason for event in part.events if isinstance(event, Poison))
        self.events += end - begin
        return end

    def tell(self, derived: list[DerivedEvent]) -> None:
        """Hand on what follows."""
        if derived and self._told is not None:
            self._told(derived)

    def gap(self, first: int, last: int) -> None:
        """The log has no messages from `first` to `last`: they are passed as the projector passes them."""
        for seq in range(first, last + 1):
            if self._end.seq is not None and seq > self._end.seq:
                self.is_over = True
                return
            while self._looks and self._looks[-1].at.seq is not None and self._looks[-1].at.seq < seq:
                self._looks.pop().see(self.fleet)
            self.fleet.passed(seq, self.fleet.time_ms, GAP_REASON)
            self.gaps += 1

    def finish(self) -> None:
        """The log has nothing more: callbacks that still wait get the state as it is."""
        while self._looks:
            self._looks.pop().see(self.fleet)


def _is_act(event: Event | Poison) -> bool:
    return isinstance(event, Override | PolicyChanged)


def fold_file(file: LogFile, folding: Folding, progress: Callable[[int, int], None] | None = None) -> None:
    """Fold a file up to the end that the folding has. Raises `LogFileError`, `OSError`.

    `progress` is told of messages and of bytes of the file.
    """
    fleet = folding.fleet
    for chunk in chunks(file):
        # A sequence that is missing inside is passed; what lies before the first line was trimmed, and is nowhere.
        if fleet.seq and chunk.seqs[0] > fleet.seq + 1:
            folding.gap(fleet.seq + 1, chunk.seqs[0] - 1)
        folding.take(chunk)
        if progress is not None:
            progress(folding.events, file.bytes_read)
        if folding.is_over:
            break
    folding.finish()


class Replayed(NamedTuple):
    """What came of a log file."""

    fleet: Fleet
    derived: list[DerivedEvent]
    """Everything that was concluded, in order of cause."""
    events: int
    """Lines folded or passed."""
    first_seq: int
    gaps: int
    """Sequences missing inside the file."""
    poison: dict[str, int]
    """Events that could not be read, by reason."""


def replay(file: LogFile, policy: Policy | None = None) -> Replayed:
    """Fold a whole file and keep all that follows. `policy` holds until the log brings its own.

    Raises `LogFileError`, `OSError`.
    """
    derived: list[DerivedEvent] = []
    folding = Folding(Fleet(policy or Policy()), told=derived.extend)
    fold_file(file, folding)
    return Replayed(folding.fleet, derived, folding.events, folding.first_seq, folding.gaps, dict(folding.poison))


def chunks(file: LogFile) -> Iterator[Columns]:
    """A file in chunks without a gap inside, as the live reader hands them out.

    Raises `LogFileError` for a file that is not in order: a state folded from it would be of no log.
    """
    before = 0
    for columns in file.columns():
        seqs = columns.seqs
        if seqs[0] == before + 1 and seqs == list(range(before + 1, before + 1 + len(seqs))):
            before = seqs[-1]
            yield columns
            continue
        begin, first_line = 0, file.lines - len(seqs) + 1
        for index, seq in enumerate(seqs):
            if seq <= before:
                why = f"sequence {seq} after {before}: a log is in rising order"
                raise LogFileError(file.path, first_line + index, why)
            if index > begin and seq != before + 1:
                yield columns.cut(begin, index)
                begin = index
            before = seq
        yield columns.cut(begin, len(seqs))
    if file.cut and not file.lines:
        raise LogFileError(file.path, 1, f"{file.cut}; there is no whole line in it")
