"""The bulk parser equals nats-py's own, whatever way the bytes are cut; and it keeps its sinks apart."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from nats_servers import NatsServer
from sickbay.bus.bulk import (
    BulkParser,
    Item,
    bulk_parser,
    header_status,
    header_value,
    status_text,
    subscribe_bulk,
)
from sickbay.bus.connect import connect_client
from waiting import patience

HEADERS = b"NATS/1.0\r\nNats-Msg-Id: 00ff-1\r\nA: b\r\n\r\n"
STATUSES = [
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 10\r\n\r\n",
    b"NATS/1.0 404 No Messages\r\n\r\n",
    b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 7\r\nNats-Pending-Bytes: 0\r\n\r\n",
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
]


class Recorder:
    """Stands where the client stands for a parser, and writes down what the parser tells it."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.stats = {"in_msgs": 0, "in_bytes": 0}
        self._pongs: list[asyncio.Future[bool]] = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.seen.append((sid, bytes(subject), bytes(reply), bytes(data), headers and bytes(headers)))

    async def _process_ping(self) -> None:
        self.seen.append(("PING",))

    async def _process_pong(self) -> None:
        self.seen.append(("PONG",))

    async def _process_err(self, text: str) -> None:
        self.seen.append(("-ERR", text))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.seen.append(("INFO", info))

    async def _error_cb(self, error: Exception) -> None:
        self.seen.append(("error", str(error)))


def message(rng: random.Random) -> bytes:
    """One random piece of NATS protocol."""
    kind = rng.random()
    if kind < 0.04:
        return rng.choice(
            [b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b'INFO {"a":"b"}\r\n', b"-ERR 'Permissions Violation for X'\r\n"]
        )
    subject = b".".join(rng.choice([b"a", b"z-ai/glm-5=2E3", b"router-1", b"MSG", b"PING"]) for _ in range(3))
    sid = rng.randint(1, 5)
    reply = b"" if rng.random() < 0.3 else b"$JS.ACK.S.c.1.%d.2.3.4" % rng.randrange(10**6)
    size = rng.choice([0, 1, 2, 5, 300, 5000])
    payload = rng.choice([rng.randbytes(size), b"\r\n" * (size // 2), b"MSG a 1 5\r\nhello\r\n" * (size // 18)])
    words = [subject, b"%d" % sid] + ([reply] if reply else [])
    if rng.random() < 0.4:
        headers, payload = (HEADERS, payload) if rng.random() < 0.6 else (rng.choice(STATUSES), b"")
        words += [b"%d" % len(headers), b"%d" % (len(headers) + len(payload))]
        return b"HMSG " + b" ".join(words) + b"\r\n" + headers + payload + b"\r\n"
    return b"MSG " + b" ".join([*words, b"%d" % len(payload)]) + b"\r\n" + payload + b"\r\n"


def cuts(rng: random.Random, wire: bytes) -> list[bytes]:
    """The same bytes in pieces of random length, often of one byte."""
    pieces, at = [], 0
    while at < len(wire):
        step = rng.choice([1, 2, 3, 17, 400, 32_768])
        pieces.append(wire[at : at + step])
        at += step
    return pieces


async def run(parser_of: Any, pieces: list[bytes]) -> Recorder:
    recorder = Recorder()
    parser = parser_of(recorder)
    for piece in pieces:
        await parser.parse(piece)
    return recorder


@pytest.mark.parametrize("seed", range(30))
async def test_without_sinks_it_tells_the_client_the_same_as_the_stock_parser(seed: int) -> None:
    rng = random.Random(seed)
    wire = b"".join(message(rng) for _ in range(200))
    stock = await run(Parser, cuts(rng, wire))
    bulk = await run(BulkParser, cuts(rng, wire))
    assert bulk.seen == stock.seen


@pytest.mark.parametrize("seed", range(30))
async def test_with_sinks_every_subscription_gets_the_same_messages_in_the_same_order(seed: int) -> None:
    rng = random.Random(1000 + seed)
    wire = b"".join(message(rng) for _ in range(200))
    stock = await run(Parser, cuts(rng, wire))
    recorder = Recorder()
    parser = BulkParser(recorder)  # type: ignore[arg-type]

    def sink_for(sid: int) -> Any:
        def sink(items: list[Item]) -> None:
            assert items
            recorder.seen.extend((sid, subject, reply, data, headers) for subject, reply, headers, data in items)

        return sink

    for sid in (1, 2, 4):
        parser.sinks[sid] = sink_for(sid)
    for piece in cuts(rng, wire):
        await parser.parse(piece)
    assert recorder.seen == stock.seen, "order is kept between sinks, other subscriptions and control lines too"
    assert recorder.stats["in_msgs"] == sum(1 for seen in stock.seen if seen[0] in (1, 2, 4))


@pytest.mark.parametrize("junk", [b"HELLO\r\n", b"MSG a\r\n", b"MSG a x 5\r\nhello\r\n", b"HMSG a 1 b\r\n"])
async def test_bytes_that_are_no_protocol_end_the_connection(junk: bytes) -> None:
    with pytest.raises(ProtocolError):
        await BulkParser(Recorder()).parse(b"PING\r\n" + junk)  # type: ignore[arg-type]


async def test_a_reset_in_the_middle_forgets_the_old_connection() -> None:
    """After a reconnect nothing of the half-read message may be glued to the new server's first bytes."""
    recorder = Recorder()
    parser = BulkParser(recorder)  # type: ignore[arg-type]
    await parser.parse(b"MSG a 1 10\r\nhel")
    parser.reset()
    await parser.parse(b"MSG b 1 2\r\nok\r\n")
    assert recorder.seen == [(1, b"b", b"", b"ok", None)]


async def test_a_failing_sink_is_reported_and_the_rest_is_read() -> None:
    recorder = Recorder()
    parser = BulkParser(recorder)  # type: ignore[arg-type]

    def sink(_items: list[Item]) -> None:
        raise ValueError("broken fold")

    parser.sinks[1] = sink
    await parser.parse(b"MSG a 1 2\r\nok\r\nMSG b 2 2\r\nok\r\n")
    assert recorder.seen == [("error", "broken fold"), (2, b"b", b"", b"ok", None)]


@pytest.mark.parametrize("seed", range(20))
async def test_it_takes_over_from_the_stock_parser_in_the_middle_of_a_message(seed: int) -> None:
    rng = random.Random(seed)
    wire = b"".join(message(rng) for _ in range(60))
    expected = (await run(Parser, [wire])).seen
    pieces = cuts(rng, wire)
    middle = len(pieces) // 2
    recorder = Recorder()
    client: Any = recorder
    client._ps = Parser(recorder)
    for piece in pieces[:middle]:
        await client._ps.parse(piece)
    parser = bulk_parser(client)
    assert client._ps is parser
    for piece in pieces[middle:]:
        await parser.parse(piece)
    assert recorder.seen == expected


async def test_a_large_payload_is_not_joined_again_at_every_read() -> None:
    """Sixty-four megabytes in reads of 32 KiB: copied at each read that would be 64 GiB."""
    recorder = Recorder()
    parser = BulkParser(recorder)  # type: ignore[arg-type]
    piece = bytes(32_768)
    await parser.parse(b"MSG a 1 %d\r\n" % (2000 * len(piece)))
    async with asyncio.timeout(patience(5)):
        for _ in range(2000):
            await parser.parse(piece)
        await parser.parse(b"\r\n")
    assert len(recorder.seen[0][3]) == 2000 * len(piece)


def test_raw_headers_are_read_without_parsing_them_all() -> None:
    assert header_status(None) == header_status(HEADERS) == 0
    assert [header_status(block) for block in STATUSES] == [100, 404, 408, 409, 503]
    assert status_text(STATUSES[3]) == "Consumer Deleted"
    assert status_text(STATUSES[4]) == ""
    assert header_value(STATUSES[2], b"Nats-Pending-Messages") == b"7"
    assert header_value(HEADERS, b"Nats-Msg") is None
    assert header_value(HEADERS, b"A") == b"b"


async def test_bulk_and_ordinary_subscriptions_live_on_one_connection(nats_client: Client) -> None:
    got: list[Item] = []
    runs: list[int] = []
    done = asyncio.Event()

    def sink(items: list[Item]) -> None:
        got.extend(items)
        runs.append(len(items))
        if len(got) == 1000:
            done.set()

    bulk = await subscribe_bulk(nats_client, "bulk.>", sink)
    plain = await nats_client.subscribe("plain")
    for n in range(1000):
        await nats_client.publish(f"bulk.{n}", b"%d" % n, headers={"N": str(n)})
    await nats_client.publish("plain", b"x")
    await asyncio.wait_for(done.wait(), patience(5))
    assert (await plain.next_msg(patience(2))).data == b"x"
    assert [payload for _, _, _, payload in got] == [b"%d" % n for n in range(1000)]
    assert header_value(got[999][2], b"N") == b"999"
    assert len(runs) < 500, "messages that arrive together come in one call"
    await bulk.close()
    await bulk.close()
    await nats_client.publish("bulk.1", b"late")
    await nats_client.request("$JS.API.INFO")  # a round trip after it
    assert len(got) == 1000


async def test_a_bulk_subscription_outlives_a_reconnect(nats_server: NatsServer) -> None:
    client = await connect_client(nats_server.url)
    got = asyncio.Event()
    await subscribe_bulk(client, "bulk", lambda _items: got.set())
    nats_server.kill9()
    nats_server.restart()
    other = await connect_client(nats_server.url)
    async with asyncio.timeout(patience(5)):
        while not got.is_set():  # published until the reconnected client hears it
            await other.publish("bulk", b"x")
            await asyncio.sleep(0.01)
    await client.close()
    await other.close()


async def test_a_flush_that_was_given_up_does_not_end_the_reading(nats_server: NatsServer) -> None:
    """nats-py raises at the answer to a ping for which nobody waits any more, and then reads nothing again."""
    client = await connect_client(nats_server.url)
    flush = asyncio.create_task(client.flush())
    await asyncio.sleep(0)
    assert client._pongs
    flush.cancel()
    await asyncio.wait_for(client.flush(), patience(5))
    assert client.is_connected and client.stats["reconnects"] == 0
    await client.close()
