"""What is written follows from the log, or `verify` says what does not and exits with 1."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client

from cli_runs import sickbay
from nats_servers import NatsServer
from past_rig import TARGETS, api, fleet_of, history, lived, services, settled
from sickbay.bus.topology import GATE_PREFIX, GATE_STREAM, LOG, SNAPSHOTS_STREAM, TARGET_PREFIX, ensure
from sickbay.control.acts import publish_outcome
from sickbay.projector import loop, maintenance
from sickbay.replay.verify import CannotVerify, Verified, verify
from sickbay_events import CallOutcome, Target
from waiting import until


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots and marks as often as a history of a hundred events wants them."""
    monkeypatch.setattr(maintenance, "SNAPSHOT_EVENTS", 30)
    monkeypatch.setattr(loop, "MARK_EVERY", 16)


@pytest.mark.usefixtures("often")
async def test_all_that_is_written_follows_from_the_log(nats_server: NatsServer, nats_client: Client) -> None:
    """Digests said by services, checkpoint and snapshots, entries, documents: compared, and none differs."""
    async with services(nats_server.url) as running:
        await lived(nats_client, running, 3, 60)
        await running_documents(nats_client)
        found = await verify(nats_client)
        assert found.ok, found.differences
        assert (found.begins, found.seq, found.folded) == ("beginning", fleet_of(running).seq, found.seq)
        assert {who.split()[1] for who in found.digests} == {"services", "checkpoint", "snapshot"}
        assert found.entries > 1 and found.documents > 0 and found.digest == fleet_of(running).digest()
        quick = await verify(nats_client, quick=True)
        assert quick.ok and quick.begins == "snapshot" and 0 < quick.folded < found.folded
        assert quick.digest == found.digest


async def running_documents(client: Client) -> None:
    """Wait until a document of a target stands."""

    async def stands() -> bool:
        info = await api(client, f"STREAM.INFO.{GATE_STREAM}", {"subjects_filter": f"{TARGET_PREFIX}>"})
        return bool(info["state"].get("subjects"))

    await until(stands, "a document stands")


async def test_a_state_that_went_astray_is_found(nats_server: NatsServer, nats_client: Client) -> None:
    """A projector with an event in its state that no log has: its digest differs, both values are listed."""
    async with services(nats_server.url) as running:
        await history(nats_client, 1, 40)
        await settled(nats_client, running)
        good = fleet_of(running).digest()
        node = fleet_of(running).store.nodes[TARGETS[0].key]
        node.state.answers += 1
        fleet_of(running).store.touch(node)
        found = await verify(nats_client)
        [difference] = [one for one in found.differences if one.what == "digest" and "services" in one.key]
        assert (difference.written, difference.folded) == (fleet_of(running).digest(), good)


async def test_entries_and_documents_that_differ_are_listed_with_both_values(
    nats_server: NatsServer, nats_client: Client
) -> None:
    """What somebody wrote into the bucket while nobody mended it: exit code 1, each key with what stands and what
    should."""
    target = TARGETS[1]
    async with services(nats_server.url) as running:
        for replica in ("r1", "r2"):
            await publish_outcome(nats_client, target, CallOutcome(kind="model_unavailable"), replica=replica)
        await settled(nats_client, running)
        await running_documents(nats_client)
    js = nats_client.jetstream()
    bucket = await js.key_value("sickbay")
    entry = json.loads((await bucket.get(f"gate.{target.key}")).value or b"")
    entry["holds"][0]["end_ms"] += 1_000
    await js.publish(GATE_PREFIX + target.key, json.dumps(entry).encode())
    document = json.loads((await bucket.get(f"target.{target.key}")).value or b"")
    document["outcomes"] = 7
    await js.publish(TARGET_PREFIX + target.key, json.dumps(document).encode())
    done = await asyncio.to_thread(sickbay, "verify", "--nats", nats_server.url, "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    by_key = {one["key"]: one for one in found["differences"]}
    assert set(by_key) == {f"gate.{target.key}", f"target.{target.key}"} and not found["ok"]
    gate = by_key[f"gate.{target.key}"]
    assert gate["written"]["holds"][0]["end_ms"] - gate["folded"]["holds"][0]["end_ms"] == 1_000
    assert by_key[f"target.{target.key}"]["written"] == {"outcomes": 7}
    assert by_key[f"target.{target.key}"]["folded"] == {"outcomes": 2}


async def test_an_entry_that_is_missing_or_of_nobody_is_found(nats_server: NatsServer, nats_client: Client) -> None:
    """A hold that was deleted from the bucket, and one that no event led to."""
    held, other = TARGETS[1], Target("never", "called")
    async with services(nats_server.url) as running:
        for replica in ("r1", "r2"):
            await publish_outcome(nats_client, held, CallOutcome(kind="model_unavailable"), replica=replica)
        await settled(nats_client, running)
    js = nats_client.jetstream()
    bucket = await js.key_value("sickbay")
    value = (await bucket.get(f"gate.{held.key}")).value or b""
    await js.publish(GATE_PREFIX + other.key, value)
    await js.publish(GATE_PREFIX + held.key, b"", headers={"KV-Operation": "DEL"})
    found = await verify(nats_client)
    by_key = {one.key: (one.written is None, one.folded is None) for one in found.differences}
    assert by_key == {f"gate.{held.key}": (True, False), f"gate.{other.key}": (False, True)}


async def test_verify_under_load_says_nothing_false(nats_server: NatsServer, nats_client: Client) -> None:
    """While events keep coming, nothing that is merely on its way counts as a difference."""
    async with services(nats_server.url):
        publishing = asyncio.create_task(history(nats_client, 5, 2_000))
        try:
            await asyncio.sleep(0.3)
            for _ in range(4):
                found = await verify(nats_client)
                assert found.ok, found.differences
        finally:
            publishing.cancel()
            await asyncio.wait([publishing])


async def test_nothing_to_compare_is_said(nats_server: NatsServer, nats_client: Client) -> None:
    """Without a projector's word there is no verdict; on an empty log and on one event there is."""
    await ensure(nats_client)
    with pytest.raises(CannotVerify, match="no checkpoint"):
        await verify(nats_client)
    async with services(nats_server.url) as running:
        empty = await verify(nats_client)
        assert empty.ok and (empty.seq, empty.folded) == (0, 0)
        await publish_outcome(nats_client, TARGETS[0], CallOutcome(kind="ok"), replica="r")
        await settled(nats_client, running)
        one = await verify(nats_client)
        assert one.ok and (one.seq, one.folded) == (1, 1) and one.digests


@pytest.mark.usefixtures("often")
async def test_a_trimmed_head_is_verified_from_the_oldest_snapshot(
    nats_server: NatsServer, nats_client: Client
) -> None:
    """With the log's beginning gone the fold begins at a snapshot; with the snapshots gone too it says so."""
    async with services(nats_server.url) as running:
        await lived(nats_client, running, 3, 60)
        await api(nats_client, f"STREAM.PURGE.{LOG}", {"seq": 20})
        found = await verify(nats_client)
        assert found.ok and found.begins == "snapshot" and found.from_seq >= 19
        await api(nats_client, f"STREAM.PURGE.{SNAPSHOTS_STREAM}")
        with pytest.raises(CannotVerify, match="no snapshot fits: the log begins at sequence 20"):
            await verify(nats_client)


def test_a_verdict_is_plain_data() -> None:
    """What `--json` prints can be read back."""
    empty = Verified(
        seq=0, begins="beginning", from_seq=0, folded=0, digests=[], entries=0, documents=0, moved_on=0,
        digest="", differences=[],
    )  # fmt: skip
    plain: dict[str, Any] = msgspec.to_builtins(empty)
    assert msgspec.convert(plain, Verified) == empty and empty.ok


async def test_documents_of_the_log_before_are_passed_over(nats_server: NatsServer, nats_client: Client) -> None:
    """They stand for up to an hour, and say sequences of a log that is gone."""
    async with services(nats_server.url) as running:
        await load(nats_client, 3, "one")
        await until(lambda: fleet_of(running).seq >= 3)
        await running_documents(nats_client)
        before = await api(nats_client, f"STREAM.INFO.{LOG}")
        await api(nats_client, f"STREAM.DELETE.{LOG}")
        await until(lambda: _is_another(nats_client, before["created"]), "the log is made again")
        await load(nats_client, 20, "two")
        await until(lambda: fleet_of(running).seq >= 20)

        async def follows() -> bool:
            try:
                found = await verify(nats_client)
            except CannotVerify:  # the checkpoint is of the log before yet
                return False
            assert found.ok, found.differences
            return found.seq >= 20

        await until(follows, "all of it follows from the log")


async def _is_another(client: Client, created: str) -> bool:
    try:
        return bool((await api(client, f"STREAM.INFO.{LOG}"))["created"] != created)
    except AssertionError:  # it is gone, and not back yet
        return False


async def load(client: Client, count: int, model: str) -> None:
    for _ in range(count):
        await client.jetstream().publish(f"sickbay.outcome.r1.a=2Eexample.=.{model}", b'{"kind":"server_error"}')
