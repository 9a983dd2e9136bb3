"""What stands in nats-py's place on a node: the parts of its client that the product touches, over a connection
that delays, keeps order within each direction, and breaks."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import nats.errors

from sickbay.bus.bulk import BulkParser, Item, header_status

from .virtual import NODE, Node

if TYPE_CHECKING:
    from .server import Server

OUTSIDE = contextvars.Context()
"""Of what happens on no node: the network and the server."""
Callback = Callable[[], Awaitable[None]]


class Reply(NamedTuple):
    """An answer to a request."""

    data: bytes
    headers: dict[str, str] | None


class Sinks(BulkParser):
    """Where the product's bulk subscriptions put their sinks."""

    def __init__(self) -> None:
        self.sinks = {}
        self.last_err = ""


class Subscription:
    def __init__(self, client: SimClient, sid: int, subject: str) -> None:
        self._client, self._id, self.subject, self._closed = client, sid, subject, False

    async def unsubscribe(self) -> None:
        self._closed = True
        self._client.subscriptions.pop(self._id, None)
        self._client.send("UNSUB", self._id)


class Connection:
    """One TCP connection: two directions, each in order. What is on its way when it breaks is lost on the way back;
    on the way there the seed says."""

    def __init__(self, server: Server, client: SimClient) -> None:
        self.server, self.client, self.loop = server, client, server.loop
        self.is_open = self.up_open = True
        self._up_s = self._down_s = 0.0
        self._down: deque[tuple[float, int, Item]] = deque()

    def up(self, operation: tuple[Any, ...]) -> None:
        """Send to the server."""
        if self.loop.is_ending:
            return
        # Nothing overtakes what was sent before it.
        self._up_s = max(self._up_s + 1e-7, self.loop.time() + self.server.delay_s(self.client.node))
        self.loop.call_at(self._up_s, self._at_server, operation, self.loop.time(), context=OUTSIDE)

    def _at_server(self, operation: tuple[Any, ...], sent_s: float) -> None:
        if self.up_open:
            self.server.take(self, operation, sent_s)

    def down(self, sid: int, item: Item) -> None:
        """Send to the client."""
        if not self.is_open:
            return
        self._down_s = max(self._down_s, self.loop.time() + self.server.delay_s(self.client.node))
        self._down.append((self._down_s, sid, item))
        if len(self._down) == 1:
            self.loop.call_at(self._down_s, self._arrive, context=self.client.node.context)

    def _arrive(self) -> None:
        if not self.is_open:
            return
        now_s, run, run_sid = self.loop.time(), list[Item](), 0
        while self._down and self._down[0][0] <= now_s:
            _, sid, item = self._down.popleft()
            if sid != run_sid and run:
                self.client.arrived(run_sid, run)
                run = []
            run_sid = sid
            run.append(item)
        if run:
            self.client.arrived(run_sid, run)
        if self._down:
            self.loop.call_at(self._down[0][0], self._arrive, context=self.client.node.context)


class _Transport:
    """Where the product writes protocol bytes past the client's buffer."""

    def __init__(self, client: SimClient) -> None:
        self._client = client

    def write(self, data: bytes) -> None:
        pos = 0
        while pos < len(data):
            eol = data.index(b"\r\n", pos)
            words = data[pos:eol].split()
            assert words[0] == b"HPUB", words
            head, body, end = eol + 2, eol + 2 + int(words[3]), eol + 2 + int(words[4])
            headers = {}
            for line in data[head:body].split(b"\r\n")[1:]:
                name, colon, value = line.partition(b": ")
                if colon:
                    headers[name.decode()] = value.decode()
            self._client.send("PUB", words[1].decode(), words[2].decode(), headers, data[body:end])
            pos = end + 2


class _Numbers:
    def __init__(self, client: SimClient) -> None:
        self._client = client

    def next(self) -> bytes:
        self._client.numbers += 1
        return f"{self._client.id}x{self._client.numbers}".encode()


class SimClient:
    """A connected client of the simulated server."""

    def __init__(self, server: Server, node: Node, callbacks: dict[str, Callback]) -> None:
        server.clients += 1
        self.id = f"c{server.clients}"
        self.server, self.node, self.callbacks = server, node, callbacks
        self.loop = server.loop
        self.stats = {"reconnects": 0}
        self.is_closed = False
        self.max_payload = 1 << 20
        self.subscriptions: dict[int, tuple[str, Callable[[Item], None] | None]] = {}
        self.numbers = 0
        self._sid = 0
        self._ps = Sinks()
        self._transport = _Transport(self)
        self._pending_data_size = 0
        self._flush_queue = None
        self._reconnection_task: asyncio.Task[None] | None = None
        self._nuid = _Numbers(self)
        self._answers: dict[str, asyncio.Future[Reply]] = {}
        self._buffer: list[tuple[Any, ...]] = []
        self.connection: Connection | None = Connection(server, self)
        server.connections[self.connection] = None
        self._sid = 1
        self.subscriptions[1] = (f"_R.{self.id}.*", self._answered)
        self.send("SUB", 1, f"_R.{self.id}.*")

    @property
    def is_connected(self) -> bool:
        return self.connection is not None and not self.is_closed

    # Sending.

    def send(self, *operation: Any) -> None:
        if self.connection is not None:
            self.connection.up(operation)

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        operation = ("PUB", subject, reply, headers or {}, payload)
        if self.connection is None:
            self._buffer.append(operation)  # nats-py sends it after the reconnect
        else:
            self.connection.up(operation)

    async def request(
        self, subject: str, payload: bytes = b"", timeout: float = 0.5, headers: dict[str, str] | None = None
    ) -> Reply:
        self.numbers += 1
        inbox = f"_R.{self.id}.{self.numbers}"
        self._answers[inbox] = future = self.loop.create_future()
        try:
            await self.publish(subject, payload, inbox, headers)
            return await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise nats.errors.TimeoutError from None
        finally:
            self._answers.pop(inbox, None)

    def _answered(self, item: Item) -> None:
        future = self._answers.get(item[0].decode())
        if future is None or future.done():
            return
        if header_status(item[2]) == 503:
            future.set_exception(nats.errors.NoRespondersError())
        else:
            headers = {}
            for line in (item[2] or b"").split(b"\r\n")[1:]:
                name, colon, value = line.partition(b": ")
                if colon:
                    headers[name.decode()] = value.decode()
            future.set_result(Reply(item[3], headers or None))

    async def subscribe(self, subject: str, cb: Callable[[Item], None] | None = None, queue: str = "") -> Subscription:
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        self._sid += 1
        self.subscriptions[self._sid] = (subject, cb)
        self.send("SUB", self._sid, subject)
        return Subscription(self, self._sid, subject)

    def new_inbox(self) -> str:
        self.numbers += 1
        return f"_I.{self.id}x{self.numbers}"

    async def flush(self, timeout: float = 10) -> None:
        if self.connection is None:
            raise nats.errors.ConnectionReconnectingError
        await self.request("$PING", timeout=timeout)

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            if self.connection is not None:
                self.connection.is_open = False
                self.server.connections.pop(self.connection, None)
                self.connection = None
            if not self.node.is_dead:
                await self.callbacks["closed_cb"]()

    def jetstream(self, timeout: float = 5) -> SimClient:
        return self

    async def object_store(self, bucket: str) -> ObjectStore:
        await self.request(f"$JS.API.STREAM.INFO.OBJ_{bucket}")
        return ObjectStore(self, bucket)

    # What arrives.

    def arrived(self, sid: int, items: list[Item]) -> None:
        sink = self._ps.sinks.get(sid)
        if sink is not None:
            sink(items)
        elif (found := self.subscriptions.get(sid)) is not None and found[1] is not None:
            for item in items:
                found[1](item)

    def lose(self, *, up: bool) -> None:
        """The connection breaks; `up`: what was on its way to the server arrives."""
        connection, self.connection = self.connection, None
        if connection is None or self.is_closed:
            return
        connection.is_open, connection.up_open = False, up
        self.server.connections.pop(connection, None)
        if not self.node.is_dead:
            self._reconnection_task = self.node.start(self._reconnect(), "reconnect")

    async def _reconnect(self) -> None:
        await self.callbacks["disconnected_cb"]()
        while not self.server.is_up or self.node in self.server.cut_off:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.01)
        if self.is_closed:
            return
        self.connection = Connection(self.server, self)
        self.server.connections[self.connection] = None
        self.stats["reconnects"] += 1
        for sid, (subject, _) in self.subscriptions.items():
            self.send("SUB", sid, subject)
        buffered, self._buffer = self._buffer, []
        for operation in buffered:
            self.connection.up(operation)
        self._reconnection_task = None
        await self.callbacks["reconnected_cb"]()


class ObjectStore:
    """The one thing that is done with an object store."""

    def __init__(self, client: SimClient, bucket: str) -> None:
        self._client, self._bucket = client, bucket

    async def put(self, name: str, data: bytes, meta: Any) -> None:
        import json
        from base64 import urlsafe_b64encode
        from hashlib import sha256

        nuid = self._client._nuid.next().decode()
        prefix = f"$O.{self._bucket}"
        for at in range(0, len(data), 128 * 1024):
            await self._client.request(f"{prefix}.C.{nuid}", data[at : at + 128 * 1024], timeout=5)
        told = {
            "name": name,
            "description": meta.description,
            "nuid": nuid,
            "size": len(data),
            "digest": "SHA-256=" + urlsafe_b64encode(sha256(data).digest()).decode(),
        }
        encoded = urlsafe_b64encode(name.encode()).decode()
        await self._client.request(f"{prefix}.M.{encoded}", json.dumps(told).encode(), timeout=5)


def connect_on(server: Server) -> Callable[..., Awaitable[SimClient]]:
    """What a `Link` connects by: a client on the node in whose context it is asked for."""

    async def connect_once(_options: Any, **arguments: Any) -> SimClient:
        from sickbay.bus.connect import ConnectError

        node = NODE.get()
        assert node is not None
        await asyncio.sleep(0.001)
        if not server.is_up or node in server.cut_off:
            await asyncio.sleep(0.05)
            raise ConnectError(("nats://sim",), ("no answer",), 0.05)
        return SimClient(server, node, arguments)

    return connect_once
