"""Building histories in tests: a log as batches, and what the tables hold afterwards."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlite_utils import Database

from sickbay.historian.store import IN_MEMORY, Book, Keep, Position
from sickbay_events import Override, PolicyChanged, ProbeResult, outcome_subject
from sickbay_events.codec import POLICY_SUBJECT, override_subject, probe_subject
from sickbay_projections import Fleet, Recorded
from sickbay_projections.replay.history import History


def subject_of(recorded: Recorded) -> str:
    if isinstance(recorded.event, PolicyChanged):
        return POLICY_SUBJECT
    if isinstance(recorded.event, Override):
        assert recorded.scope is not None
        return override_subject(recorded.scope)
    assert recorded.target is not None
    of = probe_subject if isinstance(recorded.event, ProbeResult) else outcome_subject
    return of(recorded.replica, recorded.target)


def built(
    recorded: Sequence[Recorded],
    *,
    batch: int = 1000,
    commit: int = 1000,
    path: Path = IN_MEMORY,
    keep: Keep | None = None,
) -> Book:
    """A history of these events, cut into batches and committed as said."""
    book, fleet, history = Book.open(path, keep), Fleet(), History()
    closed_at_the_end(book.db)
    for at in range(0, len(recorded), batch):
        part = recorded[at : at + batch]
        subjects, events = [subject_of(each) for each in part], [each.event for each in part]
        seqs, times_ms = [each.seq for each in part], [each.time_ms for each in part]
        derived = fleet.apply_many(subjects, events, seqs, times_ms)
        history.add(subjects, events, seqs, times_ms, derived=derived, passed_over=fleet.passed_over)
        if history.events >= commit or at + batch >= len(recorded):
            book.write(history.take(), Position(seq=fleet.seq, time_ms=history.time_ms, rolled_ms=history.rolled_ms))
    return book


def opened(path: Path) -> Database:
    """A file as any program opens it."""
    return closed_at_the_end(Database(sqlite3.connect(path)))


def closed_at_the_end(db: Database) -> Database:
    """Closed after the test, so that no connection is left to the garbage collector."""
    _open.append(db)
    return db


_open: list[Database] = []


@pytest.fixture(autouse=True)
def closes_databases() -> Iterator[None]:
    yield
    while _open:
        _open.pop().conn.close()


def contents(db: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, but for the note of migrations, which says when they were made."""
    names = [name for name in db.table_names() if not name.startswith(("_", "sqlite_")) and "_fts_" not in name]
    return {name: db.conn.execute(f"SELECT * FROM {name} ORDER BY rowid").fetchall() for name in sorted(names)}


def digest(db: Database) -> str:
    """One hash of all tables."""
    return hashlib.sha256(repr(contents(db)).encode()).hexdigest()


def one(db: Database, statement: str, *values: object) -> Any:
    """The one value that a statement gives."""
    return db.conn.execute(statement, values).fetchone()[0]
