"""What a history keeps one by one, in the order of the log: transitions, holds, operators' acts, calls saved."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from sickbay_events import Scope
from sickbay_events.derived import DerivedEvent, HealthChanged, Released, TargetHeld, WarningRaised
from sickbay_events.outcome import Override
from sickbay_projections.replay.history import HistoryAct, Refusal, Step

from .names import Names, text

LATE_MS: Final = 180_000
"""Routers report refused calls at the end of each minute, so they may belong to a hold that ended this long ago."""


def write_steps(connection: sqlite3.Connection, names: Names, steps: Sequence[Step]) -> None:
    """Write them; each sees what the ones before have written."""
    for step in steps:
        if isinstance(step, Refusal):
            _save_calls(connection, step)
        elif isinstance(step, HistoryAct):
            _act(connection, names, step)
        else:
            _transition(connection, names, step)
            if isinstance(step, TargetHeld):
                _held(connection, names, step)
            elif isinstance(step, Released):
                connection.execute(
                    "UPDATE holds SET released_ms = ?, ended_by = ? "
                    "WHERE scope_id = ? AND rule = ? AND name_seq = ? AND replica = ''",
                    (step.time_ms, step.by, names.scope(step.scope.key), step.rule, step.began_seq),
                )


def _transition(connection: sqlite3.Connection, names: Names, event: DerivedEvent) -> None:
    row: dict[str, Any] = {"seq": event.cause_seq, "at_ms": event.time_ms, "type": event.__struct_config__.tag}
    row |= {"scope_id": names.scope(event.scope.key), "rule": event.rule, "enforced": int(event.enforced)}
    row |= {"numbers": _numbers(event)}
    if isinstance(event, TargetHeld):
        row |= {"replica": event.replica, "began_seq": event.began_seq, "end_ms": event.end_ms, "kind": event.kind}
        row |= {"old_end_ms": event.old_end_ms, "status": event.status, "reason": event.reason, "actor": event.actor}
    elif isinstance(event, Released):
        row |= {"began_seq": event.began_seq, "end_ms": event.end_ms, "ended_by": event.by}
        row |= {"reason": event.reason, "actor": event.actor}
    elif isinstance(event, HealthChanged):
        row |= {"old": event.old, "new": event.new}
    elif isinstance(event, WarningRaised):
        row |= {"signature": event.signature, "replica": event.replica, "route": event.route}
    _insert(connection, "transitions", row)


def _held(connection: sqlite3.Connection, names: Names, event: TargetHeld) -> None:
    """A hold begins, the end of one moves out, or a failed trial begins one again, under a new name."""
    scope_id, replica = names.scope(event.scope.key), text(event.replica or "")
    is_again = event.rule != "operator" and event.old_end_ms is not None
    moved = connection.execute(
        "UPDATE holds SET name_seq = ?, end_ms = ?, numbers = ?, moved = moved + 1 WHERE id = ("
        "SELECT id FROM holds WHERE scope_id = ? AND rule = ? AND replica = ? "
        "AND (name_seq = ? OR (? AND released_ms IS NULL AND end_ms > ?)) ORDER BY name_seq DESC LIMIT 1)",
        (event.began_seq, event.end_ms, _numbers(event), scope_id, text(event.rule), replica,
         event.began_seq, is_again, event.time_ms),
    )  # fmt: skip
    if moved.rowcount:
        return
    row = {"scope_id": scope_id, "rule": event.rule, "began_seq": event.began_seq, "name_seq": event.began_seq,
           "replica": replica, "began_ms": event.time_ms, "end_ms": event.end_ms, "kind": event.kind,
           "status": event.status, "numbers": _numbers(event), "proof": int(event.proof),
           "enforced": int(event.enforced), "reason": event.reason, "actor": event.actor}  # fmt: skip
    _insert(connection, "holds", row)


def _act(connection: sqlite3.Connection, names: Names, act: HistoryAct) -> None:
    event = act.event
    row: dict[str, Any] = {"seq": act.seq, "at_ms": act.time_ms, "actor": event.actor, "reason": event.reason}
    row["scope_id"] = None if act.scope is None else names.scope(act.scope.key)
    row["action"] = event.action if isinstance(event, Override) else "policy"
    row["until"] = event.until if isinstance(event, Override) else None
    _insert(connection, "acts", row)


def _save_calls(connection: sqlite3.Connection, refusal: Refusal) -> None:
    """Refused calls are the merit of the newest hold of that rule which held the target in that minute, if any did."""
    scope = refusal.target.scope
    keys = (Scope(scope.host).key, Scope(scope.host, scope.alias).key, scope.key)
    found = connection.execute(
        "SELECT holds.id FROM holds JOIN scopes ON scopes.id = scope_id WHERE scopes.key IN (?, ?, ?) AND rule = ? "
        "AND began_ms <= ? AND min(end_ms, coalesce(released_ms, end_ms)) >= ? AND replica IN ('', ?) "
        "ORDER BY began_ms DESC, began_seq DESC, holds.id DESC LIMIT 1",
        (*keys, text(refusal.rule), refusal.time_ms, refusal.time_ms - LATE_MS, text(refusal.replica)),
    ).fetchone()
    if found is not None:
        connection.execute("UPDATE holds SET calls_saved = calls_saved + ? WHERE id = ?", (refusal.calls, *found))


def _numbers(event: DerivedEvent) -> str:
    return json.dumps(event.numbers, sort_keys=True)


def _insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    values = [text(value) if isinstance(value, str) else value for value in row.values()]
    columns = ", ".join(row)
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(row))})", values)
