"""The fleet at a glance, for a page: replicas, routes, warnings, health; made now and then, one for all readers."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

import nats.errors

from sickbay_events import rfc3339

from ..bus.connect import BusError
from ..bus.link import Link
from ..control.acts import scope_of
from ..historian.errors import HistoryRefused
from ..log.transitions import warnings_of
from ..loggers import logger
from .problems import Problem

_log = logger("sickbay.api")

KEPT_S: Final = 2.0
HEALTH_MAX: Final = 2_000
"""Scopes whose health is in it; `health_cut` says that there are more."""
PAGE: Final = 1_000
ROUTES_MAX: Final = 200
REPLICAS_MAX: Final = 1_000
HOUR_S: Final = 3_600
_ROUTES: Final = (
    "SELECT route, sum(calls) AS calls, sum(answered) AS answered, sum(by_fallback) AS by_fallback FROM fallbacks "
    "WHERE start_s > ? GROUP BY route ORDER BY answered DESC, route LIMIT ?"
)
_REPLICAS: Final = (
    "SELECT replica, first_heard, last_heard, outcomes, answered, probes FROM fleet ORDER BY last_heard DESC LIMIT ?"
)


Ask: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Of a subject and a question, the services' answer. Raises `Problem`."""


class Overview:
    """Makes the overview when a reader asks and it is older than `KEPT_S`; readers meanwhile wait for the same one.

    ask            asks the services
    link           for the warnings, which are in the log of transitions
    now_ms         log time
    history_path   the historian's file; None: none is kept here
    """

    def __init__(self, ask: Ask, link: Link, now_ms: Callable[[], int], history_path: Path | None) -> None:
        self._ask, self._link, self._now_ms, self._history_path = ask, link, now_ms, history_path
        self._made: tuple[float, dict[str, Any] | Problem] | None = None
        self._lock = asyncio.Lock()

    async def get(self) -> dict[str, Any]:
        """The overview. Raises `Problem` when the services do not answer."""
        async with self._lock:
            if self._made is None or time.monotonic() - self._made[0] > KEPT_S:
                # A missing answer is kept as well: else each waiting reader would wait for it anew, one after another.
                try:
                    found: dict[str, Any] | Problem = await self._make()
                except Problem as problem:
                    found = problem
                self._made = (time.monotonic(), found)
            made = self._made[1]
        if isinstance(made, Problem):
            raise made
        return made

    async def _make(self) -> dict[str, Any]:
        status = await self._ask("sickbay.v1.status", {"all": True, "limit": PAGE})
        scopes = list(status["scopes"])
        after = status["next"]
        while after and len(scopes) < HEALTH_MAX:
            more = await self._ask("sickbay.v1.status", {"all": True, "limit": PAGE, "after": after})
            scopes += more["scopes"]
            after = more["next"]
        history = await asyncio.to_thread(_kept, self._history_path, self._now_ms())
        return {
            "seq": status["seq"],
            "time": status["at"],
            "time_ms": self._now_ms(),
            "projector": status["projector"],
            "shadow": status["shadow"],
            **history,
            "warnings": await self._warnings(status["at"]),
            "health": [_health(scope) for scope in scopes[:HEALTH_MAX] if scope["model"] is not None],
            "health_cut": bool(after) or len(scopes) > HEALTH_MAX,
        }

    async def _warnings(self, at: str) -> list[dict[str, Any]]:
        client = self._link.client
        if client is None:
            return []
        try:
            return await warnings_of(client, None, at)
        except (BusError, nats.errors.Error, TimeoutError, OSError) as error:
            _log.info("warnings are not told: %s", error)
            return []


def _health(scope: dict[str, Any]) -> dict[str, Any]:
    age_s = scope.get("health_age_s")
    return {
        "key": scope_of(scope["provider"], scope["model"]).key,
        "provider": scope["provider"],
        "model": scope["model"],
        "health": scope.get("health", "unknown"),
        "why": scope.get("health_why"),
        "age_s": age_s,
        "outcomes": scope.get("outcomes", 0),
        "answers": scope.get("answers", 0),
    }


def _kept(path: Path | None, now_ms: int) -> dict[str, Any]:
    """What only the historian's file knows: `replicas` and `routes` of the last hour, or null and why."""
    if path is None:
        return _none("no history is kept here: SICKBAY_HISTORY names its file")
    from ..historian.query import open_for_reading

    try:
        database = open_for_reading(path)
        with closing(database.conn):
            routes = [
                {**row, "fallback_share": round(row["by_fallback"] / row["answered"], 4) if row["answered"] else None}
                for row in database.query(_ROUTES, (now_ms // 1000 - HOUR_S, ROUTES_MAX))
            ]
            replicas = list(database.query(_REPLICAS, (REPLICAS_MAX,)))
            position = next(database.query("SELECT seq, time_ms FROM position"))
    except (HistoryRefused, sqlite3.Error, OSError) as error:
        _log.debug("the history cannot be read: %s", error)
        return _none("the history cannot be read at this moment")
    return {
        "replicas": replicas,
        "routes": routes,
        "history": {"seq": position["seq"], "to": rfc3339(position["time_ms"]), "routes_of_s": HOUR_S},
        "why": None,
    }


def _none(why: str) -> dict[str, Any]:
    return {"replicas": None, "routes": None, "history": None, "why": why}
