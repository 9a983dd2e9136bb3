"""Derived events while somebody else writes into their stream: each is told once, whatever the server refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client

from nats_servers import NatsServer
from projector_processes import told
from sickbay.bus.connect import NatsOptions
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.link import Link
from sickbay.bus.publish import AckedPublisher
from sickbay.bus.topology import LOG, ensure
from sickbay.projector.transitions import IN_FLIGHT_MAX, Transitions, read_end
from sickbay_events import CallOutcome, DerivedEvent, Target, encode, outcome_subject
from sickbay_events.codec import derived_id
from sickbay_projections import Fleet, Recorded
from waiting import patience, until

TARGETS = 80
BY_HAND = 4


@pytest.fixture
async def link(nats_server: NatsServer) -> AsyncIterator[Link]:
    made = Link(NatsOptions.from_url(nats_server.url))
    made.start()
    await made.wait_connected(patience(5))
    yield made
    await made.close()


async def rejected(client: Client) -> tuple[str, list[DerivedEvent]]:
    """A log in which each of many targets is rejected twice: when it was made, and what follows from it."""
    await ensure(client)
    fleet, derived = Fleet(), []
    for number in range(2 * TARGETS):
        target = Target("p.test", f"m{number // 2}")
        outcome = CallOutcome(kind="model_unavailable", id=f"{number:016x}-1")
        reply = await client.request(outcome_subject("r", target), encode(outcome), timeout=patience(2))
        seq = json.loads(reply.data)["seq"]
        message = await JetStreamApi(client, timeout_s=patience(2)).message_at(LOG, seq)
        assert message is not None
        derived += fleet.apply(Recorded(outcome, target, replica="r", seq=seq, time_ms=message.time_ns // 1_000_000))
    return (await JetStreamApi(client, timeout_s=patience(2)).stream_at(LOG)).created_at, derived


async def by_hand(client: Client, count: int) -> None:
    for number in range(count):
        reply = await client.request("sickbay.held.nobody", b'{"type":"held","n":%d}' % number, timeout=patience(2))
        assert "seq" in json.loads(reply.data)


async def new(link: Link, client: Client, created: str, events: list[DerivedEvent]) -> Transitions:
    """The transitions of a projector that has folded the whole log and knows where the stream ends."""
    publisher = AckedPublisher(link)
    await publisher.open(client)
    transitions = Transitions(publisher)
    transitions.start(created, await read_end(client, created))
    transitions.add(events)
    await transitions.take_over(client)
    return transitions


async def tell_all(transitions: Transitions, client: Client) -> None:
    async def all_told() -> bool:
        if transitions.needs_resync:
            await transitions.take_over(client)
        transitions.pump()
        return transitions.all_told

    await until(all_told, "all is told")


async def ids_told(client: Client) -> list[str]:
    return [str(one["id"]) for one in await told(client) if "id" in one]


async def test_what_was_refused_because_others_wrote_is_told_later(link: Link) -> None:
    """Although what came after it stands already. Four messages put in by hand while more are under way: the first four
    are refused, and the fifth happens to name the stream's last sequence. None is lost, none stands twice, and those
    left out keep their order."""
    client = await link.wait_connected(patience(5))
    created, events = await rejected(client)
    assert IN_FLIGHT_MAX > len(events) > 2 * BY_HAND
    wanted = [derived_id(event, created) for event in events]
    transitions = await new(link, client, created, events)
    await by_hand(client, BY_HAND)
    transitions.pump()
    await tell_all(transitions, client)
    found = await ids_told(client)
    assert sorted(found) == sorted(wanted)
    assert found == wanted[BY_HAND:] + wanted[:BY_HAND]


@pytest.mark.parametrize("more", [0, 2 * IN_FLIGHT_MAX], ids=["next", "next_after_many_more"])
async def test_who_takes_over_from_one_that_died_before_it_told_what_was_refused_tells_it(
    link: Link, more: int
) -> None:
    """It has folded the log from its beginning and knows of the stream only what stands there, others' messages
    included."""
    client = await link.wait_connected(patience(5))
    created, events = await rejected(client)
    wanted = [derived_id(event, created) for event in events]
    died = await new(link, client, created, events)
    await by_hand(client, BY_HAND)
    died.pump()
    await until(lambda: _count(client, len(events)), "what fits is stored")
    await by_hand(client, more)
    await tell_all(await new(link, client, created, events), client)
    assert await ids_told(client) == wanted[BY_HAND:] + wanted[:BY_HAND]
    again = await new(link, client, created, events)
    assert again.all_told, "what was told late is not taken for the end of what was told"


async def _count(client: Client, messages: int) -> bool:
    await asyncio.sleep(0)
    return len(await told(client)) == messages
