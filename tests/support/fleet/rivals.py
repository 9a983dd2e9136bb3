"""What others do, as small models: asked before a call, told of its outcome. Times are seconds since the beginning.

Each model is kind to its original where configurations differ, and says so. All but `Cooldown` know of one replica
what that replica saw itself.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from .provider import Condition

Asked = Literal["no", "free", "trial"]


class Rival(Protocol):
    """A policy of the whole fleet."""

    def is_free(self, replica: str, at_s: float) -> bool:
        """Whether a call of this replica would be let pass."""
        ...

    def ask(self, replica: str, at_s: float) -> Asked:
        """The same for a call that is made if it may, and whether it is a trial."""
        ...

    def told(self, replica: str, at_s: float, condition: Condition, retry_after_s: int | None, asked: Asked) -> None:
        """What came of a call that was let pass."""
        ...


class Cooldown:
    """LiteLLM's router with Redis: a deployment cools down, then all calls go there again; there are no trials.

    After the Python router of LiteLLM 1.7x and later (`router_utils/cooldown_handlers.py`, `cooldown_cache.py`), with
    its defaults: 5 s, or as long as Retry-After asks; a 429 and an unknown model cool at once; failed connections
    never do (`APIConnectionError`). Other errors: more than `allowed_fails` = 3 in a minute, counted by each process.
    That is kind, since without that setting it takes more than half of a minute's calls, five at least. Cooldowns are
    read from Redis once a second; that a process sees its own at once is kind, too.
    """

    COOLDOWN_S: Final = 5.0
    ALLOWED_FAILS: Final = 3
    READ_EVERY_S: Final = 1.0

    def __init__(self, replicas: Iterable[str]) -> None:
        self._shared_s = 0.0
        self._until_s = dict.fromkeys(replicas, 0.0)
        self._read_s = dict.fromkeys(self._until_s, 0.0)
        self._fails = Counter[tuple[str, int]]()

    def is_free(self, replica: str, at_s: float) -> bool:
        """Not cooling, as far as this replica has read."""
        if at_s >= self._read_s[replica] + self.READ_EVERY_S:
            self._read_s[replica] = at_s
            self._until_s[replica] = max(self._until_s[replica], self._shared_s)
        return at_s >= self._until_s[replica]

    def ask(self, replica: str, at_s: float) -> Asked:
        """See `Rival`."""
        return "free" if self.is_free(replica, at_s) else "no"

    def told(self, replica: str, at_s: float, condition: Condition, retry_after_s: int | None, asked: Asked) -> None:
        """See `Rival`."""
        if condition in ("ok", "network"):
            return
        minute = replica, int(at_s // 60)
        self._fails[minute] += 1
        if condition in ("gone", "limited") or self._fails[minute] > self.ALLOWED_FAILS:
            self._shared_s = at_s + (retry_after_s or self.COOLDOWN_S)
            self._until_s[replica] = self._shared_s


@dataclass
class _Host:
    run: int = 0
    ejections: int = 0
    until_s: float | None = None
    sweeps: int = 0


class Outliers:
    """Envoy's outlier detection, one Envoy beside each replica: an ejected host gets no calls, then all again.

    After its documentation for 1.37 (`config.cluster.v3.OutlierDetection`), with the defaults: `consecutive_5xx` 5,
    timeouts and failed connections among them; ejected for `base_ejection_time` 30 s times the ejections in a row, at
    most `max_ejection_time` 300 s; each `interval` of 10 s lets hosts in whose time is over, and takes one ejection
    off a host that is in. Success rates need five hosts and do not apply. That an unknown model counts is kind: 4xx
    do not by default. A 429 neither counts nor ends a run.
    """

    CONSECUTIVE: Final = 5
    BASE_S: Final = 30.0
    MAX_S: Final = 300.0
    INTERVAL_S: Final = 10.0

    def __init__(self, replicas: Iterable[str]) -> None:
        self._hosts = {name: _Host() for name in replicas}

    def _swept(self, replica: str, at_s: float) -> _Host:
        host = self._hosts[replica]
        while host.sweeps < int(at_s // self.INTERVAL_S):
            host.sweeps += 1
            if host.until_s is None:
                host.ejections = max(0, host.ejections - 1)
            elif host.sweeps * self.INTERVAL_S >= host.until_s:
                host.run, host.until_s = 0, None
        return host

    def is_free(self, replica: str, at_s: float) -> bool:
        """Not ejected."""
        return self._swept(replica, at_s).until_s is None

    def ask(self, replica: str, at_s: float) -> Asked:
        """See `Rival`."""
        return "free" if self.is_free(replica, at_s) else "no"

    def told(self, replica: str, at_s: float, condition: Condition, retry_after_s: int | None, asked: Asked) -> None:
        """See `Rival`."""
        host = self._swept(replica, at_s)
        if condition == "ok":
            host.run = 0
        elif condition != "limited":
            host.run += 1
            if host.run >= self.CONSECUTIVE and host.until_s is None:
                host.ejections += 1
                host.until_s = at_s + min(self.MAX_S, self.BASE_S * host.ejections)


@dataclass
class _Circuit:
    state: Literal["closed", "open", "half-open"] = "closed"
    calls: deque[bool] = field(default_factory=lambda: deque[bool](maxlen=100))
    until_s: float = 0.0
    permits: int = 0
    tried: list[bool] = field(default_factory=list)


class Breaker:
    """Resilience4j's circuit breaker, one in each replica.

    After its documentation for 2.x (`CircuitBreakerConfig`), with the defaults: opens when 50 % of the last 100 calls
    failed, and not before there were 100; `waitDurationInOpenState` 60 s; then 10 calls are let pass, of which half
    must be answered. Every error counts.
    """

    WINDOW: Final = 100
    OPEN_S: Final = 60.0
    PERMITTED: Final = 10

    def __init__(self, replicas: Iterable[str]) -> None:
        self._circuits = {name: _Circuit() for name in replicas}

    def is_free(self, replica: str, at_s: float) -> bool:
        """Closed, or a permit is to be had."""
        circuit = self._circuits[replica]
        if circuit.state == "open":
            return at_s >= circuit.until_s
        return circuit.state == "closed" or circuit.permits > 0

    def ask(self, replica: str, at_s: float) -> Asked:
        """See `Rival`."""
        circuit = self._circuits[replica]
        if not self.is_free(replica, at_s):
            return "no"
        if circuit.state == "closed":
            return "free"
        if circuit.state == "open":
            circuit.state, circuit.permits, circuit.tried = "half-open", self.PERMITTED, []
        circuit.permits -= 1
        return "trial"

    def told(self, replica: str, at_s: float, condition: Condition, retry_after_s: int | None, asked: Asked) -> None:
        """See `Rival`."""
        circuit = self._circuits[replica]
        is_failed = condition != "ok"
        if circuit.state == "half-open" and asked == "trial":
            circuit.tried.append(is_failed)
            if len(circuit.tried) >= self.PERMITTED:
                self._decide(circuit, circuit.tried, at_s)
        elif circuit.state == "closed":
            circuit.calls.append(is_failed)
            if len(circuit.calls) >= self.WINDOW and 2 * sum(circuit.calls) >= self.WINDOW:
                self._decide(circuit, circuit.calls, at_s)

    def _decide(self, circuit: _Circuit, calls: Iterable[bool], at_s: float) -> None:
        failed = list(calls)
        circuit.state = "open" if 2 * sum(failed) >= len(failed) else "closed"
        circuit.until_s = at_s + self.OPEN_S
        circuit.calls.clear()


RIVALS: Final[dict[str, Callable[[Iterable[str]], Rival]]] = {
    "LiteLLM": Cooldown,
    "Envoy": Outliers,
    "Resilience4j": Breaker,
}
