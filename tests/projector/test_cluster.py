"""The projector on three servers: whoever leads its log or its bucket dies under load, and the state stays exact."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from nats.aio.client import Client

from cli_runs import sickbay
from nats_servers import NatsCluster, NatsServer
from projector_processes import Load, Process, assert_converged, under_load
from sickbay.bus.connect import connect_client
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import GATE_STREAM, LOG, StreamLimits, ensure
from waiting import patience, until


@contextmanager
def projectors(url: str, *names: str) -> Iterator[list[Process]]:
    """Projector processes that know all servers; ended with the block."""
    made = [Process(url, name, SNAPSHOT_EVENTS=100, MARK_EVERY=64) for name in names]
    try:
        yield made
    finally:
        for process in made:
            process.stop()


async def leader_of(cluster: NatsCluster, client: Client, stream: str) -> NatsServer:
    """The server that leads a stream, once there is one that runs."""

    async def found() -> NatsServer | None:
        info = await JetStreamApi(client, timeout_s=patience(2)).request(f"STREAM.INFO.{stream}")
        leads = cluster.server_of_stream_leader(info) if info["cluster"].get("leader") else None
        return leads if leads is not None and leads.running else None

    return await until(found, f"{stream} has a leader")


async def more(load: Load, count: int) -> None:
    """So many more events are acknowledged."""
    wanted = load.acked + count

    async def flowed() -> bool:
        return load.acked >= wanted

    await until(flowed, f"{count} more events are acknowledged", within_s=60)


async def test_doctor_warns_of_a_log_that_lies_on_one_server_of_a_cluster(nats_cluster: NatsCluster) -> None:
    """A cluster whose streams have one copy each loses them with one server: said, with what to do."""
    client = await connect_client(nats_cluster.url)
    await ensure(client)
    await client.close()
    done = await asyncio.to_thread(sickbay, "doctor", "--json", "--nats", nats_cluster.url)
    findings = [one for one in json.loads(done.stdout)["findings"] if one["what"] == "copies"]
    assert findings and findings[0]["level"] == "warn" and "one server" in findings[0]["found"]
    assert "SICKBAY_STREAM_REPLICAS=3" in findings[0]["do"]


@pytest.mark.parametrize("stream", [LOG, GATE_STREAM])
async def test_after_a_leader_is_killed_under_load_the_state_is_exact(nats_cluster: NatsCluster, stream: str) -> None:
    """SIGKILL of the leader of the log or of the bucket: a writer and its standby agree
    afterwards with a fresh replay, and nothing is told twice."""
    client = await connect_client(nats_cluster.url)
    try:
        await ensure(client, StreamLimits(replicas=3))
        with projectors(nats_cluster.url, "a", "b") as (first, second):
            await first.until(client, "has the policy of the log", policy_seq=1)
            async with under_load(client, 11) as load:
                await more(load, 200)
                victim = await leader_of(nats_cluster, client, stream)
                victim.kill9()
                await more(load, 200)
                assert await leader_of(nats_cluster, client, stream) is not victim, "another one leads"
                victim.restart()
                await more(load, 100)
            fleet = await assert_converged(client, first, second, deadline_s=60)
            assert fleet.seq == load.last_seq, "every acknowledged event is folded, and nothing is in the log besides"
    finally:
        await client.close()
