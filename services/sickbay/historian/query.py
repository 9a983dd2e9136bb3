"""Questions to a history: what of a host or a model was held in a time, why, and what that saved."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlite_utils import Database

from sickbay_events import rfc3339
from sickbay_events.derived import numbers_in_words
from sickbay_projections.replay.latency import Histogram, merged, quantile_ms

from .errors import HistoryRefused
from .families import CALLS, GRAINS
from .schema import APPLICATION_ID, histogram_of

HOLDS_MAX: Final = 1_000
LANES_MAX: Final = 20


class HoldRow(msgspec.Struct, frozen=True, kw_only=True):
    """One hold, for people and machines. Times are RFC 3339; `ended` None: it stands, or its end is not known yet."""

    provider: str
    model: str | None
    scope: str
    rule: str
    began: str
    ended: str | None
    held_s: float
    """How long it held; so far, for one that stands."""
    until: str
    """The end that it had last."""
    ended_by: str | None
    """`time`, or what ended it before; None: it stands."""
    because: str
    kind: str | None
    status: int | None
    replica: str
    """The one replica whose own it was; empty for the fleet's."""
    reason: str | None
    actor: str | None
    enforced: bool
    calls_saved: int
    began_seq: int
    began_ms: int
    held_to_ms: int


class Lane(msgspec.Struct, frozen=True):
    """When one scope was held by one rule, as a line of characters."""

    name: str
    bar: str
    enforced: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a history knows of a host or a model in a time."""

    provider: str
    model: str | None
    since: str
    until: str
    since_ms: int
    until_ms: int
    known: bool
    """Whether it was ever heard of."""
    truncated: str
    """What of the time asked for the history does not have, in words; empty if it has it all."""
    calls: int
    answered: int
    failed: int
    p50_ms: int | None
    """Of answers."""
    p95_ms: int | None
    kinds: dict[str, int]
    calls_saved: int
    holds: list[HoldRow]
    warnings: list[dict[str, Any]]
    acts: list[dict[str, Any]]

    def lanes(self, chars: int, held: str = "█", free: str = "·") -> list[Lane]:
        """A line for each scope and rule that held, `chars` long."""
        found: dict[tuple[str, str, bool], list[str]] = {}
        length_ms = max(1, self.until_ms - self.since_ms)
        for hold in self.holds:
            name = (hold.model or f"({hold.scope})", hold.rule, hold.enforced)
            bar = found.setdefault(name, [free] * chars)
            first = max(0, (hold.began_ms - self.since_ms) * chars // length_ms)
            last = min(chars - 1, (max(hold.held_to_ms, hold.began_ms + 1) - 1 - self.since_ms) * chars // length_ms)
            bar[first : last + 1] = [held] * (last + 1 - first)
        return [Lane(f"{model} {rule}", "".join(bar), enforced) for (model, rule, enforced), bar in found.items()][
            :LANES_MAX
        ]


def open_for_reading(path: Path) -> Database:
    """A history that another process may be writing. Raises `HistoryRefused`."""
    if not path.exists():
        raise HistoryRefused(path, "there is no history yet; `sickbay serve` or `sickbay historian` makes it")
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
    try:
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    except sqlite3.Error as error:
        connection.close()
        raise HistoryRefused(path, str(error)) from error
    if application_id != APPLICATION_ID:
        connection.close()
        raise HistoryRefused(path, "it is no history")
    return Database(connection)


def now_ms(db: Database, *, live: bool) -> int:
    """The end of the time that a history can tell of: now, or just after a finished log's last event."""
    with _readable():
        position_ms = int(next(db.query("SELECT time_ms FROM position"))["time_ms"])
    return max(int(time.time() * 1000), position_ms + 1) if live else position_ms + 1


def first_ms(db: Database) -> int | None:
    """The time of the earliest thing that the history has; None for an empty one."""
    found = (
        "SELECT min(ms) AS ms FROM (SELECT min(first_ms) AS ms FROM replicas WHERE first_ms UNION ALL "
        "SELECT min(at_ms) FROM acts UNION ALL SELECT min(at_ms) FROM transitions)"
    )
    with _readable():
        earliest = next(db.query(found))["ms"]
    return None if earliest is None else int(earliest)


def history_report(
    db: Database, provider: str, model: str | None, since_ms: int, until_ms: int, *, at_ms: int | None = None
) -> Report:
    """What it knows of a host, or of a model with what is around it.

    `at_ms`: the time at which a hold stands or is over; None: that of the history's last event. Raises
    `HistoryRefused`.
    """
    with _readable():
        if at_ms is None:
            at_ms = now_ms(db, live=False) - 1
        return _report(db, (provider, model), since_ms, until_ms, at_ms)


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        do = "a running historian sets it aside and builds it anew within seconds of the next event; else start one"
        raise HistoryRefused(Path("history"), f"{error}: {do}") from error


def _report(db: Database, name: tuple[str, str | None], since_ms: int, until_ms: int, at_ms: int) -> Report:
    provider, model = name
    scopes = _scopes(db, provider, model)
    within = f"scope_id IN ({', '.join(str(number) for number in scopes)})"
    kinds, latency = _calls(db, within, since_ms, until_ms)
    failed = {row["kind"] for row in db.query("SELECT kind FROM kinds WHERE failed")}
    holds = _holds(db, within, since_ms, until_ms, at_ms)
    warned = (
        f"SELECT * FROM warnings WHERE transition_id IN (SELECT id FROM transitions WHERE {within} "
        "AND type = 'warning' AND at_ms BETWEEN ? AND ?) ORDER BY transition_id"
    )
    acts = (
        "SELECT * FROM operator_acts WHERE act_id IN (SELECT id FROM acts WHERE at_ms BETWEEN ? AND ? "
        f"AND ({within} OR scope_id IS NULL)) ORDER BY seq"
    )
    return Report(
        provider=provider,
        model=model,
        since=rfc3339(since_ms),
        until=rfc3339(until_ms),
        since_ms=since_ms,
        until_ms=until_ms,
        known=bool(scopes),
        truncated=_truncated(db, since_ms, until_ms),
        calls=sum(kinds.values()),
        answered=kinds.get("ok", 0),
        failed=sum(count for kind, count in kinds.items() if kind in failed),
        p50_ms=quantile_ms(latency, 50),
        p95_ms=quantile_ms(latency, 95),
        kinds=kinds,
        calls_saved=sum(hold.calls_saved for hold in holds),
        holds=holds,
        warnings=list(db.query(warned, (since_ms, until_ms))),
        acts=list(db.query(acts, (since_ms, until_ms))),
    )


def _scopes(db: Database, provider: str, model: str | None) -> Sequence[int]:
    """The scopes that are about it: of a model also its host and credential, of a host also all below."""
    host, mark, alias = provider.partition("#")
    if model is None:
        where, values = "host = ?", [host]
        if mark:
            where, values = "host = ? AND (alias IS NULL OR alias = ?)", [host, alias]
    else:
        where = "host = ? AND (alias IS NULL OR alias = ?) AND (model IS NULL OR model = ?)"
        values = [host, alias, model]
    return [int(row["id"]) for row in db.query(f"SELECT id FROM scopes WHERE {where}", values)]


def _calls(db: Database, within: str, since_ms: int, until_ms: int) -> tuple[dict[str, int], Histogram]:
    """Calls by kind, and how long answers took, in the minutes (later hours, days) that touch the time."""
    kinds: dict[str, int] = {}
    latency: Histogram = {}
    for grain in GRAINS:
        rows = db.query(
            f"SELECT kind, calls, took FROM {CALLS.table(grain)} WHERE {within} AND start_s < ? AND start_s > ?",
            (-(-until_ms // 1000), since_ms // 1000 - grain.length_s),
        )
        for row in rows:
            kinds[row["kind"]] = kinds.get(row["kind"], 0) + row["calls"]
            if row["kind"] == "ok":
                latency = merged(latency, histogram_of(row["took"]))
    return dict(sorted(kinds.items(), key=lambda item: -item[1])), latency


def _holds(db: Database, within: str, since_ms: int, until_ms: int, at_ms: int) -> list[HoldRow]:
    rows = db.query(
        f"SELECT * FROM held WHERE {within} AND began_ms < ? AND (held_to_ms > ? OR began_ms >= ?) "
        "ORDER BY began_ms, hold_id LIMIT ?",
        (until_ms, since_ms, since_ms, HOLDS_MAX),
    )
    return [_hold(row, at_ms) for row in rows]


def _hold(row: dict[str, Any], at_ms: int) -> HoldRow:
    """A hold as it is at this time: it goes on to its end also while nothing is logged."""
    stands, to_ms = row["held_to_ms"] > at_ms, row["held_to_ms"]
    made = {
        "because": _because(row),
        "enforced": bool(row["enforced"]),
        "ended": None if stands else rfc3339(to_ms),
        "ended_by": None if stands else row["ended_by"] or "time",
        "held_s": round((max(min(to_ms, at_ms), row["began_ms"]) - row["began_ms"]) / 1000, 3),
    }
    return HoldRow(**{name: row[name] for name in HoldRow.__struct_fields__ if name not in made}, **made)


def _because(row: dict[str, Any]) -> str:
    if row["rule"] == "operator":
        return f"{row['actor']}: {row['reason']}"
    status = f" ({row['status']})" if row["status"] else ""
    alone = f", {row['replica']} alone" if row["replica"] else ""
    return f"{row['kind'] or 'unknown'}{status}, {numbers_in_words(json.loads(row['numbers']))}{alone}".rstrip(", ")


def _truncated(db: Database, since_ms: int, until_ms: int) -> str:
    """What of the time asked for is not in the history."""
    position = next(db.query("SELECT seq, time_ms FROM position"))
    if not position["seq"]:
        return "the history is empty"
    said = []
    first = next(db.query("SELECT min(first_ms) AS ms FROM replicas WHERE first_ms"))["ms"]
    if first is not None and since_ms < first < until_ms:
        said.append(f"the history begins at {rfc3339(first)[:19]}Z")
    said += [
        f"events {gap['first_seq']} to {gap['last_seq']} are missing: the log had lost them"
        for gap in db.query("SELECT * FROM gaps ORDER BY first_seq")
    ]
    return "; ".join(said)
