"""Questions are answered by turns: a flood of one asker keeps neither the others nor an operator's act waiting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from nats.aio.client import Client

from cli_runs import Serve, serve_fixture, sickbay  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsServer
from sickbay.bus.connect import connect_client
from sickbay.service.turns import ASKER_MAX, ASKERS_MAX, STALE_S, Turns, asker_of
from waiting import patience, until


class Desk:
    """A worker whose clock and pace are the test's."""

    def __init__(self) -> None:
        self.now_s, self.answered = 0.0, list[str]()
        self.may_go_on = asyncio.Semaphore(0)
        self.turns = Turns(self._answer, clock=lambda: self.now_s)

    async def _answer(self, question: str) -> None:
        await self.may_go_on.acquire()
        self.answered.append(question)

    async def let(self, count: int) -> None:
        wanted = len(self.answered) + count
        for _ in range(count):
            self.may_go_on.release()
        await until(lambda: len(self.answered) >= wanted, "that many are answered")


@pytest.fixture
async def desk() -> object:
    made = Desk()
    running = asyncio.create_task(made.turns.run())
    yield made
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize("flood", [10, ASKER_MAX, 20 * ASKER_MAX])
async def test_another_asker_waits_for_one_answer_not_for_all(desk: Desk, flood: int) -> None:
    for n in range(flood):
        desk.turns.add("_INBOX.loud", f"loud {n}")
    desk.turns.add("_INBOX.calm", "calm")
    await desk.let(2)
    assert desk.answered == ["loud 0", "calm"]
    assert desk.turns.dropped == max(0, flood - ASKER_MAX)


async def test_what_waited_too_long_is_dropped_unanswered(desk: Desk) -> None:
    for n in range(5):
        desk.turns.add("_INBOX.a", f"old {n}")
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the first is with the worker now
    desk.now_s = STALE_S
    desk.turns.add("_INBOX.a", "new")
    await desk.let(2)
    assert desk.answered == ["old 0", "new"]
    assert desk.turns.dropped == 4


async def test_askers_without_end_are_bounded_too(desk: Desk) -> None:
    for n in range(3 * ASKERS_MAX):
        desk.turns.add(f"_INBOX.{n}", str(n))
    assert desk.turns.dropped == 2 * ASKERS_MAX
    await until(lambda: len(desk.turns._by_asker) < ASKERS_MAX, "the first is with the worker")
    desk.now_s = STALE_S
    await desk.let(1)
    desk.turns.add("_INBOX.later", "later")
    await desk.let(1)
    assert desk.answered[-1] == "later"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("_INBOX.abc.1", "_INBOX.abc.2", True),
        ("_INBOX.abc.1", "_INBOX.abd.1", False),
        ("_INBOX_router.abc.1", "_INBOX_router.abd.1", False),
        ("_INBOX.abc", "_INBOX.abd", False),
        ("plain", "other", False),
    ],
)
def test_an_asker_is_told_by_its_inbox(one: str, other: str, *, same: bool) -> None:
    assert (asker_of(one) == asker_of(other)) is same


async def test_after_a_flood_of_questions_all_others_are_answered(
    nats_server: NatsServer, nats_client: Client, serve: Callable[..., Serve]
) -> None:
    serve("--nats", nats_server.url).ready()
    for i in range(1_500):
        subject = f"sickbay.outcome.router-1.h{i % 40}=2Eexample.=.vendor/some-quite-long-model-name-{i}"
        await nats_client.publish(subject, b'{"kind":"server_error","status":500}')
    loud = await connect_client(nats_server.url)
    inbox = loud.new_inbox()
    await nats_client.flush()
    for _ in range(2_000):
        await loud.publish("sickbay.v1.status", b'{"all":true,"limit":1000}', reply=inbox)
    await loud.flush()
    reply = await nats_client.request("sickbay.v1.status", b'{"limit":1}', timeout=patience(5))
    assert json.loads(reply.data)["projector"]["phase"] == "writing"
    act = b'{"provider":"a.example","model":"m","reason":"r","actor":"ana","for_s":60}'
    stored = await nats_client.request("sickbay.operate.v1.hold", act, timeout=patience(5))
    assert json.loads(stored.data)["stream"] == "SICKBAY_CONTROL"
    await loud.close()
    reply = await nats_client.request("sickbay.v1.status", b'{"limit":1}', timeout=patience(5))
    assert json.loads(reply.data)["seq"] > 0
