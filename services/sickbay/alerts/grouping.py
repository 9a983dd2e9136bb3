"""Which alerts become which message, and when. Pure: time is an argument, in seconds of a clock that never steps.

Alerts of one type and host within a window are one message. A token bucket bounds messages; what it held back goes out
as one message about all of it. The same alert, delivered again by NATS, changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from .settings import Alerts, url_host

Fact: TypeAlias = Mapping[str, Any]
"""A transition as the log of transitions has it; `id`, `type`, `provider` and `time_ms` are always there."""

WAITING_MAX: Final = 5_000
"""Alerts that wait for their message; from there on no window is waited for."""
SEEN_MAX: Final = 20_000
"""Alerts that are known to be dealt with."""


def read_fact(data: bytes) -> dict[str, Any] | None:
    """A transition as it stands in the log of transitions; None for what was put there by hand and is none."""
    try:
        fact = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    wanted = {"id": str, "type": str, "provider": str, "time_ms": int}
    is_one = isinstance(fact, dict) and all(isinstance(fact.get(name), kind) for name, kind in wanted.items())
    return fact if is_one else None


class Waiting(NamedTuple):
    """One alert that is in no message yet. `handle` is what acknowledges it."""

    fact: Fact
    handle: str


class AlertBatch(NamedTuple):
    """What one message is about."""

    alerts: list[Waiting]
    held_back: int
    """How many of them the rate limit kept waiting."""
    lost: int
    """Alerts of earlier messages that could not be delivered and were told to nobody."""

    @property
    def facts(self) -> list[Fact]:
        """The transitions, oldest first."""
        return [one.fact for one in self.alerts]


class _Group:
    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.alerts: dict[str, Waiting] = {}
        self.held_back = False


class Grouping:
    """The alerts of one receiver on their way into messages."""

    def __init__(self, settings: Alerts, now_s: float) -> None:
        self._settings = settings
        self._groups: OrderedDict[tuple[str, str], _Group] = OrderedDict()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._out: dict[str, Waiting] = {}
        self._tokens, self._filled_s = float(settings.burst), now_s
        self._lost = 0

    @property
    def waiting(self) -> int:
        """How many alerts are in no message yet."""
        return sum(len(group.alerts) for group in self._groups.values())

    @property
    def handles(self) -> list[str]:
        """What acknowledges all that is not dealt with, those under way included."""
        return [one.handle for group in self._parts() for one in group.values()]

    def add(self, fact: Fact, handle: str, now_s: float) -> bool:
        """Take an alert; False if it was dealt with before, so that it may be acknowledged at once."""
        name = fact["id"]
        if name in self._seen:
            return False
        for part in self._parts():
            if name in part:
                part[name] = Waiting(fact, handle)
                return True
        key = (fact["type"], url_host(fact["provider"]))
        self._groups.setdefault(key, _Group(now_s)).alerts[name] = Waiting(fact, handle)
        return True

    def due(self, now_s: float) -> AlertBatch | None:
        """The next message's alerts, if one may go out now. They are under way until `done`."""
        full = self.waiting >= WAITING_MAX
        due = [key for key, group in self._groups.items() if full or self._at(group) <= now_s]
        if not due:
            return None
        self._fill(now_s)
        if self._tokens < 1:
            for key in due:
                self._groups[key].held_back = True
            return None
        # With a token for each, the oldest goes first; with fewer, one message tells of all.
        taken = due[:1] if self._tokens >= len(due) else due
        self._tokens -= 1
        groups = [self._groups.pop(key) for key in taken]
        self._out = {name: one for group in groups for name, one in group.alerts.items()}
        alerts = sorted(self._out.values(), key=lambda one: one.fact["time_ms"])
        return AlertBatch(alerts, sum(len(group.alerts) for group in groups if group.held_back), self._lost)

    def done(self, *, delivered: bool) -> list[str]:
        """The message under way was delivered, or given up: what acknowledges its alerts."""
        out, self._out = self._out, {}
        self._lost = 0 if delivered else self._lost + len(out)
        for name in out:
            self._seen[name] = None
        while len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        return [one.handle for one in out.values()]

    def back(self) -> list[str]:
        """The message under way is another process's to tell: what hands it back."""
        out, self._out = self._out, {}
        return [one.handle for one in out.values()]

    def drop(self) -> list[str]:
        """Forget what is in no message yet, for another process to take: what hands it back."""
        handles = [one.handle for group in self._groups.values() for one in group.alerts.values()]
        self._groups.clear()
        return handles

    def next_s(self, now_s: float) -> float | None:
        """When `due` may next have something, None while nothing waits."""
        if not self._groups:
            return None
        self._fill(now_s)
        lacking = max(0.0, 1 - self._tokens)
        return max(min(self._at(group) for group in self._groups.values()), now_s + lacking / self._rate)

    @property
    def _rate(self) -> float:
        return self._settings.per_hour / 3600

    def _at(self, group: _Group) -> float:
        return group.began_s + self._settings.window_s

    def _fill(self, now_s: float) -> None:
        self._tokens = min(self._settings.burst, self._tokens + (now_s - self._filled_s) * self._rate)
        self._filled_s = now_s

    def _parts(self) -> Iterable[dict[str, Waiting]]:
        return (*(group.alerts for group in self._groups.values()), self._out)
