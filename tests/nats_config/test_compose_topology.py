"""docker-compose.yml as processes: all of its services, started from the file itself, and what happens to such a fleet.

No container engine is needed: images are mapped to the programs of this environment, host names to loopback addresses,
mounts to folders. TOPOLOGY_LONG=1 makes outages as long, and loads as large, as an afternoon of waiting allows.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sickbay.bus.entries import read_entries
from sickbay.bus.topology import CONTROL, DEAD, GATE_STREAM, LOG, TRANSITIONS
from sickbay.cli.demo.router import FIRST
from topology.composed import env_file
from topology.fleet import command, fleet, http, writer
from topology.running import Running, Topology
from waiting import until, until_sync

LONG = bool(os.environ.get("TOPOLOGY_LONG"))
PAUSE_S = 30.0 if LONG else 0.0
"""A projector sleeps at least so long, and in any case until another one has taken over and written more."""
EVENTS = 2_000 if LONG else 150

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 on loopback"),
]


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    """All of it, running."""
    with Topology(tmp_path_factory.mktemp("topology")) as running:
        yield running


@pytest.fixture(autouse=True)
def whole(topology: Topology) -> None:
    """Whatever a test before ended is there again."""
    topology.up()


def facts(router: Running) -> list[dict[str, Any]]:
    """What a router of the example told, in order."""
    lines = [line for line in router.said().splitlines() if line.startswith("{") and line.endswith("}")]
    return [json.loads(line) for line in lines]


async def test_what_some_routers_met_is_denied_at_all_and_shown_everywhere(topology: Topology) -> None:
    """A provider retires a model: after two rejections every replica goes to the other provider; the HTTP interface,
    the history and Prometheus tell of it."""
    routers = topology.of("router-")
    assert len(routers) == 3
    before = {router.name: len(facts(router)) for router in routers}
    topology["provider-1"].tell(f"retire {FIRST}")

    async def all_refuse() -> bool:
        return all(any(fact["event"] == "refused" for fact in facts(one)[before[one.name] :]) for one in routers)

    await until(all_refuse, "every replica's gate refuses the retired model")
    for router in routers:
        told = facts(router)[before[router.name] :]
        first = next(at for at, fact in enumerate(told) if fact["event"] == "refused")
        # One call may have been under way in that moment.
        dead = [fact for fact in told[first:] if fact["event"] == "called" and fact["kind"] == "model_unavailable"]
        assert len(dead) <= 1, f"{router.name} called what its gate had refused: {dead}"
        assert any(fact["event"] == "called" and fact["rank"] == 1 for fact in told), f"{router.name} went nowhere"
    await asyncio.to_thread(shown, topology)


def shown(topology: Topology) -> None:
    """By each way that an operator has."""
    assert http(topology, "api", "/v1/status", token=None)[0] == 401
    status, answer = http(topology, "api", "/v1/status")
    held = [scope for scope in answer["scopes"] if scope["model"] == FIRST and scope["holds"]]
    assert status == 200 and len(held) == 1, answer
    done = command(topology, "status", "--json")
    assert done.returncode == 0 and FIRST in done.stdout, done.stderr
    until_sync(lambda: FIRST in str(http(topology, "api", "/v1/overview")), "the history has come to the interface")
    if "prometheus" in topology.all:
        until_sync(lambda: up(topology) == {"api:8480", "projector-1:8480", "projector-2:8480"}, "all are scraped")


def up(topology: Topology) -> set[str]:
    """What Prometheus reaches, by the names of the file."""
    _, answer = http(topology, "prometheus", "/api/v1/query?query=up", token=None)
    names = {address: name for name, address in topology.places.addresses.items()}
    found = [one for one in answer["data"]["result"] if one["value"][1] == "1"]
    hosts = [one["metric"]["instance"].rpartition(":") for one in found]
    return {f"{names[host]}:{port}" for host, _, port in hosts}


async def test_no_secret_is_in_a_process_list_a_log_or_an_event(topology: Topology) -> None:
    """Passwords and tokens stand in the files of their roles alone: in no command line, in nothing that is said, in
    no message of any stream."""
    secret = {path.read_text().strip() for path in (topology.secrets / "tokens").iterdir()}
    secret |= {(topology.secrets / "prometheus" / "token").read_text().strip()}
    secret |= {env_file(topology.secrets / "grafana.env")["GF_SECURITY_ADMIN_PASSWORD"]}
    contexts = (topology.secrets / "nats" / "context").iterdir()
    secret |= {json.loads(path.read_text())["password"] for path in contexts}
    assert len(secret) >= 12 and all(len(word) >= 24 for word in secret)
    assert http(topology, "api", "/v1/status", token="operator")[0] == 200
    said = {one.name: one.said().encode() for one in topology.all.values()}
    for one in topology.all.values():
        said[f"command line of {one.name}"] = Path(f"/proc/{one.process.pid}/cmdline").read_bytes()
    async with fleet(topology) as running:
        for stream in (LOG, CONTROL, TRANSITIONS, DEAD, GATE_STREAM):
            found = await read_entries(running.operator, stream, ">")
            said[stream] = b"".join(entry.subject + entry.payload for entry in found.entries)
    told = [(where, word[:4]) for where, text in said.items() for word in secret if word.encode() in text]
    assert not told, told
    assert all(said[name] for name in ("nats-1", "projector-1", "api", LOG, GATE_STREAM)), (
        "there was something to look at"
    )


async def test_the_leader_of_the_log_is_killed(topology: Topology) -> None:
    """SIGKILL under load: another leads, and nothing that was acknowledged is lost or told otherwise."""
    async with fleet(topology) as running, running.load(11) as load:
        await load.more(EVENTS)
        victim = await running.leader()
        victim.kill9()
        await load.more(EVENTS)
        assert await running.leader() is not victim
        await asyncio.to_thread(topology.up)


async def test_two_of_three_servers_are_killed_and_come_back(topology: Topology) -> None:
    """Nothing is acknowledged while they are gone, routers go on deciding by what they knew, and all is whole after."""
    async with fleet(topology) as running:
        routers = running.routers
        async with running.load(13) as load:
            await load.more(EVENTS)
            for victim in topology.of("nats-")[:2]:
                victim.kill9()
            acked = load.acked

            async def all_stale() -> bool:
                return all(router.mirror.is_stale for router in routers)

            await until(all_stale, "routers know that what they know is old")
            assert all(router.decide(target).reason for router in routers for target in load.targets)
            # What was under way in the moment of the kill may still have been acknowledged by two.
            assert load.acked <= acked + 10
            await asyncio.to_thread(topology.up)
            await load.more(EVENTS)


async def test_a_projector_sleeps_and_wakes_up(topology: Topology) -> None:
    """SIGSTOP of the writer: the other takes over; who wakes up knows that it no longer writes, and wrote nothing
    wrong."""
    async with fleet(topology) as running, running.load(17) as load:
        await load.more(EVENTS)
        sleeper = await writer(topology)
        other = next(one for one in topology.of("projector-") if one is not sleeper)
        began_s = time.monotonic()
        sleeper.signal(signal.SIGSTOP)
        try:

            async def taken_over() -> bool:
                _, health = await asyncio.to_thread(http, topology, other.name, "/healthz", token=None)
                return bool(health["projector"]["is_writer"])

            await until(taken_over, f"{other.name} writes")
            await load.more(EVENTS)
            await asyncio.sleep(max(0.0, PAUSE_S - (time.monotonic() - began_s)))
        finally:
            sleeper.signal(signal.SIGCONT)

        async def fenced() -> bool:
            _, health = await asyncio.to_thread(http, topology, sleeper.name, "/healthz", token=None)
            return health["projector"]["phase"] == "standby" and not health["projector"]["is_writer"]

        await until(fenced, f"{sleeper.name} knows that it does not write")
        assert await writer(topology) is other
        await load.more(EVENTS)


async def test_a_server_comes_back_with_an_older_copy_of_its_store(topology: Topology) -> None:
    """It gets from its peers what it lacks; then one of those is killed, and the log is still whole."""
    async with fleet(topology) as running, running.load(19) as load:
        await load.more(EVENTS)
        leads = await running.leader()
        restored = next(one for one in topology.of("nats-") if one is not leads)
        store = topology.secrets / "store" / restored.name
        restored.stop()
        older = store.with_name(f"{restored.name}-older")
        await asyncio.to_thread(shutil.copytree, store, older)
        await asyncio.to_thread(topology.up)
        await running.is_current(restored, LOG)
        await load.more(EVENTS)
        restored.stop()
        await asyncio.to_thread(shutil.rmtree, store)
        older.rename(store)
        await asyncio.to_thread(topology.up)
        await running.is_current(restored, LOG, CONTROL, GATE_STREAM, TRANSITIONS)
        (await running.leader()).kill9()
        await load.more(EVENTS)
        await asyncio.to_thread(topology.up)


def test_the_servers_denied_nobody_anything(topology: Topology) -> None:
    """Each service does all of its work on its own role's credential: no right is missing, whatever was done above."""
    said = "".join(server.said() for server in topology.of("nats-"))
    assert "Server is ready" in said
    assert not [line for line in said.splitlines() if "Violation" in line or "authentication error" in line]
