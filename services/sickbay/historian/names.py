"""Names to the numbers under which the tables know them, given in the order of the log.

Names come from outside: there may be too many of them, and they may hold what SQLite does not take as text.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from sickbay_events.errors import TokenRefused
from sickbay_events.names import Scope
from sickbay_projections.replay.history import OTHER

SCOPES_MAX: Final = 200_000
ROUTES_MAX: Final = 10_000
REPLICAS_MAX: Final = 100_000
CHARSETS_MAX: Final = 64
"""Of one host. What comes beyond any of these is counted together as `(other)`."""
_CACHED_MAX: Final = 200_000


class Names:
    """The numbers of scopes, routes and replicas, and the charsets of hosts that have a row of their own."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[tuple[str, str], int] = {}
        self._charsets: dict[str, set[str]] = {}

    def forget(self) -> None:
        """What was given in a transaction that was rolled back is not known."""
        self._ids.clear()
        self._charsets.clear()

    def scope(self, key: str) -> int:
        """The number of a scope."""
        return self._ids.get(("scopes", key)) or self._find("scopes", "key", key, SCOPES_MAX)

    def route(self, name: str) -> int:
        """The number of a route."""
        return self._ids.get(("routes", name)) or self._find("routes", "name", name, ROUTES_MAX)

    def replica(self, name: str) -> int:
        """The number of a replica."""
        return self._ids.get(("replicas", name)) or self._find("replicas", "name", name, REPLICAS_MAX)

    def charset(self, host: str, charset: str) -> str:
        """The charset under which an answer of this host is counted."""
        known = self._charsets.get(host)
        if known is None:
            known = self._charsets[host] = self._known_charsets(host)
        if charset not in known:
            if len(known) >= CHARSETS_MAX:
                return OTHER
            known.add(charset)
        return charset

    def _known_charsets(self, host: str) -> set[str]:
        each = " UNION ".join(
            f"SELECT charset FROM charsets_by_{grain} WHERE host = ?1" for grain in ("minute", "hour", "day")
        )
        return {row[0] for row in self._connection.execute(each, (host,))} - {OTHER}

    def _find(self, table: str, column: str, name: str, names_max: int) -> int:
        if len(self._ids) >= _CACHED_MAX:
            self._ids.clear()
        spelled = text(name)
        found = self._connection.execute(f"SELECT id FROM {table} WHERE {column} = ?", (spelled,)).fetchone()
        if found is None:
            count = self._connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0]
            if count >= names_max and name != OTHER:
                return self._find(table, column, OTHER, names_max)
            found = self._add(table, spelled)
        number = self._ids[table, name] = int(found[0])
        return number

    def _add(self, table: str, name: str) -> tuple[int]:
        columns: dict[str, str | int | None] = {"name": name}
        if table == "scopes":
            columns = _scope_columns(name)
        elif table == "replicas":
            columns |= {"first_ms": 0, "last_ms": 0}
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        cursor = self._connection.execute(statement, list(columns.values()))
        assert cursor.lastrowid is not None
        return (cursor.lastrowid,)


def text(given: str) -> str:
    """A name as SQLite takes it: half a surrogate pair, which no UTF-8 has, is spelled out."""
    return given.encode("utf-8", "backslashreplace").decode()


def _scope_columns(key: str) -> dict[str, str | int | None]:
    try:
        scope = Scope.of_key(key)
    except TokenRefused:
        return {"key": key, "name": key, "scope": "host", "provider": key, "host": key, "alias": None, "model": None}
    model = None if scope.model is None else text(scope.model)
    provider = text(scope.provider)
    name = provider if model is None else f"{provider} {model}"
    alias = None if scope.alias is None else text(scope.alias)
    return {"key": key, "name": name, "scope": scope.name, "provider": provider, "host": text(scope.host),
            "alias": alias, "model": model}  # fmt: skip
