"""Routers of one fleet with a real server and projector: one lesson for all, each for itself without NATS."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import uvloop

import sickbay
from nats_servers import NatsServer, free_port
from sickbay import Held, Sickbay, Target
from sickbay.bus.connect import NatsOptions
from sickbay.bus.entries import read_entries
from sickbay.bus.link import Link
from sickbay.bus.topology import GATE_PREFIX, GATE_STREAM
from sickbay.projector import Projector
from sickbay.view.mirror import Mirror
from sickbay_events import CallOutcome, Override, Scope, encode, override_subject
from sickbay_events.view import CHECKPOINT_KEY
from waiting import patience, until

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
DEAD = json.dumps({"error": {"message": "No endpoints found for z-ai/glm-5.3.", "code": 404}}).encode()


@asynccontextmanager
async def projecting(url: str) -> AsyncIterator[Projector]:
    link = Link(NatsOptions.from_url(url))
    projector = Projector(link, name="p1")
    link.start()
    task = asyncio.create_task(projector.run())
    try:
        yield projector
    finally:
        projector.stop()
        await asyncio.wait([task])
        await link.close()


async def reject(sb: Sickbay) -> None:
    async with sb.attempt(TARGET) as attempt:
        attempt.response(404, {"content-type": "application/json"}, DEAD)


@asynccontextmanager
async def fleet(url: str, count: int) -> AsyncIterator[list[Sickbay]]:
    async with AsyncExitStack() as stack:
        routers = [await stack.enter_async_context(sickbay.connect(url, replica=f"r{n}")) for n in range(count)]
        yield routers


async def test_two_rejections_anywhere_hold_the_target_everywhere(nats_server: NatsServer) -> None:
    """One replica's lesson is all replicas': the second rejection denies the two that never called."""
    async with projecting(nats_server.url), fleet(nats_server.url, 4) as routers:
        for router in routers:
            assert await router.ready(patience(10))
            await until(lambda router=router: router.decide(TARGET).source == "cluster")  # type: ignore[misc]
        await reject(routers[0])
        await reject(routers[1])
        await until(lambda: all(not router.decide(TARGET).allowed for router in routers))
        decision = routers[3].decide(TARGET)
        assert (decision.reason, decision.source, decision.scope) == ("quarantined", "cluster", TARGET.key)
        assert 0 < decision.retry_in_s <= 600
        with pytest.raises(Held):
            await reject(routers[2])


async def test_seen_seq_of_a_call_is_what_the_mirror_had_seen_when_it_started(nats_server: NatsServer) -> None:
    """A call that began before the hold and ends well after it lifts nothing (Rule 4, After)."""
    async with projecting(nats_server.url) as projector, fleet(nats_server.url, 2) as (one, other):
        assert await one.ready(patience(10)) and await other.ready(patience(10))
        await reject(one)
        await until(lambda: one.mirror.seq == 1, what="the checkpoint tells of the first outcome")
        late = one.attempt(TARGET)
        late.__enter__()
        await reject(other)
        await until(lambda: not other.decide(TARGET).allowed and not one.decide(TARGET).allowed)
        late.ok(status=200)
        late.__exit__(None, None, None)
        assert late.outcome is not None and late.outcome.seen_seq == 1
        await until(lambda: projector.seq == 3)
        await asyncio.sleep(0.1)
        assert not other.decide(TARGET).allowed


async def test_an_operators_clear_ends_the_clusters_hold_and_the_local_one(nats_server: NatsServer) -> None:
    """A replica that holds by its own overlay too is released by a clear that is later in the log."""
    async with projecting(nats_server.url), fleet(nats_server.url, 2) as (one, other):
        assert await one.ready(patience(10)) and await other.ready(patience(10))
        await reject(one)
        await reject(one)
        assert one.decide(TARGET).source == "local"
        await until(lambda: not other.decide(TARGET).allowed)
        await until(lambda: one.reporter.counts.acked == 2)
        client = one.link.client if one.link else None
        assert client is not None
        override = Override(action="clear", reason="fixed", actor="ops")
        await client.jetstream().publish(override_subject(Scope("openrouter.ai", "", TARGET.model)), encode(override))
        await until(lambda: one.decide(TARGET).allowed and other.decide(TARGET).allowed)


async def test_it_works_before_the_first_connection_and_catches_up_when_nats_comes() -> None:
    """`connect` does not wait: decisions, holds of one's own and recording work; later all is handed over."""
    server = NatsServer(port=free_port())
    began_s = time.monotonic()
    try:
        async with sickbay.connect(server.url, replica="early") as sb:
            assert time.monotonic() - began_s < patience(0.5)
            assert sb.decide(TARGET).source == "stale"
            await reject(sb)
            await reject(sb)
            assert (sb.decide(TARGET).allowed, sb.decide(TARGET).source) == (False, "local")
            server.start()
            async with projecting(server.url) as projector, sickbay.connect(server.url, replica="other") as other:
                await until(lambda: sb.reporter.counts.acked == 2)
                await until(lambda: projector.seq == 2 and not other.decide(TARGET).allowed)
    finally:
        server.stop()


async def test_with_nats_gone_the_gate_goes_on_says_stale_and_is_whole_again_after(nats_server: NatsServer) -> None:
    """Last known holds stand, own outcomes count, the age grows; after the restart the fleet is one again."""
    other_target = Target("api.x.ai", "grok")
    async with projecting(nats_server.url), fleet(nats_server.url, 2) as (one, other):
        assert await one.ready(patience(10)) and await other.ready(patience(10))
        await reject(one)
        await reject(other)
        await until(lambda: not one.decide(TARGET).allowed and not other.decide(TARGET).allowed)
        nats_server.kill9()
        await until(lambda: one.decide(TARGET).source == "stale" or one.decide(TARGET).age_s > 3)
        assert not one.decide(TARGET).allowed
        assert one.decide(Target("api.x.ai", "unknown")).source == "stale"
        for _ in range(2):
            one.record(other_target, CallOutcome(kind="model_unavailable", status=404))
        assert one.decide(other_target).source == "local"
        assert not other.decide(other_target).trial
        nats_server.restart()
        await until(lambda: other.decide(other_target).trial, "one replica's word: the other looks for itself")
        await until(lambda: one.decide(Target("api.x.ai", "unknown")).source == "cluster")
        assert one.mirror.counts["mismatch"] == 0


async def test_holds_releases_skips_and_failovers_are_logged(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """WARNING for a hold with rule, count, status and seconds; INFO for a release; skips once with a count."""
    caplog.set_level(logging.INFO, logger="sickbay")
    async with projecting(nats_server.url), fleet(nats_server.url, 1) as (one,):
        assert await one.ready(patience(10))
        await reject(one)
        await reject(one)
        await until(lambda: TARGET.key in one.mirror.entries)
        for _ in range(50):
            assert not one.decide(TARGET).allowed
        client = one.link.client if one.link else None
        assert client is not None
        clear = Override(action="clear", reason="fixed", actor="ops")
        await client.jetstream().publish(override_subject(Scope("openrouter.ai")), encode(clear))
        await until(lambda: one.decide(TARGET).allowed)
        async with one.attempt(TARGET, route="brief", rank=1) as attempt:
            attempt.ok(status=200)
    mine = [record for record in caplog.records if record.name == "sickbay"]
    held = [record for record in mine if getattr(record, "event", "") == "held"]
    assert len(held) == 1 and held[0].levelno == logging.WARNING
    assert (held[0].rule, held[0].count, held[0].status) == ("quarantine", 2, 404)  # type: ignore[attr-defined]
    assert 590 < held[0].seconds <= 600 and "openrouter.ai / z-ai/glm-5.3" in held[0].getMessage()  # type: ignore[attr-defined]
    assert [record.levelno for record in mine if getattr(record, "event", "") == "skipped"] == [logging.INFO]
    assert [record.rank for record in mine if getattr(record, "event", "") == "failed_over"] == [1]  # type: ignore[attr-defined]


SILENT = """
import asyncio, sys
import sickbay
from sickbay import Target, CallOutcome

async def main():
    async with sickbay.connect(sys.argv[1], replica="quiet") as sb:
        print("up", flush=True)
        target = Target("openrouter.ai", "m")
        for line in sys.stdin:
            for _ in range(2):
                sb.record(target, CallOutcome(kind="model_unavailable", status=404))
            sb.record(Target("", ""), CallOutcome(kind="ok"))
            await asyncio.sleep(0.5)
            print(sb.decide(target).reason, flush=True)

asyncio.run(main())
"""


def test_a_router_without_logging_set_up_has_nothing_on_its_stderr(nats_server: NatsServer) -> None:
    """Neither holds nor rejected input nor a dying server nor a reconnect nor the exit prints anything."""
    env = {**os.environ, "SICKBAY_DATA": "/nonexistent"}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SILENT, nats_server.url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        for act in (lambda: None, nats_server.kill9, nats_server.start, nats_server.kill9):
            act()
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "quarantined\n"
        _, stderr = process.communicate(timeout=patience(20))
    finally:
        process.kill()
        process.wait()
    assert stderr == ""
    assert process.returncode == 0


def test_it_runs_under_uvloop(nats_server: NatsServer) -> None:
    """The same path, on the other event loop."""

    async def main() -> str:
        async with projecting(nats_server.url), fleet(nats_server.url, 2) as (one, other):
            assert await one.ready(patience(10)) and await other.ready(patience(10))
            await reject(one)
            await reject(other)
            await until(lambda: not one.decide(TARGET).allowed and not other.decide(TARGET).allowed)
            return other.decide(TARGET).reason

    assert uvloop.run(main()) == "quarantined"


def test_without_a_url_the_environment_or_the_machines_server_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`$SICKBAY_NATS` wins over the address file of `sickbay serve`, and that over nats://127.0.0.1:4222."""

    def servers() -> tuple[str, ...]:
        link = sickbay.connect().link
        assert link is not None
        return link.options.servers

    monkeypatch.setenv("SICKBAY_DATA", str(tmp_path))
    monkeypatch.delenv("SICKBAY_NATS", raising=False)
    assert servers() == ("nats://127.0.0.1:4222",)
    (tmp_path / "nats.url").write_text("nats://sickbay:secret@127.0.0.1:14222\n")
    assert servers() == ("nats://127.0.0.1:14222",)
    monkeypatch.setenv("SICKBAY_NATS", "nats://elsewhere:4333")
    assert servers() == ("nats://elsewhere:4333",)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"url": "http://x"}, "NATS URL"), ({"url": "nats://x", "replica": "r" * 300}, "replica"),
     ({"url": "nats://x", "user": "u"}, "password")],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_at_once_with_the_field_named(options: dict[str, str], words: str) -> None:
    """Bad input is the one thing `connect` raises for."""
    with pytest.raises(ValueError, match=words):
        sickbay.connect(**options)  # type: ignore[arg-type]


async def test_closing_says_what_is_left(nats_server_factory: Callable[..., NatsServer]) -> None:
    """Outcomes that no server took are counted by kind."""
    server = nats_server_factory()
    url = server.url
    server.kill9()
    sb = sickbay.connect(url, replica="r1")
    await sb.__aenter__()
    sb.record(TARGET, CallOutcome(kind="ok"))
    left = await sb.close(limit_s=0.2)
    assert left.by_kind == {"ok": 1}
    assert sb.decide(TARGET).allowed


async def dead_targets(one: Sickbay, other: Sickbay, numbers: range, per_s: float) -> None:
    """Two rejections, by two replicas, of one target after another."""
    began_s = time.monotonic()
    for at, n in enumerate(numbers):
        target = Target("openrouter.ai", f"dead-{n}")
        for sb in (one, other):
            sb.record(target, CallOutcome(kind="model_unavailable", status=404, seen_seq=sb.mirror.seq))
        await asyncio.sleep(max(0.0, began_s + (at + 1) / per_s - time.monotonic()))


async def standing(sb: Sickbay) -> dict[str, int]:
    """Scope key and revision of what stands in the bucket, asked of the server."""
    assert sb.link is not None and sb.link.client is not None
    read = await read_entries(sb.link.client, GATE_STREAM, f"{GATE_PREFIX}>")
    keys = {
        entry.subject.decode().removeprefix(GATE_PREFIX): entry.revision for entry in read.entries if not entry.gone
    }
    return {key: revision for key, revision in keys.items() if key != CHECKPOINT_KEY}


def known(sb: Sickbay) -> dict[str, int]:
    """The same as the mirror knows it."""
    assert isinstance(sb.mirror, Mirror)
    return {key: held[0] for key, held in sb.mirror._map.standing.items() if key != CHECKPOINT_KEY}


async def test_no_mirror_pages_while_a_projector_changes_200_entries_a_second(nats_server: NatsServer) -> None:
    """Checkpoints of a real projector under load fit what each mirror had at their revision."""
    async with projecting(nats_server.url), fleet(nats_server.url, 3) as (one, other, third):
        for sb in (one, other, third):
            assert await sb.ready(patience(10))
        before = [sb.mirror.resyncs for sb in (one, other, third) if isinstance(sb.mirror, Mirror)]
        await dead_targets(one, other, range(600), per_s=200)
        await until(lambda: not third.decide(Target("openrouter.ai", "dead-599")).allowed)
        seq = third.mirror.seq
        await until(lambda: third.mirror.checkpoint is not None and third.mirror.checkpoint.seq >= seq)
        for sb, resyncs in zip((one, other, third), before, strict=True):
            assert isinstance(sb.mirror, Mirror)
            assert sb.mirror.resyncs == resyncs
            assert sb.mirror.counts["mismatch"] == 0
        assert known(third) == await standing(third)


async def test_a_server_killed_under_load_leaves_mirrors_that_hold_what_the_bucket_holds(
    nats_server: NatsServer,
) -> None:
    """SIGKILL in the middle of 200 changes a second; afterwards nobody misses an entry or keeps one too many."""
    async with projecting(nats_server.url), fleet(nats_server.url, 3) as (one, other, third):
        for sb in (one, other, third):
            assert await sb.ready(patience(10))
        load = asyncio.create_task(dead_targets(one, other, range(600), per_s=200))
        await asyncio.sleep(1.0)
        nats_server.kill9()
        await asyncio.sleep(0.3)
        nats_server.restart()
        await load
        last = Target("openrouter.ai", "dead-599")
        await until(lambda: all(not sb.decide(last).allowed for sb in (one, other, third)))
        await until(lambda: one.reporter.counts.acked == other.reporter.counts.acked == 600)
        for sb in (one, other, third):
            await until(lambda sb=sb: _same(sb))  # type: ignore[misc]
            held = [n for n in range(600) if Target("openrouter.ai", f"dead-{n}").key in sb.mirror.entries]
            assert len(held) == 600


async def _same(sb: Sickbay) -> bool:
    return known(sb) == await standing(sb)
