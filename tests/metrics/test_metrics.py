"""Metrics: they say what is so, under names and labels that are bounded, and after a restart too."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import httpx
import pytest
from faststream.asgi import AsgiFastStream
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

import sickbay
from nats_servers import NatsServer, free_port
from sickbay import Held, Target, metrics
from sickbay.bus.connect import connect_client
from sickbay.config import Settings
from sickbay.control.acts import publish_outcome
from sickbay.log.decode import DecodedBatch
from sickbay.metrics.table import OTHER, PROVIDERS_MAX, TARGETS_MAX
from sickbay.projector.counters import Counters
from sickbay.service.app import make_app, services_of
from sickbay.service.exposition import exposition
from sickbay.service.fleet_samples import AT_ONCE, FleetScan, fleet_samples
from sickbay.service.services import Services
from sickbay_events import CallOutcome, Kind, Override, Scope, outcome_subject, rfc3339
from sickbay_projections import Fleet
from sickbay_projections.rules.health import health
from sickbay_projections.state.model import Recorded
from waiting import patience, until

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
OTHER_TARGET = Target("api.openai.com#batch", "gpt-5.2")
START_MS = 1_800_000_000_000
ROWS = {row.name: row.labels for row in (*metrics.SERVICES, *metrics.ROUTER)}
Found = dict[tuple[str, ...], float]


def samples(text: str) -> Found:
    """Value by name and values of the labels; a series told twice is an error."""
    found: Found = {}
    for family in read_text(text):
        for sample in family.samples:
            key = (sample.name, *(sample.labels[name] for name in ROWS.get(sample.name, ())))
            if not sample.name.endswith("_bucket"):
                assert key not in found, f"{key} is told twice"
                found[key] = sample.value
    return found


def _runs(app: AsgiFastStream) -> bool:
    """Whether it has started. FastStream does not wait for that; who stops before leaves a socket open."""
    return app.broker is not None and bool(app.broker.running)


@asynccontextmanager
async def served(url: str) -> AsyncIterator[tuple[Services, httpx.AsyncClient]]:
    app = make_app(Settings(nats=url, replica="box"))
    async with (
        app.start_lifespan_context(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        await services_of(app).ready()
        await until(partial(_runs, app))
        yield services_of(app), client


async def scrape(client: httpx.AsyncClient) -> Found:
    reply = await client.get("/metrics")
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/plain")
    return samples(reply.text)


async def told(client: httpx.AsyncClient, key: tuple[str, ...], value: float) -> Found:
    """The first scrape in which the series has reached this value."""
    for _ in range(500):
        found = await scrape(client)
        if found.get(key, -1) >= value:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"{key} is {found.get(key)}, not {value}")


def router_samples(registry: CollectorRegistry) -> Found:
    return samples(generate_latest(registry).decode())


async def test_who_is_elsewhere_is_told_nothing_where_no_token_can_be_checked(
    nats_server: NatsServer,
) -> None:
    """Under `faststream run` and `--beside` this machine alone is told names of models, by a name of its own; all are
    where the operator says so, as by the HTTP interface."""
    cases: tuple[tuple[Literal["", "read"], tuple[int, ...]], ...] = (
        ("", (200, 200, 403, 403)),
        ("read", (200, 200, 200, 200)),
    )
    for anonymous, wanted in cases:
        app = make_app(Settings(nats=nats_server.url, replica="box", http_anonymous=anonymous))
        found = []
        async with app.start_lifespan_context():
            await until(partial(_runs, app))
            for peer, host in (
                ("127.0.0.1", "localhost:8480"), ("::1", "[::1]:8480"), ("127.0.0.1", "evil.example"),
                ("192.0.2.7", "localhost"),
            ):  # fmt: skip
                transport = httpx.ASGITransport(app, client=(peer, 1))
                async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                    found.append((await client.get("/metrics")).status_code)
        assert tuple(found) == wanted


async def test_the_services_tell_what_they_know_and_after_a_restart_nothing_else(nats_server: NatsServer) -> None:
    """What is held, counted, and could not be read stands at /metrics; a restarted process counts no past anew."""
    async with served(nats_server.url) as (services, client), sickbay.connect(nats_server.url, "r1") as sb:
        assert await sb.ready(patience(10))
        for _ in range(3):
            sb.record(OTHER_TARGET, CallOutcome(kind="ok"))
        for _ in range(2):
            sb.record(TARGET, CallOutcome(kind="model_unavailable", status=404))
        await until(lambda: sb.reporter.counts.acked == 5)
        nats = await connect_client(nats_server.url)
        await nats.request(outcome_subject("r1", TARGET), b"no json", timeout=patience(5))
        await nats.close()
        found = await told(client, ("sickbay_dead_letters_total", "body"), 1)
        assert found["sickbay_outcomes_total", "ok"] == 3
        assert found["sickbay_outcomes_total", "model_unavailable"] == 2
        assert found["sickbay_outcomes_total", "timeout"] == 0, "a series from nothing is an increase no rule sees"
        assert found["sickbay_held_scopes", "quarantine", "model"] == 1
        assert 590 < found["sickbay_hold_remaining_seconds", *_named(TARGET), "model", "quarantine"] <= 600
        assert found["sickbay_transitions_total", "held", "quarantine"] == 1
        assert found["sickbay_provider_targets", "openrouter.ai", "held"] == 1
        assert found["sickbay_provider_targets", OTHER_TARGET.provider, "usable"] == 1
        assert found["sickbay_target_health", *_named(TARGET), "quarantined"] == 1
        assert (found["sickbay_targets", "healthy"], found["sickbay_targets", "quarantined"]) == (1, 1)
        assert found["sickbay_replicas",] == found["sickbay_projector_writer",] == found["sickbay_nats_connected",] == 1
        assert found["sickbay_projector_phase", "writing"] == 1 and found["sickbay_projector_lag_seconds",] == 0
        assert found["sickbay_checkpoint_age_seconds",] < 2
        found = await told(client, ("sickbay_projector_commit_seconds_count",), 1)
        assert 0 < found["sickbay_projector_commit_seconds_sum",] < 10
        reply = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert reply.headers["content-type"].startswith("application/openmetrics-text")
        families = {family.name: family for family in read_openmetrics(reply.text)}  # type: ignore[no-untyped-call]
        for row in metrics.SERVICES:
            family = families[row.name.removesuffix("_total")]
            assert (family.type, family.documentation) == (row.sort, row.says)
    nats = await connect_client(nats_server.url)
    for _ in range(2):
        await publish_outcome(nats, OTHER_TARGET, CallOutcome(kind="ok"), replica="r1")
    await nats.close()
    async with served(nats_server.url) as (services, client):
        again = await told(client, ("sickbay_projector_sequence",), found["sickbay_projector_sequence",] + 2)
        kept = ("sickbay_dead_letters_total", "sickbay_held_scopes", "sickbay_provider_targets", "sickbay_targets")
        for key, value in found.items():
            if key[0] in kept:
                assert again[key] == value, key
        assert sum(value for key, value in again.items() if key[0] == "sickbay_outcomes_total") == 0
        assert sum(value for key, value in again.items() if key[0] == "sickbay_transitions_total") == 0
        assert services.projector is not None
        assert services.projector.state.folded >= 2, "it read a past, and counted none"


def _named(target: Target) -> tuple[str, str]:
    return target.provider, target.model


async def test_a_projector_that_still_reads_tells_nothing_of_the_fleet(nats_server: NatsServer) -> None:
    """Before it is up with the log, what it knows is a past that is over."""
    services = Services(Settings(nats=nats_server.url))
    body, _ = await exposition(services)
    assert ("sickbay_nats_connected",) in samples(body.decode())
    await services.start()
    try:
        assert services.projector is not None and services.projector.health().phase == "starting"
        found = samples((await exposition(services))[0].decode())
        assert found["sickbay_projector_phase", "starting"] == 1
        assert not [key for key in found if key[0] in ("sickbay_outcomes_total", "sickbay_held_scopes")]
    finally:
        await services.stop()


async def test_a_router_tells_what_its_gate_and_its_outbox_do(nats_server: NatsServer) -> None:
    """Denials by reason, how old its view is, what waits while NATS is away, and what is lost then."""
    registry = CollectorRegistry()
    async with served(nats_server.url), sickbay.connect(nats_server.url, "r1", capacity=3) as sb:
        registry.register(metrics.collector(sb))
        before = router_samples(registry)
        assert before["sickbay_decisions_total", "quarantined"] == before["sickbay_outbox_dropped_total", "ok"] == 0
        assert await sb.ready(patience(10))
        for _ in range(2):
            sb.record(TARGET, CallOutcome(kind="model_unavailable", status=404))
        await until(lambda: not sb.decide(TARGET).allowed and sb.decide(TARGET).source == "cluster")
        asked = router_samples(registry)["sickbay_decisions_total", "quarantined"]
        with pytest.raises(Held):
            sb.attempt(TARGET).__enter__()
        assert sb.decide(Target("", "")).reason == "no_target"
        await until(lambda: router_samples(registry)["sickbay_mirror_stale",] == 0)
        found = router_samples(registry)
        assert found["sickbay_decisions_total", "quarantined"] == asked + 1
        assert found["sickbay_decisions_total", "no_target"] == 1
        assert found["sickbay_outbox_acked_total",] == 2 and found["sickbay_mirror_age_seconds",] < 3
        assert found["sickbay_mirror_entries",] == found["sickbay_nats_connected",] == 1
        assert found["sickbay_outbox_blocked", "no"] == 1
        names = {family.name for family in read_text(generate_latest(registry).decode())}
        assert names >= {row.name.removesuffix("_total") for row in metrics.ROUTER}


async def test_an_outbox_without_nats_fills_and_drops_by_kind() -> None:
    """Depth and drops are told while nothing is reachable: that is when they are looked at."""
    registry = CollectorRegistry()
    sb = sickbay.connect(f"nats://127.0.0.1:{free_port()}", "r1", capacity=3)
    registry.register(metrics.collector(sb))
    async with sb:
        for _ in range(3):
            sb.record(TARGET, CallOutcome(kind="ok"))
        for _ in range(2):
            sb.record(TARGET, CallOutcome(kind="timeout"))
        sb.record(TARGET, CallOutcome(kind="nonsense"))  # type: ignore[arg-type]
        found = router_samples(registry)
        assert found["sickbay_outbox_depth",] == 3
        assert found["sickbay_outbox_dropped_total", "ok"] == 2
        assert found["sickbay_outbox_rejected_total", "kind"] == 1
        assert found["sickbay_nats_connected",] == 0 and found["sickbay_mirror_stale",] == 1
        await sb.close(0)
    assert router_samples(registry)["sickbay_outbox_recorded_total",] == 5


def test_a_denial_that_is_taken_back_makes_no_counter_go_down() -> None:
    """A counter that goes down passes for one that began anew, and its whole value for an increase."""
    sb = sickbay.connect("nats://127.0.0.1:1", "r1")
    registry = CollectorRegistry()
    registry.register(metrics.collector(sb))
    denied = sickbay.Decision(allowed=False, reason="trial_taken", rule="breaker")
    for _ in range(3):
        sb.gate.count_denial(TARGET, denied)
    key = "sickbay_decisions_total", "trial_taken"
    assert router_samples(registry)[key] == 3
    sb.gate.uncount_denial(TARGET, denied)
    assert router_samples(registry)[key] == 3
    sb.gate.count_denial(TARGET, denied)
    sb.gate.count_denial(TARGET, denied)
    assert router_samples(registry)[key] == 4


def test_repeats_are_counted_once_and_the_past_not_at_all() -> None:
    """Outcomes are counted by what the fold took, from the moment the projector was up with the log."""
    meters, fleet = Counters(), Fleet()

    def take(*events: tuple[Kind, int]) -> None:
        first = fleet.seq + 1
        outcomes = [CallOutcome(kind=kind, id=f"{7:016x}-{n}") for kind, n in events]
        seqs = list(range(first, first + len(events)))
        subject = outcome_subject("r1", TARGET)
        batch = DecodedBatch([subject] * len(events), list(outcomes), seqs, [START_MS + seq for seq in seqs])
        fleet.apply_many(*batch)
        meters.count(batch, [kind for kind, _ in events if kind != "ok"], 0, fleet.passed_over)

    take(("ok", 1), ("timeout", 2))
    assert not meters.outcomes
    meters.is_live = True
    take(("ok", 3), ("timeout", 4), ("ok", 5))
    take(("ok", 3), ("timeout", 4), ("cancelled", 6), ("ok", 7))
    assert meters.outcomes == {"ok": 3, "timeout": 1, "cancelled": 1}


def many(hosts: int, models: int) -> Fleet:
    """A fleet with all sorts of targets: held by rules and operators, allowed, cleared, idle, healthy, credentials."""
    fleet, random_ = Fleet(), random.Random(1)
    targets = [Target(f"h{n % hosts}.example{'#b' if n % 7 == 0 else ''}", f"m{n}") for n in range(models)]
    kinds: list[Kind] = ["ok", "ok", "ok", "model_unavailable", "timeout", "rate_limited", "auth", "mangled_output"]
    for n in range(models * 12):
        target = targets[n % models]
        kind = "ok" if n % models % 3 == 0 else random_.choice(kinds)
        event: Any = CallOutcome(kind=kind, checkable=True, id=f"{n % 3:016x}-{n + 1}", seen_seq=n)
        recorded = Recorded(event, target=target, replica=f"r{n % 3}", seq=n + 1, time_ms=START_MS + n * 40)
        if n % 97 == 5:
            action: Any = random_.choice(["hold", "allow", "clear"])
            own = target.scope
            scope = random_.choice([own, Scope(own.host), Scope(own.host, own.alias)])
            until = None if action == "clear" else rfc3339(START_MS + n * 40 + 900_000)
            override = Override(action=action, reason="r", actor="a", until=until)
            recorded = Recorded(override, scope=scope, seq=n + 1, time_ms=START_MS + n * 40)
        fleet.apply(recorded)
    return fleet


def looked(fleet: Fleet, now_ms: int) -> FleetScan:
    """A look at the whole state."""
    look = FleetScan(fleet, now_ms)
    assert not look.go_on()
    return look


def test_a_look_in_slices_counts_each_target_once_while_the_fold_goes_on() -> None:
    """No slice takes long, whatever the size of the fleet; what is dropped between two is passed over, what is new is
    counted the next time."""
    fleet = many(hosts=40, models=900)
    size = fleet.store.targets
    look, slices = FleetScan(fleet, fleet.time_ms), 1
    while look.go_on(0):
        slices += 1
        event = CallOutcome(kind="ok", id=f"{9:016x}-{slices}")
        target = Target("new.example", f"m{slices}")
        fleet.apply(Recorded(event, target=target, replica="r1", seq=fleet.seq + 1, time_ms=fleet.time_ms))
    assert slices > size / (2 * AT_ONCE) and fleet.store.targets > size
    assert look.words.total() == size


def test_what_is_held_and_how_healthy_is_as_the_fold_says() -> None:
    """The quick look of a scrape comes to what `decide` and `health` say of each target; held for one is held."""
    fleet = many(hosts=40, models=900)
    for later_ms in (0, 400_000, 4_000_000):
        now_ms = fleet.time_ms + later_ms
        look = looked(fleet, now_ms)
        nodes = [node for node in fleet.store.nodes.values() if node.scope.model is not None]
        assert look.words == Counter(health(node, now_ms).word for node in nodes)
        held: Counter[str] = Counter()
        for node in nodes:
            target = Target(node.scope.provider, node.scope.model or "")
            asked = [fleet.decide(target, now_ms, replica) for replica in ("r0", "r1", "r2")]
            held[node.scope.provider] += any(not one.allowed and one.reason != "ramp" for one in asked)
        assert {name: counts["held"] for name, counts in look.providers.items()} == dict(held)
        if not later_ms:
            assert 0 < look.exact < len(nodes), "both ways have to be gone"
            assert len(look.words) >= 4 and sum(held.values()) > 100, "the fleet has to be one worth looking at"


def test_series_with_names_are_bounded_and_the_rest_is_added_up() -> None:
    """However many targets and providers there are, so many series; totals stay whole."""
    fleet = Fleet()
    targets = [Target(f"h{n % 80}.example", f"m{n}") for n in range(800)]
    for n, target in enumerate(targets * 2):
        event = CallOutcome(kind="model_unavailable" if n % 2 else "ok", id=f"{7:016x}-{n + 1}", status=404)
        fleet.apply(Recorded(event, target=target, replica="r1", seq=n + 1, time_ms=START_MS + n))
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for sample in fleet_samples(fleet, looked(fleet, fleet.time_ms)):
        assert isinstance(sample.value, int | float)
        assert sample.labels not in found.setdefault(sample.name, {}), sample
        found[sample.name][sample.labels] = sample.value
    named = [labels for labels in found["sickbay_target_health"] if labels[0] != OTHER]
    assert len(named) == TARGETS_MAX
    assert sum(found["sickbay_target_health"].values()) == fleet.store.targets == sum(found["sickbay_targets"].values())
    holds = found["sickbay_hold_remaining_seconds"]
    assert sum(labels[0] != OTHER for labels in holds) == TARGETS_MAX < sum(found["sickbay_held_scopes"].values())
    assert {labels[0] for labels in holds} >= {OTHER}
    assert len({provider for provider, _ in found["sickbay_provider_targets"]}) == PROVIDERS_MAX + 1
    assert sum(found["sickbay_provider_targets"].values()) == fleet.store.targets


def test_damaged_text_is_told_by_provider() -> None:
    """Damage that led to a warning is a level for a day, not an event that a scrape may miss."""
    fleet = Fleet()
    for n in range(2):
        event = CallOutcome(kind="mangled_output", signature="double_encoded", id=f"{7:016x}-{n + 1}", charset="absent")
        fleet.apply(Recorded(event, target=TARGET, replica="r1", seq=n + 1, time_ms=START_MS + n))

    def told(after_ms: int) -> dict[str, float | Any]:
        return {
            sample.name: sample.value
            for sample in fleet_samples(fleet, looked(fleet, fleet.time_ms + after_ms))
            if sample.labels == (TARGET.provider,)
        }

    assert told(0) == {"sickbay_mangled_output_warnings": 2, "sickbay_mangled_outputs": 2}
    assert told(23 * 3_600_000)["sickbay_mangled_output_warnings"] >= 1
    assert told(49 * 3_600_000) == {}


def test_names_follow_the_conventions() -> None:
    """Names in the table are unique within a process and follow the conventions."""
    for table in (metrics.SERVICES, metrics.ROUTER, metrics.API):
        assert len({row.name for row in table}) == len(table)
        for row in table:
            assert row.name.startswith("sickbay_") and row.says.endswith(".")
            assert row.name.endswith("_total") == (row.sort == "counter")


def test_a_router_loads_neither_prometheus_nor_opentelemetry() -> None:
    """Who has no use for them does not pay for their import; a collector says what is missing."""
    code = """
import sys, sickbay, sickbay.sync, sickbay.metrics, sickbay.tracing
sb = sickbay.connect("nats://127.0.0.1:1", "r1")
assert not {name.partition(".")[0] for name in sys.modules} & {"prometheus_client", "opentelemetry", "faststream"}
sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None
try: sickbay.metrics.collector(sb)
except ModuleNotFoundError as error: print(error)
try: sickbay.tracing.enable(sb)
except sickbay.SickbayError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "prometheus_client" in done.stdout and "pip install 'sickbay[otel]'" in done.stdout
