"""What happens to the log and its outputs: recreated, restored, trimmed, deleted, unreadable. Exact or reported."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import signal
from typing import Any

import pytest
from nats.aio.client import Client

from nats_servers import NatsServer
from projector_processes import POLICY, Load, Process, Spawn, assert_converged, bucket, replay, told
from sickbay.bus.entries import read_entries, read_entry
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import CONTROL, DEAD, GATE_STREAM, LOG, SNAPSHOTS_STREAM, TARGET_PREFIX, TRANSITIONS, ensure
from sickbay.control.acts import publish_override
from sickbay.log.snapshots import list_snapshots
from sickbay_events import CallOutcome, PolicyChanged, Scope, Target, encode
from waiting import patience, until


async def live(client: Client, process: Process) -> Process:
    await process.until(client, "writes, with the policy of the log", live=True, policy_seq=lambda seq: seq > 0)
    return process


async def api(client: Client, request: str, body: dict[str, object] | None = None) -> None:
    await JetStreamApi(client, timeout_s=patience(5)).request(request, body)


async def settled(client: Client, process: Process) -> dict[str, object]:
    last_seq = (await JetStreamApi(client, timeout_s=patience(5)).stream_at(LOG)).last_seq
    return await process.until(client, "has folded all", seq=last_seq, transitions_waiting=0)


async def test_a_recreated_log_is_noticed_and_folded_from_its_beginning(nats_client: Client, spawn: Spawn) -> None:
    projector = await live(nats_client, spawn("a"))
    load = Load(nats_client)
    await load.publish(200)
    await settled(nats_client, projector)
    await api(nats_client, f"STREAM.DELETE.{LOG}")
    await ensure(nats_client)
    await Load(nats_client, seed=2).publish(150)
    health = await projector.until(nats_client, "reports a rebuild", rebuilds=lambda count: count >= 1)
    assert "another one" in health["last_rebuild"]
    await assert_converged(nats_client, projector, derived="ordered")


async def test_a_log_that_was_deleted_is_made_again(nats_client: Client, spawn: Spawn) -> None:
    projector = await live(nats_client, spawn("a"))
    await Load(nats_client).publish(50)
    await settled(nats_client, projector)
    await api(nats_client, f"STREAM.DELETE.{LOG}")
    await Load(nats_client, seed=2).publish(50)
    await projector.until(nats_client, "reports a rebuild", rebuilds=lambda count: count >= 1)
    await assert_converged(nats_client, projector, derived="ordered")


@pytest.mark.parametrize("more", [0, 400], ids=["shorter", "reused_beyond_the_position"])
async def test_an_older_store_put_back_is_noticed_although_it_is_the_same_log(
    nats_server: NatsServer, nats_client: Client, spawn: Spawn, more: int
) -> None:
    """Sequences are used again for other events: the state must be that of the log as it is now."""
    projector = await live(nats_client, spawn("a", SNAPSHOT_EVENTS=50))
    load = Load(nats_client)
    await load.publish(150)
    await settled(nats_client, projector)
    nats_server._end(signal.SIGTERM)
    shutil.copytree(nats_server.folder / "js", nats_server.folder / "older")
    nats_server.restart()
    await until(lambda: _connected(nats_client), "the client is connected again")
    await load.publish(200)
    await settled(nats_client, projector)
    if more:
        projector.signal(signal.SIGSTOP)  # it finds the log longer than it left it
    nats_server._end(signal.SIGTERM)
    nats_server.wipe()
    shutil.move(nats_server.folder / "older", nats_server.folder / "js")
    nats_server.restart()
    await until(lambda: _connected(nats_client), "the client is connected again")
    other = Load(nats_client, seed=9)
    await other.publish(more)
    if more:
        projector.signal(signal.SIGCONT)
    health = await projector.until(nats_client, "reports a rebuild", rebuilds=lambda count: count >= 1)
    assert "older store" in health["last_rebuild"]
    await assert_converged(nats_client, projector)


async def test_a_log_that_lost_its_end_is_told_on_from_there(
    nats_server: NatsServer, nats_client: Client, spawn: Spawn
) -> None:
    """A power cut takes the last seconds of one stream and not of another: what was derived is ahead of the log.
    What stands is not published again, and what the log's new events lead to is."""
    projector = await live(nats_client, spawn("a", SNAPSHOT_EVENTS=50))
    load = Load(nats_client)
    await load.publish(150)
    await settled(nats_client, projector)
    stream = nats_server.folder / "js" / "jetstream" / "$G" / "streams" / LOG
    nats_server._end(signal.SIGTERM)
    shutil.copytree(stream, nats_server.folder / "older")
    nats_server.restart()
    await until(lambda: _connected(nats_client), "the client is connected again")
    await load.publish(150)
    await settled(nats_client, projector)
    before = await told(nats_client)
    nats_server._end(signal.SIGTERM)
    shutil.rmtree(stream)
    shutil.move(nats_server.folder / "older", stream)
    nats_server.restart()
    await until(lambda: _connected(nats_client), "the client is connected again")
    await projector.until(nats_client, "reports a rebuild", rebuilds=lambda count: count >= 1)
    for replica in ("r1", "r2"):
        outcome = CallOutcome(kind="model_unavailable", status=404, id=f"{secrets.token_hex(8)}-1")
        await load.send(replica, Target("p.test", "new"), outcome)
    await assert_converged(nats_client, projector, derived="once")
    after = await told(nats_client)
    assert after[: len(before)] == before
    assert [event["model"] for event in after[len(before) :] if event["type"] == "held"] == ["new"]


async def test_a_log_trimmed_behind_the_position_costs_nothing(nats_client: Client, spawn: Spawn) -> None:
    projector = await live(nats_client, spawn("a"))
    load = Load(nats_client)
    await load.publish(200)
    health = await settled(nats_client, projector)
    digest = health["digest"]
    await api(nats_client, f"STREAM.PURGE.{LOG}", {"seq": 150})
    await load.publish(1)
    health = await settled(nats_client, projector)
    assert health["rebuilds"] == 0 and health["digest"] != digest


async def test_a_log_trimmed_before_it_was_folded_is_a_reported_rebuild(nats_client: Client, spawn: Spawn) -> None:
    """The events are gone: what remains is folded anew, with those acts of operators that the log has lost."""
    projector = await live(nats_client, spawn("a", SNAPSHOT_EVENTS=50))
    scope = Scope("held.test")
    await publish_override(nats_client, scope, "hold", reason="maintenance", actor="ana", for_s=3600)
    load = Load(nats_client)
    await load.publish(100)
    await projector.until(nats_client, "has stored a state", snapshot_seq=lambda seq: seq > 50)
    projector.kill9()
    await load.publish(100)
    await api(nats_client, f"STREAM.PURGE.{LOG}", {"seq": 150})
    projector.start()
    fleet = await assert_converged(nats_client, projector, derived="ordered")
    entry = fleet.entry(scope.key)
    assert entry is not None and [hold.rule for hold in entry.holds] == ["operator"]
    assert fleet.policy.rejections.hold_s == POLICY.rejections.hold_s
    health = await projector.health(nats_client)
    assert health["rebuilds"] == 1 and "events between are gone" in health["last_rebuild"]


async def test_a_sequence_deleted_inside_the_log_is_noted_and_passed(nats_client: Client, spawn: Spawn) -> None:
    projector = await live(nats_client, spawn("a", snapshots=False))
    load = Load(nats_client)
    await load.publish(60)
    await settled(nats_client, projector)
    projector.kill9()
    await load.publish(60)
    for seq in (80, 81, 95):
        await api(nats_client, f"STREAM.MSG.DELETE.{LOG}", {"seq": seq})
    projector.start()
    await assert_converged(nats_client, projector, derived="ordered")
    assert (await projector.health(nats_client))["gaps"] == 3


async def test_a_bucket_deleted_under_it_comes_back(nats_client: Client, spawn: Spawn) -> None:
    projector = await live(nats_client, spawn("a"))
    load = Load(nats_client)
    await publish_override(nats_client, Scope("held.test"), "hold", reason="x", actor="ana", for_s=3600)
    await load.publish(100)
    await settled(nats_client, projector)
    await api(nats_client, f"STREAM.DELETE.{GATE_STREAM}")
    await load.publish(50)
    await assert_converged(nats_client, projector)
    assert "held=2Etest" in await bucket(nats_client)


async def test_what_was_derived_comes_back_when_its_stream_is_deleted(nats_client: Client, spawn: Spawn) -> None:
    projector = await live(nats_client, spawn("a", SNAPSHOT_EVENTS=30))
    load = Load(nats_client)
    await load.publish(100)
    await settled(nats_client, projector)
    assert await told(nats_client)
    await api(nats_client, f"STREAM.DELETE.{TRANSITIONS}")
    await load.publish(50)
    await projector.until(nats_client, "reports a rebuild", rebuilds=lambda count: count >= 1)
    await assert_converged(nats_client, projector)


async def test_what_was_derived_comes_back_when_another_one_made_its_stream_anew(
    nats_client: Client, spawn: Spawn
) -> None:
    """Nobody says so to the writer, and it has nothing more to tell: it looks now and then."""
    projector = await live(nats_client, spawn("a", SNAPSHOT_EVENTS=30, LOOK_EVERY_S=0.2))
    await Load(nats_client).publish(100)
    await settled(nats_client, projector)
    before = [one["id"] for one in await told(nats_client)]
    await api(nats_client, f"STREAM.DELETE.{TRANSITIONS}")
    await ensure(nats_client)
    await projector.until(nats_client, "reports a rebuild", rebuilds=lambda count: count >= 1)
    await assert_converged(nats_client, projector)
    assert [one["id"] for one in await told(nats_client)] == before != []


async def test_a_standby_tells_anew_what_the_writer_said_stands_in_a_stream_that_is_gone(
    nats_client: Client, spawn: Spawn
) -> None:
    """It has dropped what the writer told, started after it or not, and finds the stream empty when it takes over."""
    writer = await live(nats_client, spawn("a", SNAPSHOT_EVENTS=30))
    standby = spawn("b")
    await standby.until(nats_client, "stands by", phase="standby")
    await Load(nats_client).publish(100)
    await settled(nats_client, writer)
    await settled(nats_client, standby)
    before = [one["id"] for one in await told(nats_client)]
    writer.kill9()
    await api(nats_client, f"STREAM.DELETE.{TRANSITIONS}")
    await ensure(nats_client)
    await standby.until(nats_client, "writes, with a state built anew", live=True, rebuilds=lambda count: count >= 1)
    await settled(nats_client, standby)
    assert [one["id"] for one in await told(nats_client)] == before != []


async def test_a_foreign_entry_is_undone_and_a_deleted_one_put_again(nats_client: Client, spawn: Spawn) -> None:
    """The writer follows the view and mends whatever differs from its state."""
    projector = await live(nats_client, spawn("a"))
    await publish_override(nats_client, Scope("held.test"), "hold", reason="x", actor="ana", for_s=3600)
    await settled(nats_client, projector)
    await until(lambda: _stands(nats_client, "held=2Etest"), "the hold stands")
    wrong = (await bucket(nats_client))["held=2Etest"].replace(b"held.test", b"well.test")
    reply = await nats_client.request("$KV.sickbay.gate.well=2Etest", wrong, timeout=patience(2))
    assert "error" not in json.loads(reply.data)
    await nats_client.request("$KV.sickbay.gate.held=2Etest", b"", timeout=patience(2), headers={"KV-Operation": "DEL"})
    await assert_converged(nats_client, projector)
    assert b'"holds"' not in (await bucket(nats_client))["well=2Etest"]
    assert (await projector.health(nats_client))["mends"] >= 2


async def test_a_scope_is_held_again_where_the_broom_has_passed(nats_client: Client, spawn: Spawn) -> None:
    """A marker stands under the key of an entry that ran out; the next put must name its revision."""
    projector = await live(nats_client, spawn("a"))
    scope = Scope("held.test")
    for turn in range(2):
        await publish_override(nats_client, scope, "hold", reason="short", actor="ana", for_s=1)
        await until(lambda: _stands(nats_client, scope.key), "the hold stands")
        await until(lambda: _swept(nats_client, scope.key), "the broom has passed")
        if turn == 0:
            projector.kill9()  # whoever starts finds the marker
            projector.start()
            await projector.until_live(nats_client)
    await publish_override(nats_client, scope, "hold", reason="long", actor="ana", for_s=3600)
    await assert_converged(nats_client, projector)
    assert await _stands(nats_client, scope.key)


async def test_poison_is_noted_redacted_and_passed_the_same_live_and_in_a_replay(
    nats_client: Client, spawn: Spawn
) -> None:
    projector = await live(nats_client, spawn("a"))
    subject = "sickbay.outcome.r1.p=2Etest.=.m1"
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
    for payload in (b"", b"not json", b"{}\n{}", b'{"kind":"nonsense"}', b'{"kind":"ok","took_ms":-1}', b'{"v":9}'):
        await nats_client.request(subject, payload, timeout=patience(2))
    await nats_client.request(subject, json.dumps({"kind": "key " + secret}).encode(), timeout=patience(2))
    await nats_client.request("sickbay.outcome.only", b'{"kind":"ok"}', timeout=patience(2))
    await Load(nats_client).publish(30)
    fleet = await assert_converged(nats_client, projector)
    health = await projector.health(nats_client)
    assert sum(health["poison"].values()) == 8 == sum(fleet.skipped.values())

    async def all_noted() -> list[dict[str, object]] | None:
        letters = [json.loads(e.payload) for e in (await read_entries(nats_client, DEAD, ">")).entries]
        return letters if len(letters) == 8 else None

    letters = await until(all_noted, "eight dead letters")
    assert {"body", "kind", "duration", "version", "subject"} == {letter["reason"] for letter in letters}
    assert secret not in json.dumps(letters)
    assert all(letter["seq"] for letter in letters)
    projector.kill9()
    projector.start()
    await projector.until_live(nats_client)
    await nats_client.request(subject, b"one more", timeout=patience(2))
    await until(lambda: _noted(nats_client, 9), "what was noted once is not noted again")


async def test_dead_letters_can_be_switched_off_and_are_few_a_second(nats_client: Client, spawn: Spawn) -> None:
    projector = await live(nats_client, spawn("a"))
    for _ in range(100):
        await nats_client.publish("sickbay.outcome.r1.p=2Etest.=.m1", b"nothing")
    await projector.until(nats_client, "counts all", poison=lambda counts: counts.get("body") == 100)
    health = await projector.until(nats_client, "notes some", dead_letters=lambda count: count >= 1)
    assert health["dead_letters"] <= 30
    projector.stop()
    silent = await live(nats_client, spawn("b", dead_letters=False))
    noted = health["dead_letters"]
    await nats_client.request("sickbay.outcome.r1.p=2Etest.=.m1", b"nothing", timeout=patience(2))
    await silent.until(nats_client, "counts it", poison=lambda counts: counts.get("body") == 1)
    await settled(nats_client, silent)
    assert len((await read_entries(nats_client, DEAD, ">")).entries) == noted


async def test_the_logs_policy_wins_over_the_file_and_a_change_reaches_the_gates(
    nats_client: Client, spawn: Spawn, tmp_path: object
) -> None:
    projector = await live(nats_client, spawn("a"))
    data = POLICY.to_data()
    data["rejections"]["threshold"] = 5
    await nats_client.request("sickbay.policy", encode(PolicyChanged(policy=data, actor="ana")), timeout=patience(2))
    health = await projector.until(nats_client, "has the new policy", policy_differs=["rejections.threshold"])
    assert health["policy_seq"] > 1
    fleet = await assert_converged(nats_client, projector)
    assert fleet.policy.rejections.threshold == 5


async def test_a_start_goes_on_from_the_newest_snapshot_and_few_are_kept(nats_client: Client, spawn: Spawn) -> None:
    projector = await live(nats_client, spawn("a", SNAPSHOT_EVENTS=40))
    load = Load(nats_client)
    for _ in range(8):
        await load.publish(50)
        await settled(nats_client, projector)
    await projector.until(nats_client, "has stored a state", snapshot_seq=lambda seq: seq > 300)
    found = await until(lambda: _snapshots_of(nats_client), "snapshots are kept")
    # The newest three, and the newest of the hour and of the day are among them.
    assert len(found) <= 4
    metas = await read_entries(nats_client, SNAPSHOTS_STREAM, "$O.sickbay_snapshots.M.>")
    assert len(metas.entries) <= 4, "what was dropped leaves nothing behind"
    projector.kill9()
    projector.start()
    health = await projector.until(nats_client, "has folded the rest", phase=lambda p: p in ("standby", "writing"))
    assert health["folded"] < 200
    await assert_converged(nats_client, projector)


async def test_a_damaged_snapshot_is_passed_over(nats_client: Client, spawn: Spawn) -> None:
    projector = await live(nats_client, spawn("a", SNAPSHOT_EVENTS=40))
    load = Load(nats_client)
    await load.publish(120)
    await projector.until(nats_client, "has stored a state", snapshot_seq=lambda seq: seq > 40)
    await settled(nats_client, projector)
    projector.kill9()
    newest = (await list_snapshots(nats_client))[0]
    await nats_client.request(f"$O.sickbay_snapshots.C.{newest.nuid}", b"junk", timeout=patience(2))
    projector.start()
    await assert_converged(nats_client, projector)


async def test_the_gate_denies_by_the_rules_that_the_log_says(nats_client: Client, spawn: Spawn) -> None:
    """Two rejections of two replicas: the entry stands, says so in its first fields, and the hold is told once."""
    projector = await live(nats_client, spawn("a"))
    target = Target("openrouter.ai", "z-ai/glm-5.3")
    load = Load(nats_client)
    for replica in ("r1", "r2"):
        outcome = CallOutcome(kind="model_unavailable", status=404, id=f"{load.boot['r' + replica[1]]}-1")
        await load.send(replica, target, outcome)
    await assert_converged(nats_client, projector)
    entry = json.loads((await bucket(nats_client))[target.key])
    assert list(entry)[:5] == ["provider", "model", "until", "reason", "holds"]
    events = await told(nats_client)
    assert [event["type"] for event in events] == ["health", "held", "health"]
    fleet, _ = await replay(nats_client)
    assert fleet.entry(target.key) is not None


async def _connected(client: Client) -> bool:
    return client.is_connected and bool(await asyncio.wait_for(client.flush(), patience(1)) or True)


async def _stands(client: Client, key: str) -> bool:
    return key in await bucket(client)


async def _swept(client: Client, key: str) -> bool:
    return key not in await bucket(client)


async def _noted(client: Client, count: int) -> bool:
    return len((await read_entries(client, DEAD, ">")).entries) == count


async def _snapshots_of(client: Client) -> list[object] | None:
    found = await list_snapshots(client)
    return list(found) if 1 <= len(found) <= 4 else None


async def test_a_target_with_something_to_tell_has_a_document(nats_client: Client, spawn: Spawn) -> None:
    """One strike holds nobody, so there is no gate entry; the counters stand all the same."""
    projector = await live(nats_client, spawn("a"))
    target = Target("p.test", "m/1")
    load = Load(nats_client)
    await load.send("r1", target, CallOutcome(kind="ok", id=f"{load.boot['r1']}-1"))
    await load.send("r1", target, CallOutcome(kind="model_unavailable", status=404, id=f"{load.boot['r1']}-2"))

    async def document() -> dict[str, Any] | None:
        entry = await read_entry(nats_client, GATE_STREAM, f"{TARGET_PREFIX}{target.key}")
        return json.loads(entry.payload) if entry is not None else None

    told = await until(document, "the document stands")
    assert (told["evidence"]["strikes"]["points"], told["answers"], told["model"]) == (1, 1, "m/1")
    assert target.key not in await bucket(nats_client)
    await load.send("r2", Target("p.test", "fine"), CallOutcome(kind="ok", id=f"{load.boot['r2']}-1"))
    await settled(nats_client, projector)
    assert await read_entry(nats_client, GATE_STREAM, f"{TARGET_PREFIX}p=2Etest.=.fine") is None


@pytest.mark.parametrize("purged", ["", "gate.>", "gate.held=2Etest"])
async def test_entries_purged_by_hand_come_back(nats_client: Client, spawn: Spawn, purged: str) -> None:
    """No message says that they are gone: neither the writer nor a gate that runs would notice."""
    projector = await live(nats_client, spawn("a"))
    load = Load(nats_client)
    await publish_override(nats_client, Scope("held.test"), "hold", reason="x", actor="ana", for_s=3600)
    await load.publish(60)
    await settled(nats_client, projector)
    await until(lambda: _stands(nats_client, "held=2Etest"), "the hold stands")
    await api(nats_client, f"STREAM.PURGE.{GATE_STREAM}", {"filter": f"$KV.sickbay.{purged}"} if purged else {})
    await until(lambda: _stands(nats_client, "held=2Etest"), "the hold stands again", 60)
    await assert_converged(nats_client, projector)


async def test_the_stream_of_acts_comes_back_when_it_is_deleted(nats_client: Client, spawn: Spawn) -> None:
    """Nothing else happens meanwhile, so that nobody misses it."""
    projector = await live(nats_client, spawn("a"))
    for turn in range(2):
        await api(nats_client, f"STREAM.DELETE.{CONTROL}")
        scope = Scope(f"held{turn}.test")
        await until(lambda: _hold(nats_client, scope), "an act is taken again")  # noqa: B023
        await until(lambda: _stands(nats_client, scope.key), "and it is in force")  # noqa: B023
    await assert_converged(nats_client, projector)


async def test_acts_that_the_log_gets_again_change_nothing(nats_client: Client, spawn: Spawn) -> None:
    """As after a restore: the log sources a control stream that was made anew, with the same acts in it."""
    projector = await live(nats_client, spawn("a"))
    target = Target("h.test", "m")
    await publish_override(nats_client, target.scope, "clear", reason="last week", actor="ana")
    for action in ("allow", "clear"):
        for_s = 3600 if action == "allow" else None
        await publish_override(nats_client, Scope("b.test"), action, reason="b", actor="ana", for_s=for_s)
    stored = await _control(nats_client)
    js = nats_client.jetstream()
    for replica in ("r1", "r2"):
        body = encode(CallOutcome(kind="model_unavailable", status=404, took_ms=1))
        await js.publish(f"sickbay.outcome.{replica}.{target.key}", body)
    await until(lambda: _stands(nats_client, target.key), "it is held")
    at = await JetStreamApi(nats_client, timeout_s=patience(5)).stream_at(LOG)
    await api(nats_client, f"STREAM.DELETE.{CONTROL}")
    await ensure(nats_client)
    for subject, payload in stored:
        await js.publish(subject, payload)
    await projector.until(nats_client, "has folded the acts again", seq=lambda seq: seq >= at.last_seq + len(stored))
    assert (await JetStreamApi(nats_client, timeout_s=patience(5)).stream_at(LOG)).last_seq > at.last_seq
    assert await _stands(nats_client, target.key), "an old clear must not release it"
    await assert_converged(nats_client, projector)
    assert await _stands(nats_client, target.key)


async def _control(client: Client) -> list[tuple[str, bytes]]:
    request = JetStreamApi(client, timeout_s=patience(5))
    found = []
    for seq in range(1, (await request.stream_at(CONTROL)).last_seq + 1):
        message = await request.message_at(CONTROL, seq)
        assert message is not None
        found.append((message.subject, message.payload))
    return found


async def _hold(client: Client, scope: Scope) -> bool:
    await publish_override(client, scope, "hold", reason="x", actor="ana", for_s=3600)
    return True
