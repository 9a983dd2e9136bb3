"""The tables of a history, made by migrations."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec
from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from sickbay_events import KINDS
from sickbay_projections.replay.latency import Histogram, merged

from .families import FAMILIES, GRAINS, SCOPE, Family, Grain
from .views import VIEWS

APPLICATION_ID: Final = 0x51CB_0A1E
"""In the file's header: says that it is a history of Sickbay."""
FAILED: Final = ("rejection", "auth", "throttle", "fault", "degraded")
"""Groups of kinds that are failures. A neutral outcome is the caller's own error and no failure of the target."""


migrations: Final = Migrations("sickbay_history")


@migrations()
def m001_tables(db: Database) -> None:
    """The names, the counts by grain, the things kept one by one, the position."""
    _names(db)
    for family in FAMILIES:
        for grain in GRAINS:
            _counts(db, family, grain)
    _kept_one_by_one(db)
    _position(db)
    db.conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")


@migrations()
def m002_search(db: Database) -> None:
    """Full-text search over what people and rules gave as reasons."""
    db.table("transitions").enable_fts(
        ["reason", "actor", "rule", "kind", "signature", "ended_by"], create_triggers=True
    )
    db.table("acts").enable_fts(["action", "reason", "actor"], create_triggers=True)


@migrations()
def m003_views(db: Database) -> None:
    """Views with plain names and readable times."""
    for name, statement in VIEWS.items():
        db.create_view(name, statement)


@migrations()
def m004_standing_holds(db: Database) -> None:
    """What ended a hold is said once it has ended."""
    db.create_view("held", VIEWS["held"], replace=True)


@migrations()
def m005_holds_that_begin_again(db: Database) -> None:
    """A hold that a failed trial begins again is one row; `name_seq` is the newest name that it stands under."""
    db.table("holds").add_column("name_seq", int)
    db.conn.execute("UPDATE holds SET name_seq = began_seq")
    db.table("holds").create_index(["scope_id", "rule", "replica", "name_seq"])


def _names(db: Database) -> None:
    db.table("kinds").create({"kind": str, "kind_group": str, "failed": int, "says": str}, pk="kind", strict=True)
    db.table("kinds").insert_all(
        {"kind": kind, "kind_group": row.group, "failed": int(row.group in FAILED), "says": row.says}
        for kind, row in KINDS.items()
    )
    db.table("scopes").create(
        {"id": int, "key": str, "name": str, "scope": str, "provider": str, "host": str, "alias": str, "model": str},
        pk="id",
        not_null=("key", "name", "scope", "provider", "host"),
        strict=True,
    )
    db.table("scopes").create_index(["key"], unique=True)
    db.table("scopes").create_index(["host", "model"])
    db.table("routes").create({"id": int, "name": str}, pk="id", not_null=("name",), strict=True)
    db.table("routes").create_index(["name"], unique=True)
    counted = ("outcomes", "answered", "probes", "refused", "repeated", "boots")
    db.table("replicas").create(
        {"id": int, "name": str, "first_ms": int, "last_ms": int, **dict.fromkeys(counted, int)},
        pk="id",
        not_null=("name", "first_ms", "last_ms", *counted),
        defaults=dict.fromkeys(counted, 0),
        strict=True,
    )
    db.table("replicas").create_index(["name"], unique=True)
    db.table("boots").create(
        {"replica_id": int, "boot": str, "first_ms": int, "last_ms": int, "events": int},
        pk=("replica_id", "boot"),
        not_null=("first_ms", "last_ms", "events"),
        foreign_keys=[("replica_id", "replicas", "id")],
        strict=True,
    )


def _counts(db: Database, family: Family, grain: Grain) -> None:
    table = db.table(family.table(grain))
    numbers = dict.fromkeys(family.sums, int)
    texts = dict.fromkeys(family.histograms, str)
    table.create(
        {**family.keys, "start_s": int, **numbers, **texts},
        pk=(*[key for key in family.keys if key != "kind"], "start_s", *[key for key in family.keys if key == "kind"]),
        not_null=tuple(numbers),
        defaults=dict.fromkeys(family.sums, 0) | dict.fromkeys(family.histograms, "{}"),
        foreign_keys=list(family.foreign),
        strict=True,
    )
    table.create_index(["start_s"])


def _kept_one_by_one(db: Database) -> None:
    cause = {"kind": str, "status": int, "numbers": str, "reason": str, "actor": str, "enforced": int}
    db.table("holds").create(
        {"id": int, "scope_id": int, "rule": str, "began_seq": int, "replica": str, "began_ms": int, "end_ms": int,
         "released_ms": int, "ended_by": str, **cause, "proof": int, "moved": int, "calls_saved": int},
        pk="id",
        not_null=("scope_id", "rule", "began_seq", "replica", "began_ms", "end_ms", "moved", "calls_saved"),
        defaults={"replica": "", "moved": 0, "calls_saved": 0},
        foreign_keys=[SCOPE],
        strict=True,
    )  # fmt: skip
    db.table("holds").create_index(["scope_id", "rule", "began_seq", "replica"], unique=True)
    db.table("holds").create_index(["began_ms"])
    db.table("transitions").create(
        {"id": int, "seq": int, "at_ms": int, "type": str, "scope_id": int, "rule": str, "replica": str,
         "began_seq": int, "end_ms": int, "old_end_ms": int, "ended_by": str, "old": str, "new": str, "signature": str,
         "route": str, **cause},
        pk="id",
        not_null=("seq", "at_ms", "type", "scope_id", "rule"),
        foreign_keys=[SCOPE],
        strict=True,
    )  # fmt: skip
    db.table("transitions").create_index(["scope_id", "at_ms"])
    db.table("transitions").create_index(["type", "at_ms"])
    db.table("acts").create(
        {
            "id": int,
            "seq": int,
            "at_ms": int,
            "scope_id": int,
            "action": str,
            "actor": str,
            "reason": str,
            "until": str,
        },
        pk="id",
        not_null=("seq", "at_ms", "action"),
        foreign_keys=[SCOPE],
        strict=True,
    )
    db.table("acts").create_index(["at_ms"])


def _position(db: Database) -> None:
    db.table("unread").create({"reason": str, "events": int, "last_seq": int}, pk="reason", strict=True)
    db.table("gaps").create({"first_seq": int, "last_seq": int, "reason": str}, pk="first_seq", strict=True)
    numbers = ("seq", "time_ms", "time_ns", "rolled_ms", "fold_version", "first_seq", "events", "repeated", "other")
    db.table("position").create(
        {"id": int, "log_created": str, **dict.fromkeys(numbers, int)},
        pk="id",
        not_null=("log_created", *numbers),
        defaults=dict.fromkeys(numbers, 0) | {"log_created": ""},
        strict=True,
    )
    db.table("position").insert({"id": 1})


class LatencySum:
    """The SQL aggregate `latency_sum`: the histogram of many."""

    def __init__(self) -> None:
        self._found: Histogram = {}

    def step(self, text: str) -> None:
        """One more."""
        self._found = merged(self._found, histogram_of(text))

    def finalize(self) -> str:
        """All of them."""
        return histogram_text(self._found)


def add_functions(connection: sqlite3.Connection) -> None:
    """What the statements that write need; a reader needs nothing."""
    connection.create_function("latency_merged", 2, _merged_text, deterministic=True)
    connection.create_aggregate("latency_sum", 1, LatencySum)  # type: ignore[arg-type]


def histogram_text(histogram: Histogram) -> str:
    """A histogram as a table has it: JSON, bucket's upper bound in ms to how many, in order of the bounds."""
    return _encode(dict(sorted(histogram.items()))).decode()


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(dict[int, int])


def histogram_of(text: str) -> Histogram:
    """A histogram as a table has it, read back."""
    return _decoder.decode(text.encode())


def _merged_text(one: str, other: str) -> str:
    return histogram_text(merged(histogram_of(one), histogram_of(other)))
