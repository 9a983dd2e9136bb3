"""The state as it was: at a time, at a sequence, for a replica; with snapshots or without; refused where it is gone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.aio.client import Client

from cli_runs import sickbay
from nats_servers import NatsServer
from past_rig import TARGETS, api, fleet_of, history, lived, services, settled, stored
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import LOG, SNAPSHOTS_STREAM
from sickbay.cli.explain import told_of_then
from sickbay.control.acts import publish_outcome
from sickbay.log import snapshots
from sickbay.log.folding import Bound
from sickbay.log.transitions import End
from sickbay.projector import maintenance
from sickbay.replay.past import OutOfReach, find_base, log_now, state_at
from sickbay_events import CallOutcome, CallsRefused, Target, encode, outcome_subject, rfc3339
from sickbay_events.outcome import Skipped
from sickbay_projections import Fleet
from waiting import patience


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots as often as a history of a hundred events wants them."""
    monkeypatch.setattr(maintenance, "SNAPSHOT_EVENTS", 30)


async def explained(url: str, *arguments: str) -> dict[str, Any]:
    done = await asyncio.to_thread(sickbay, "explain", *arguments, "--nats", url, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.usefixtures("often")
async def test_the_state_then_is_the_same_with_and_without_snapshots(
    nats_server: NatsServer, nats_client: Client
) -> None:
    """At every sequence the digest is that of a fold from the beginning; without any snapshot it stays the same."""
    async with services(nats_server.url) as running:
        last = await lived(nats_client, running, 3, 50)
        live = fleet_of(running).digest()
    seqs = (1, 17, 49, 80, 101, last)
    near = [await state_at(nats_client, Bound(seq=seq)) for seq in seqs]
    assert [view.fleet.seq for view in near] == list(seqs)
    assert {view.base.begins for view in near} == {"beginning", "snapshot"} and near[-1].fleet.digest() == live
    assert all(view.folded < view.fleet.seq for view in near if view.base.begins == "snapshot")
    await api(nats_client, f"STREAM.PURGE.{SNAPSHOTS_STREAM}")
    far = [await state_at(nats_client, Bound(seq=seq)) for seq in seqs]
    assert {view.base.begins for view in far} == {"beginning"}
    assert [view.fleet.digest() for view in far] == [view.fleet.digest() for view in near]


async def test_a_time_is_answered_by_the_events_up_to_it(nats_server: NatsServer, nats_client: Client) -> None:
    """The state at the time of an event has this event and none later; the story ends there too."""
    target = TARGETS[1]
    async with services(nats_server.url) as running:
        for replica in ("r1", "r2", "r3"):
            await publish_outcome(nats_client, target, CallOutcome(kind="model_unavailable"), replica=replica)
            await asyncio.sleep(0.01)
        await settled(nats_client, running)
        times = [
            there.time_ns // 1_000_000
            for seq in (1, 2, 3)
            if (there := await JetStreamApi(nats_client, timeout_s=patience(5)).message_at(LOG, seq)) is not None
        ]
        one = await explained(nats_server.url, target.provider, target.model, "--at", rfc3339(times[0]))
        assert one["state"]["decision"]["allowed"] and [step["seq"] for step in one["events"]] == [1]
        assert one["base"]["is_whole"] and one["base"]["seq"] == 1
        two = await explained(nats_server.url, target.provider, target.model, "--at", rfc3339(times[1]))
        assert two["state"]["decision"]["reason"] == "quarantined" and two["state"]["seq"] == 2
        by_seq = await explained(nats_server.url, target.provider, target.model, "--seq", "2")
        assert by_seq["state"] == two["state"] and [step["seq"] for step in by_seq["events"]] == [1, 2]
        before = await explained(nats_server.url, target.provider, target.model, "--at", "2020-01-01T00:00:00Z")
        assert before["state"]["seq"] == 0 and before["events"] == []


async def test_why_one_replica_skips_it_and_another_does_not(nats_server: NatsServer, nats_client: Client) -> None:
    """Five faults of router-2 alone, while router-1 has answers: the cluster holds nobody, router-2's own outcomes do;
    what it refused and skipped is told with it."""
    target, other = Target("host-1", "busy"), Target("host-1", "second")
    async with services(nats_server.url) as running:
        for _ in range(5):
            await publish_outcome(nats_client, target, CallOutcome(kind="ok", status=200), replica="router-1")
            await publish_outcome(nats_client, target, CallOutcome(kind="network"), replica="router-2")
        refused = encode(CallsRefused(count=12, rule="breaker"))
        await nats_client.request(outcome_subject("router-2", target), refused, timeout=patience(5))
        skip = Skipped(provider="host-1", model="busy", reason="breaker_open")
        await publish_outcome(nats_client, other, CallOutcome(kind="ok", skipped=[skip]), replica="router-2")
        await settled(nats_client, running)
        told = await told_of_then(nats_client, target.scope, Bound(seq=fleet_of(running).seq), ("router-1", "router-2"))
        one, two = told.replicas
        assert one["allowed"] and one["cluster"]["allowed"] and one["overlay"]["allowed"]
        assert not two["allowed"] and two["cluster"]["allowed"] and two["overlay"]["reason"] == "breaker_open"
        assert [hold["rule"] for hold in two["overlay"]["holds"]] == ["breaker"] and two["overlay"]["outcomes"] == 5
        assert [(fact["count"], fact["rule"]) for fact in two["refused"]] == [(12, "breaker")]
        assert [fact["reason"] for fact in two["skipped"]] == ["breaker_open"] and not one["refused"]
        done = await asyncio.to_thread(
            sickbay, "explain", "host-1", "busy", "--replica", "router-2", "--nats", nats_server.url
        )
        assert "router-2 skips it" in done.stdout and "12 calls refused by breaker" in done.stdout
        early = await told_of_then(nats_client, target.scope, Bound(seq=6), ("router-2",))
        assert early.replicas[0]["allowed"], "three faults are no run of five"


async def test_the_place_in_a_ramp_says_who_is_in(nats_server: NatsServer, nats_client: Client) -> None:
    """After a breaker closed, four replicas come back by their share of the ring: each is told its own place."""
    target = Target("host-1", "m")
    names = [f"router-{n}" for n in range(1, 6)]
    async with services(nats_server.url) as running:
        for n in range(6):
            await publish_outcome(
                nats_client, target, CallOutcome(kind="server_error", status=500), replica=names[n % 5]
            )
        await settled(nats_client, running)
        began = fleet_of(running).seq
        await publish_outcome(nats_client, target, CallOutcome(kind="ok", seen_seq=began), replica=names[0])
        await settled(nats_client, running)
        fleet = fleet_of(running)
        told = await told_of_then(nats_client, target.scope, Bound(seq=fleet.seq), tuple(names))
        assert all(seen["ramp"]["rule"] == "breaker" and seen["ramp"]["replicas"] == 5 for seen in told.replicas)
        for seen in told.replicas:
            decision = fleet.decide(target, fleet.time_ms, seen["replica"])
            assert seen["cluster"]["allowed"] == decision.allowed == seen["ramp"]["is_in"]
            assert decision.allowed or decision.reason == "ramp"
            assert seen["ramp"]["is_in"] == (seen["ramp"]["place_percent"] < 10)


@pytest.mark.usefixtures("often")
async def test_where_the_beginning_is_gone_it_is_said_from_when_on(
    nats_server: NatsServer, nats_client: Client
) -> None:
    """A trimmed head: before it nothing can be given, at a kept snapshot and after it everything, and in between an
    answer says what it lacks and from when on there is a whole one."""
    async with services(nats_server.url) as running:
        last = await lived(nats_client, running, 3, 60)
        live = fleet_of(running).digest()
    kept = sorted(found.info.seq for found in await snapshots.list_snapshots(nats_client))
    head = kept[0] + 10
    await api(nats_client, f"STREAM.PURGE.{LOG}", {"seq": head})
    exact = await state_at(nats_client, Bound(seq=kept[0]))
    assert (exact.base.begins, exact.folded, exact.fleet.seq) == ("snapshot", 0, kept[0]), "the snapshot is the answer"
    whole = next(seq for seq in kept if seq >= head - 1)
    with pytest.raises(OutOfReach, match=f"begins at sequence {head},.* from sequence {whole},"):
        await state_at(nats_client, Bound(seq=kept[0] + 1))
    with pytest.raises(OutOfReach, match=f"from sequence {whole},"):
        await state_at(nats_client, Bound(time_ms=1))
    partial = await state_at(nats_client, Bound(seq=head))
    assert partial.base.begins == "trimmed" and f"whole answer can be given from sequence {whole}," in partial.base.note
    assert (await state_at(nats_client, Bound(seq=last))).fleet.digest() == live
    done = await asyncio.to_thread(sickbay, "explain", "host-1", "--seq", "1", "--nats", nats_server.url)
    assert done.returncode == 1 and "cannot be given" in done.stderr
    await api(nats_client, f"STREAM.PURGE.{SNAPSHOTS_STREAM}")
    bare = await state_at(nats_client, Bound(seq=last))
    assert bare.base.begins == "trimmed" and bare.fleet.seq == last and "a whole answer" in bare.base.note


@pytest.mark.usefixtures("often")
async def test_a_snapshot_of_another_fold_version_is_never_loaded(
    nats_server: NatsServer, nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that holds only those of another version is as good as empty, for a start and for a look back."""
    async with services(nats_server.url) as running:
        await history(nats_client, 1, 60)
        last = await settled(nats_client, running)
        await stored(nats_client, 1)
        live = fleet_of(running).digest()
    log = await log_now(nats_client)
    assert (await find_base(nats_client, log)).begins == "snapshot"
    monkeypatch.setattr(snapshots, "FOLD_VERSION", 99)
    monkeypatch.setattr("sickbay.replay.past.FOLD_VERSION", 99)
    loaded: list[Any] = []
    monkeypatch.setattr(Fleet, "decode", classmethod(lambda _, data: loaded.append(data)))
    view = await state_at(nats_client, Bound(seq=last))
    assert (view.base.begins, view.fleet.digest()) == ("beginning", live) and loaded == []
    found, why = await snapshots.newest_fit(nats_client, log, End("", 1, last, frozenset()))
    assert found is None and "fold version" in why and loaded == []


async def test_a_place_beyond_the_end_or_of_no_form_is_refused(nats_server: NatsServer, nats_client: Client) -> None:
    """An empty log too: there is nothing to tell, which is no error; a sequence that is not there yet is one."""
    async with services(nats_server.url):
        empty = await explained(nats_server.url, "host-1", "m", "--at", "now")
        assert empty["state"]["seq"] == 0 and empty["events"] == []
        for arguments, code, says in (
            (("--seq", "5"), 1, "the log ends at 0"),
            (("--at", "soon"), 2, "accepted is"),
            (("--at", "now", "--seq", "1"), 2, "one of the two"),
        ):
            done = await asyncio.to_thread(sickbay, "explain", "host-1", "m", *arguments, "--nats", nats_server.url)
            assert (done.returncode, says in done.stderr) == (code, True), (arguments, done.stderr)
        done = await asyncio.to_thread(sickbay, "explain", "host-1", "--replica", "r", "--nats", nats_server.url)
        assert done.returncode == 2 and "--replica" in done.stderr
