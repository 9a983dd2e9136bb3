"""The services as a FastStream application: life cycle, health, alerts, the event contract.

    faststream run sickbay.app:app          # settings from the environment; or `sickbay serve`, which says more

The fold does not run on FastStream's connection but on a `Link` of its own: a nats-py client that the server
answered with most -ERR lines is closed for good, FastStream cannot replace the client it was started with, and
a Link does. So alerts may be lost with their connection, the fold goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec
import nats.errors
from fast_depends.msgspec import MsgSpecSerializer
from faststream import AckPolicy
from faststream.asgi import AsgiFastStream, AsgiResponse, get
from faststream.nats import JStream, NatsBroker
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, DeliverPolicy

from sickbay_events import Policy

from ..alerts.settings import Alerts, Way, read_alerts
from ..bus.connect import BusError, NatsOptions, PermissionDenied, connect_client
from ..bus.embedded import EmbeddedServer, saved_url
from ..bus.jetstream import JetStreamApi
from ..bus.link import Link
from ..bus.topology import CONTROL, DEAD, DEAD_PREFIX, LOG, POLICY_SUBJECT, TRANSITIONS, TopologyReport, ensure_when_led
from ..bus.view_names import ViewNames, view_names
from ..config import Settings
from ..control.policies import in_shadow, seed_policy
from ..doctor.checks import losses
from ..doctor.finding import Installation
from ..historian.child import HistorianChild
from ..metrics import exposition, refused_scrape
from ..prober.settings import Probe, ProbeSettings, read_probes
from ..projector import Projector
from ..projector.deadletters import Letter
from ..projector.tracing import fold_span
from .asyncapi import Doc, asyncapi_document, documented, schema_of, specification
from .rpc import Rpc

if TYPE_CHECKING:
    from ..alerts.relay import Alerting
    from ..prober.prober import Prober

_log = logging.getLogger("sickbay.services")
Handler: TypeAlias = Callable[..., Awaitable[None]]

CONNECT_TIMEOUT_S: Final = 30.0
LIVE: Final = ("standby", "writing")
"""Phases in which the state is whole up to the log's end, so that questions can be answered from it."""
STOP_TIMEOUT_S: Final = 5.0
RPC_RETRY_S: Final = 0.5
SERVICES: Final = "services"
ALERTS: Final = "sickbay-alerts"
"""Queue groups of this name, each a durable consumer: one service hears each event, also after all were down."""


class Transition(msgspec.Struct, kw_only=True):
    """A derived event as people read it; every field that a line of the log needs."""

    type: str
    provider: str
    rule: str
    cause_seq: int
    model: str | None = None
    until: str | None = None
    enforced: bool = True
    kind: str | None = None
    status: int | None = None
    replica: str | None = None
    reason: str | None = None
    actor: str | None = None
    by: str | None = None
    old: str | None = None
    new: str | None = None
    signature: str | None = None
    numbers: dict[str, int] = {}


def _note_denied(error: Exception) -> None:
    if isinstance(error, PermissionDenied):
        _log.error("%s", error)  # whoever waits for an answer meets a time-out, which says nothing


class Broker(NatsBroker):
    """FastStream's broker on a connection that is made as all others of Sickbay are: bounded and explained."""

    options: NatsOptions | None = None

    async def _connect(self) -> Client:
        if self.options is None:
            raise RuntimeError("the application's lifespan says where NATS is before the broker starts")
        client = await connect_client(self.options, timeout_s=CONNECT_TIMEOUT_S, on_error=_note_denied)
        self.config.connect(client)
        return client


class Services:
    """Embedded NATS where none is named, streams, projector and questions: one process of the services."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.url = settings.nats
        self.topology: TopologyReport | None = None
        self.projector: Projector | None = None
        self._embedded: EmbeddedServer | None = None
        self._link: Link | None = None
        self._fold: asyncio.Task[None] | None = None
        self._rpc: Rpc | None = None
        self.prober: Prober | None = None
        self.alerting: Alerting | None = None
        self.historian: HistorianChild | None = None
        self.trials: Counter[str] = Counter()
        """Answers to routers that asked for a trial's lease, by all of its clients."""
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
        found = self.settings
        return NatsOptions.from_url(
            self.url,
            creds=found.creds or None,
            tls_ca=found.tls_ca or None,
            inbox_prefix=found.inbox_prefix,
            name=f"sickbay-services {found.replica_name}",
        )

    async def start(self) -> None:
        """Start all of it; if that fails, stop what was started. Raises `BusError`, `PolicyRefused`, `OSError`."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        limits = self.settings.limits
        # Every file is read before anything is started, so that one that is missing is said at once.
        policy, probes, alerts = _policy(self.settings), _probes(self.settings), _receivers(self.settings)
        for field in ("creds", "tls_ca"):
            self.settings.read(field)
        if self.is_beside and not self.url:
            self.url = saved_url(self.settings.data_folder) or ""
            if not self.url:
                raise BusError(f"no services run from {self.settings.data_folder}: there is nothing to be beside")
        if not self.url:
            port = self.settings.port or None
            embedded = EmbeddedServer(self.settings.data_folder, port=port, sync_always=self.settings.sync_always)
            self._embedded = embedded
            await embedded.start()
            self.url = embedded.url
            limits = limits.fitted(embedded.free_bytes)
        self._link = link = Link(self.options)
        link.start()
        names = view_names(self.settings.beside or self.settings.view)
        client, self.topology = await ensure_when_led(link, limits, names, timeout_s=CONNECT_TIMEOUT_S)
        for line in (*self.topology.problems, *self.topology.notes):
            _log.warning("%s", line)
        if self.settings.shadow:
            policy = in_shadow(policy or Policy())
            if not self.is_beside:
                await seed_policy(client, policy, shadow=True)
        elif policy is not None and LOG in self.topology.created and not self.is_beside:
            await seed_policy(client, policy, fresh=True)
        self.projector = Projector(
            link,
            name=self.settings.replica_name,
            policy=policy,
            limits=limits,
            view=names.name,
            beside=self.is_beside,
            span=fold_span() if self.settings.traces else None,
        )
        if alerts is not None and not self.is_beside:
            await self._tell(link, self.projector, *alerts)
        self._fold = asyncio.create_task(self.projector.run(), name="sickbay-projector")
        if self.is_beside:
            return  # it answers no questions, probes nobody and keeps no history: the running services do
        link.listen(connected=self._on_connected)
        self._tasks.add(asyncio.create_task(self._say_losses(client, names), name="sickbay-losses"))
        if self.settings.history_path is not None:
            self.historian = HistorianChild(self.settings, self.url)
            self._history = asyncio.create_task(self.historian.run(), name="sickbay-historian")
        if probes is not None:
            self._probe(link, self.projector, *probes)

    async def _say_losses(self, client: Client, names: ViewNames) -> None:
        """One line for each thing that may lose events, with its remedy, as `sickbay doctor` finds it."""
        for finding in await losses(Installation(client, self.settings, names)):
            level = logging.INFO if finding.level == "note" else logging.WARNING
            _log.log(level, "%s: %s -> %s", finding.what, finding.found, finding.do)

    def _probe(self, link: Link, projector: Projector, settings: ProbeSettings, probes: list[Probe]) -> None:
        """Probe from now on, while this is the process that writes."""
        from ..prober.prober import (  # its HTTP client takes a moment to import, and most have no probes
            FoldFacts,
            Prober,
        )

        self.prober = prober = Prober(
            settings,
            probes,
            replica=self.settings.replica_name,
            facts=FoldFacts(lambda: projector.fleet, projector.now_ms),
            is_active=lambda: projector.is_writer,
            client=lambda: link.client,
        )
        self._tasks.add(asyncio.create_task(prober.run(), name="sickbay-prober"))

    async def _tell(self, link: Link, projector: Projector, settings: Alerts, ways: dict[str, Way]) -> None:
        """Tell receivers of all that is concluded from now on, while this is the process that writes."""
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
        """Take questions on this client, once the state is worth asking."""
        assert self.projector is not None
        while self.projector.health().phase not in LIVE:  # noqa: ASYNC110 - the phase is a fact, not an event
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
        """Wait until somebody writes the view and questions are answered, from a state that knows the policy.

        A seed reaches the log by way of the control stream, a moment after it is stored there; what is reported
        in between would be judged by the defaults. Raises what ended the fold.
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
        """Wait until its view is written. Raises what ended the fold."""
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
        ok = connected and folding and found.phase in LIVE
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
            # A probe under way gives its lease back, for which the service below must still answer.
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
        if self._embedded is not None:
            await self._embedded.stop()


def make_app(settings: Settings | None = None) -> AsgiFastStream:
    """The application. Without settings they are read from the environment when it starts."""
    broker = Broker(serializer=MsgSpecSerializer(), logger=None, graceful_timeout=5.0)
    running: list[Services] = []

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        services = Services(settings or Settings.from_environment())
        await services.start()
        broker.options = services.options
        running.append(services)
        try:
            yield
        finally:
            running.clear()
            await services.stop()

    @get
    async def healthz(_scope: Any) -> AsgiResponse:
        """200 while the fold is live and connected, 503 otherwise, with the facts."""
        found = running[0].health() if running else {"ok": False, "why": "not started"}
        headers = {"Content-Type": "application/json"}
        return AsgiResponse(json.dumps(found).encode(), 200 if found["ok"] else 503, headers)

    @get(include_in_schema=False)
    async def metrics(scope: Any) -> AsgiResponse:
        """The metrics of this process, for Prometheus."""
        if why := refused_scrape(scope, running[0].settings) if running else b"not started":
            return AsgiResponse(why, 403 if running else 503, {"Content-Type": "text/plain"})
        accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
        body, content_type = await exposition(running[0], accept)
        return AsgiResponse(body, 200, {"Content-Type": content_type})

    documented(broker)
    _alerts(broker)
    contract = specification(broker)

    @get(include_in_schema=False)
    async def asyncapi(_scope: Any) -> AsgiResponse:
        """The event contract."""
        return AsgiResponse(json.dumps(asyncapi_document(contract)).encode(), 200, {"Content-Type": "application/json"})

    made = AsgiFastStream(
        broker,
        asgi_routes=[("/healthz", healthz), ("/metrics", metrics), ("/asyncapi.json", asyncapi)],
        lifespan=lifespan,
        logger=None,
        specification=contract,
    )
    made.context.set_global(SERVICES, running)
    return made


def services_of(app: AsgiFastStream) -> Services:
    """The services that an application runs. Raises `IndexError` while it does not."""
    running: list[Services] = app.context.get(SERVICES)
    return running[0]


def _alerts(broker: NatsBroker) -> None:
    """Subscribers that put transitions and dead letters into the services' own log.

    The ack policy is explicit, since FastStream's default drops an event for good when a handler raises.
    """

    def subscribe(subject: str, stream: str, name: str, says: str) -> Callable[[Handler], object]:
        return broker.subscriber(
            subject,
            queue=f"{ALERTS}-{name}",
            stream=JStream(stream, declare=False),
            config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW),
            ack_policy=AckPolicy.NACK_ON_ERROR,
            title=f"alerts.{name}",
            description=says,
        )

    async def transition(event: Annotated[Transition, Doc(schema_of(Transition))]) -> None:
        log_transition(event)

    async def dead(event: Annotated[Letter, Doc(schema_of(Letter))]) -> None:
        _log.warning("an event could not be read: %s at %d, %s", event.reason, event.seq, event.why)

    subscribe("sickbay.*.>", TRANSITIONS, "transitions", "Holds, releases, health and warnings.")(transition)
    subscribe(f"{DEAD_PREFIX}>", DEAD, "dead", "Events that could not be read.")(dead)


def log_transition(event: Transition) -> None:
    """One line for one transition: WARNING for what denies or warns, INFO for the rest."""
    what = event.provider if event.model is None else f"{event.provider} {event.model}"
    facts = {key: value for key, value in msgspec.to_builtins(event).items() if value is not None}
    extra = {"sickbay": facts}
    if event.type == "held":
        shadow = "" if event.enforced else " (shadow: not enforced)"
        _log.warning("held: %s by %s until %s%s", what, event.rule, event.until, shadow, extra=extra)
    elif event.type == "released":
        _log.info("released: %s from %s by %s", what, event.rule, event.by, extra=extra)
    elif event.type == "warning":
        _log.warning("%s: %s %s", event.rule, what, event.signature or event.replica or "", extra=extra)
    else:
        _log.info("%s: %s is %s, was %s", event.type, what, event.new, event.old, extra=extra)


def _probes(settings: Settings) -> tuple[ProbeSettings, list[Probe]] | None:
    found = settings.read("probes")
    return None if found is None else read_probes(found.decode(), machine=settings.machine_name)


def _receivers(settings: Settings) -> tuple[Alerts, dict[str, Way]] | None:
    found = settings.read("alerts")
    return None if found is None else read_alerts(found.decode())


def _policy(settings: Settings) -> Policy | None:
    found = settings.read("policy")
    return None if found is None else Policy.from_toml(found)


app = make_app()
