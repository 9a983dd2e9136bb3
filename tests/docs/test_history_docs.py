"""docs/history.md says what every table, view and column is, and its examples run."""

from __future__ import annotations

import atexit
import re
from pathlib import Path

import pytest

from histories import history
from history_rig import built, closes_databases, opened  # noqa: F401 - a fixture
from paths import ROOT
from sickbay.config import Settings
from sickbay.historian.store import IN_MEMORY, Book

PAGE = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
BOOK = Book.open(IN_MEMORY)
MADE = BOOK.db
atexit.register(BOOK.close)
TABLES = [name for name in MADE.table_names() if not name.startswith(("_", "sqlite_")) and "_fts" not in name]


def described(name: str) -> set[str]:
    """The columns that the section of a table or view lists."""
    found = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"no section for {name}"
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", found[1], re.MULTILINE)
    return {column for row in rows for column in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize("view", MADE.view_names())
def test_every_column_of_every_view_is_described(view: str) -> None:
    assert described(view) == set(MADE.view(view).columns_dict)


@pytest.mark.parametrize("table", TABLES)
def test_every_column_of_every_table_is_described(table: str) -> None:
    grain = re.search(r"_by_(hour|day)$", table)
    if grain:
        assert f"`{table}`" in PAGE
        table = table.removesuffix(grain[0]) + "_by_minute"
    assert described(table) == set(MADE.table(table).columns_dict)


def test_the_settings_that_it_names_have_the_defaults_that_it_says() -> None:
    rows = dict(re.findall(r"^\| `SICKBAY_(HISTORY_\w+)` \((\d+)", PAGE, re.MULTILINE))
    assert {name.lower(): int(days) for name, days in rows.items()} == {
        "history_minutes_days": Settings().history_minutes_days,
        "history_hours_days": Settings().history_hours_days,
        "history_days": Settings().history_days,
    }


def test_it_opens_in_any_sqlite_program_as_it_is(tmp_path: Path) -> None:
    """Every view is read by a connection that knows no function of ours, and foreign keys lead somewhere."""
    path = tmp_path / "history.db"
    built(history(1, 800), path=path).close()
    db = opened(path)
    for view in db.view_names():
        assert list(db.query(f"SELECT * FROM {view} LIMIT 50")), view
    assert list(db.conn.execute("PRAGMA foreign_key_check")) == []
    assert db.conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert db.table("calls_by_minute").foreign_keys
    (statement,) = re.findall(r'^sqlite3 \S+ "([^"]+)"', PAGE, re.MULTILINE)
    assert len(list(db.query(statement))) == 10
