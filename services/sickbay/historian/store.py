"""The history's file: one writer, and every page with the position it brings the history to, in one transaction.

    book = Book.open(Path("history.db"), keep=Keep())
    book.write(pages, Position(...))       # raises RivalWriter if another process has written since
    book.close()

Belongs to the thread that opened it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from sqlite_utils import Database

from sickbay_projections.replay.history import Page

from ..loggers import logger
from .errors import HistoryRefused, HistoryUnusable, RivalWriter
from .families import FAMILIES, GRAINS
from .migrations import write_steps
from .names import Names
from .rows import count_rows, write_heard
from .schema import APPLICATION_ID, add_functions, migrations

_log = logger("sickbay.historian")

BUSY_S: Final = 10.0
"""How long a write waits for a reader that holds the file."""
CHECK_MIN_S: Final = 5.0
CHECK_SHARE: Final = 100
"""A file is looked through for damage so rarely that it takes a hundredth of the time."""
DAY_S: Final = 86_400
IN_MEMORY: Final = Path(":memory:")


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """How long each resolution is kept, by log time. 0: for ever."""

    minutes_days: int = 7
    hours_days: int = 90
    days: int = 0
    """Daily counts, and what is kept one by one; changes of health go with the hours."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Up to where the log is in the history."""

    log_created: str = ""
    """Creation time of the log's stream: says which log."""
    seq: int = 0
    time_ms: int = 0
    """Log time of that event."""
    time_ns: int = 0
    """The server's time of the message at `seq`, 0 where that is a gap: says whether the log was rewritten."""
    rolled_ms: int = 0
    """The hour at which old counts were rolled up last."""
    fold_version: int = 0
    first_seq: int = 0
    """Where the history begins."""


class Book:
    """An open history."""

    def __init__(self, path: Path, connection: sqlite3.Connection, keep: Keep) -> None:
        self.path = path
        self.keep = keep
        self.db = Database(connection)
        self._connection = connection
        self._file = _identity(path)
        self._checked_s, self._check_in_s = time.monotonic(), CHECK_MIN_S
        self._names = Names(connection)
        self._position = self._read_position()

    @classmethod
    def open(cls, path: Path, keep: Keep | None = None) -> Book:
        """Open or make a history, of a version before too. Raises `HistoryRefused` for a file that is none,
        `HistoryUnusable` for one that is damaged or that a later version made, `OSError` where there can be no file."""
        if path != IN_MEMORY:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()  # an error of the system that says what, where SQLite says "unable to open"
        connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S)
        try:
            _prepare(path, connection)
            return cls(path, connection, keep or Keep())
        except sqlite3.Error as error:
            connection.close()
            raise _told(path, error) from error
        except BaseException:
            connection.close()
            raise

    @property
    def position(self) -> Position:
        """Up to where the log is in the history."""
        return self._position

    def write(self, pages: Sequence[Page], position: Position, gaps: Sequence[tuple[int, int, str]] = ()) -> None:
        """Add pages and move to a position, or do nothing at all. `gaps`: first and last of sequences that
        the log had lost, and why.

        Raises `RivalWriter`, `HistoryUnusable`, and `OSError` for a file that cannot be written now.
        """
        connection = self._connection
        self._check_file()
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._check_alone()
                self._add(pages, position, gaps)
                connection.execute("COMMIT")
            except BaseException:
                self._names.forget()
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.DatabaseError as error:
            raise _told(self.path, error) from error
        self._position = position

    def close(self) -> None:
        """Close the file; what the write-ahead log holds goes into it."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA optimize")
        self._connection.close()

    def _read_position(self) -> Position:
        columns = Position.__struct_fields__
        row = self._connection.execute(f"SELECT {', '.join(columns)} FROM position WHERE id = 1").fetchone()
        if row is None:
            raise HistoryUnusable(self.path, "it says no position")
        return Position(**dict(zip(columns, row, strict=True)))

    def _check_alone(self) -> None:
        there = self._read_position()
        if there != self._position:
            raise RivalWriter(self.path, f"it is at {there.seq} and not at {self._position.seq}")

    def _check_file(self) -> None:
        """Raise `HistoryUnusable` if the file was taken away or another put in its place, which SQLite does not notice,
        and now and then if it is damaged."""
        if self._file is None:
            return
        if _identity(self.path) != self._file:
            raise HistoryUnusable(self.path, "its file was taken away while it was written")
        began_s = time.monotonic()
        if began_s - self._checked_s < self._check_in_s:
            return
        # A connection of its own: the writing one has pages in memory that the disk has lost.
        with contextlib.closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as fresh:
            try:
                found = fresh.execute("PRAGMA quick_check(1)").fetchone()[0]
            except sqlite3.DatabaseError as error:
                raise _told(self.path, error) from error
        if found != "ok":
            raise HistoryUnusable(self.path, str(found))
        self._checked_s = time.monotonic()
        self._check_in_s = max(CHECK_MIN_S, CHECK_SHARE * (self._checked_s - began_s))

    def _add(self, pages: Sequence[Page], position: Position, gaps: Sequence[tuple[int, int, str]]) -> None:
        connection, names = self._connection, self._names
        for page in pages:
            for key in page.scopes:
                names.scope(key)
            for family, rows in count_rows(page, names):
                connection.executemany(family.upsert(GRAINS[0]), rows)
            write_heard(connection, names, page)
            write_steps(connection, names, page.steps)
            connection.executemany(
                "INSERT INTO unread VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET events = events + excluded.events, "
                "last_seq = excluded.last_seq",
                [(reason, *counts) for reason, counts in page.unread.items()],
            )
            connection.execute(
                "UPDATE position SET events = events + ?, repeated = repeated + ?, other = other + ?",
                (page.events, page.repeated, page.other),
            )
            if page.roll_ms:
                self._roll_up(page.roll_ms)
        connection.executemany("INSERT OR REPLACE INTO gaps VALUES (?, ?, ?)", gaps)
        columns = Position.__struct_fields__
        values = [getattr(position, name) for name in columns]
        connection.execute(f"UPDATE position SET {', '.join(f'{name} = ?' for name in columns)}", values)

    def _roll_up(self, hour_ms: int) -> None:
        """What is older than its resolution is kept, by log time: whole hours and days only."""
        now_s, keep, connection = hour_ms // 1000, self.keep, self._connection
        for fine, coarse, days in ((0, 1, keep.minutes_days), (1, 2, keep.hours_days)):
            length_s = GRAINS[coarse].length_s
            before_s = (now_s - days * DAY_S) // length_s * length_s
            if days:
                for family in FAMILIES:
                    for statement in family.roll_up(GRAINS[fine], GRAINS[coarse]):
                        connection.execute(statement, (before_s,))
        if keep.hours_days:
            before_ms = (now_s - keep.hours_days * DAY_S) * 1000
            connection.execute("DELETE FROM transitions WHERE type = 'health' AND at_ms < ?", (before_ms,))
        if keep.days:
            before_s = (now_s - keep.days * DAY_S) // DAY_S * DAY_S
            for family in FAMILIES:
                connection.execute(f"DELETE FROM {family.table(GRAINS[2])} WHERE start_s < ?", (before_s,))
            for table, time in (("transitions", "at_ms"), ("acts", "at_ms"), ("holds", "end_ms")):
                connection.execute(f"DELETE FROM {table} WHERE {time} < ?", (before_s * 1000,))


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file stands there: device and number; None for a history in memory, (0, 0) where there is none."""
    if path == IN_MEMORY:
        return None
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


def set_aside(path: Path, why: str) -> Path:
    """Give a history that cannot be gone on with another name, and say so: nothing that it knew is lost."""
    names = (path.with_name(f"{path.stem}.before-{number}{path.suffix}") for number in itertools.count(1))
    passed_over = next(name for name in names if not name.exists())
    for ending in ("-wal", "-shm", ""):
        file = path.with_name(path.name + ending)
        if file.exists():
            file.replace(passed_over.with_name(passed_over.name + ending))
    _log.warning("the history is built anew from the log: %s; the one before is kept as %s", why, passed_over)
    return passed_over


def _told(path: Path, error: sqlite3.Error) -> Exception:
    """What SQLite said in the words of this package: what another try may mend, what is damaged, what is none."""
    if isinstance(error, sqlite3.OperationalError):
        return OSError(f"{path}: {error}")  # locked, full, read-only
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_NOTADB:
        return HistoryRefused(path, "it is no database")
    return HistoryUnusable(path, str(error)) if code == sqlite3.SQLITE_CORRUPT else error


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    """Bring a file to this version. Raises `HistoryRefused`, `sqlite3.Error`."""
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and application_id != APPLICATION_ID:
        raise HistoryRefused(path, "it is a database of something else")
    db = Database(connection)
    unknown = {one.name for one in migrations.applied(db)} - _known()
    if unknown:
        raise HistoryUnusable(path, f"it was made by a later version of Sickbay ({', '.join(sorted(unknown))})")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    add_functions(connection)
    before = {one.name for one in migrations.applied(db)}
    migrations.apply(db)
    after = [one.name for one in migrations.applied(db) if one.name not in before]
    if before and after:
        _log.warning("the history %s is carried over to this version: %s", path, json.dumps(after))


def _known() -> set[str]:
    """The migrations of this version: all that an empty database lacks."""
    with contextlib.closing(sqlite3.connect(IN_MEMORY)) as empty:
        return {one.name for one in migrations.pending(Database(empty))}
