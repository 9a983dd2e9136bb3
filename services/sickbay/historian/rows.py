"""The counts of a page as rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, Final

from sickbay_projections.replay.history import Heard, Page

from .families import CALLS, CHARSETS, REFUSED, ROUTES, Family
from .names import Names, text
from .schema import histogram_text

BOOTS_MAX: Final = 64
"""Boots of a replica that are kept, the last ones heard of."""


def count_rows(page: Page, names: Names) -> Iterator[tuple[Family, list[tuple[Any, ...]]]]:
    """The rows of each family, in the order of its columns."""
    scope, route, charset = names.scope, names.route, names.charset
    yield CALLS, [
        (minute_ms // 1000, scope(key), kind, cell.calls, cell.forced, cell.trials, cell.streamed, cell.fallback,
         cell.took_ms, histogram_text(cell.took), histogram_text(cell.ttft))
        for (key, minute_ms, kind), cell in page.calls.items()
    ]  # fmt: skip
    yield (
        REFUSED,
        [(minute_ms // 1000, scope(key), text(rule), calls) for (key, minute_ms, rule), calls in page.refused.items()],
    )
    yield ROUTES, [(minute_ms // 1000, route(name), *counts) for (name, minute_ms), counts in page.routes.items()]
    yield (
        CHARSETS,
        [
            (minute_ms // 1000, text(host), charset(text(host), text(name)), *counts)
            for (host, name, minute_ms), counts in page.charsets.items()
        ],
    )


def write_heard(connection: sqlite3.Connection, names: Names, page: Page) -> None:
    """The replicas that reported, each with its boots."""
    for name, heard in page.heard.items():
        number = names.replica(name)
        new = _write_boots(connection, number, heard)
        connection.execute(
            "UPDATE replicas SET first_ms = CASE WHEN first_ms THEN min(first_ms, ?) ELSE ? END, last_ms = ?, "
            "outcomes = outcomes + ?, answered = answered + ?, probes = probes + ?, refused = refused + ?, "
            "repeated = repeated + ?, boots = boots + ? WHERE id = ?",
            (heard.first_ms, heard.first_ms, heard.last_ms, heard.outcomes, heard.answered, heard.probes, heard.refused,
             heard.repeated, new, number),
        )  # fmt: skip


def _write_boots(connection: sqlite3.Connection, replica: int, heard: Heard) -> int:
    """How many of them are new."""
    new = 0
    for boot, (first_ms, last_ms, events) in heard.boots.items():
        found = connection.execute(
            "UPDATE boots SET last_ms = ?, events = events + ? WHERE replica_id = ? AND boot = ?",
            (last_ms, events, replica, boot),
        )
        if found.rowcount:
            continue
        new += 1
        connection.execute("INSERT INTO boots VALUES (?, ?, ?, ?, ?)", (replica, boot, first_ms, last_ms, events))
    if new:
        connection.execute(
            "DELETE FROM boots WHERE replica_id = ?1 AND boot NOT IN "
            "(SELECT boot FROM boots WHERE replica_id = ?1 ORDER BY last_ms DESC, boot LIMIT ?2)",
            (replica, BOOTS_MAX),
        )
    return new
