"""A chain that is no last resort is named in a warning when it is first used (Rule 5.4), by what the fleet knows."""

from __future__ import annotations

import logging

import pytest

import sickbay
from nats_servers import NatsServer
from sickbay import Attempt, CallOutcome, Target
from sickbay.config import Settings
from sickbay.service.services import Services
from sickbay.testing import standalone
from waiting import patience, until

A, B = Target("a.example", "m-a"), Target("b.example", "m-b")


async def fine(target: Target, _attempt: Attempt) -> str:
    return target.model


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (getattr(record, "why", ""), record.getMessage())
        for record in caplog.records
        if getattr(record, "event", "") == "no_last_resort"
    ]


async def test_a_chain_at_one_provider_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Two credentials are one provider too; another chain is named by itself, a single target is no chain."""
    sb = standalone()
    chain = [Target("a.example#one", "m-1"), Target("a.example#two", "m-2")]
    for _ in range(3):
        await sb.call(chain, fine, route="brief")
    assert said(caplog) == [
        ("one_provider", "the chain brief is no last resort: all 2 candidates are at a.example"),
    ]
    await sb.call(list(reversed(chain)), fine)
    await sb.call([A, B], fine)
    await sb.call([A], fine)
    assert [why for why, _ in said(caplog)] == ["one_provider", "one_provider"]
    assert "a.example#two / m-2 > a.example#one / m-1" in said(caplog)[1][1]


async def test_a_candidate_that_never_answered_anybody_is_named(
    nats_server: NatsServer, services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    """The fleet is asked, beside the request path: what another replica had an answer from is a last resort."""
    caplog.set_level(logging.WARNING, "sickbay")
    async with sickbay.connect(nats_server.url, replica="r-2") as other:
        other.record(B, CallOutcome(kind="ok", status=200))
        other.record(A, CallOutcome(kind="server_error", status=500))
        await until(lambda: other.reporter.counts.acked == 2, "acknowledged")
    async with sickbay.connect(nats_server.url, replica="r-1") as sb:
        assert await sb.ready(patience(10))
        await until(lambda: sb.mirror.seq >= 2, "folded")
        held = Target("c.example", "m-c")
        await sb.call([B, A, held], fine, route="brief")
        await until(lambda: len(said(caplog)) == 2, "named")
        assert said(caplog) == [
            ("never_answered", "the chain brief is no last resort: no answer of a.example / m-a is known"),
            ("never_answered", "the chain brief is no last resort: no answer of c.example / m-c is known"),
        ]
        await sb.call([B, A, held], fine, route="brief")
        assert not sb._chain_check._tasks, "asked once"


async def test_without_services_nothing_is_claimed_and_the_question_is_put_again(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sickbay")
    async with sickbay.connect(nats_server.url, replica="r-1") as sb:
        await until(lambda: sb.link is not None and sb.link.client is not None, "connected")
        await sb.call([A, B], fine)
        await until(lambda: not sb._chain_check._tasks, "asked in vain")
        assert said(caplog) == []
        running = Services(Settings(nats=nats_server.url, replica="box-1"))
        await running.start()
        await running.ready()
        try:
            now_s = sb._chain_check._monotonic()
            sb._chain_check._monotonic = lambda: now_s + 11
            await sb.call([A, B], fine)
            await until(lambda: not sb._chain_check._asked and not sb._chain_check._tasks, "asked again")
            # A answered here, so that only B is named.
            assert [text.split(": ")[1] for _, text in said(caplog)] == ["no answer of b.example / m-b is known"]
        finally:
            await running.stop()
