"""Operators' acts that NATS does not pass on to the log: said by whoever writes, by the commands, and healed."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from nats.aio.client import Client

from cli_runs import sickbay
from nats_servers import NatsCluster, NatsServer
from projector_processes import Process
from sickbay.bus.connect import connect_client
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import CONTROL, LOG, StreamLimits, ensure
from sickbay.control.acts import publish_override
from sickbay_events import Scope
from waiting import patience, until

HELD = Scope("held.test")
QUICK = {"ACTS_EVERY_S": 0.1, "WAIT_MAX_S": 0.5}


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the projectors of a test say what they have to say."""
    monkeypatch.setenv("PROJECTOR_LOG", str(tmp_path / "projector.log"))
    return tmp_path / "projector.log"


async def sourcing(client: Client, *sources: str) -> None:
    """Have the log take what these streams have; without any it does as one whose source has stopped."""
    api = JetStreamApi(client, timeout_s=patience(5))
    config = (await api.request(f"STREAM.INFO.{LOG}"))["config"]
    await api.request(f"STREAM.UPDATE.{LOG}", {**config, "sources": [{"name": name} for name in sources]})


async def logged(path: Path, pattern: str) -> bool:
    await asyncio.sleep(0)
    return re.search(pattern, path.read_text()) is not None


async def test_an_act_that_does_not_reach_the_log_is_said_until_it_does(
    nats_server: NatsServer, nats_client: Client, said: Path
) -> None:
    """A server alone has no other leader to offer: the writer says what helps, and doctor and the command that acted
    say it too."""
    await ensure(nats_client)
    writer = Process(nats_server.url, "a", **QUICK)
    try:
        await writer.until(nats_client, "writes, with its policy", live=True, policy_seq=1, acts_waiting_s=0)
        await sourcing(nats_client)
        by = ("--for", "30m", "--reason", "x", "--actor", "ana", "--nats", nats_server.url)
        done = await asyncio.to_thread(sickbay, "hold", "held.test", *by)
        assert done.returncode == 0 and "stored: hold held.test" in done.stdout
        assert "not yet in force: NATS has not passed it on" in done.stdout
        await writer.until(nats_client, "tells how long it waits", acts_waiting_s=lambda waits_s: waits_s > 0.5)
        await until(lambda: logged(said, "could not get another leader.*restart the NATS server"), "it says what helps")
        await until(lambda: _found(nats_server.url, "bad"), "doctor finds it", within_s=40)
        await sourcing(nats_client, CONTROL)
        await writer.until(nats_client, "nothing waits any more", acts_waiting_s=0, seq=2)
        await until(lambda: logged(said, "reach the log again"), "it says so")
        assert len(re.findall("NATS does not pass it on", said.read_text())) == 1
        assert await _found(nats_server.url, "ok")
    finally:
        writer.stop()


async def _found(url: str, level: str) -> bool:
    done = await asyncio.to_thread(sickbay, "doctor", "--json", "--nats", url)
    acts = next(one for one in json.loads(done.stdout)["findings"] if one["what"] == "acts")
    return bool(acts["level"] == level)


async def test_on_a_cluster_the_writer_has_the_logs_leader_step_down_once(
    nats_cluster: NatsCluster, said: Path
) -> None:
    """Another server leads the log then, and no more than once a minute, whatever that helped."""
    client = await connect_client(nats_cluster.url)
    api = JetStreamApi(client, timeout_s=patience(5))

    async def leader() -> str:
        return str((await api.request(f"STREAM.INFO.{LOG}"))["cluster"].get("leader", ""))

    writer = Process(nats_cluster.url, "a", **QUICK)
    try:
        await until(lambda: _ensured(client), "the streams are there", within_s=60)
        await writer.until(client, "writes, with its policy", live=True, policy_seq=1)
        await sourcing(client)
        before = await until(leader, "the log has a leader")
        await publish_override(client, HELD, "hold", reason="x", actor="ana", for_s=60)

        async def another() -> bool:
            return await leader() not in ("", before)

        await until(another, "another server leads the log")
        await writer.until(client, "it waits on", acts_waiting_s=lambda waits_s: waits_s > 3)
        assert len(re.findall("gets another leader", said.read_text())) == 1
        await sourcing(client, CONTROL)
        await writer.until(client, "nothing waits any more", acts_waiting_s=0, seq=2)
    finally:
        writer.stop()
        await client.close()


async def _ensured(client: Client) -> bool:
    return (await ensure(client, StreamLimits(replicas=3))).ok


async def test_an_act_whose_copy_the_log_has_aged_past_does_not_wait(
    nats_server: NatsServer, nats_client: Client
) -> None:
    """A log keeps its events for days, the control stream for ever: what left the log was in force."""
    await ensure(nats_client)
    writer = Process(nats_server.url, "a")
    try:
        await writer.until(nats_client, "has its policy", policy_seq=1)
    finally:
        writer.stop()
    await nats_client.request("sickbay.outcome.r.p=2Etest.=.m", b'{"kind":"ok"}', timeout=patience(2))
    await JetStreamApi(nats_client, timeout_s=patience(2)).request(f"STREAM.PURGE.{LOG}", {"seq": 2})
    assert await _found(nats_server.url, "ok")


def test_a_command_says_from_when_on_its_act_is_in_force(nats_server: NatsServer) -> None:
    """It waits for the fold, and without services it says that none is there."""
    by = ("--reason", "x", "--actor", "ana", "--nats", nats_server.url)
    asyncio.run(_made(nats_server.url))
    done = sickbay("clear", "held.test", *by)
    assert done.returncode == 0 and "not yet in force: no service answers" in done.stdout


async def _made(url: str) -> None:
    client = await connect_client(url)
    await ensure(client)
    await client.close()
