"""The prober: targets that nobody calls are checked (`checks`), and the results go into the log.

Where calls are evidence nothing is probed (Rule 4.6). A readiness probe of a held target runs under the same lease as
any trial.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import httpx
import msgspec
import nats.errors
from nats.aio.client import Client

from sickbay_events import GateEntry, ProbeResult, Target
from sickbay_events.lease_wire import SUBJECT, LeaseName, TrialAnswer, TrialAsk
from sickbay_projections import Fleet, decide_entries
from sickbay_projections.decide import denies, is_on_probation, trial_from_ms

from ..bus.connect import BusError
from ..control.acts import publish_probe
from ..loggers import logger
from ..view.entries import View
from .checks import SUSPICIOUS, UNPROVEN, Checked, probe_client, run_check
from .settings import Probe, ProbeSettings

_log = logger("sickbay.prober")

DECIDE: Final = "sickbay.v1.decide"
AT_ONCE: Final = 4
LOOK_S: Final = 1.0
"""How often is looked whether this process is the one that probes."""
REST_S: Final = 30.0
"""The longest sleep: log time may jump."""
LEASE_S: Final = 2.0
SETTLE_S: Final = 2.0
"""A lease is kept until the fold has passed the result, and at most so long: else the next trial would begin before
the hold has ended or begun again."""
HOUR_S: Final = 3_600.0
_EVIDENCE: Final = ("last_answer_ms", "last_bad_ms", "last_ready_ms", "last_live_ms")


def probe_leases(target: Target, entries: Sequence[GateEntry | None], at_ms: int) -> list[LeaseName] | None:
    """The leases that a probe of this target needs, from the gate entries of its three scopes, widest first.

    None if it may not be probed: a hold stands that wants no trial now.
    """
    decision = decide_entries(entries, at_ms)
    if decision.reason in ("ok", "allowed_by_operator") and not decision.trial:
        return []
    if not decision.allowed and not decision.trial:
        return None
    wanted: list[LeaseName] = []
    cleared_seq = 0
    for key, entry in zip(target.keys, entries, strict=True):
        for hold in entry.holds if entry is not None else ():
            if hold.began_seq < cleared_seq or not hold.enforced:
                continue
            is_denied = denies(hold, at_ms, "")
            if (is_denied and 0 < trial_from_ms(hold, "", 0) <= at_ms) or (
                not is_denied and is_on_probation(hold, at_ms)
            ):
                wanted.append(LeaseName(key, hold.rule, hold.began_seq))
        cleared_seq = max(cleared_seq, (entry.cleared_seq or 0) if entry is not None else 0)
    return wanted


class LeaseHolder:
    """The leases of one probe, asked of the services as any trial's are."""

    def __init__(self, client: Client, replica: str, probe: Probe, leases: list[LeaseName]) -> None:
        self._client, self.leases = client, leases
        self._ask = TrialAsk(
            replica=replica,
            provider=probe.target.provider,
            model=probe.target.model,
            leases=leases or [LeaseName("", "", 0)],
            token=os.urandom(8).hex(),
            limit_ms=round(probe.limit_s * 1000),
        )

    async def take(self) -> bool:
        """True if the probe may be made; False where another one's trial runs, or nobody answers."""
        if not self.leases:
            return True
        answer = await self._request(self._ask)
        return answer is not None and answer.granted

    async def give_back(self) -> None:
        """End them. Never raises: they run out by themselves."""
        if self.leases:
            await self._request(msgspec.structs.replace(self._ask, action="give_back"))

    async def _request(self, ask: TrialAsk) -> TrialAnswer | None:
        try:
            reply = await self._client.request(SUBJECT, msgspec.json.encode(ask), timeout=LEASE_S)
            return msgspec.json.decode(reply.data, type=TrialAnswer)
        except (nats.errors.Error, OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None


class Facts(Protocol):
    """What a prober knows of its targets."""

    @property
    def seq(self) -> int:
        """The last log sequence that is folded."""
        ...

    def now_ms(self) -> int:
        """Log time."""
        ...

    def entries(self, target: Target) -> Sequence[GateEntry | None]:
        """The gate entries of its three scopes, widest first."""
        ...

    async def document(self, target: Target) -> dict[str, Any]:
        """The fold's document of the target; {} if the fold has no state for it. A value of None means the same as a
        missing key: never."""
        ...


class FoldFacts:
    """Facts of a process that folds. `fleet` is its state, `now_ms` its log time."""

    def __init__(self, fleet: Callable[[], Fleet], now_ms: Callable[[], int]) -> None:
        self._fleet, self.now_ms = fleet, now_ms

    @property
    def seq(self) -> int:
        """Of the state."""
        return self._fleet().seq

    def entries(self, target: Target) -> Sequence[GateEntry | None]:
        """Of the state."""
        return [self._fleet().entry(key) for key in target.keys]

    async def document(self, target: Target) -> dict[str, Any]:
        """Of the state."""
        return self._fleet().document(target.key, self.now_ms()) or {}


class ViewFacts:
    """Facts of a process that follows the view as routers do, and asks the services for the rest."""

    def __init__(self, view: View, client: Callable[[], Client | None]) -> None:
        self._view, self._client, self.now_ms = view, client, view.now_ms

    @property
    def seq(self) -> int:
        """Of the view."""
        return self._view.seq

    def entries(self, target: Target) -> Sequence[GateEntry | None]:
        """Of the view."""
        return [self._view.entries.get(key) for key in target.keys]

    async def document(self, target: Target) -> dict[str, Any]:
        """The services' answer. Raises `nats.errors.Error`, `OSError` or `ValueError` where there is none."""
        client = self._client()
        if client is None:
            raise ConnectionError("NATS is away")
        ask = msgspec.json.encode({"provider": target.provider, "model": target.model})
        reply = await client.request(DECIDE, ask, timeout=LEASE_S)
        found: list[dict[str, Any]] = msgspec.json.decode(reply.data).get("counters", [])
        wanted = (target.provider, target.model)
        return next((one for one in found if (one.get("provider"), one.get("model")) == wanted), {})


class Prober:
    """Probes every target of a file as long as `is_active` says that it is this process's turn.

    client     the connection to NATS, None while there is none
    counts     `passed`, `failed`, `own_fault`, `suspicious`, `no_lease`, `held`, `no_allowance`, `lost`
    """

    def __init__(
        self,
        settings: ProbeSettings,
        probes: Sequence[Probe],
        *,
        replica: str,
        facts: Facts,
        is_active: Callable[[], bool],
        client: Callable[[], Client | None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._settings, self._probes, self._replica = settings, probes, replica
        self._facts, self._is_active, self._client = facts, is_active, client
        self._boot, self._n = os.urandom(8).hex(), 0
        self._spent: deque[float] = deque()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._said_allowance_s = -HOUR_S

    @property
    def size(self) -> int:
        """How many targets it has."""
        return len(self._probes)

    async def run(self) -> None:
        """Probe until cancelled."""
        async with probe_client() as http, asyncio.TaskGroup() as group:
            for probe in self._probes:
                group.create_task(self._keep(http, probe), name=f"sickbay-probe {probe.target.model}")

    async def _keep(self, http: httpx.AsyncClient, probe: Probe) -> None:
        """Probe one target whenever nothing was heard of it for its interval."""
        asked_ms = 0
        while True:
            left_s = LOOK_S
            if self._is_active():
                last_ms = max(asked_ms, await self._evidence_ms(probe.target))
                left_s = probe.interval_s - (self._facts.now_ms() - last_ms) / 1000
            if left_s > 0 or not self._is_active():
                await asyncio.sleep(min(left_s, REST_S) if left_s > 0 else LOOK_S)
                continue
            asked_ms = self._facts.now_ms()
            try:
                async with self._at_once:
                    await self._probe(http, probe)
            except Exception:  # noqa: BLE001 - one target's trouble must not end the others' probes
                _log.exception("a probe of %s %s failed", probe.target.provider, probe.target.model)

    async def _evidence_ms(self, target: Target) -> int:
        """Log time of the newest call or passed probe of a target, by any replica. 0 if there was none. Now if nothing
        answers, because a target is not probed without need."""
        try:
            found = await self._facts.document(target)
        except (nats.errors.Error, OSError, ValueError):
            return self._facts.now_ms()
        return max(found.get(name) or 0 for name in _EVIDENCE)

    async def _probe(self, http: httpx.AsyncClient, probe: Probe) -> None:
        client = self._client()
        if client is None or not self._has_allowance():
            return
        leases: list[LeaseName] = []
        if probe.level == "readiness":
            wanted = probe_leases(probe.target, self._facts.entries(probe.target), self._facts.now_ms())
            if wanted is None:
                self.counts["held"] += 1
                return
            leases = wanted
        holder = LeaseHolder(client, self._replica, probe, leases)
        if not await holder.take():
            self.counts["no_lease"] += 1
            return
        seen_seq = self._facts.seq
        self._spent.append(time.monotonic())
        try:
            found = await run_check(http, probe)
            if found.ok is None:
                self.counts["own_fault"] += 1
                _log.warning("a probe of %s %s was not made: %s", probe.target.provider, probe.target.model, found.why)
                return
            self._note(probe, found)
            await self._publish(client, probe.target, found.event(probe, seen_seq=seen_seq, trial=leases))
        finally:
            await holder.give_back()

    async def _publish(self, client: Client, target: Target, result: ProbeResult) -> None:
        """Store a result; where that fails it is lost, and the next one comes."""
        self._n += 1
        try:
            ack = await publish_probe(
                client, target, msgspec.structs.replace(result, id=f"{self._boot}-{self._n}"), replica=self._replica
            )
        except (BusError, nats.errors.Error, OSError) as error:
            self.counts["lost"] += 1
            _log.warning("a probe's result was not stored: %s", error)
            return
        if result.trial:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    while self._facts.seq < ack.seq:  # noqa: ASYNC110 - the fold's position is a fact, not an event
                        await asyncio.sleep(0.01)

    def _note(self, probe: Probe, found: Checked) -> None:
        self.counts["passed" if found.ok else "failed"] += 1
        if found.signature in (SUSPICIOUS, UNPROVEN):
            self.counts["suspicious"] += 1
        if not found.ok or found.level != probe.level:
            _log.warning("probe of %s %s: %s, %s", probe.target.provider, probe.target.model, found.kind, found.why)

    def _has_allowance(self) -> bool:
        now_s = time.monotonic()
        while self._spent and self._spent[0] <= now_s - HOUR_S:
            self._spent.popleft()
        if len(self._spent) < self._settings.per_hour:
            return True
        self.counts["no_allowance"] += 1
        if now_s - self._said_allowance_s >= HOUR_S:
            self._said_allowance_s = now_s
            _log.warning("the allowance of %d probes an hour is spent", self._settings.per_hour)
        return False
