"""What the reporter's tests share: a publishing replica on a real server, the log read back, a network that fails."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.js.api import ConsumerConfig

from sickbay.bus import topology
from sickbay.bus.connect import NatsOptions, connect_client
from sickbay.bus.link import Link
from sickbay.router.reporter import Reporter
from sickbay_events import CallOutcome, Kind, Target
from waiting import patience

TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
KINDS_IN_TURN: tuple[Kind, ...] = ("ok", "model_unavailable", "ok", "server_error", "rate_limited")


class Stored(NamedTuple):
    """One message of the log."""

    seq: int
    subject: str
    id: str
    body: dict[str, Any]
    time_s: float

    @property
    def n(self) -> int:
        return int(self.id.rpartition("-")[2])


async def prepare(url: str) -> None:
    """Make the streams."""
    client = await connect_client(url)
    await topology.ensure(client)
    await client.close()


async def read_log(url: str) -> list[Stored]:
    """Everything the log holds, read by nats-py's own means."""
    client = await connect_client(url)
    jetstream = client.jetstream()
    expected = (await jetstream.stream_info(topology.LOG)).state.messages
    found: list[Stored] = []
    if expected:
        subscription = await jetstream.subscribe(
            "", stream=topology.LOG, ordered_consumer=True, config=ConsumerConfig(filter_subjects=["sickbay.>"])
        )
        while len(found) < expected:
            message = await subscription.next_msg(patience(10))
            body = json.loads(message.data)
            assert message.headers is not None and message.headers["Nats-Msg-Id"] == body["id"]
            meta = message.metadata
            found.append(Stored(meta.sequence.stream, message.subject, body["id"], body, meta.timestamp.timestamp()))
        await subscription.unsubscribe()
    await client.close()
    return found


class Replica:
    """A replica that records numbered outcomes and keeps what it knows of them."""

    def __init__(self, url: str, *, replica: str = "r1", **options: Any) -> None:
        self.link = Link(NatsOptions.from_url(url))
        self.reporter = Reporter(self.link, replica=replica, on_ack=self._on_ack, **options)
        self.recorded_at: dict[int, float] = {}  # by number, wall clock
        self.acked: dict[int, int] = {}  # log sequence by number

    def _on_ack(self, target: Target, event: object, n: int, seq: int) -> None:
        assert n not in self.acked, "an event is acknowledged to its listener once"
        self.acked[n] = seq

    def record(self, kind: Kind | None = None, target: Target = TARGET) -> int:
        at = time.time()
        n = self.reporter.enqueue(
            target, CallOutcome(kind=kind or KINDS_IN_TURN[len(self.recorded_at) % 5], took_ms=12.4)
        )
        self.recorded_at[n] = at
        return n

    @asynccontextmanager
    async def busy(self, *, per_s: int) -> AsyncIterator[None]:
        """Record at a rate, as a busy router does, while the block runs."""
        task = asyncio.create_task(self._publish(per_s))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _publish(self, per_s: int) -> None:
        while True:
            for _ in range(per_s // 100):
                self.record()
            await asyncio.sleep(0.01)

    def stale(self, stored: Stored) -> float:
        """By how many seconds an event waited longer than its `queued_ms` says."""
        waited_s = stored.time_s - self.recorded_at[stored.n]
        return waited_s - float(stored.body.get("queued_ms", 0)) / 1000


@asynccontextmanager
async def publishing(url: str, **options: Any) -> AsyncIterator[Replica]:
    """A started replica; closed at the end if the test did not."""
    replica = Replica(url, **options)
    replica.link.start()
    replica.reporter.start()
    try:
        yield replica
    finally:
        await replica.reporter.close(0)
        await replica.link.close()
        # nats-py leaves the sockets of attempts that timed out to the garbage collector, which must find
        # them while their loop still runs.
        gc.collect()


def check_once(replica: Replica, stored: list[Stored]) -> None:
    """Acknowledged and lost = 0, stored twice = 0, and every number that was recorded is there."""
    counted = Counter(message.n for message in stored)
    assert {message.id.partition("-")[0] for message in stored} == {replica.reporter.boot}
    assert sorted(counted) == sorted(replica.recorded_at)
    assert set(counted.values()) == {1}
    assert {message.n: message.seq for message in stored} == replica.acked


class Hole:
    """A TCP proxy that can swallow: between `swallow` and `heal` the connections stand and nothing passes.
    What was sent meanwhile is delivered afterwards, as a network that comes back does, or, with `heal(cut=True)`,
    the connections break."""

    def __init__(self, port: int) -> None:
        self._to_port = port
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def swallow(self) -> None:
        self._open.clear()

    def heal(self, *, cut: bool = False) -> None:
        if cut:
            for writer in self._writers:
                writer.transport.abort()
        self._open.set()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        self._writers += [writer, to_writer]
        for source, sink in ((reader, to_writer), (to_reader, writer)):
            task = asyncio.create_task(self._forward(source, sink))
            self._tasks.add(task)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        sink.close()


async def admin(url: str) -> Client:
    """A client for what a test does to the server itself."""
    return await connect_client(url)
