"""The log reader hands out every message once and in order, and says what it could not hand out."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.client import Client

from nats_servers import NatsCluster, NatsServer
from sickbay.bus import feed as feed_module
from sickbay.bus import reader as reader_module
from sickbay.bus.bulk import header_value
from sickbay.bus.connect import NatsOptions, connect_client
from sickbay.bus.jetstream import ApiError, JetStreamApi, parse_rfc3339_ns
from sickbay.bus.link import BorrowedConnection, Link
from sickbay.bus.reader import CaughtUp, Chunk, Event, Gap, Interrupted, LogChanged, LogReader, Resumed
from waiting import patience

STREAM = "SOME_LOG"


async def make_stream(client: Client, **config: Any) -> None:
    await JetStreamApi(client, timeout_s=patience(5)).request(
        f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": ["log.>"], "storage": "file", **config}
    )


async def publish(client: Client, first: int, last: int, body: Callable[[int], bytes] = lambda n: b"%d" % n) -> None:
    """Messages whose body is their number, all acknowledged at the end."""
    for n in range(first, last + 1):
        if n % 200 and n != last:
            await client.publish(f"log.{n % 7}", body(n), headers={"Nats-Msg-Id": str(n)})
        else:
            await client.jetstream().publish(f"log.{n % 7}", body(n), headers={"Nats-Msg-Id": str(n)})


class Reading:
    """Runs a reader in a task and keeps what came out."""

    def __init__(self, reader: LogReader) -> None:
        self.reader = reader
        self.events: list[Event] = []
        self.seqs: list[int] = []
        self.payloads: list[bytes] = []
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for event in self.reader:
            if isinstance(event, Chunk):
                self.seqs += event.seqs
                self.payloads += event.payloads
            else:
                self.events.append(event)
            self._changed.set()
        self._changed.set()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10) -> None:
        async with asyncio.timeout(patience(timeout_s)):
            while not condition():
                assert not (self._task.done() and self._task.exception()), self._task.exception()
                self._changed.clear()
                await self._changed.wait()

    async def until_seq(self, seq: int, timeout_s: float = 10) -> None:
        await self.until(lambda: bool(self.seqs) and self.seqs[-1] >= seq, timeout_s)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def stop(self) -> None:
        await self.reader.close()
        await asyncio.wait_for(self._task, patience(5))


async def test_it_reads_from_its_position_and_says_when_it_has_caught_up(nats_client: Client) -> None:
    await make_stream(nats_client)
    before_ns = time.time_ns()
    await publish(nats_client, 1, 20_000)
    reading = Reading(LogReader(BorrowedConnection(nats_client), STREAM, after_seq=4_000))
    await reading.until(lambda: bool(reading.of(CaughtUp)))
    assert reading.seqs == list(range(4_001, 20_001))
    assert reading.payloads == [b"%d" % n for n in range(4_001, 20_001)]
    assert [type(event) for event in reading.events] == [Resumed, CaughtUp]
    assert reading.of(CaughtUp) == [CaughtUp(20_000)]
    await publish(nats_client, 20_001, 20_003)
    await reading.until_seq(20_003)
    assert len(reading.of(CaughtUp)) == 1
    assert before_ns < reading.reader._time_ns < time.time_ns()
    await reading.stop()
    info = await JetStreamApi(nats_client, timeout_s=patience(2)).request(f"STREAM.INFO.{STREAM}")
    assert info["state"]["consumer_count"] == 0, "closing leaves no consumer behind"


async def test_a_chunk_carries_the_lists_side_by_side(nats_client: Client) -> None:
    await make_stream(nats_client)
    await nats_client.jetstream().publish("log.a", b"one\r\ntwo", headers={"Nats-Msg-Id": "x-1"})
    await nats_client.jetstream().publish("log.b", b"")
    reader = LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0)
    chunks = []
    async for event in reader:
        if isinstance(event, Chunk):
            chunks.append(event)
        if isinstance(event, CaughtUp):
            break
    await reader.close()
    assert [s for chunk in chunks for s in chunk.subjects] == [b"log.a", b"log.b"]
    assert [p for chunk in chunks for p in chunk.payloads] == [b"one\r\ntwo", b""]
    headers = [h for chunk in chunks for h in chunk.headers]
    assert header_value(headers[0], b"Nats-Msg-Id") == b"x-1"
    assert headers[1] is None
    assert chunks[-1].pending == 0
    there = await JetStreamApi(nats_client, timeout_s=patience(2)).message_at(STREAM, 1)
    assert there is not None
    assert there.time_ns == chunks[0].times_ns[0], "both ways to learn a message's time agree to the nanosecond"


async def test_an_empty_stream_is_caught_up_at_once(nats_client: Client) -> None:
    await make_stream(nats_client)
    reading = Reading(LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0))
    await reading.until(lambda: reading.of(CaughtUp) == [CaughtUp(0)])
    await publish(nats_client, 1, 1)
    await reading.until_seq(1)
    await reading.stop()


async def test_kill_9_of_the_server_loses_and_repeats_nothing_and_costs_little_time(nats_server: NatsServer) -> None:
    link = Link(NatsOptions.from_url(nats_server.url))
    link.start()
    await make_stream(await link.wait_connected(patience(5)))
    await publish(await link.wait_connected(patience(5)), 1, 5_000)
    reading = Reading(LogReader(link, STREAM, after_seq=0))
    await reading.until_seq(3_000)
    for round_ in range(1, 4):
        nats_server.kill9()
        await reading.until(lambda r=round_: len(reading.of(Interrupted)) == r)  # type: ignore[misc]
        await asyncio.to_thread(nats_server.restart)
        began = time.monotonic()
        await reading.until(lambda r=round_: len(reading.of(Resumed)) == r + 1)  # type: ignore[misc]
        assert time.monotonic() - began < patience(0.5)
        last = 5_000 + round_ * 1_000
        await publish(await link.wait_connected(patience(5)), last - 999, last)
        await reading.until_seq(last)
    assert reading.seqs == list(range(1, 8_001))
    assert reading.payloads == [b"%d" % n for n in range(1, 8_001)]
    assert not reading.of(Gap)
    await reading.stop()
    await link.close()


async def test_after_a_restart_it_is_back_within_a_fifth_of_a_second(nats_server: NatsServer) -> None:
    """A projector must not be blind for longer; the best of five restarts, since the machine is shared."""
    link = Link(NatsOptions.from_url(nats_server.url))
    link.start()
    await make_stream(await link.wait_connected(patience(5)))
    reading = Reading(LogReader(link, STREAM, after_seq=0))
    await reading.until(lambda: bool(reading.of(CaughtUp)))
    blind_s = []
    for count in range(2, 7):
        nats_server.kill9()
        await reading.until(lambda c=count: len(reading.of(Interrupted)) == c - 1)  # type: ignore[misc]
        await asyncio.to_thread(nats_server.restart)
        began = time.monotonic()
        await reading.until(lambda c=count: len(reading.of(Resumed)) == c)  # type: ignore[misc]
        blind_s.append(time.monotonic() - began)
    assert min(blind_s) < patience(0.2), blind_s
    await reading.stop()
    await link.close()


def test_it_resumes_under_uvloop_too(nats_server: NatsServer) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def scenario() -> None:
        link = Link(NatsOptions.from_url(nats_server.url))
        link.start()
        await make_stream(await link.wait_connected(patience(5)))
        await publish(await link.wait_connected(patience(5)), 1, 5_000)
        reading = Reading(LogReader(link, STREAM, after_seq=0))
        await reading.until_seq(5_000)
        nats_server.kill9()
        await asyncio.to_thread(nats_server.restart)
        await reading.until(lambda: len(reading.of(Resumed)) == 2)
        await publish(await link.wait_connected(patience(5)), 5_001, 6_000)
        await reading.until_seq(6_000)
        assert reading.seqs == list(range(1, 6_001))
        await reading.stop()
        await link.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


async def test_a_consumer_that_was_deleted_is_made_again(nats_client: Client) -> None:
    await make_stream(nats_client)
    await publish(nats_client, 1, 10)
    reading = Reading(LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0))
    await reading.until_seq(10)
    api = JetStreamApi(nats_client, timeout_s=patience(2))
    (name,) = (await api.request(f"CONSUMER.NAMES.{STREAM}"))["consumers"]
    await api.delete_consumer(STREAM, name)
    await reading.until(lambda: len(reading.of(Resumed)) == 2)
    assert "Consumer Deleted" in reading.of(Interrupted)[0].reason
    await publish(nats_client, 11, 20)
    await reading.until_seq(20)
    assert reading.seqs == list(range(1, 21))
    await reading.stop()


async def test_messages_deleted_by_hand_are_asked_for_once_and_passed_as_a_gap(nats_client: Client) -> None:
    """Rule 7: a sequence missing inside the log is asked for once, noted and passed."""
    await make_stream(nats_client)
    await publish(nats_client, 1, 100)
    api = JetStreamApi(nats_client, timeout_s=patience(2))
    for seq in (1, 17, 18, 19, 50, 99):
        await api.request(f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq})
    reading = Reading(LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0))
    await reading.until_seq(100)
    assert reading.of(Gap) == [
        Gap(1, 1, "trimmed"),  # the stream now begins at 2
        Gap(17, 19, "deleted"),
        Gap(50, 50, "deleted"),
        Gap(99, 99, "deleted"),
    ]
    assert reading.seqs == [n for n in range(1, 101) if n not in (1, 17, 18, 19, 50, 99)]
    assert len(reading.of(Resumed)) == 1
    await reading.stop()


async def test_a_gap_comes_between_the_messages_around_it(nats_client: Client) -> None:
    await make_stream(nats_client)
    await publish(nats_client, 1, 5)
    await JetStreamApi(nats_client, timeout_s=patience(2)).request(f"STREAM.MSG.DELETE.{STREAM}", {"seq": 3})
    reader = LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0)
    order: list[Any] = []
    async for event in reader:
        order += event.seqs if isinstance(event, Chunk) else [event]
        if isinstance(event, CaughtUp):
            break
    await reader.close()
    assert order[1:] == [1, 2, Gap(3, 3, "deleted"), 4, 5, CaughtUp(5)]


async def test_a_stream_trimmed_past_the_position_is_reported(nats_client: Client) -> None:
    await make_stream(nats_client, max_msgs=100)
    await publish(nats_client, 1, 1_000)
    reading = Reading(LogReader(BorrowedConnection(nats_client), STREAM, after_seq=10))
    await reading.until_seq(1_000)
    assert reading.of(Gap) == [Gap(11, 900, "trimmed")]
    assert reading.seqs == list(range(901, 1_001))
    await reading.stop()


async def test_a_stream_trimmed_under_a_slow_caller_is_reported(
    nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server had not sent yet when the limit took it shows as a gap, whatever waits here."""
    monkeypatch.setattr(feed_module, "BATCH", 100)
    monkeypatch.setattr(feed_module, "QUEUE_BYTES", 1_000)
    await make_stream(nats_client, max_msgs=500)
    await publish(nats_client, 1, 400)
    reader = LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0)
    seen: list[int] = []
    gaps: list[Gap] = []
    async with asyncio.timeout(patience(10)):
        async for event in reader:
            if isinstance(event, Chunk):
                if not seen:
                    await publish(nats_client, 401, 5_000)
                seen += event.seqs
                if seen[-1] == 5_000:
                    break
            elif isinstance(event, Gap):
                gaps.append(event)
    await reader.close()
    missing = {seq for gap in gaps for seq in range(gap.first, gap.last + 1)}
    assert len(missing) > 3_000
    assert sorted(missing | set(seen)) == list(range(1, 5_001))
    assert not missing & set(seen)


async def test_a_slow_caller_bounds_what_waits_and_loses_nothing(
    nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "BATCH", 200)
    monkeypatch.setattr(feed_module, "QUEUE_BYTES", 100_000)
    await make_stream(nats_client)
    await publish(nats_client, 1, 6_000, lambda n: b"%d " % n + b"x" * 1_000)
    reader = LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0)
    seen: list[int] = []
    most = 0
    async with asyncio.timeout(patience(20)):
        async for event in reader:
            if isinstance(event, Chunk):
                seen += event.seqs
                await asyncio.sleep(0.01)  # this is the slow caller
                most = max(most, reader._feed.queued_bytes if reader._feed else 0)
                if seen[-1] == 6_000:
                    break
    await reader.close()
    assert seen == list(range(1, 6_001))
    # The bound plus what was asked for already: three batches.
    assert most <= 100_000 + 3 * 200 * 1_010


async def test_a_reader_that_the_server_cuts_off_as_too_slow_goes_on_where_it_was(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    """A blocked loop lets the server's buffer for it run full; the server then closes the connection."""
    server = nats_server_factory(config="max_pending: 4MB")
    link = Link(NatsOptions.from_url(server.url))
    link.start()
    await make_stream(await link.wait_connected(patience(5)))
    await publish(await link.wait_connected(patience(5)), 1, 20_000, lambda n: b"%d " % n + b"x" * 1_000)
    reader = LogReader(link, STREAM, after_seq=0)
    seen: list[int] = []
    interruptions = 0
    async with asyncio.timeout(patience(60)):
        async for event in reader:
            if isinstance(event, Chunk):
                seen += event.seqs
                if interruptions == 0:
                    time.sleep(0.3)
                if seen[-1] == 20_000:
                    break
            elif isinstance(event, Interrupted):
                interruptions += 1
    await reader.close()
    await link.close()
    assert interruptions > 0, "the server did not cut us off, so nothing was tried"
    assert seen == list(range(1, 20_001))


async def test_a_caller_that_sleeps_longer_than_the_silence_limit_is_not_cut_off(
    nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that does not ask for items for a while must not mistake its own pause for the server's."""
    monkeypatch.setattr(feed_module, "BATCH", 10)
    monkeypatch.setattr(feed_module, "QUEUE_BYTES", 10)
    silence_s = min(patience(0.4), 1.0)
    monkeypatch.setattr(reader_module, "SILENCE_S", silence_s)
    monkeypatch.setattr(feed_module, "HEARTBEAT_S", 0.1)
    await make_stream(nats_client)
    await publish(nats_client, 1, 200)
    reader = LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0)
    seen: list[int] = []
    async for event in reader:
        assert not isinstance(event, Interrupted), event
        if isinstance(event, Chunk):
            if not seen:
                await asyncio.sleep(2 * silence_s)
            seen += event.seqs
            if seen[-1] == 200:
                break
    await reader.close()
    assert seen == list(range(1, 201))


async def test_a_blocked_event_loop_is_not_taken_for_a_silent_server(
    nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "SILENCE_S", 0.3)
    monkeypatch.setattr(feed_module, "HEARTBEAT_S", 0.1)
    await make_stream(nats_client)
    await publish(nats_client, 1, 5)
    reader = LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0)
    async for event in reader:
        if isinstance(event, CaughtUp):
            break
    for _ in range(3):
        time.sleep(0.7)  # the caller computes, and the whole loop stands still
        with pytest.raises(TimeoutError):  # nothing to say: neither a message nor an interruption
            await asyncio.wait_for(anext(reader), 0.15)
    await reader.close()


async def test_a_client_kept_by_somebody_else_resumes_after_a_restart_too(nats_server: NatsServer) -> None:
    client = await connect_client(nats_server.url)
    await make_stream(client)
    await publish(client, 1, 5)
    reading = Reading(LogReader(BorrowedConnection(client), STREAM, after_seq=0))
    await reading.until_seq(5)
    for count in range(2, 6):
        nats_server.kill9()
        await reading.until(lambda c=count: len(reading.of(Interrupted)) == c - 1)  # type: ignore[misc]
        await asyncio.to_thread(nats_server.restart)
        began = time.monotonic()
        await reading.until(lambda c=count: len(reading.of(Resumed)) == c)  # type: ignore[misc]
        assert time.monotonic() - began < patience(1), "no request is lost to a half-made reconnect"
    await publish(client, 6, 9)
    await reading.until_seq(9)
    assert reading.seqs == list(range(1, 10))
    await reading.stop()
    await client.close()


async def test_large_messages_pass_by_the_byte_bound_of_a_pull(
    nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests end when their bytes are used up; a message larger than all of them raises the bound."""
    monkeypatch.setattr(feed_module, "BATCH_BYTES", 5_000)
    await make_stream(nats_client)
    sizes = [100, 2_000, 4_900, 30_000, 200, 900_000, 10]
    for size in sizes * 10:
        await nats_client.jetstream().publish("log.a", b"x" * size)
    reading = Reading(LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0))
    await reading.until_seq(70)
    assert [len(payload) for payload in reading.payloads] == sizes * 10
    assert not reading.of(Interrupted)
    await reading.stop()


async def test_heartbeats_that_stop_are_noticed(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "SILENCE_S", min(patience(0.6), 1.0))  # a dead connection is noticed after two
    monkeypatch.setattr(feed_module, "HEARTBEAT_S", 0.1)
    client = await connect_client(nats_server.url)
    await make_stream(client)
    await publish(client, 1, 3)
    reading = Reading(LogReader(BorrowedConnection(client), STREAM, after_seq=0))
    await reading.until(lambda: bool(reading.of(CaughtUp)))
    await asyncio.sleep(1.2)  # longer than the limit: heartbeats alone must keep it content
    assert not reading.of(Interrupted)
    assert reading.reader.age_s < patience(0.5)
    nats_server.pause()
    try:
        await reading.until(lambda: bool(reading.of(Interrupted)))
        assert "heartbeat" in reading.of(Interrupted)[0].reason
        assert reading.reader.age_s > 0.5
    finally:
        nats_server.resume()
    await reading.until(lambda: len(reading.of(Resumed)) == 2)
    await publish(client, 4, 6)
    await reading.until_seq(6)
    assert reading.seqs == list(range(1, 7))
    await reading.stop()
    await client.close()


async def test_a_stream_made_anew_ends_the_reading_with_a_word(nats_client: Client) -> None:
    await make_stream(nats_client)
    await publish(nats_client, 1, 50)
    reading = Reading(LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0))
    await reading.until_seq(50)
    api = JetStreamApi(nats_client, timeout_s=patience(2))
    await api.request(f"STREAM.DELETE.{STREAM}")
    await reading.until(lambda: bool(reading.of(Interrupted)))
    await make_stream(nats_client)
    await publish(nats_client, 1, 80)
    await reading.until(lambda: bool(reading.of(LogChanged)))
    changed = reading.of(LogChanged)[0]
    assert changed.reason == "recreated"
    assert reading.seqs == list(range(1, 51)), "not one message of the new stream passes as one of the old"
    await reading.until(reading._task.done)
    with pytest.raises(StopAsyncIteration):
        await anext(reading.reader)
    await reading.stop()


async def test_a_stream_that_is_not_there_yet_is_waited_for(nats_client: Client) -> None:
    reading = Reading(LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0))
    await reading.until(lambda: bool(reading.of(Interrupted)))
    assert "stream not found" in reading.of(Interrupted)[0].reason
    await make_stream(nats_client)
    await publish(nats_client, 1, 5)
    await reading.until_seq(5)
    await reading.stop()


async def test_an_older_store_put_in_place_is_noticed(nats_server: NatsServer) -> None:
    """Rule 7: is it the same log? The creation time is, the sequences go back or are used again."""
    link = Link(NatsOptions.from_url(nats_server.url))
    link.start()
    await make_stream(await link.wait_connected(patience(5)))
    await publish(await link.wait_connected(patience(5)), 1, 50)
    nats_server.stop_keeping_store()
    backup = nats_server.folder.with_name(nats_server.folder.name + "-backup")
    shutil.copytree(nats_server.folder / "js", backup)
    try:
        await asyncio.to_thread(nats_server.restart)
        await publish(await link.wait_connected(patience(5)), 51, 60)
        reading = Reading(LogReader(link, STREAM, after_seq=0))
        await reading.until_seq(60)

        nats_server.stop_keeping_store()
        nats_server.wipe()
        shutil.copytree(backup, nats_server.folder / "js")
        await asyncio.to_thread(nats_server.restart)
        await reading.until(lambda: bool(reading.of(LogChanged)))
        assert reading.of(LogChanged)[0].reason == "shorter"
        position_ns = reading.reader._time_ns
        await reading.stop()

        await publish(await link.wait_connected(patience(5)), 151, 180)
        reading = Reading(LogReader(link, STREAM, after_seq=60, time_ns=position_ns))
        await reading.until(lambda: bool(reading.of(LogChanged)))
        assert reading.of(LogChanged)[0].reason == "rewritten"
        assert reading.seqs == []
        await reading.stop()
    finally:
        shutil.rmtree(backup)
        await link.close()


async def test_the_identity_of_the_log_is_checked_at_the_start(nats_client: Client) -> None:
    await make_stream(nats_client)
    await publish(nats_client, 1, 5)
    reading = Reading(
        LogReader(BorrowedConnection(nats_client), STREAM, after_seq=3, created_at="2020-01-01T00:00:00Z")
    )
    await reading.until(lambda: bool(reading.of(LogChanged)))
    assert reading.of(LogChanged)[0].reason == "recreated"
    await reading.stop()


async def test_with_filters_jumps_are_no_gaps(nats_client: Client) -> None:
    await make_stream(nats_client)
    await publish(nats_client, 1, 700)
    for filters in (("log.3",), ("log.3", "log.5")):
        reading = Reading(LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0, filters=filters))
        await reading.until(lambda r=reading: bool(r.of(CaughtUp)))  # type: ignore[misc]
        kept = [int(subject[4:]) for subject in filters]
        assert reading.seqs == [n for n in range(1, 701) if n % 7 in kept]
        assert not reading.of(Gap)
        await reading.stop()


async def test_cancelling_a_wait_loses_nothing(nats_client: Client) -> None:
    await make_stream(nats_client)
    await publish(nats_client, 1, 2_000)
    reader = LogReader(BorrowedConnection(nats_client), STREAM, after_seq=0)
    seen: list[int] = []
    async with asyncio.timeout(patience(20)):
        while not seen or seen[-1] < 2_000:
            task = asyncio.ensure_future(anext(reader))
            done, _ = await asyncio.wait([task], timeout=0.001)
            if not done:
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                event = task.result()
                if isinstance(event, Chunk):
                    seen += event.seqs
    await reader.close()
    assert seen == list(range(1, 2_001))


async def test_a_source_without_connection_is_waited_for_and_said(nats_client: Client) -> None:
    await make_stream(nats_client)
    await publish(nats_client, 1, 5)

    class Source:
        client: Client | None = nats_client

    source = Source()
    reading = Reading(LogReader(source, STREAM, after_seq=0))
    await reading.until_seq(5)
    source.client = None
    await reading.until(lambda: bool(reading.of(Interrupted)))
    source.client = nats_client
    await publish(nats_client, 6, 9)
    await reading.until_seq(9)
    assert reading.seqs == list(range(1, 10))
    await reading.stop()


async def test_in_a_cluster_the_death_of_the_stream_leader_loses_nothing(nats_cluster: NatsCluster) -> None:
    link = Link(NatsOptions.from_url(nats_cluster.url))
    link.start()
    await make_stream(await link.wait_connected(patience(5)), num_replicas=3)
    client = await link.wait_connected(patience(5))
    await publish(client, 1, 2_000)
    reading = Reading(LogReader(link, STREAM, after_seq=0))
    await reading.until_seq(2_000)
    info = await JetStreamApi(client, timeout_s=patience(5)).request(f"STREAM.INFO.{STREAM}")
    nats_cluster.server_of_stream_leader(info).kill9()
    stored = False
    async with asyncio.timeout(patience(40)):
        while not stored:  # writes stall until there is a new leader; the same ids make repeats harmless
            try:
                await publish(await link.wait_connected(patience(10)), 2_001, 2_400)
                stored = True
            except Exception:
                await asyncio.sleep(0.1)
    await reading.until_seq(2_400, 30)
    assert reading.seqs == list(range(1, len(reading.seqs) + 1)), "no gap, no repeat"
    assert sorted(set(map(int, reading.payloads))) == list(range(1, 2_401))
    await reading.stop()
    await link.close()


async def test_api_errors_carry_the_code_of_the_server(nats_client: Client) -> None:
    with pytest.raises(ApiError, match="stream not found") as caught:
        await JetStreamApi(nats_client, timeout_s=patience(2)).stream_at("NONE")
    assert caught.value.code == 10059


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("2026-11-30T00:16:15.860813719Z", 1795997775_860_813_719),
        ("1970-01-01T01:00:00.000000001+01:00", 1),
    ],
)
def test_times_are_read_to_the_nanosecond(text: str, expected: int) -> None:
    assert parse_rfc3339_ns(text) == expected
