"""What one router's gate alone keeps away is seen by the fleet's operator: who, by which rule, until when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

import sickbay as product
from cli_runs import Serve, serve_fixture, sickbay  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsServer
from sickbay.cli.sentences import warning_line
from sickbay_events import CallOutcome, CallsRefused, Kind, Target
from sickbay_projections import Fleet
from sickbay_projections.alone import ALONE_MAX, SAID_MS
from sickbay_projections.testing import Log, given, warned
from waiting import patience, until

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
Start = Callable[..., Serve]


@pytest.mark.parametrize(
    ("outcome", "times", "rule"),
    [
        (CallOutcome(kind="rate_limited", status=429, retry_after_s=3600.0, retry_after_from="header"), 1, "throttle"),
        (CallOutcome(kind="timeout", took_ms=6_000, limit_ms=6_000), 5, "breaker"),
    ],
)
async def test_a_hold_of_one_router_is_in_every_view_of_the_operator(
    nats_server: NatsServer, serve: Start, outcome: CallOutcome, times: int, rule: str
) -> None:
    """Of two routers one gets a 429, or is impatient: its calls are skipped, and the fleet rightly holds nothing."""
    url = nats_server.url
    served = serve("--nats", url).ready()
    async with product.connect(url, replica="r1") as one, product.connect(url, replica="r2") as two:
        assert await one.ready(patience(10)) and await two.ready(patience(10))
        two.record(TARGET, CallOutcome(kind="ok", took_ms=100))
        for _ in range(times):
            one.record(TARGET, outcome)
        await until(lambda: one.decide(TARGET).source == "local", "its own hold")
        denied = [one.decide(TARGET) for _ in range(7)]
        assert not any(decision.allowed for decision in denied) and two.decide(TARGET).allowed
        one._report_denials()

        async def shown() -> dict[str, Any] | None:
            done = await asyncio.to_thread(sickbay, "status", "--json", "--nats", url)
            scopes: list[dict[str, Any]] = json.loads(done.stdout)["scopes"]
            return next((scope for scope in scopes if scope["alone"]), None)

        scope = await until(shown, "the status names it")
        assert scope is not None and scope["holds"] == []
        (own,) = scope["alone"]
        assert (own["replica"], own["rule"]) == ("r1", rule) and own["calls"] >= 7 and own["left_s"] > 0
        for command in (["status"], ["explain", TARGET.provider], ["explain", TARGET.provider, TARGET.model]):
            said = (await asyncio.to_thread(sickbay, *command, "--nats", url)).stdout
            (line,) = [line for line in said.splitlines() if "r1 alone keeps it from itself" in line]
            assert f"{rule} (one replica)" in line and TARGET.model in line
        metrics = served.get("metrics").decode()
        assert f'sickbay_replica_held_targets{{replica="r1",rule="{rule}"}} 1' in metrics


def said(log: Log, at_s: float, until_s: float | None, replica: str = "r1", rule: str = "breaker") -> Any:
    until_ms = None if until_s is None else log.ms(until_s)
    return log.event(CallsRefused(count=3, rule=rule, alone_until_ms=until_ms), at_s=at_s, replica=replica)


def test_it_stands_until_its_end_or_until_nothing_is_said_of_it() -> None:
    log = Log(TARGET)
    fleet = given(said(log, 0, 60), said(log, 0, 1_000, "r2"), said(log, 0, 1_000, "r3")).fleet
    fleet.apply(said(log, 30, None, "r3"))  # the fleet's hold keeps them now, or none of its own
    assert [one.replica for one in fleet.held_alone(log.ms(59))] == ["r1", "r2"]
    assert [one.replica for one in fleet.held_alone(log.ms(60))] == ["r2"]
    assert fleet.held_alone(log.ms(0) + SAID_MS) == []


def test_what_the_fleet_holds_too_is_nobodys_own() -> None:
    """A replica's own hold begins first, and its word comes when the minute is over."""
    log = Log(TARGET)
    dead = [log.outcome("model_unavailable", at_s=1, replica=name) for name in ("r1", "r2")]
    fleet = given(*dead, said(log, 2, 60, rule="quarantine"), said(log, 2, 60, rule="breaker")).fleet
    assert [one.rule for one in fleet.held_alone(log.ms(3))] == ["breaker"]
    fleet.apply(log.override("clear", at_s=4))
    assert fleet.held_alone(log.ms(5)) == []
    fleet.apply(said(log, 6, 60, rule="breaker"))
    assert [one.rule for one in fleet.held_alone(log.ms(7))] == ["breaker"]


def test_a_router_with_an_old_key_is_named_once_an_hour() -> None:
    """Its refusals are cleared by the answers of others, so that they never hold the credential: rightly."""
    log = Log(TARGET)
    story = given(log.outcome("ok", at_s=0, replica="r2"))
    story.when(said(log, 60, 90, rule="credential")).then(
        warned("replica_suspect", replica="r1", signature="key_refused", numbers={"refused": 3})
    )
    story.when(said(log, 120, 180, rule="credential")).then()
    story.when(said(log, 130, 100, "r3", rule="credential")).then()  # it waited in the reporter, and is over
    story.when(said(log, 140, 180, "r3", rule="breaker")).then()
    story.when(said(log, 4_000, 4_090, rule="credential")).then(warned("replica_suspect", replica="r1"))
    assert "r1" in warning_line(
        {"rule": "replica_suspect", "signature": "key_refused", "replica": "r1", "time_ms": 0, "times": 1,
         "provider": TARGET.provider, "model": TARGET.model}
    )  # fmt: skip


async def test_an_old_key_of_one_router_is_told(nats_server: NatsServer, serve: Start) -> None:
    """From its first 401s to the warning, while another router is answered."""
    url = nats_server.url
    serve("--nats", url).ready()
    async with product.connect(url, replica="old") as old, product.connect(url, replica="new") as new:
        assert await old.ready(patience(10)) and await new.ready(patience(10))
        new.record(TARGET, CallOutcome(kind="ok", took_ms=100))
        await until(lambda: new.reporter.counts.acked == 1, "the fleet has heard of two replicas before the first 401")
        for _ in range(4):
            new.record(TARGET, CallOutcome(kind="ok", took_ms=100))
            old.record(TARGET, CallOutcome(kind="auth", status=401, took_ms=80))
        await until(lambda: old.decide(TARGET).source == "local", "its own hold")
        assert not old.decide(TARGET).allowed and new.decide(TARGET).allowed
        old._report_denials()

        async def shown() -> str:
            said = (await asyncio.to_thread(sickbay, "status", "--nats", url)).stdout
            return next((line for line in said.splitlines() if "look at its key there" in line), "")

        assert "the key of old is refused" in await until(shown, "the warning")


def test_it_is_no_part_of_the_state() -> None:
    """Digest, decisions and what is told are those of a log without it."""
    one, other = Log(TARGET), Log(TARGET)
    with_it = given(one.outcome("ok", at_s=0), said(one, 1, 60))
    without = given(other.outcome("ok", at_s=0), said(other, 1, None))
    with_it.then()
    assert with_it.fleet.digest() == without.fleet.digest()
    with_it.then_decision(TARGET, one.ms(2), replica="r1", allowed=True, reason="ok")


def test_ten_thousand_targets_do_not_grow_it_without_end() -> None:
    log, fleet = Log(TARGET), Fleet()
    for n in range(ALONE_MAX + 100):
        target = Target("h", f"m{n}")
        fleet.apply(log.event(CallsRefused(count=1, rule="breaker", alone_until_ms=log.ms(99)), at_s=1, target=target))
    standing = fleet.held_alone(log.ms(2))
    assert len(standing) == ALONE_MAX and standing[-1].scope == Target("h", f"m{ALONE_MAX + 99}").key


@pytest.mark.parametrize("kind", ["model_unavailable", "server_error"])
def test_calls_that_the_fleets_hold_keeps_away_are_not_its_own(kind: Kind) -> None:
    sb = product.testing.standalone()
    sb.hold(TARGET)
    assert not sb.decide(TARGET).allowed
    assert [kept.alone_until_ms for kept in sb.gate.take_denials()] == [0]
    other = Target("api.x.ai", "grok-5")
    for _ in range(5):
        sb.record(other, CallOutcome(kind=kind, status=500))
    assert not sb.decide(other).allowed
    (kept,) = sb.gate.take_denials()
    assert kept.target == other and kept.alone_until_ms > 0
