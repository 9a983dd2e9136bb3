"""Through every outage: acknowledged and lost = 0, stored twice = 0, and `queued_ms` is true."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from nats_servers import NatsServer, free_port
from reporter_rig import Hole, Replica, check_once, prepare, publishing, read_log
from sickbay.router.in_flight import SILENCE_S, TICK_S
from sickbay.router.outbox import WINDOW
from waiting import patience, until

OUTAGE_S = 4.0
"""Longer than each limit by which the reporter and its connection notice silence."""
Runner = Callable[[Coroutine[Any, Any, None]], None]

both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def true_within_s() -> float:
    """`queued_ms` is said at the sending; the rest of the way takes milliseconds on a quiet machine."""
    return patience(0.35)


async def finish(replica: Replica) -> None:
    left = await replica.reporter.close(15)
    assert not left, left
    counts = replica.reporter.counts
    assert counts.acked == counts.recorded == len(replica.recorded_at)
    assert not counts.dropped and not counts.given_up and not counts.rejected


@both_loops
def test_a_killed_server_loses_and_doubles_nothing(run: Runner) -> None:
    async def main() -> None:
        with NatsServer() as server:
            await prepare(server.url)
            async with publishing(server.url, capacity=20_000) as replica:
                async with replica.busy(per_s=2000):
                    await until(lambda: len(replica.acked) > 1000)
                    for outage_s in (0.2, OUTAGE_S, 0.0):
                        # A burst puts hundreds on their way; the kill comes in the middle of them.
                        for _ in range(WINDOW):
                            replica.record()
                        await until(lambda: replica.reporter.counts.unacknowledged > 0)
                        server.kill9()
                        await asyncio.sleep(outage_s)
                        assert len(replica.acked) < len(replica.recorded_at)
                        server.restart()
                await finish(replica)
                # The kill came while events were on their way, else the test would prove little.
                assert replica.reporter.counts.resent > 0
            stored = await read_log(server.url)
            check_once(replica, stored)
            assert max(replica.stale(message) for message in stored) < true_within_s()
            waited = [message.body.get("queued_ms", 0) for message in stored]
            assert max(waited) > (OUTAGE_S - 1) * 1000

    run(main())


def test_a_stopped_server_gets_nothing_twice_and_little_with_too_short_a_wait() -> None:
    """Only what was sent in the first second says too short a wait: written before the silence was noticed, it lies in
    the server's socket and is true as of its sending."""

    async def main() -> None:
        with NatsServer() as server:
            await prepare(server.url)
            async with publishing(server.url, capacity=20_000) as replica:
                async with replica.busy(per_s=500):
                    await until(lambda: len(replica.acked) > 200)
                    paused_at, before = time.time(), len(replica.acked)
                    server.pause()
                    await asyncio.sleep(OUTAGE_S)
                    server.resume()
                    await until(lambda: len(replica.acked) > before + 500)
                await finish(replica)
            stored = await read_log(server.url)
            check_once(replica, stored)
            blind_s = SILENCE_S + TICK_S + true_within_s()
            for message in stored:
                recorded_s = replica.recorded_at[message.n] - paused_at
                if not -true_within_s() < recorded_s < blind_s:
                    assert replica.stale(message) < true_within_s(), (recorded_s, message)

    uvloop.run(main())


@pytest.mark.parametrize(("run", "cut"), [(asyncio.run, False), (uvloop.run, True)], ids=["comes back", "breaks"])
def test_a_network_that_swallows_everything_loses_and_doubles_nothing(run: Runner, cut: bool) -> None:
    async def main() -> None:
        with NatsServer() as server:
            await prepare(server.url)
            hole = Hole(server.port)
            await hole.start()
            async with publishing(hole.url, capacity=20_000) as replica:
                async with replica.busy(per_s=500):
                    await until(lambda: len(replica.acked) > 200)
                    hole.swallow()
                    await asyncio.sleep(OUTAGE_S)
                    assert replica.reporter.counts.unacknowledged <= WINDOW
                    before = len(replica.acked)
                    hole.heal(cut=cut)
                    await until(lambda: len(replica.acked) > before + 500)
                await finish(replica)
            await hole.stop()
            check_once(replica, await read_log(server.url))

    run(main())


@both_loops
def test_what_was_recorded_before_any_server_was_there_arrives_with_its_true_wait(run: Runner) -> None:
    async def main() -> None:
        server = NatsServer(port=free_port())
        async with publishing(server.url) as replica:
            for _ in range(300):
                replica.record()
            await asyncio.sleep(1.5)
            assert replica.reporter.counts.queued == 300
            try:
                server.start()
                await prepare(server.url)
                await finish(replica)
                stored = await read_log(server.url)
            finally:
                server.stop()
        check_once(replica, stored)
        assert min(message.body["queued_ms"] for message in stored) >= 1500
        assert max(replica.stale(message) for message in stored) < true_within_s()
        assert [message.n for message in stored] == list(range(1, 301)), "first recorded, first in the log"

    run(main())


async def test_without_a_server_close_keeps_its_limit_and_says_what_is_left() -> None:
    async with publishing(f"nats://127.0.0.1:{free_port()}") as replica:
        for _ in range(50):
            replica.record()
        began = time.monotonic()
        left = await replica.reporter.close(0.3)
        assert time.monotonic() - began < patience(0.8)
        assert left.by_kind == {"ok": 20, "model_unavailable": 10, "server_error": 10, "rate_limited": 10}
        assert (left.total, left.unacknowledged, bool(left)) == (50, 0, True)
        assert await replica.reporter.close(5) == left, "a second close says the same, at once"


async def test_close_during_an_outage_tells_apart_what_was_sent_and_may_have_arrived(nats_server: NatsServer) -> None:
    await prepare(nats_server.url)
    async with publishing(nats_server.url) as replica:
        replica.record()
        await until(lambda: len(replica.acked) == 1)
        nats_server.pause()
        for _ in range(5):
            replica.record("timeout")
        await asyncio.sleep(0.05)
        left = await replica.reporter.close(0.2)
        nats_server.resume()
        assert (left.by_kind, left.unacknowledged) == ({"timeout": 5}, 5)


async def test_a_client_that_closed_for_good_is_replaced_and_the_reporter_goes_on(nats_server: NatsServer) -> None:
    """nats-py closes for ever on most errors of a server; the link makes a new client, which needs a new inbox."""
    await prepare(nats_server.url)
    async with publishing(nats_server.url) as replica:
        for _ in range(3):
            client = await replica.link.wait_connected(patience(5))
            before = len(replica.acked)
            async with replica.busy(per_s=500):
                await until(lambda before=before: len(replica.acked) > before)  # type: ignore[misc]
                await client.close()
                await until(lambda before=before: len(replica.acked) > before + 100)  # type: ignore[misc]
        await finish(replica)
    check_once(replica, await read_log(nats_server.url))


async def test_a_log_without_a_leader_for_a_while_loses_and_doubles_nothing(nats_cluster: Any) -> None:
    """SIGKILL of the server that leads the stream, in a cluster of three."""
    from sickbay.bus.connect import connect_client
    from sickbay.bus.topology import LOG, StreamLimits, ensure

    client = await connect_client(nats_cluster.url)
    await ensure(client, StreamLimits(replicas=3))
    info = await client.jetstream().stream_info(LOG)
    leader = next(server for server in nats_cluster.servers if server.name == info.cluster.leader)  # type: ignore[union-attr]
    await client.close()
    async with publishing(nats_cluster.url, capacity=40_000) as replica:
        async with replica.busy(per_s=1000):
            await until(lambda: len(replica.acked) > 500)
            leader.kill9()
            before = len(replica.acked)
            await until(lambda: len(replica.acked) > before + 1500, "another server leads", within_s=30)
        await finish(replica)
    check_once(replica, await read_log(next(s.url for s in nats_cluster.servers if s is not leader)))
