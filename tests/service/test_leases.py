"""Leases as the services keep them: one holder at a time, all or none, free at once when given back (Rule 5.2)."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from nats.aio.client import Client

import past_rig
import sickbay
from nats_servers import NatsCluster, NatsServer
from sickbay.bus.connect import NatsOptions, connect_client
from sickbay.bus.link import Link
from sickbay.control.acts import publish_outcome
from sickbay.projector import Projector
from sickbay.router.leases import ask_services
from sickbay.service.leases import Leases
from sickbay.service.rpc import Rpc
from sickbay.service.services import Services
from sickbay_events import CallOutcome, Policy, Target
from sickbay_events.lease_wire import Action, LeaseName, TrialAsk, ttl_s
from sickbay_events.outcome import Lease
from waiting import patience, until

TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
HOST, CREDENTIAL, MODEL = TARGET.keys


def lease(scope: str = MODEL, rule: str = "breaker", began_seq: int = 7) -> dict[str, Any]:
    return {"scope": scope, "rule": rule, "began_seq": began_seq}


async def ask(
    client: Client, holder: str, *leases: dict[str, Any], action: str = "take", **more: Any
) -> dict[str, Any]:
    """One request; its answer, or {"code", "why"} of a service error."""
    body = {
        "replica": "r1", "provider": TARGET.provider, "model": TARGET.model, "leases": list(leases or (lease(),)),
        "token": holder, "limit_ms": 60_000, "action": action, **more,
    }  # fmt: skip
    reply = await client.request("sickbay.v1.trial", json.dumps(body).encode(), timeout=patience(5))
    headers = reply.headers or {}
    if headers.get("Nats-Service-Error-Code"):
        return {"code": headers["Nats-Service-Error-Code"], "why": headers["Nats-Service-Error"]}
    answer: dict[str, Any] = json.loads(reply.data)
    return answer


async def test_a_lease_has_one_holder_and_the_others_hear_for_how_long(nats_client: Client, services: Services) -> None:
    """The second token is denied with the time left; the first one asking again, its answer lost, still has it."""
    first = await ask(nats_client, "a")
    assert first["granted"] and first["expires_in_ms"] == 65_000
    other = await ask(nats_client, "b")
    assert not other["granted"] and other["taken"] == lease()
    assert 60 < other["retry_in_s"] <= 65.1
    assert (await ask(nats_client, "a"))["granted"]
    assert (await ask(nats_client, "b", lease(began_seq=8)))["granted"], "the next hold is another trial"


async def test_what_is_given_back_is_free_at_once(nats_client: Client, services: Services) -> None:
    """Twenty holders in a row, each taking the lease in the moment the one before gave it back; a stranger's token
    gives nothing back."""
    for turn in range(20):
        assert (await ask(nats_client, f"t{turn}"))["granted"], turn
        await ask(nats_client, "stranger", action="give_back")
        assert not (await ask(nats_client, "stranger"))["granted"]
        assert not (await ask(nats_client, f"t{turn}", action="give_back"))["granted"]
    await asyncio.sleep(1.2)  # the tombstone is gone by its own time
    assert (await ask(nats_client, "last"))["granted"]


async def test_all_leases_or_none(nats_client: Client, services: Services) -> None:
    """When the narrowest is another's, the wider ones that were taken first are free again at once."""
    assert (await ask(nats_client, "a", lease(MODEL)))["granted"]
    wide = [lease(HOST), lease(CREDENTIAL, "credential"), lease(MODEL)]
    denied = await ask(nats_client, "b", *wide)
    assert not denied["granted"] and denied["taken"] == lease(MODEL)
    assert (await ask(nats_client, "c", *wide[:2]))["granted"]
    await ask(nats_client, "a", action="give_back")
    denied = await ask(nats_client, "b", *wide)
    assert not denied["granted"] and denied["taken"] == lease(HOST), "widest first"
    await ask(nats_client, "c", *wide[:2], action="give_back")
    assert (await ask(nats_client, "b", *wide))["granted"]


async def test_a_lease_runs_out_unless_its_holder_renews_it(nats_client: Client, services: Services) -> None:
    """Free after limit plus 5 s, and by a renewal later; only who holds it can renew it."""
    began_s = time.monotonic()
    assert (await ask(nats_client, "short", lease(began_seq=1), limit_ms=0))["expires_in_ms"] == 5_000
    assert (await ask(nats_client, "long", lease(began_seq=2), limit_ms=0))["granted"]
    await asyncio.sleep(2.5)
    assert (await ask(nats_client, "long", lease(began_seq=2), limit_ms=0, action="renew"))["granted"]
    assert not (await ask(nats_client, "thief", lease(began_seq=2), limit_ms=0, action="renew"))["granted"]

    async def is_free() -> bool:
        return bool((await ask(nats_client, "next", lease(began_seq=1)))["granted"])

    await until(is_free)
    assert 4.5 < time.monotonic() - began_s < patience(6.5)
    assert not (await ask(nats_client, "next", lease(began_seq=2)))["granted"], "it was renewed"


def test_how_long_a_lease_lasts() -> None:
    """The attempt's limit plus 5 s in whole seconds, at most 130 s (Rule 5.2)."""
    trials = Policy().trials
    assert [ttl_s(ms, trials) for ms in (0, 1, 1_000, 59_001, 125_000, 600_000)] == [5, 6, 6, 65, 130, 130]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"leases": []}, "leases"),
        ({"leases": [lease("elsewhere=2Eai")]}, "leases[0].scope"),
        ({"leases": [lease(rule="operator")]}, "leases[0].rule"),
        ({"leases": [lease(), lease()]}, "leases"),
        ({"leases": [{**lease(), "began_seq": -1}]}, "began_seq"),
        ({"leases": [lease(), {**lease(), "more": 1}]}, "more"),
        ({"model": ""}, "model"),
        ({"token": ""}, "token"),
        ({"limit_ms": -1}, "limit_ms"),
        ({"action": "steal"}, "action"),
    ],
)
async def test_bad_input_is_an_error_that_names_the_field(
    nats_client: Client, services: Services, change: dict[str, Any], names: str
) -> None:
    """A service error 400 with the field and an example; nothing is leased."""
    found = await ask(nats_client, "a", **change)
    assert found.get("code") == "400" and names in found["why"] and "example" in found["why"], found
    info = await nats_client.jetstream().stream_info("KV_sickbay_trials")
    assert info.state.messages == 0


async def test_a_bucket_that_is_gone_is_an_error_and_no_grant(nats_client: Client, services: Services) -> None:
    """Without the bucket nobody can say: a service error 503, which a router takes for silence."""
    await nats_client.request("$JS.API.STREAM.DELETE.KV_sickbay_trials", b"", timeout=patience(5))
    found = await ask(nats_client, "a")
    assert found.get("code") == "503" and "KV_sickbay" in found["why"]


async def test_a_trial_is_leased_from_its_moment_on_and_later_to_who_failed_last(
    nats_client: Client, services: Services
) -> None:
    """Whatever a late view made a router ask: a hold that wants no trial yet has none to lease. After one that failed
    another replica goes first, by 5 s (Rule 4.0)."""
    outcome = CallOutcome(kind="model_unavailable", status=404)
    acks = [await publish_outcome(nats_client, TARGET, outcome, replica=name) for name in ("r1", "r2")]
    projector = services.projector
    assert projector is not None and await projector.folded_to(acks[1].seq, 10)

    async def asks(name: str) -> dict[str, Any]:
        entry = projector.fleet.entry(TARGET.key)
        assert entry is not None
        return await ask(nats_client, name, lease(rule="quarantine", began_seq=entry.holds[0].began_seq), replica=name)

    early = await asks("r1")
    assert not early["granted"] and 0 < early["retry_in_s"] <= 1.0
    await asyncio.sleep(early["retry_in_s"] + 0.05)
    assert (await asks("r1"))["granted"]
    failed = CallOutcome(
        kind="model_unavailable", status=404, trial=[Lease("quarantine", acks[1].seq)], seen_seq=acks[1].seq
    )
    ack = await publish_outcome(nats_client, TARGET, failed, replica="r1")
    assert await projector.folded_to(ack.seq, 10)
    entry = projector.fleet.entry(TARGET.key)
    assert entry is not None and (entry.holds[0].began_seq, entry.holds[0].last) == (ack.seq, "r1")
    behind, first = await asks("r1"), await asks("r2")
    assert not behind["granted"] and 4 < behind["retry_in_s"] <= 6.0
    assert first["granted"] or first["retry_in_s"] <= 1.0
    while not first["granted"]:
        await asyncio.sleep(first["retry_in_s"] + 0.05)
        first = await asks("r2")
    assert not (await asks("r1"))["granted"]


SHORT = Policy.from_data({"rejections": {"hold_s": 1.0}})


@asynccontextmanager
async def folding(url: str, name: str) -> AsyncIterator[tuple[Projector, Client]]:
    """A projector, which ends as if it was killed: the checkpoint is not handed over."""
    link = Link(NatsOptions.from_url(url))
    link.start()
    projector = Projector(link, name=name, policy=SHORT)
    task = asyncio.create_task(projector.run())
    try:
        yield projector, await link.wait_connected(patience(10))
    finally:
        task.cancel()
        await asyncio.wait([task])
        await link.close()


async def test_an_instance_that_has_just_started_knows_what_time_it_is_in_the_log(nats_server: NatsServer) -> None:
    """Another one was the writer a moment ago, so nothing has come by in the view, and the log's last event is older
    than the hold: the lease of a hold that is over is given all the same (Rule 6)."""
    outcome = CallOutcome(kind="model_unavailable", status=404)
    async with folding(nats_server.url, "box-1") as (first, client):
        await until(lambda: first.is_writer and first.fleet.policy_seq)
        acks = [await publish_outcome(client, TARGET, outcome, replica=name) for name in ("r1", "r2")]
        assert await first.folded_to(acks[1].seq, 10)
        entry = first.fleet.entry(MODEL)
        assert entry is not None and entry.holds[0].rule == "quarantine"
        await until(lambda: first.now_ms() > entry.holds[0].end_ms)
    async with folding(nats_server.url, "box-2") as (second, client):
        await until(lambda: second.is_current)
        assert not second.is_writer and second.state.view.map.feed_revision == 0, "nothing has come by"
        assert second.fleet.time_ms < entry.holds[0].end_ms < second.now_ms()
        assert abs(second.now_ms() - time.time() * 1000) < 500
        leases = Leases(client, fleet=lambda: second.fleet, now_ms=second.now_ms, is_current=lambda: second.is_current)
        answer = await leases.answer(take(LeaseName(MODEL, "quarantine", acks[1].seq)))
        assert answer.granted


def take(*names: LeaseName, action: Action = "take") -> TrialAsk:
    """A request of a router's."""
    return TrialAsk(
        replica="r1", provider=TARGET.provider, model=TARGET.model, leases=list(names), token="a", action=action
    )


async def test_an_instance_that_reads_the_log_first_leaves_the_answer_to_another_one(
    nats_server: NatsServer, nats_client: Client, services: Services
) -> None:
    """It knows neither the holds nor the policy: it says so, at once, and routers ask again until one answers that
    does. What is given back it takes."""
    link = Link(NatsOptions.from_url(nats_server.url))
    link.start()
    client = await link.wait_connected(patience(10))
    starting = Rpc(client, Projector(link, name="box-2"), instance="box-2")
    await starting.start()
    name = LeaseName(MODEL, "breaker", 7)
    await client.flush()
    try:
        found = [await ask(nats_client, "a") for _ in range(40)]
        assert {answer.get("code") for answer in found} == {None, "425"}
        assert all(answer["granted"] for answer in found if "code" not in answer)
        for _ in range(20):
            answer = await ask_services(link, take(name), 2.0)
            assert answer is not None and answer.granted
            assert await ask_services(link, take(name, action="give_back"), 2.0) is not None
        assert services.projector is not None and services.projector.is_current
        services.projector.state.was_at_end = False
        assert await ask_services(link, take(name), 0.1) is None, "nobody knows"
    finally:
        await starting.stop()
        await link.close()


async def race(urls: list[str], rounds: int) -> int:
    """Eight clients ask for the same lease at once, again and again; the most that held it at a time."""
    async with AsyncExitStack() as stack:
        clients = []
        for at in range(8):
            client = await connect_client(urls[at % len(urls)], timeout_s=10)
            stack.push_async_callback(client.close)
            clients.append(client)
        holders = most = grants = 0

        async def contend(client: Client) -> None:
            nonlocal holders, most, grants
            token = secrets.token_hex(8)
            while grants < rounds:
                answer = await ask(client, token, lease(HOST), lease(MODEL))
                assert "code" not in answer, answer
                if answer["granted"]:
                    holders += 1
                    grants += 1
                    most = max(most, holders)
                    await asyncio.sleep(0.001)
                    holders -= 1
                    await ask(client, token, lease(HOST), lease(MODEL), action="give_back")

        async with asyncio.timeout(patience(60)):
            await asyncio.gather(*[contend(client) for client in clients])
        assert grants >= rounds
        return most


async def test_eight_at_once_and_two_instances_on_one_server(nats_server: NatsServer, services: Services) -> None:
    """Of those who ask at the same moment one at most has it, whichever instance answers."""
    async with past_rig.services(nats_server.url, "box-2"):
        assert await race([nats_server.url], rounds=100) == 1


async def test_eight_at_once_and_two_instances_on_a_cluster(nats_cluster: NatsCluster) -> None:
    """The same on three nodes, each client at its own node, the bucket in three copies."""
    urls = [server.url for server in nats_cluster.servers]
    async with (
        past_rig.services(nats_cluster.url, "box-1", stream_replicas=3),
        past_rig.services(nats_cluster.url, "box-2", stream_replicas=3),
    ):
        client = await connect_client(nats_cluster.url)
        config = (await client.jetstream().stream_info("KV_sickbay_trials")).config
        await client.close()
        assert config.num_replicas == 3
        assert await race(urls, rounds=100) == 1


ROUTER_ONLY = """
authorization { users: [
  { user: admin, password: apw }
  { user: router, password: rpw, permissions: {
      publish: { allow: ["sickbay.outcome.>", "sickbay.probe.>", "sickbay.v1.>",
                         "$JS.API.DIRECT.GET.KV_sickbay", "$JS.API.DIRECT.GET.KV_sickbay.$KV.sickbay.gate.>"] }
      subscribe: { allow: ["_INBOX_router.>", "sickbay.view.>"] } } } ] }
"""


async def test_a_router_asks_and_never_writes_the_bucket(nats_server_factory: Callable[..., NatsServer]) -> None:
    """With a router's rights and no more: the whole trial works, a key written by itself is refused."""
    server = nats_server_factory(config=ROUTER_ONLY)
    async with past_rig.services(server.url.replace("nats://", "nats://admin:apw@")):
        url = server.url.replace("nats://", "nats://router:rpw@")
        async with sickbay.connect(url, replica="r1", inbox_prefix="_INBOX_router") as sb:
            assert await sb.ready(patience(10))
            client = sb.link.client if sb.link is not None else None
            assert client is not None
            assert (await ask(client, "a"))["granted"]
            forged = f"$KV.sickbay_trials.{MODEL}.breaker.8"
            with pytest.raises(TimeoutError):
                await client.jetstream(timeout=0.3).publish(forged, b"{}")
            assert (await ask(client, "b", lease(began_seq=8)))["granted"]
