"""The plain fold of a log file: what the live projector concludes from the same events, without any server.

    replayed = replay(LogFile(Path("log.jsonl.zst")))
    replayed.fleet, replayed.derived, replayed.poison

The same decoding, the same fold, the same treatment of poison and gaps as live (SPEC section 7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from sickbay_events import DerivedEvent, Poison, Policy
from sickbay_projections import Fleet

from .bus.reader import Chunk
from .logfile import Columns, LogFile, LogFileError
from .projector.intake import Intake


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
    """Fold a whole file. `policy` holds until the log brings its own. Raises `LogFileError`, `OSError`."""
    fleet = Fleet(policy or Policy())
    intake = Intake()
    derived: list[DerivedEvent] = []
    poison: Counter[str] = Counter()
    events = gaps = first_seq = 0
    for chunk in chunks(file):
        first_seq = first_seq or chunk.seqs[0]
        # A sequence that is missing inside is passed as the projector passes it; what lies before the first
        # line was trimmed, and is nowhere in a state.
        for seq in range(fleet.seq + 1, chunk.seqs[0]) if fleet.seq else ():
            fleet.passed(seq, fleet.time_ms, "gap")
            gaps += 1
        batch = intake.batch(chunk)
        poison.update(event.reason for event in batch.events if isinstance(event, Poison))
        derived += fleet.apply_many(batch.subjects, batch.events, batch.seqs, batch.times_ms)
        events += len(chunk.seqs)
    return Replayed(fleet, derived, events, first_seq, gaps, dict(poison))


def chunks(file: LogFile) -> Iterator[Chunk]:
    """A file in chunks without a gap inside, as the live reader hands them out.

    Raises `LogFileError` for a file that is not in order: a state folded from it would be of no log.
    """
    before = 0
    for columns in file.columns():
        seqs = columns.seqs
        if seqs[0] == before + 1 and seqs == list(range(before + 1, before + 1 + len(seqs))):
            before = seqs[-1]
            yield _chunk(columns)
            continue
        begin, first_line = 0, file.lines - len(seqs) + 1
        for index, seq in enumerate(seqs):
            if seq <= before:
                why = f"sequence {seq} after {before}: a log is in rising order"
                raise LogFileError(file.path, first_line + index, why)
            if index > begin and seq != before + 1:
                yield _chunk(columns.cut(begin, index))
                begin = index
            before = seq
        yield _chunk(columns.cut(begin, len(seqs)))


def _chunk(columns: Columns) -> Chunk:
    """Lines as the reader's chunk, so that both are decoded by the same code."""
    return Chunk(
        subjects=[subject.encode() for subject in columns.subjects],
        seqs=columns.seqs,
        times_ns=columns.times_ns,
        payloads=columns.payloads,
        headers=[None] * len(columns.seqs),
        pending=0,
        size=sum(map(len, columns.payloads)),
    )
