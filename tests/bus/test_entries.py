"""A bucket is read by pages, fast and whole, and one entry at a time."""

from __future__ import annotations

import asyncio
import time

import nats.errors
import pytest
from nats.aio.client import Client

from nats_servers import NatsServer
from sickbay.bus import topology
from sickbay.bus.connect import NatsOptions, connect_client
from sickbay.bus.entries import ReadError, read_entries, read_entry
from sickbay_events.view import CHECKPOINT_KEY, POLICY_KEY
from waiting import patience, until

GATES = f"{topology.GATE_PREFIX}>"


async def put(client: Client, key: str, value: bytes, **headers: str) -> int:
    ack = await client.jetstream().publish(topology.GATE_PREFIX + key, value, headers=headers or None)
    return ack.seq


async def put_many(client: Client, first: int, last: int, value: bytes) -> None:
    for n in range(first, last + 1):
        if n % 500 and n != last:
            await client.publish(f"{topology.GATE_PREFIX}host.=.model-{n}", value)
        else:
            await put(client, f"host.=.model-{n}", value)


@pytest.fixture
async def bucket(nats_client: Client) -> Client:
    await topology.ensure(nats_client)
    return nats_client


async def test_twenty_thousand_entries_come_whole_and_well_under_half_a_second(bucket: Client) -> None:
    await put_many(bucket, 1, 20_000, b"x" * 400)
    await put(bucket, "host.=.model-7", b"changed")
    await bucket.jetstream().publish(f"{topology.TARGET_PREFIX}host.=.model-7", b"not asked for")
    took_s = []
    for _ in range(3):
        began = time.monotonic()
        found = await read_entries(bucket, topology.GATE_STREAM, GATES)
        took_s.append(time.monotonic() - began)
    assert min(took_s) < patience(0.5), took_s
    assert len(found.entries) == 20_000
    assert {entry.subject for entry in found.entries} == {
        b"%shost.=.model-%d" % (topology.GATE_PREFIX.encode(), n) for n in range(1, 20_001)
    }
    assert [entry.revision for entry in found.entries] == sorted(entry.revision for entry in found.entries)
    assert found.entries[-1].payload == b"changed"
    assert found.entries[-1].revision == 20_001
    assert found.last_seq == 20_001


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
async def test_page_bounds_lose_and_repeat_nothing(bucket: Client, count: int) -> None:
    if count:
        await put_many(bucket, 1, count, b"v")
    found = await read_entries(bucket, topology.GATE_STREAM, GATES, page=100)
    assert [entry.revision for entry in found.entries] == list(range(1, count + 1))


async def test_from_a_sequence_on_only_what_changed_since_is_read(bucket: Client) -> None:
    await put_many(bucket, 1, 300, b"old")
    await put(bucket, "host.=.model-5", b"new")
    found = await read_entries(bucket, topology.GATE_STREAM, GATES, page=100, from_seq=299)
    assert [(entry.revision, entry.payload) for entry in found.entries] == [(299, b"old"), (300, b"old"), (301, b"new")]


async def test_a_key_that_changes_while_pages_are_read_is_never_missed(bucket: Client) -> None:
    """Its new message lies behind the reader: found twice at most, and the later one counts."""
    await put_many(bucket, 1, 3_000, b"old")
    stop = asyncio.Event()
    other = bucket  # the same connection: the puts interleave with the pages

    async def change() -> None:
        n = 0
        while not stop.is_set():
            n = n % 3_000 + 1
            await put(other, f"host.=.model-{n}", b"new")

    task = asyncio.create_task(change())
    for _ in range(5):
        found = await read_entries(bucket, topology.GATE_STREAM, GATES, page=100)
        assert len({entry.subject for entry in found.entries}) == 3_000
    stop.set()
    await task


async def test_traces_of_deleted_and_expired_entries_are_told_from_values(bucket: Client) -> None:
    await put(bucket, "host.a", b"stays")
    await put(bucket, "host.b", b"", **{"KV-Operation": "DEL"})
    revision = await put(bucket, "host.c", b"expires", **{"Nats-TTL": "1s"})
    async with asyncio.timeout(patience(10)):
        entry = await read_entry(bucket, topology.GATE_STREAM, f"{topology.GATE_PREFIX}host.c")
        while entry is None or entry.revision == revision:  # until the server has put its marker in place
            await asyncio.sleep(0.05)
            entry = await read_entry(bucket, topology.GATE_STREAM, f"{topology.GATE_PREFIX}host.c")
    found = await read_entries(bucket, topology.GATE_STREAM, GATES)
    assert [(entry.subject[-6:], entry.gone) for entry in found.entries] == [
        (b"host.a", False),
        (b"host.b", True),
        (b"host.c", True),
    ]
    assert found.entries[2].payload == b""


async def test_one_entry_is_read_with_its_revision_and_time(bucket: Client) -> None:
    before_ns = time.time_ns()
    await put(bucket, "=.0", b"first")
    revision = await put(bucket, "=.0", b"second")
    entry = await read_entry(bucket, topology.GATE_STREAM, topology.GATE_PREFIX + CHECKPOINT_KEY)
    assert entry is not None
    assert (entry.payload, entry.revision, entry.gone) == (b"second", revision, False)
    assert before_ns <= entry.time_ns <= time.time_ns()
    assert await read_entry(bucket, topology.GATE_STREAM, topology.GATE_PREFIX + POLICY_KEY) is None


async def test_a_bucket_that_is_not_there_is_said_at_once(nats_client: Client) -> None:
    began = time.monotonic()
    with pytest.raises(ReadError, match="no such stream"):
        await read_entries(nats_client, "KV_none", "$KV.none.>", timeout_s=5)
    with pytest.raises(ReadError, match="no such stream"):
        await read_entry(nats_client, "KV_none", "$KV.none.a", timeout_s=5)
    assert time.monotonic() - began < patience(2)


async def test_a_server_that_does_not_answer_is_given_up_in_time(nats_server: NatsServer) -> None:
    client = await connect_client(nats_server.url)
    await topology.ensure(client)
    nats_server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(ReadError, match="no answer"):
            await read_entries(client, topology.GATE_STREAM, GATES, timeout_s=0.3)
        assert time.monotonic() - began < patience(2)
    finally:
        nats_server.resume()
    assert (await read_entries(client, topology.GATE_STREAM, GATES)).entries == []
    await client.close()


ROUTER_ONLY = """
authorization { users: [
  { user: admin, password: apw }
  { user: router, password: rpw, permissions: {
      publish: { allow: ["sickbay.outcome.>", "sickbay.v1.>", "$JS.API.DIRECT.GET.KV_sickbay"] }
      subscribe: { allow: ["_INBOX_router.>", "sickbay.view.>"] } } } ] }
"""


async def test_a_router_needs_no_right_but_direct_get_to_read_the_bucket() -> None:
    """A router writes to no bucket and makes no consumer, and its user may not."""
    with NatsServer(config=ROUTER_ONLY) as server:
        admin = await connect_client(NatsOptions.from_url(server.url, user="admin", password="apw"))
        await topology.ensure(admin)
        await put_many(admin, 1, 10, b"v")
        options = NatsOptions.from_url(server.url, user="router", password="rpw", inbox_prefix="_INBOX_router")
        router = await connect_client(options)
        assert len((await read_entries(router, topology.GATE_STREAM, GATES)).entries) == 10
        entry = await read_entry(router, topology.GATE_STREAM, f"{topology.GATE_PREFIX}host.=.model-3")
        assert entry is not None
        with pytest.raises(TimeoutError):
            await router.jetstream(timeout=0.3).publish(f"{topology.GATE_PREFIX}host.=.model-3", b"forged")
        await router.close()
        await admin.close()


async def test_pages_read_across_a_reconnect_are_no_whole(bucket: Client, nats_server: NatsServer) -> None:
    """What was sent on the connection before is lost, although the last page's end arrives on the next one."""
    await put_many(bucket, 1, 3_000, b"x" * 300)
    client = await connect_client(nats_server.url)
    whole = {entry.subject for entry in (await read_entries(client, topology.GATE_STREAM, GATES)).entries}
    short = 0
    for turn in range(8):
        reading = asyncio.create_task(read_entries(client, topology.GATE_STREAM, GATES, page=50))
        for _ in range(5 * turn):
            await asyncio.sleep(0)  # another place in the reading each time
        assert client._transport is not None
        client._transport.close()  # type: ignore[no-untyped-call]
        try:
            found = {entry.subject for entry in (await reading).entries}
            assert found == whole
        except (ReadError, nats.errors.Error, OSError):
            short += 1
        await until(lambda: client.is_connected, "it is connected again")
    assert short, "some were cut"
    assert {entry.subject for entry in (await read_entries(client, topology.GATE_STREAM, GATES)).entries} == whole
    await client.close()
