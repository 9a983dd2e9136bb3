"""One process of the services: how all that runs in it is started, watched and stopped.

That is an embedded NATS where none is named, the streams, the projector, the answers to questions, and what the
settings ask for: probes, alerts, the history.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client

from sickbay_events import Policy

from ..alerts.settings import Alerts, Way, read_alerts
from ..bus.connect import BusError, NatsOptions
from ..bus.embedded import EmbeddedServer
from ..bus.jetstream import JetStreamApi
from ..bus.link import Link
from ..bus.topology import CONTROL, LOG, POLICY_SUBJECT, StreamLimits, TopologyReport, ensure_when_led
from ..bus.view_names import ViewNames, view_names
from ..config import Settings
from ..control.policies import in_shadow, seed_policy
from ..doctor.checks import losses
from ..doctor.finding import Installation
from ..historian.child import HistorianChild
from ..loggers import logger
from ..prober.settings import Probe, ProbeSettings, read_probes
from ..projector import Projector
from ..projector.health import CURRENT_PHASES
from ..projector.tracing import enable_folds
from ..router.tracing import tracer
from .rpc import Rpc

if TYPE_CHECKING:
    from ..alerts.relay import Alerting
    from ..prober.prober import Prober

_log = logger("sickbay.services")

CONNECT_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 5.0
RPC_RETRY_S: Final = 0.5
RENEW_EVERY_S: Final = 2.0


class Services:
    """One process of the services. Everything in it belongs to the event loop in which `start` is called."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.url = settings.nats
        self.topology: TopologyReport | None = None
        self.projector: Projector | None = None
        self._embedded: EmbeddedServer | None = None
        self._link: Link | None = None
        self._fold: asyncio.Task[None] | None = None
        self._server_kept: asyncio.Task[None] | None = None
        self._rpc: Rpc | None = None
        self.prober: Prober | None = None
        self.alerting: Alerting | None = None
        self.historian: HistorianChild | None = None
        self.trials: Counter[str] = Counter()
        """Answers to routers that asked for a trial's lease, by result, over all clients of this process."""
        self._history: asyncio.Task[None] | None = None
        self._answering: asyncio.Task[None] | None = None
        self._answers = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_beside(self) -> bool:
        """Whether the running services are others, and this process only writes a view of another name."""
        return bool(self.settings.beside)

    @property
    def options(self) -> NatsOptions:
        """How this process reaches NATS."""
        return self.settings.nats_options(f"sickbay-services {self.settings.replica_name}", self.url)

    async def start(self) -> None:
        """Start all of it; if that fails, stop what was started. Raises `BusError`, `PolicyRefused`, `OSError`."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings = self.settings
        # Every file is read before anything is started, so that a missing one is said at once.
        policy, probes, alerts = _policy(settings), _probes(settings), _receivers(settings)
        for field in ("creds", "tls_ca"):
            settings.read(field)
        limits = await self._find_nats()
        self._link = link = Link(self.options)
        link.start()
        names = view_names(settings.beside or settings.view)
        client, self.topology = await ensure_when_led(link, limits, names, timeout_s=CONNECT_TIMEOUT_S)
        for line in (*self.topology.problems, *self.topology.notes):
            _log.warning("%s", line)
        if settings.shadow:
            policy = in_shadow(policy or Policy())
            if not self.is_beside:
                await seed_policy(client, policy, shadow=True)
        elif policy is not None and LOG in self.topology.created and not self.is_beside:
            await seed_policy(client, policy, fresh=True)
        self.projector = Projector(
            link,
            name=settings.replica_name,
            policy=policy,
            limits=limits,
            view=names.name,
            beside=self.is_beside,
        )
        if settings.traces:
            enable_folds(self.projector, tracer())
        if alerts is not None and not self.is_beside:
            await self._send_alerts(link, self.projector, *alerts)
        self._fold = asyncio.create_task(self.projector.run(), name="sickbay-projector")
        if self.is_beside:
            return  # the running services answer questions, probe and keep the history
        link.listen(connected=self._on_connected)
        self._tasks.add(asyncio.create_task(self._say_losses(client, names), name="sickbay-losses"))
        if settings.history_path is not None:
            self.historian = HistorianChild(settings, self.url)
            self._history = asyncio.create_task(self.historian.run(), name="sickbay-historian")
        if probes is not None:
            self._probe(link, self.projector, *probes)

    async def _find_nats(self) -> StreamLimits:
        """Set `url`: as given, of the services beside which this runs, or of a server started here. Returns the limits
        of the streams, which fit the disk where the server is here."""
        settings = self.settings
        if self.is_beside and not self.url:
            self.url = settings.nats_url
            if not self.url:
                raise BusError(f"no services run from {settings.data_folder}: there is nothing to be beside")
        if self.url:
            return settings.limits
        self._embedded = embedded = EmbeddedServer(
            settings.data_folder, port=settings.port or None, sync_always=settings.sync_always
        )
        await embedded.start()
        self.url = embedded.url
        self._server_kept = asyncio.create_task(embedded.keep(), name="sickbay-nats-server")
        self._tasks.add(asyncio.create_task(self._renew_stuck(embedded), name="sickbay-nats-disk"))
        return settings.limits.fitted(embedded.free_bytes)

    async def _renew_stuck(self, embedded: EmbeddedServer) -> None:
        """See now and then whether the embedded server has met a full disk and must begin anew."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            await asyncio.to_thread(embedded.renew_if_stuck)  # reads a file

    async def broken(self) -> None:
        """Wait until something ended that the services cannot do without and cannot mend, and raise why."""
        vital = [task for task in (self._fold, self._server_kept) if task is not None]
        done, _ = await asyncio.wait(vital, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def _say_losses(self, client: Client, names: ViewNames) -> None:
        """One line for each thing that may lose events, with its remedy, as `sickbay doctor` finds it."""
        for finding in await losses(Installation(client, self.settings, names)):
            level = logging.INFO if finding.level == "note" else logging.WARNING
            _log.log(level, "%s: %s -> %s", finding.what, finding.found, finding.do)

    def _probe(self, link: Link, projector: Projector, settings: ProbeSettings, probes: list[Probe]) -> None:
        """Probe from now on, while this is the process that writes."""
        from ..prober.prober import FoldFacts, Prober  # takes a moment to import, and most have no probes

        self.prober = prober = Prober(
            settings,
            probes,
            replica=self.settings.replica_name,
            facts=FoldFacts(lambda: projector.fleet, projector.now_ms),
            is_active=lambda: projector.is_writer,
            client=lambda: link.client,
        )
        self._tasks.add(asyncio.create_task(prober.run(), name="sickbay-prober"))

    async def _send_alerts(self, link: Link, projector: Projector, settings: Alerts, ways: dict[str, Way]) -> None:
        """Send alerts from now on, while this is the process that writes."""
        from ..alerts.relay import Alerting  # its HTTP client takes a moment to import, and many have no receivers

        self.alerting = alerting = Alerting(
            settings, ways, client=lambda: link.client, is_active=lambda: projector.is_writer
        )
        await alerting.prepare(await link.wait_connected(CONNECT_TIMEOUT_S))
        self._tasks.add(asyncio.create_task(alerting.run(), name="sickbay-alerts"))

    def _on_connected(self, client: Client, fresh: bool) -> None:
        if not fresh:
            return  # the same client has renewed its own subscriptions
        if self._answering is not None:
            self._answering.cancel()
        self._answering = task = asyncio.create_task(self._answer(client), name="sickbay-rpc")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, client: Client) -> None:
        """Take questions on this client, once the state is at the log's end."""
        assert self.projector is not None
        while self.projector.health().phase not in CURRENT_PHASES:  # noqa: ASYNC110 - the phase is a fact, not an event
            await asyncio.sleep(0.02)
        rpc = Rpc(client, self.projector, instance=self.settings.replica_name, trials=self.trials)
        while self._rpc is not rpc:
            try:
                await rpc.start()
            except (nats.errors.Error, OSError):
                await rpc.stop()
                await asyncio.sleep(RPC_RETRY_S)
            else:
                self._rpc = rpc
                self._answers.set()

    async def ready(self) -> None:
        """Wait until a projector writes the view and questions are answered from a state that has the policy.

        A seeded policy reaches the log through the control stream, a moment after it is stored there. The defaults
        would judge events that come in between. Raises the error that ended the fold.
        """
        assert self.projector is not None and self._fold is not None and self._link is not None
        if self.is_beside:
            await self._ready_beside(self.projector, self._fold)
            return
        answers = asyncio.create_task(self._answers.wait())
        await asyncio.wait((answers, self._fold), return_when=asyncio.FIRST_COMPLETED)
        if self._fold.done():
            answers.cancel()
            self._fold.result()
        client = await self._link.wait_connected(CONNECT_TIMEOUT_S)
        seed = await JetStreamApi(client, timeout_s=CONNECT_TIMEOUT_S).message_at(
            CONTROL, 1, or_next=True, subject=POLICY_SUBJECT
        )
        projector = self.projector
        while not projector.health().writer or (seed is not None and not projector.fleet.policy_seq):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _ready_beside(self, projector: Projector, fold: asyncio.Task[None]) -> None:
        """Wait until its view is written. Raises the error that ended the fold."""
        while not projector.health().writer:
            if fold.done():
                fold.result()
            await asyncio.sleep(0.01)

    def health(self) -> dict[str, Any]:
        """`ok`, and the facts behind it."""
        if self.projector is None:
            return {"ok": False, "why": "not started"}
        connected = self._link is not None and self._link.client is not None
        found = self.projector.health()
        folding = self._fold is not None and not self._fold.done()
        ok = connected and folding and found.phase in CURRENT_PHASES
        history = None if self.historian is None else self.historian.facts()
        return {
            "ok": ok,
            "connected": connected,
            "projector": msgspec.to_builtins(found),
            "history": history,
            "alerts": None if self.alerting is None else self.alerting.facts(),
        }

    async def stop(self) -> None:
        """Stop all of it, last started first. Never raises."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            # A running probe gives its lease back, for which the questions below must still be answered.
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)
        if self._history is not None:
            self._history.cancel()
            await asyncio.wait([self._history])
        if self._rpc is not None:
            await self._rpc.stop()
        if self.projector is not None and self._fold is not None:
            self.projector.stop()
            await asyncio.wait([self._fold], timeout=STOP_TIMEOUT_S)
            self._fold.cancel()
            await asyncio.wait([self._fold])
        if self._link is not None:
            await self._link.close()
        if self._server_kept is not None:
            self._server_kept.cancel()  # before the server, which would be started again
            await asyncio.wait([self._server_kept])
        if self._embedded is not None:
            await self._embedded.stop()


def _probes(settings: Settings) -> tuple[ProbeSettings, list[Probe]] | None:
    found = settings.read("probes")
    return None if found is None else read_probes(found.decode(), machine=settings.machine_name)


def _receivers(settings: Settings) -> tuple[Alerts, dict[str, Way]] | None:
    found = settings.read("alerts")
    return None if found is None else read_alerts(found.decode())


def _policy(settings: Settings) -> Policy | None:
    found = settings.read("policy")
    return None if found is None else Policy.from_toml(found)
