"""Acknowledgements that carry an error, or never come, are counted, said, and tried again without spinning."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from nats_servers import NatsServer
from reporter_rig import TARGET, admin, check_once, prepare, publishing, read_log
from sickbay.bus.topology import LOG
from sickbay.router import in_flight
from sickbay_events import CallOutcome, ProbeResult
from waiting import until

SUBJECTS = ["sickbay.outcome.>", "sickbay.probe.>"]


def user(publish: str) -> str:
    return f"""
authorization {{ users: [
  {{ user: admin, password: apw }}
  {{ user: router, password: rpw, permissions: {{ publish: {publish}, subscribe: {{ allow: ["_INBOX.>"] }} }} }} ] }}
"""


def as_user(server: NatsServer, name: str, password: str) -> str:
    return f"nats://{name}:{password}@127.0.0.1:{server.port}"


async def test_without_a_stream_outcomes_wait_and_few_tries_are_made(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """No responders (503): before `sickbay serve` ran for the first time, or a stream without a leader. All arrive once
    it is there."""
    async with publishing(nats_server.url) as replica:
        for _ in range(500):
            replica.record()
        await until(lambda: replica.reporter.counts.blocked == "no_stream")
        sent_before = replica.reporter.counts.resent
        await asyncio.sleep(2)
        counts = replica.reporter.counts
        assert counts.resent - sent_before <= 4, "0.25, 0.5, 1 and 2 s apart"
        assert counts.acked == 0 and counts.why
        lines = [record for record in caplog.records if record.name == "sickbay.reporter"]
        assert len(lines) == 1 and lines[0].levelno == logging.WARNING
        await prepare(nats_server.url)
        assert not await replica.reporter.close(10)
        assert replica.reporter.counts.blocked == ""
    check_once(replica, await read_log(nats_server.url))


async def test_with_a_full_stream_outcomes_wait_and_the_server_s_words_are_kept(nats_server: NatsServer) -> None:
    """503 with 10077: the log refuses new messages until there is room."""
    client = await admin(nats_server.url)
    jetstream = client.jetstream()
    await jetstream.add_stream(StreamConfig(name=LOG, subjects=SUBJECTS, max_msgs=20, discard=DiscardPolicy.NEW))
    async with publishing(nats_server.url) as replica:
        for _ in range(100):
            replica.record()
        await until(lambda: replica.reporter.counts.blocked == "stream_full")
        await until(lambda: replica.reporter.counts.acked == 20)
        assert "10077" in replica.reporter.counts.why
        assert replica.reporter.counts.given_up == {}
        await jetstream.update_stream(StreamConfig(name=LOG, subjects=SUBJECTS, max_msgs=-1))
        assert not await replica.reporter.close(10)
    await client.close()
    check_once(replica, await read_log(nats_server.url))


async def test_a_router_that_may_not_publish_at_all_keeps_its_outcomes_and_hardly_knocks(
    nats_server_factory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused publish is not answered: only the silence, and the client's error callback, tell of it."""
    server = nats_server_factory(config=user('{ deny: ["sickbay.>"] }'))
    await prepare(as_user(server, "admin", "apw"))
    async with publishing(as_user(server, "router", "rpw")) as replica:
        for _ in range(50):
            replica.record()
        await until(lambda: replica.reporter.counts.blocked == "no_answer")
        tried = replica.reporter.counts.resent
        await asyncio.sleep(1.5)
        assert replica.reporter.counts.resent - tried <= 4
        left = await replica.reporter.close(0.1)
        assert left.total == 50 and replica.reporter.counts.given_up == {}
    assert "may not publish" in caplog.text


async def test_a_subject_that_may_not_be_published_is_in_nobodys_way(
    nats_server_factory: Any,
) -> None:
    server = nats_server_factory(config=user('{ allow: ["sickbay.outcome.>"] }'))
    await prepare(as_user(server, "admin", "apw"))
    async with publishing(as_user(server, "router", "rpw")) as replica:
        replica.reporter.enqueue(TARGET, ProbeResult(level="readiness", ok=True))
        async with replica.busy(per_s=100):
            await until(lambda: replica.reporter.counts.given_up == {"probe": 1}, within_s=30)
        assert not await replica.reporter.close(5)
        counts = replica.reporter.counts
        assert counts.acked == counts.recorded - 1 > 100
    stored = await read_log(as_user(server, "admin", "apw"))
    check_once(replica, stored)


async def test_a_subject_that_no_stream_takes_is_in_nobodys_way(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its 503 looks like a log without a stream; what is taken meanwhile shows that it is not."""
    monkeypatch.setattr(in_flight, "TRY_MAX_S", 1.0)
    client = await admin(nats_server.url)
    await client.jetstream().add_stream(StreamConfig(name=LOG, subjects=["sickbay.outcome.>"]))
    await client.close()
    async with publishing(nats_server.url) as replica:
        replica.reporter.enqueue(TARGET, ProbeResult(level="liveness", ok=False))
        async with replica.busy(per_s=100):
            await until(lambda: replica.reporter.counts.given_up == {"probe": 1}, within_s=60)
        assert not await replica.reporter.close(10)
        assert replica.reporter.counts.acked == replica.reporter.counts.recorded - 1
    check_once(replica, await read_log(nats_server.url))


async def test_a_message_over_the_servers_limit_is_given_up_unsent(
    nats_server_factory: Any,
) -> None:
    """A server closes a client that sends more than `max_payload`, again and again."""
    server = nats_server_factory(config="max_payload: 1024")
    await prepare(server.url)
    async with publishing(server.url) as replica:
        big = CallOutcome(kind="ok", route="é" * 256, detail="\U0001f389" * 200)
        replica.reporter.enqueue(TARGET, big)
        replica.record()
        assert not await replica.reporter.close(5)
        assert replica.reporter.counts.given_up == {"ok": 1}
        assert replica.link.connects == 1
    check_once(replica, await read_log(server.url))


async def test_a_repeated_or_late_or_foreign_acknowledgement_changes_nothing(nats_server: NatsServer) -> None:
    await prepare(nats_server.url)
    async with publishing(nats_server.url) as replica:
        n = replica.record()
        await until(lambda: n in replica.acked)
        inbox = replica.reporter._flight._publisher._inbox.decode()
        client = await admin(nats_server.url)
        again = b'{"stream":"SICKBAY_LOG","seq":77,"duplicate":true}'
        for token in (str(n), "999", "no-number"):
            await client.publish(f"{inbox}{token}", again)
        await client.publish(f"{inbox}{n}", b"not json")
        await client.flush()
        await until(lambda: replica.reporter.counts.late == 4)
        assert replica.acked == {n: 1}
        assert replica.record() == 2
        assert not await replica.reporter.close(5)
        await client.close()
    check_once(replica, await read_log(nats_server.url))


async def test_nothing_older_than_the_window_is_overtaken_by_more_than_1000_numbers(nats_server: NatsServer) -> None:
    """Rule 4, Once: seen at the log itself, with the oldest event held back by the server."""
    from sickbay.router.outbox import WINDOW

    await prepare(nats_server.url)
    async with publishing(nats_server.url, capacity=20_000) as replica:
        replica.record()
        await until(lambda: len(replica.acked) == 1)
        nats_server.pause()
        for _ in range(5000):
            replica.record()
        await asyncio.sleep(0.3)
        on_way = sorted(replica.reporter._flight.entries)
        assert on_way == list(range(2, 2 + WINDOW))
        assert replica.reporter.counts.queued == 5001 - 1 - WINDOW
        nats_server.resume()
        assert not await replica.reporter.close(20)
    stored = await read_log(nats_server.url)
    check_once(replica, stored)
    highest = 0
    for message in stored:
        assert message.n > highest - WINDOW
        highest = max(highest, message.n)
