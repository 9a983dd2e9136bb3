"""The plain fold of a log file: what the live projector concludes from the same events, without any server.

    replayed = replay(LogFile(Path("log.jsonl.zst")))
    replayed.fleet, replayed.derived, replayed.poison

The same decoding, the same fold, the same treatment of poison and gaps as live (SPEC section 7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from sickbay_events import DerivedEvent, Poison, Policy
from sickbay_projections import Fleet

from .bus.reader import Chunk
from .logfile import LogFile, LogFileError, LogLine
from .projector.intake import Intake

CHUNK_LINES: Final = 5_000


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
    for lines in _runs(file):
        first_seq = first_seq or lines[0].seq
        # A sequence that is missing inside is passed as the projector passes it; what lies before the first
        # line was trimmed, and is nowhere in a state.
        for seq in range(fleet.seq + 1, lines[0].seq) if fleet.seq else ():
            fleet.passed(seq, fleet.time_ms, "gap")
            gaps += 1
        batch = intake.batch(_chunk(lines))
        poison.update(event.reason for event in batch.events if isinstance(event, Poison))
        derived += fleet.apply_many(batch.subjects, batch.events, batch.seqs, batch.times_ms)
        events += len(lines)
    return Replayed(fleet, derived, events, first_seq, gaps, dict(poison))


def _runs(file: LogFile) -> Iterator[list[LogLine]]:
    """Lines in runs of rising sequence without a gap, as the live reader hands them out.

    Raises `LogFileError` for a file that is not in order: a state folded from it would be of no log.
    """
    run: list[LogLine] = []
    before = 0
    for line in file:
        if line.seq <= before:
            raise LogFileError(file.path, file.lines, f"sequence {line.seq} after {before}: a log is in rising order")
        if run and (line.seq != before + 1 or len(run) >= CHUNK_LINES):
            yield run
            run = []
        run.append(line)
        before = line.seq
    if run:
        yield run


def _chunk(lines: Iterable[LogLine]) -> Chunk:
    """Lines as the reader's chunk, so that both are decoded by the same code."""
    found = list(lines)
    payloads = [line.payload for line in found]
    return Chunk(
        subjects=[line.subject.encode() for line in found],
        seqs=[line.seq for line in found],
        times_ns=[line.time_ms * 1_000_000 for line in found],
        payloads=payloads,
        headers=[None] * len(found),
        pending=0,
        size=sum(map(len, payloads)),
    )
