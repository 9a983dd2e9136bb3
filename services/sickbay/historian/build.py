"""A history of a log as a file: the same rows as the historian writes of the same events."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sickbay_projections import FOLD_VERSION, Fleet
from sickbay_projections.replay.history import History

from ..log.decode import Intake
from ..log.file import LogFile
from ..log.folding import chunks
from .store import IN_MEMORY, Book, Keep, Position

COMMIT_EVENTS: Final = 50_000


def built_from(source: Path, path: Path = IN_MEMORY, keep: Keep | None = None) -> Book:
    """Read a log file into a new history. Raises `LogFileError`, `OSError`, `HistoryRefused`."""
    book = Book.open(path, keep or Keep(minutes_days=0, hours_days=0))
    try:
        _fill(book, source)
    except BaseException:
        book.close()
        raise
    return book


def _fill(book: Book, source: Path) -> None:
    fleet, history, intake, first_seq = Fleet(), History(), Intake(), 0
    gaps: list[tuple[int, int, str]] = []

    def write() -> None:
        position = Position(
            log_created=f"file {source.name}",
            seq=history.seq,
            time_ms=history.time_ms,
            rolled_ms=history.rolled_ms,
            fold_version=FOLD_VERSION,
            first_seq=first_seq,
        )
        book.write(history.take(), position, gaps)
        gaps.clear()

    for chunk in chunks(LogFile(source)):
        if fleet.seq and chunk.seqs[0] > fleet.seq + 1:
            gaps.append((fleet.seq + 1, chunk.seqs[0] - 1, "deleted"))
            for seq in range(fleet.seq + 1, chunk.seqs[0]):
                fleet.passed(seq, fleet.time_ms, "gap")
        first_seq = first_seq or chunk.seqs[0]
        batch = intake.batch(chunk)
        history.add(*batch, derived=fleet.apply_many(*batch), passed_over=fleet.passed_over)
        if history.events >= COMMIT_EVENTS:
            write()
    if history.events:
        write()
