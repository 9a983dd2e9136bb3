"""Projectors killed, doubled, paused; servers killed: in the end the state, the view and the transitions are exact."""

from __future__ import annotations

import asyncio
import random
import signal

from nats.aio.client import Client

from nats_servers import NatsServer
from projector_processes import Spawn, assert_converged, under_load
from sickbay.bus.topology import ensure
from waiting import patience, until


async def test_a_projector_killed_at_random_points_loses_and_repeats_nothing(
    nats_server: NatsServer, nats_client: Client, spawn: Spawn
) -> None:
    await ensure(nats_client)
    dice = random.Random(7)
    projector = spawn("a", SNAPSHOT_EVENTS=100)
    await projector.until(nats_client, "has the policy of the log", policy_seq=1)
    async with under_load(nats_client, 7) as load:
        for turn in range(6):
            before = load.acked
            await until(lambda before=before: _true(load.acked > before + 100), "the load flows")  # type: ignore[misc]
            if turn % 2:
                await projector.until_live(nats_client)
            await asyncio.sleep(dice.uniform(0.05, 1.0))  # where the kill falls is the point of this test
            projector.kill9()
            projector.start()
    fleet = await assert_converged(nats_client, projector)
    assert fleet.seq >= 600


async def test_two_and_three_at_once_write_as_one(nats_client: Client, spawn: Spawn) -> None:
    await ensure(nats_client)
    dice = random.Random(11)
    projectors = [spawn(name, SNAPSHOT_EVENTS=200) for name in ("a", "b", "c")]
    await projectors[0].until(nats_client, "has the policy of the log", policy_seq=1)
    async with under_load(nats_client, 11):
        for turn in range(4):
            await asyncio.sleep(dice.uniform(0.1, 1.0))
            victim = projectors[turn % 3]
            victim.kill9()
            victim.start()
    await assert_converged(nats_client, *projectors)


async def test_a_standby_takes_over_and_what_it_kept_is_told_once(nats_client: Client, spawn: Spawn) -> None:
    await ensure(nats_client)
    first = spawn("a")
    await first.until(nats_client, "has the policy of the log", policy_seq=1, live=True)
    second = spawn("b")
    await second.until(nats_client, "stands by", phase="standby")
    async with under_load(nats_client, 3) as load:
        await until(lambda: _true(load.acked > 300), "the load flows")
        first.kill9()
        health = await second.until_live(nats_client)
    assert health["is_writer"]
    await assert_converged(nats_client, second)


async def test_a_projector_that_slept_through_holds_and_wakes_changes_nothing_that_lasts(
    nats_client: Client, spawn: Spawn
) -> None:
    await ensure(nats_client)
    first = spawn("a")
    await first.until(nats_client, "has the policy of the log", policy_seq=1, live=True)
    second = spawn("b")
    await second.until(nats_client, "stands by", phase="standby")
    async with under_load(nats_client, 5) as load:
        for turn in range(2):
            sleeper, successor = (first, second) if turn % 2 == 0 else (second, first)
            await until(lambda turn=turn: _true(load.acked > 200 * (turn + 1)), "the load flows")  # type: ignore[misc]
            sleeper.signal(signal.SIGSTOP)
            await successor.until_live(nats_client)
            began = load.acked
            await until(lambda began=began: _true(load.acked > began + 300), "holds begin and end")  # type: ignore[misc]
            sleeper.signal(signal.SIGCONT)
            await sleeper.until(nats_client, "knows that it does not write", is_writer=False)
    await assert_converged(nats_client, first, second)


async def test_a_server_killed_under_load_costs_nothing(
    nats_server: NatsServer, nats_client: Client, spawn: Spawn
) -> None:
    await ensure(nats_client)
    projectors = [spawn("a", SNAPSHOT_EVENTS=100), spawn("b")]
    await projectors[0].until(nats_client, "has the policy of the log", policy_seq=1)
    async with under_load(nats_client, 13) as load:
        for turn in range(3):
            await until(lambda turn=turn: _true(load.acked > 150 * (turn + 1)), "the load flows")  # type: ignore[misc]
            nats_server.kill9()
            nats_server.restart()
    await assert_converged(nats_client, *projectors)


async def test_a_standby_whose_state_differs_reloads_and_takes_over_only_then(
    nats_client: Client, spawn: Spawn
) -> None:
    """The digests of writer and standby are compared at common multiples."""
    await ensure(nats_client)
    first = spawn("a", MARK_EVERY=64, SNAPSHOT_EVENTS=50)
    await first.until(nats_client, "has the policy of the log", policy_seq=1, live=True)
    second = spawn("b", MARK_EVERY=64, SNAPSHOT_EVENTS=50)
    await second.until(nats_client, "stands by", phase="standby")
    await nats_client.request("test.spoil.b", timeout=patience(2))
    async with under_load(nats_client, 17):
        health = await second.until(nats_client, "reports that it differs", rebuilds=lambda count: count >= 1)
        assert "differs from the writer's" in health["last_rebuild"]
        first.kill9()
        await second.until_live(nats_client)
    await assert_converged(nats_client, second)


async def test_a_server_that_stands_still_lets_nobody_write_on_an_old_claim(
    nats_server: NatsServer, nats_client: Client, spawn: Spawn
) -> None:
    """Nothing answers for four seconds: whoever wrote claims again, whoever stood by takes over; not both."""
    await ensure(nats_client)
    projectors = [spawn("a"), spawn("b")]
    await projectors[0].until(nats_client, "has the policy of the log", policy_seq=1)
    async with under_load(nats_client, 19) as load:
        await until(lambda: _true(load.acked > 100), "the load flows")
        nats_server.pause()
        await asyncio.sleep(4)  # longer than a lease and than the silence after which a standby claims
        nats_server.resume()
        before = load.acked
        await until(lambda: _true(load.acked > before + 200), "the load flows again")
    await assert_converged(nats_client, *projectors)


async def _true(value: bool) -> bool:
    return value
