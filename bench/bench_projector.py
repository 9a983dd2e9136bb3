"""The projector against a real nats-server: live fold, publish to deny, start.

Every party is a process of its own, as in production: publisher, projector(s), and four routers whose gates say
when they deny. All share the cores of this machine.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import sickbay
from nats_servers import NatsServer
from rows import Row, median, percentile, print_rows
from sickbay.bus.bulk import Item, subscribe_bulk
from sickbay.bus.connect import NatsOptions, connect_client
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.link import Link
from sickbay.bus.topology import LOG, ensure
from sickbay.bus.write import hpub, write_now
from sickbay.cli.running import collect_seldom
from sickbay.projector import Projector
from sickbay_events import CallOutcome, Scope, Target, encode, outcome_subject

HOST = "bench.test"
REPLICAS = 4
"""Parties start anew rather than fork: an event loop and a NATS client do not survive a fork."""
SPAWN = multiprocessing.get_context("spawn")


def _uvloop_run(work: Callable[[], Awaitable[None]]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work())  # type: ignore[arg-type]
    else:
        uvloop.run(work())  # type: ignore[arg-type]


def run_projector(url: str, name: str) -> None:
    """One projector, answering `bench.projector.<name>` with its health, until it is terminated."""

    async def work() -> None:
        link = Link(NatsOptions.from_url(url))
        link.start()
        projector = Projector(link, name=name)
        client = await link.wait_connected()
        collect_seldom()  # as `sickbay serve` does

        async def answer(message: Any) -> None:
            live = projector.is_writer and projector.state.is_live
            health = {**msgspec.to_builtins(projector.health()), "live": live, "cpu_s": sum(os.times()[:2])}
            await message.respond(json.dumps(health).encode())

        await client.subscribe(f"bench.projector.{name}", cb=answer)
        await projector.run()

    _uvloop_run(work)


def run_replica(url: str, name: str, pipe: Any) -> None:
    """A router's replica: notes when its gate first denies a dead model, on the machine's monotonic clock."""

    async def work() -> None:
        async with sickbay.connect(url, replica=name) as router:
            await router.ready(30)
            seen: dict[str, float] = {}

            def on_change(key: str, _old: object, _new: object) -> None:
                scope = Scope.of_key(key)
                if key in seen or scope.model is None or not scope.model.startswith("dead-"):
                    return
                if not router.decide(Target(scope.provider, scope.model)).allowed:
                    seen[key] = time.monotonic()

            router.mirror.listen(changed=on_change)
            pipe.send("ready")
            while not pipe.poll():
                await asyncio.sleep(0.05)
            pipe.recv()
            pipe.send(seen)

    _uvloop_run(work)


class Replicas:
    """Four routers, each in a process of its own."""

    def __init__(self, url: str) -> None:
        pipes = [SPAWN.Pipe() for _ in range(REPLICAS)]
        self.ours = [ours for ours, _ in pipes]
        self.processes = [
            SPAWN.Process(target=run_replica, args=(url, f"bench-{n}", theirs)) for n, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()

    async def heard(self) -> list[Any]:
        """What each says next."""
        for pipe in self.ours:
            while not pipe.poll():
                await asyncio.sleep(0.01)
        return [pipe.recv() for pipe in self.ours]

    async def denied(self) -> list[dict[str, float]]:
        """When each denied what, and the end of them."""
        for pipe in self.ours:
            pipe.send("done")
        return await self.heard()

    def end(self) -> None:
        for process in self.processes:
            process.join(5)
            process.terminate()


async def health(client: Client, name: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads((await client.request(f"bench.projector.{name}", timeout=5)).data)
    except nats.errors.Error:
        return {}
    return answer


async def until(condition: Callable[[], Awaitable[bool]], deadline_s: float = 60.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not await condition():
        if time.monotonic() > end_s:
            raise TimeoutError("the bench waits for something that does not come")
        await asyncio.sleep(0.02)


class Publisher:
    """Outcomes straight to the socket, many at once; acknowledgements are counted in bulk."""

    def __init__(self, client: Client, targets: int) -> None:
        self.client = client
        self.targets = targets
        # One replica may bring 2,000 new targets an hour (Rule 4.8), and a fleet here has at least four.
        self.replicas = max(4, targets // 1_500 + 1)
        self.run = secrets.token_hex(3)
        self.boots = [secrets.token_hex(8) for _ in range(self.replicas)]
        self.sent = 0
        self.acked = 0

    async def open(self) -> None:
        self.inbox = self.client.new_inbox().encode()

        def on_items(items: list[Item]) -> None:
            self.acked += len(items)

        await subscribe_bulk(self.client, self.inbox.decode(), on_items)
        await self.client.flush()  # what is written past the client's buffer must not overtake it

    def good(self, number: int) -> bytes:
        """A good answer of one of the targets; each target is one replica's."""
        target = number % self.targets
        return self.message(target % self.replicas, f"model-{target}")

    def message(self, replica: int, model: str, **fields: Any) -> bytes:
        self.sent += 1
        fields = {"kind": "ok", "status": 200, "took_ms": 812, "ttft_ms": 240, "limit_ms": 60_000, **fields}
        outcome = CallOutcome(id=f"{self.boots[replica]}-{self.sent}", **fields)
        subject = outcome_subject(f"r{replica}-{self.run}", Target(HOST, model))
        return hpub(subject, self.inbox, {"Nats-Msg-Id": str(outcome.id)}, encode(outcome))

    async def flood(self, count: int, *, in_flight: int = 5_000) -> None:
        """`count` good answers, as fast as the server acknowledges them."""
        while count > 0:
            part = min(250, count)
            data = b"".join([self.good(self.sent) for _ in range(part)])
            write_now(self.client, data)
            count -= part
            while self.sent - self.acked > in_flight:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)


async def live_fold(url: str, *, targets: int, rate: int, seconds: float) -> list[Row]:
    """A paced flow: the projector must keep up; and a flood: how fast it folds with everybody on these cores."""
    client = await connect_client(url)
    publisher = Publisher(client, targets)
    await publisher.open()
    began_s, count = time.monotonic(), 0
    lags: list[int] = []
    cpu_s = (await health(client, "a"))["cpu_s"]
    while (passed_s := time.monotonic() - began_s) < seconds:
        due = int(passed_s * rate) - count
        if due > 0:
            await publisher.flood(due, in_flight=1 << 30)
            count += due
        if count // (rate // 4) > len(lags):
            lags.append(int((await health(client, "a"))["lag"]))
        await asyncio.sleep(0.001)
    sent = publisher.sent
    await until(lambda: _all_folded(client, publisher))
    wall_s = time.monotonic() - began_s
    used_s = (await health(client, "a"))["cpu_s"] - cpu_s
    await client.close()
    note = f"{1e6 * used_s / sent:.1f} us CPU an event, at most {max(lags)} events behind"
    return [Row(f"live fold, {targets:,} targets", sent / wall_s, "events/s", 20_000, note, "higher")]


async def publish_to_deny(url: str, *, targets: int, rate: int, holds: int) -> tuple[list[list[float]], float]:
    """Milliseconds from the publish of the deciding rejection to the denial by each other replica's gate, for each
    hold that all of them denied; and those of a bare hop."""
    replicas = Replicas(url)
    try:
        await replicas.heard()
        client = await connect_client(url)
        publisher = Publisher(client, targets)
        await publisher.open()
        await publisher.flood(targets)
        await until(lambda: _all_folded(client, publisher))
        published = await _holds_amid_answers(client, publisher, rate=rate, holds=holds)
        await asyncio.sleep(0.5)
        hop_ms = await _bare_hop_ms(client)
        seen = await replicas.denied()
        await client.close()
        whole = [key for key in published if all(key in one for one in seen)]
        return [[1000 * (one[key] - published[key]) for one in seen] for key in whole], hop_ms
    finally:
        replicas.end()


async def _holds_amid_answers(client: Client, publisher: Publisher, *, rate: int, holds: int) -> dict[str, float]:
    """Good answers at a steady rate, and among them the two rejections of fifty dead models a second; when the
    second one of each was published."""
    published: dict[str, float] = {}
    began_s, count, every = time.monotonic(), 0, rate // 50
    while len(published) < holds:
        due = int((time.monotonic() - began_s) * rate) - count
        for _ in range(max(0, due)):
            count += 1
            if count % every:
                write_now(client, publisher.good(count))
                continue
            bad = {"kind": "model_unavailable", "status": 404}
            model = f"dead-{publisher.run}-{len(published)}"
            write_now(client, publisher.message(0, model, **bad))
            await asyncio.sleep(0.002)  # the first rejection is behind us
            published[Target(HOST, model).key] = time.monotonic()
            write_now(client, publisher.message(1, model, **bad))
        await asyncio.sleep(0.0005)
    return published


async def _all_folded(client: Client, publisher: Publisher) -> bool:
    """All that this publisher sent is in the log and nothing there waits for the projector."""
    last_seq = (await JetStreamApi(client, timeout_s=2).stream_at(LOG)).last_seq
    return publisher.acked == publisher.sent and (await health(client, "a")).get("seq") == last_seq


async def _bare_hop_ms(client: Client) -> float:
    """A publish-subscribe hop between two processes, half of an echo's round trip in the same run."""
    times: list[float] = []
    for _ in range(200):
        began_s = time.perf_counter()
        await client.request("bench.projector.a", timeout=2)
        times.append(1000 * (time.perf_counter() - began_s) / 2)
    return median(times)


def measure(quick: bool) -> list[Row]:
    """The rows of the budget table that are the projector's."""
    return asyncio.run(_measure(quick=quick))


async def _measure(*, quick: bool) -> list[Row]:
    rows: list[Row] = []
    with NatsServer() as server:
        client = await connect_client(server.url)
        await ensure(client)
        projectors = [SPAWN.Process(target=run_projector, args=(server.url, "a"))]
        projectors[0].start()

        async def live() -> bool:
            return bool((await health(client, "a")).get("live"))

        try:
            await until(live)
            holds = 100 if quick else 300
            base = 0.0
            for targets, standby in ((1_000, False), (10_000, False), (1_000, True)):
                if standby:
                    projectors.append(SPAWN.Process(target=run_projector, args=(server.url, "b")))
                    projectors[1].start()
                    await until(lambda: _stands_by(client))
                found, hop_ms = await publish_to_deny(server.url, targets=targets, rate=1_000, holds=holds)
                each = [ms for four in found for ms in four]
                p50, p99, last = median(each), percentile(each, 0.99), median([max(four) for four in found])
                base = base or p50
                name = f"publish to deny, 1,000/s, {targets:,} targets{', with a standby' if standby else ''}"
                first = targets == 1_000 and not standby
                budget = 2.0 if first else round(1.5 * base, 3)
                rows += [
                    Row(
                        f"{name}, median",
                        p50,
                        "ms",
                        budget,
                        f"{p50 / hop_ms:.1f}x a hop of {hop_ms:.2f} ms, 8x allowed",
                    ),
                    Row(f"{name}, p99", p99, "ms", 5.0 if first else None, f"{len(found)} holds of {holds}"),
                    Row(f"{name}, the last of four, median", last, "ms"),
                ]
            projectors[1].terminate()
            projectors[1].join()
            rows += await live_fold(server.url, targets=1_000, rate=24_000, seconds=2 if quick else 8)
            rows += await _start(server, client, projectors)
        finally:
            for process in projectors:
                process.terminate()
                process.join()
            await client.close()
    return rows


async def _stands_by(client: Client) -> bool:
    return (await health(client, "b")).get("phase") == "standby"


async def _start(server: NatsServer, client: Client, projectors: list[Any]) -> list[Row]:
    """Start of a projector that finds 20,000 targets: to its first commit. A start without a snapshot first."""
    publisher = Publisher(client, 20_000)
    await publisher.open()
    await publisher.flood(20_000 * 2)
    projectors[0].terminate()
    projectors[0].join()
    rows: list[Row] = []
    for what, budget in (("without a snapshot", None), ("from a snapshot", 2.0)):
        if budget is not None:
            await until(lambda: _has_snapshot(client))
            projectors[0].kill()
            projectors[0].join()
        await asyncio.sleep(3.1)  # the checkpoint of the one before has to be silent: not a part of the start
        projectors[0] = SPAWN.Process(target=run_projector, args=(server.url, "a"))
        began_s = time.monotonic()
        projectors[0].start()
        await until(lambda: _live(client))
        rows.append(Row(f"start of a projector, 20,000 targets, {what}", time.monotonic() - began_s, "s", budget))
    return rows


async def _live(client: Client) -> bool:
    return bool((await health(client, "a")).get("live"))


async def _has_snapshot(client: Client) -> bool:
    return int((await health(client, "a")).get("snapshot_seq", 0)) > 0


if __name__ == "__main__":
    print_rows(measure(quick="--quick" in sys.argv))
