"""Streams and buckets are made as the table says, and what differs is reported and left alone."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from nats.aio.client import Client

from nats_servers import NatsCluster, NatsServer
from sickbay.bus import topology
from sickbay.bus.connect import connect_client
from sickbay.bus.topology import NoJetStream, StreamDifference, StreamLimits, TopologyError, check_streams, ensure
from sickbay_events.view import CHECKPOINT_KEY
from waiting import patience, until

NAMES = (
    "SICKBAY_CONTROL",
    "SICKBAY_LOG",
    "SICKBAY_TRANSITIONS",
    "SICKBAY_DEAD",
    "KV_sickbay",
    "KV_sickbay_trials",
    "OBJ_sickbay_snapshots",
)


async def api(client: Client, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    reply = await client.request(f"$JS.API.{subject}", json.dumps(body).encode() if body else b"", timeout=patience(5))
    answer: dict[str, Any] = json.loads(reply.data)
    assert "error" not in answer, answer
    return answer


async def update(client: Client, stream: str, **fields: Any) -> None:
    config = (await api(client, f"STREAM.INFO.{stream}"))["config"]
    await api(client, f"STREAM.UPDATE.{stream}", {**config, **fields})


async def test_everything_is_created_and_found_again_without_difference(nats_client: Client) -> None:
    first = await ensure(nats_client)
    assert first.created == NAMES
    assert first.ok
    again = await ensure(nats_client)
    assert again.created == ()
    assert (again.problems, again.notes) == ((), ())
    assert [stream.state for stream in again.streams] == ["present"] * 7
    assert again.stream("SICKBAY_LOG").created_at == first.stream("SICKBAY_LOG").created_at != ""


async def test_check_creates_nothing_and_names_what_is_missing(nats_client: Client) -> None:
    report = await check_streams(nats_client)
    assert not report.ok
    assert report.problems == tuple(f"{name}: is missing" for name in NAMES)
    assert (await api(nats_client, "STREAM.NAMES"))["total"] == 0


async def test_a_difference_is_reported_by_field_and_left_alone(nats_client: Client) -> None:
    await ensure(nats_client)
    await update(nats_client, "SICKBAY_LOG", duplicate_window=60 * 10**9, max_msgs_per_subject=1)
    await update(nats_client, "KV_sickbay", republish=None, max_msgs_per_subject=5)
    report = await ensure(nats_client)
    assert report.stream("SICKBAY_LOG").differences == (
        StreamDifference("SICKBAY_LOG", "max_msgs_per_subject", 1, -1, serious=True),
        StreamDifference("SICKBAY_LOG", "duplicate_window", 60 * 10**9, 30 * 10**9, serious=True),
    )
    assert not report.ok
    assert (
        'KV_sickbay: republish is unset, wanted {"src": "$KV.sickbay.gate.>", "dest": "sickbay.view.>"}'
        in report.problems
    )
    assert "KV_sickbay: max_msgs_per_subject is 5, wanted 1" in report.problems
    config = (await api(nats_client, "STREAM.INFO.SICKBAY_LOG"))["config"]
    assert config["duplicate_window"] == 60 * 10**9


async def test_ages_and_sizes_that_an_operator_chose_are_notes_and_no_problems(nats_client: Client) -> None:
    await ensure(nats_client)
    await update(nats_client, "SICKBAY_LOG", max_age=86_400 * 10**9, max_bytes=1 << 30)
    report = await ensure(nats_client)
    assert report.ok
    assert report.notes == (
        f"SICKBAY_LOG: max_age is {86_400 * 10**9}, wanted {7 * 86_400 * 10**9}",
        f"SICKBAY_LOG: max_bytes is {1 << 30}, wanted {10 << 30}",
    )


async def test_limits_are_the_installations_choice(nats_client: Client) -> None:
    limits = StreamLimits(log_max_age_s=3600, log_max_bytes=1 << 20, dead_max_bytes=1 << 19)
    assert (await ensure(nats_client, limits)).ok
    config = (await api(nats_client, "STREAM.INFO.SICKBAY_LOG"))["config"]
    assert (config["max_age"], config["max_bytes"]) == (3600 * 10**9, 1 << 20)


async def test_the_log_takes_events_and_sources_the_control_stream(nats_client: Client) -> None:
    """Rule 7: one stream holds all input events in one order, the operator's acts among them."""
    await ensure(nats_client)
    jetstream = nats_client.jetstream()
    outcome = await jetstream.publish("sickbay.outcome.r1.openrouter=2Eai.=.m", b"{}", headers={"Nats-Msg-Id": "a-1"})
    again = await jetstream.publish("sickbay.outcome.r1.openrouter=2Eai.=.m", b"{}", headers={"Nats-Msg-Id": "a-1"})
    assert (outcome.stream, outcome.seq, again.duplicate) == ("SICKBAY_LOG", 1, True)
    assert (await jetstream.publish("sickbay.override.openrouter=2Eai", b"{}")).stream == "SICKBAY_CONTROL"

    async def is_copied() -> bool:
        return bool((await api(nats_client, "STREAM.INFO.SICKBAY_LOG"))["state"]["last_seq"] == 2)

    await until(is_copied, "the act is in the log")
    message = await api(nats_client, "STREAM.MSG.GET.SICKBAY_LOG", {"seq": 2})
    assert message["message"]["subject"] == "sickbay.override.openrouter=2Eai"


async def test_gate_entries_are_republished_without_their_gate(nats_client: Client) -> None:
    await ensure(nats_client)
    view = await nats_client.subscribe(f"{topology.VIEW_PREFIX}>")
    await nats_client.jetstream().publish(f"{topology.TARGET_PREFIX}host.=.m", b"counters")
    ack = await nats_client.jetstream().publish(topology.GATE_PREFIX + CHECKPOINT_KEY, b"{}")
    message = await view.next_msg(patience(2))
    assert message.subject == "sickbay.view.=.0"
    assert message.headers is not None
    assert message.headers["Nats-Sequence"] == str(ack.seq)
    assert message.headers["Nats-Subject"] == "$KV.sickbay.gate.=.0"


async def test_a_lease_is_free_when_its_time_is_over(nats_client: Client) -> None:
    """No delete markers on the trials bucket: with them a lease would stand for the marker's time too."""
    await ensure(nats_client)
    subject = f"{topology.TRIALS_PREFIX}host.=.m.breaker.7"
    headers = {"Nats-Expected-Last-Subject-Sequence": "0", "Nats-TTL": "1s"}
    await nats_client.jetstream().publish(subject, b"r1", headers=headers)
    began = time.monotonic()
    taken = False
    async with asyncio.timeout(patience(10)):
        while not taken:
            try:
                await nats_client.jetstream().publish(subject, b"r2", headers=headers)
                taken = True
            except Exception as error:
                assert "wrong last sequence" in str(error)
                await asyncio.sleep(0.02)
    assert 0.8 < time.monotonic() - began < patience(3)


async def test_the_buckets_are_ordinary_ones_for_other_clients(nats_client: Client) -> None:
    """The NATS CLI and every client library see a KV bucket and an object store, not bare streams."""
    await ensure(nats_client)
    jetstream = nats_client.jetstream()
    bucket = await jetstream.key_value(topology.GATE_BUCKET)
    await bucket.put("gate.host", b"{}")
    assert (await bucket.get("gate.host")).value == b"{}"
    store = await jetstream.object_store(topology.SNAPSHOTS_BUCKET)
    await store.put("state-1", b"x" * 300_000)
    assert (await store.get("state-1")).data == b"x" * 300_000


async def test_without_jetstream_the_error_says_what_to_do() -> None:
    with NatsServer(jetstream=False) as server:
        client = await connect_client(server.url)
        with pytest.raises(NoJetStream, match="start it with -js"):
            await ensure(client)
        await client.close()


async def test_an_account_without_jetstream_is_said_too() -> None:
    config = """
accounts {
  APP { users: [ { user: app, password: pw } ] }
  OTHER { jetstream: enabled, users: [ { user: other, password: pw } ] }
}"""
    with NatsServer(config=config) as server:
        client = await connect_client(f"nats://app:pw@127.0.0.1:{server.port}")
        with pytest.raises(NoJetStream, match="JetStream"):
            await ensure(client)
        await client.close()


async def test_a_server_without_room_is_said_with_the_size_that_was_asked_for() -> None:
    config = "accounts { APP { jetstream { max_file: 1GB }, users: [ { user: app, password: pw } ] } }"
    with NatsServer(config=config) as server:
        client = await connect_client(f"nats://app:pw@127.0.0.1:{server.port}")
        with pytest.raises(TopologyError, match=rf"SICKBAY_LOG.*no room for {10 << 30} bytes"):
            await ensure(client)
        assert (await ensure(client, StreamLimits().fitted(1 << 30))).ok
        await client.close()


async def test_subjects_taken_by_a_foreign_stream_are_said(nats_client: Client) -> None:
    await api(nats_client, "STREAM.CREATE.THEIRS", {"name": "THEIRS", "subjects": ["sickbay.>"]})
    with pytest.raises(TopologyError, match="SICKBAY_CONTROL: subjects overlap"):
        await ensure(nats_client)


async def test_two_that_create_at_once_agree(nats_client: Client, nats_server: NatsServer) -> None:
    other = await connect_client(nats_server.url)
    for report in await asyncio.gather(ensure(nats_client), ensure(other)):
        assert report.ok
    await other.close()


async def test_in_a_cluster_every_stream_has_three_replicas(nats_cluster: NatsCluster) -> None:
    client = await connect_client(nats_cluster.url)
    report = await ensure(client, StreamLimits(replicas=3))
    assert report.created == NAMES
    assert (await ensure(client, StreamLimits(replicas=3))).notes == ()
    one = await ensure(client)
    assert one.ok
    assert "SICKBAY_LOG: num_replicas is 3, wanted 1" in one.notes
    await client.close()
