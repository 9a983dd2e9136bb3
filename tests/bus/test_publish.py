"""What becomes of a message that was published: stored, refused, or nobody can say; each sender hears it once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from nats_servers import NatsServer
from sickbay.bus.connect import NatsOptions
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.link import Link
from sickbay.bus.publish import Ack, AckedPublisher, Outgoing
from waiting import patience, until

STREAM = "TEST"
EXPECT = "Nats-Expected-Last-Subject-Sequence"
NOT_EVERYTHING = """
authorization { users: [ { user: router, password: pw, permissions: { publish: { deny: ["log.secret"] } } } ] }
"""


async def opened(link: Link, *, timeout_s: float = 60) -> AckedPublisher:
    """A publisher on the link's connection, and a stream that takes `log.>`."""
    link.start()
    client = await link.wait_connected(patience(5))
    config = {"name": STREAM, "subjects": ["log.>"], "max_msg_size": 100}
    await JetStreamApi(client, timeout_s=patience(5)).request(f"STREAM.CREATE.{STREAM}", config)
    publisher = AckedPublisher(link, timeout_s=timeout_s)
    link.listen(error=publisher.on_error)
    await publisher.open(client)
    return publisher


@pytest.fixture
async def link(nats_server: NatsServer) -> AsyncIterator[Link]:
    made = Link(NatsOptions.from_url(nats_server.url))
    yield made
    await made.close()


@pytest.fixture
async def publisher(link: Link) -> AsyncIterator[AckedPublisher]:
    made = await opened(link)
    yield made
    await made.close()


async def publish(publisher: AckedPublisher, subject: str, headers: dict[str, str] | None = None) -> Ack:
    return await asyncio.wait_for(publisher.publish(subject, b"{}", headers or {}), patience(5))


async def last_seq(link: Link) -> int:
    client = await link.wait_connected(patience(5))
    return (await JetStreamApi(client, timeout_s=patience(5)).stream_at(STREAM)).last_seq


async def test_a_stored_message_is_told_with_its_sequence(publisher: AckedPublisher, link: Link) -> None:
    assert await publish(publisher, "log.a") == Ack(seq=1)
    assert await publish(publisher, "log.b") == Ack(seq=2)
    assert await last_seq(link) == 2


async def test_a_repeated_id_is_a_duplicate_of_the_first(publisher: AckedPublisher, link: Link) -> None:
    assert await publish(publisher, "log.a", {"Nats-Msg-Id": "boot-1"}) == Ack(seq=1)
    assert await publish(publisher, "log.a", {"Nats-Msg-Id": "boot-1"}) == Ack(seq=1, duplicate=True)
    assert await last_seq(link) == 1


async def test_each_of_many_at_once_hears_its_own_answer(publisher: AckedPublisher) -> None:
    """The 50th is too large for the stream: it alone is refused, and the others keep their order."""
    heard: dict[int, list[Ack]] = {number: [] for number in range(100)}
    bodies = [b"x" * (200 if number == 49 else 1) for number in heard]
    messages = [Outgoing("log.a", body, {}, heard[number].append) for number, body in enumerate(bodies)]
    assert publisher.send_all(messages)
    await until(lambda: all(heard.values()), "every sender has an answer")
    assert [len(answers) for answers in heard.values()] == [1] * 100
    seqs = [answers[0].seq for answers in heard.values()]
    assert seqs == [*range(1, 50), 0, *range(50, 100)]
    (refused,) = heard[49]
    assert refused.error is not None and not refused.error.is_lost
    assert refused.error.blocked == "", "the server refuses this one message"


async def test_a_subject_that_no_stream_takes_is_refused_at_once(publisher: AckedPublisher) -> None:
    error = (await publish(publisher, "elsewhere.a")).error
    assert error is not None and error.is_without_stream and not error.is_lost
    assert error.blocked == "no_stream"


async def test_one_that_names_another_last_sequence_is_refused(publisher: AckedPublisher, link: Link) -> None:
    assert (await publish(publisher, "log.a", {EXPECT: "0"})).seq == 1
    error = (await publish(publisher, "log.a", {EXPECT: "0"})).error
    assert error is not None and error.is_wrong_last_sequence
    assert error.blocked == "", "another message came first: the stream takes others"
    assert (await publish(publisher, "log.a", {EXPECT: "1"})).seq == 2
    assert await last_seq(link) == 2


async def test_a_subject_that_the_user_may_not_publish_is_denied_and_no_other() -> None:
    """The server answers nothing to that; the sender hears it by the connection's error all the same."""
    with NatsServer(config=NOT_EVERYTHING) as server:
        link = Link(NatsOptions.from_url(server.url, user="router", password="pw"))
        publisher = await opened(link)
        denied, stored = await asyncio.gather(publish(publisher, "log.secret"), publish(publisher, "log.a"))
        assert denied.error is not None and denied.error.is_denied and not denied.error.is_lost
        assert stored == Ack(seq=1)
        await publisher.close()
        await link.close()


async def test_what_was_on_its_way_as_the_connection_broke_is_lost(
    nats_server: NatsServer, publisher: AckedPublisher, link: Link
) -> None:
    """Whether it is stored nobody can say. Nothing is sent again, and what is published meanwhile is lost at once."""
    link.listen(disconnected=lambda: publisher.lose("connection lost"))
    assert (await publish(publisher, "log.a")).seq == 1
    nats_server.pause()  # so it takes the message from nobody
    waiting = asyncio.ensure_future(publisher.publish("log.a", b"{}", {}))
    await asyncio.sleep(0)
    nats_server.kill9()
    lost = await asyncio.wait_for(waiting, patience(10))
    assert lost.error is not None and lost.error.is_lost and lost.error.blocked == "no_answer"
    await until(lambda: publisher.client is None, "the link knows that it is away")
    assert not publisher.send_all([Outgoing("log.a", b"{}", {}, lambda _ack: pytest.fail("it was not sent"))])
    meanwhile = await publish(publisher, "log.a")
    assert meanwhile.error is not None and meanwhile.error.is_lost
    await asyncio.to_thread(nats_server.restart)
    await publisher.open(await link.wait_connected(patience(20)))
    assert (await publish(publisher, "log.a")).seq == 2, "neither was sent again"


async def test_sweep_gives_up_on_what_waits_too_long_and_a_late_answer_is_only_counted(
    nats_server: NatsServer, link: Link
) -> None:
    publisher = await opened(link, timeout_s=0)
    nats_server.pause()
    heard: list[Ack] = []
    publisher.send("log.a", b"{}", {}, heard.append)
    publisher.sweep()
    assert len(heard) == 1 and heard[0].error is not None and heard[0].error.is_lost
    nats_server.resume()
    await until(lambda: publisher.late == 1, "the answer that came too late")
    assert len(heard) == 1, "each sender hears once"
    assert await last_seq(link) == 1, "it may be stored all the same"
    await publisher.close()


async def test_sweep_leaves_what_has_time_left(publisher: AckedPublisher) -> None:
    heard: list[Ack] = []
    publisher.send("log.a", b"{}", {}, heard.append)
    publisher.sweep()
    assert heard == []
    await until(lambda: heard, "its answer")
    assert heard == [Ack(seq=1)]
