"""Another version beside the running one: its own bucket and view, nothing told, caught up, switched by the name."""

from __future__ import annotations

import asyncio
import base64
import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

import sickbay
from cli_runs import sickbay as command
from cli_runs import sickbay_process
from nats_servers import NatsServer
from past_rig import TARGETS, api, fleet_of, history, services, settled
from sickbay.bus.topology import CONTROL, TRANSITIONS, streams
from sickbay.bus.view_names import MAIN, view_names
from sickbay.control.acts import publish_outcome
from sickbay.invalid import InvalidValue
from sickbay.log import snapshots
from sickbay.projector import loop, maintenance
from sickbay.replay.compare_views import compare_views
from sickbay.replay.verify import verify
from sickbay.service.services import Services
from sickbay_events import CallOutcome, Target
from waiting import patience, until

NEXT = view_names("next")
LENIENT = "[rejections]\nthreshold = 5\n"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks as often as a history of a hundred events wants them."""
    monkeypatch.setattr(loop, "MARK_EVERY", 16)


async def rejected(client: Client, target: Target, times: int = 2) -> None:
    for n in range(times):
        await publish_outcome(client, target, CallOutcome(kind="model_unavailable", status=404), replica=f"r{n}")


async def last_seq(client: Client, stream: str) -> int:
    return int((await api(client, f"STREAM.INFO.{stream}"))["state"]["last_seq"])


async def caught_up(one: Services, other: Services) -> None:
    """Wait until both have folded and written the same."""

    def same() -> bool:
        pair = [running.projector for running in (one, other)]
        assert pair[0] is not None and pair[1] is not None
        seen = [p.state.view.checkpoint for p in pair if p is not None]
        return all(s is not None and s.seq == pair[0].seq and s.live for s in seen) and pair[0].seq == pair[1].seq

    await until(same, "both have folded and written the same")


async def test_it_writes_its_own_view_tells_nothing_and_agrees(nats_server: NatsServer, nats_client: Client) -> None:
    """Beside the running services: the same digests at one sequence, the same entries, no derived event twice, no
    dead letter twice, no answer from it; and each view follows from the log."""
    async with services(nats_server.url) as running:
        await history(nats_client, 1, 100)
        await settled(nats_client, running)
        told, control = await last_seq(nats_client, TRANSITIONS), await last_seq(nats_client, CONTROL)
        dead = await last_seq(nats_client, "SICKBAY_DEAD")
        assert told > 0 and dead > 0
        async with services(nats_server.url, "other", beside="next") as beside:
            await caught_up(running, beside)
            assert fleet_of(beside).digest() == fleet_of(running).digest()
            found = await compare_views(nats_client, MAIN, NEXT)
            assert found.ok and found.digests_equal is True and found.digest_seq >= 96 and found.entries > 0
            instances = [
                json.loads((await nats_client.request("$SRV.INFO.sickbay", timeout=patience(2))).data)["metadata"]
            ]
            assert [one["instance"] for one in instances] == ["box"]
            assert (await verify(nats_client, names=NEXT, is_beside=True)).ok
            await rejected(nats_client, Target("new", "m"))
            await settled(nats_client, running)
            await caught_up(running, beside)
            now = await last_seq(nats_client, TRANSITIONS)
            assert fleet_of(beside).digest() == fleet_of(running).digest()
        assert (await last_seq(nats_client, TRANSITIONS), await last_seq(nats_client, CONTROL)) == (now, control)
        assert await last_seq(nats_client, "SICKBAY_DEAD") == dead and now > told
        done = await asyncio.to_thread(command, "verify", "--beside", "next", "--nats", nats_server.url)
        assert done.returncode == 0 and "are equal" in done.stdout, done.stdout + done.stderr


async def test_another_policy_beside_holds_by_its_own(
    nats_server: NatsServer, nats_client: Client, tmp_path: Path
) -> None:
    """A policy given to the one beside counts in the place of the log's, also of one set later; what differs between
    the views is listed; it verifies under its own policy; and it is never the log's."""
    policy = tmp_path / "lenient.toml"
    policy.write_text(LENIENT, encoding="utf-8")
    target = TARGETS[0]
    async with (
        services(nats_server.url) as running,
        services(nats_server.url, "other", beside="next", policy=str(policy)) as beside,
    ):
        await rejected(nats_client, target)
        await settled(nats_client, running)
        await caught_up(running, beside)
        at_ms = fleet_of(running).time_ms
        assert not fleet_of(running).decide(target, at_ms).allowed and fleet_of(beside).decide(target, at_ms).allowed
        found = await compare_views(nats_client, MAIN, NEXT)
        assert [one.key for one in found.differences] == [f"gate.{target.key}"] and found.digests_equal is None
        set_to = tmp_path / "set.toml"
        set_to.write_text("[rejections]\nthreshold = 3\n", encoding="utf-8")
        done = await asyncio.to_thread(
            command,
            "policy",
            "set",
            str(set_to),
            "--expect",
            "0",
            "--reason",
            "x",
            "--actor",
            "a",
            "--nats",
            nats_server.url,
        )
        assert done.returncode == 0, done.stderr
        await settled(nats_client, running)
        await caught_up(running, beside)
        thresholds = [fleet_of(one).policy.rejections.threshold for one in (running, beside)]
        assert thresholds == [3, 5]
        own = await verify(nats_client, names=NEXT, is_beside=True)
        assert own.ok and (await verify(nats_client)).ok
        assert own.digest == fleet_of(beside).digest() != fleet_of(running).digest()


async def test_routers_follow_the_named_view_and_switch_back(
    nats_server: NatsServer, nats_client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SICKBAY_VIEW is the switch: a router under it sees the other view's holds, one without it those of the first."""
    policy = tmp_path / "lenient.toml"
    policy.write_text(LENIENT, encoding="utf-8")
    target = TARGETS[0]

    async def allowed(view: str) -> bool:
        monkeypatch.setenv("SICKBAY_VIEW", view)
        async with sickbay.connect(nats_server.url, replica=f"router-{view}") as sb:
            assert await sb.ready(patience(5))
            return sb.decide(target).allowed

    async with (
        services(nats_server.url) as running,
        services(nats_server.url, "other", beside="next", policy=str(policy)) as beside,
    ):
        await rejected(nats_client, target)
        await settled(nats_client, running)
        await caught_up(running, beside)
        assert [await allowed(view) for view in ("", "next", "")] == [False, True, False]


async def test_the_services_switch_by_the_name_and_nothing_is_told_twice_or_lost(
    nats_server: NatsServer, nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the running ones are stopped, services under the other name tell what came since, in order and once, though
    a snapshot of the one beside lies behind it; and back again."""
    monkeypatch.setattr(maintenance, "SNAPSHOT_EVENTS", 10)

    async def causes() -> list[int]:
        found: list[int] = []
        for seq in range(1, await last_seq(nats_client, TRANSITIONS) + 1):
            message = await api(nats_client, f"STREAM.MSG.GET.{TRANSITIONS}", {"seq": seq})
            body: dict[str, Any] = json.loads(base64.b64decode(message["message"]["data"]))
            if body["type"] == "held":
                found.append(body["cause_seq"])
        return found

    async def told(count: int) -> bool:
        return len(await causes()) >= count

    async def kept() -> bool:
        return any(found.info.seq > 4 for found in await snapshots.list_snapshots(nats_client, NEXT))

    async with services(nats_server.url, "other", beside="next") as beside:
        async with services(nats_server.url) as running:
            await rejected(nats_client, Target("a", "m"))
            await settled(nats_client, running)
        # Nobody tells; the one beside folds on, and stores a state behind it.
        await rejected(nats_client, Target("b", "m"))
        for n in range(12):
            await publish_outcome(nats_client, Target("c", "m"), CallOutcome(kind="ok"), replica=f"r{n % 2}")
        await settled(nats_client, beside)
        await until(kept, "a state behind it is stored")
        assert await causes() == [2]
    async with services(nats_server.url, "other", view="next") as switched:
        await settled(nats_client, switched)
        await until(partial(told, 2), "it is told")
        await rejected(nats_client, Target("d", "m"))
        last = await settled(nats_client, switched)
    async with services(nats_server.url) as back:
        await settled(nats_client, back)
        await rejected(nats_client, Target("e", "m"))
        await settled(nats_client, back)
        await until(partial(told, 4), "all is told")
    assert await causes() == [2, 4, last, last + 2]


def test_names_of_views() -> None:
    """Without a name everything is as it always was; with one, bucket, subjects and snapshots are its own."""
    assert (MAIN.stream, MAIN.gate_prefix, MAIN.view_prefix) == ("KV_sickbay", "$KV.sickbay.gate.", "sickbay.view.")
    assert (NEXT.stream, NEXT.view_prefix) == ("KV_sickbay-next", "sickbay.views.next.")
    assert not NEXT.view_prefix.startswith(MAIN.view_prefix), "who follows the fleet's view must not hear it"
    differing = [
        (one["name"], other["name"]) for one, other in zip(streams(), streams(view=NEXT), strict=True) if one != other
    ]
    assert differing == [("KV_sickbay", "KV_sickbay-next"), ("OBJ_sickbay_snapshots", "OBJ_sickbay_snapshots-next")]
    for name in ("a b", "a.b", "-a", "x" * 33, "*", ">"):
        with pytest.raises(InvalidValue):
            view_names(name)


async def test_beside_nothing_is_refused(tmp_path: Path) -> None:
    """Without a server named and none in the folder there is nothing to be beside; a bad name is a usage error."""
    done = await asyncio.to_thread(
        sickbay_process, "serve", "--beside", "next", "--data", str(tmp_path), "--http", "off"
    )
    assert done.returncode == 1 and "nothing to be beside" in done.stderr
    done = await asyncio.to_thread(command, "verify", "--view", "a.b", "--nats", "nats://127.0.0.1:1")
    assert done.returncode == 2 and "view: 'a.b' is not accepted" in done.stderr


def test_snapshots_of_another_kind_do_not_push_each_other_out() -> None:
    """Three newest, hourly and daily are kept for each fold version, log and pinned policy by itself."""
    now_ms = 1_800_000_000_000

    def found(age_s: float, fold: int = 1, pinned: str = "") -> snapshots.StoredSnapshot:
        info = snapshots.SnapshotInfo(
            seq=int(10_000_000 - age_s), time_ms=int(now_ms - age_s * 1000), time_ns=0, fold=fold, policy_seq=0,
            digest="", log_created="x", mark=0, compression="zlib", size=1, pinned=pinned,
        )  # fmt: skip
        return snapshots.StoredSnapshot(info, f"{fold}/{pinned}/{age_s}", "", "")

    ages = (
        [30.0 * n for n in range(400)] + [3_600.0 * n for n in range(4, 24 * 9)] + [86_400.0 * n for n in range(9, 100)]
    )
    one = [found(age) for age in ages]
    two = [found(age + 1, fold=2) for age in ages]
    everything = sorted([*one, *two], key=lambda each: -each.info.time_ms)
    gone = {each.name for each in snapshots.to_drop(everything, now_ms)}
    alone = {each.name for each in snapshots.to_drop(one, now_ms)}
    assert {name for name in gone if name.startswith("1/")} == alone
    kept = [age for age in ages if f"1//{age}" not in gone]
    assert kept[:3] == [0.0, 30.0, 60.0]
    week = [age for age in kept if 3 * 3_600 < age < 7 * 86_400 - 3_600]
    gaps = [b - a for a, b in pairwise(week)]
    assert max(gaps) <= 2 * 3_600 and len(week) > 160, "one an hour for a week"
    quarter = [age for age in kept if 8 * 86_400 < age < 89 * 86_400]
    assert 80 <= len(quarter) <= 83 and max(kept) < 90 * 86_400, "one a day for 90 days"
