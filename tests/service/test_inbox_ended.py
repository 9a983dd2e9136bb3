"""A user loses the right to its inbox for a while and gets it back: no subscription stays ended."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable

import pytest
from nats.aio.client import Client

import sickbay as product
from cli_runs import Serve, serve_fixture  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsServer
from sickbay.bus.connect import NatsOptions, PermissionDenied
from sickbay.bus.link import Link
from sickbay_events import CallOutcome, Target
from waiting import patience, until

TARGET = Target("a.example", "m")
WHOLE, LESS = '"sickbay.>", "$SRV.>", "_INBOX.>"', '"sickbay.>", "$SRV.>"'
USERS = f"""accounts {{ A {{ jetstream: enabled, users: [
  {{ user: other, password: o }},
  {{ user: poor, password: p, permissions: {{ publish: ">", subscribe: {{ allow: [{WHOLE}] }} }} }} ] }} }}"""


class Users(NatsServer):
    """A server with a user `poor`, who may lose its inbox, and one, `other`, who does not."""

    def url_of(self, user: str) -> str:
        return self.url.replace("//", f"//{user}:{user[0]}@")

    def let(self, subjects: str) -> None:
        path = self.folder / "nats.conf"
        path.write_text(path.read_text().replace(LESS if subjects == WHOLE else WHOLE, subjects))
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)


@pytest.fixture
def server() -> object:
    with Users(config=USERS) as started:
        yield started


async def refused(link: Link) -> None:
    await until(lambda: isinstance(link.last_error, PermissionDenied), "the server has ended the inbox")


async def test_a_router_hands_over_and_asks_for_leases_again(serve: Callable[..., Serve], server: Users) -> None:
    serve("--nats", server.url_of("other")).ready()
    async with product.connect(server.url_of("poor"), replica="r1") as router:
        assert await router.ready(patience(10))
        router.record(TARGET, CallOutcome(kind="ok"))
        await until(lambda: router.reporter.counts.acked == 1)
        for turn in (2, 3):
            link = router.link
            assert link is not None
            server.let(LESS)
            await refused(link)
            server.let(WHOLE)
            link.last_error = None
            router.record(TARGET, CallOutcome(kind="ok"))
            await until(lambda: router.reporter.counts.acked == turn, "it is acknowledged", 60)  # noqa: B023
            assert router.reporter.counts.blocked == ""


async def test_the_services_fold_on(serve: Callable[..., Serve], server: Users) -> None:
    served = serve("--nats", server.url_of("poor")).ready()
    server.let(LESS)
    await until(lambda: "may not subscribe to '_INBOX" in served.log(), "the services hear of it")
    server.let(WHOLE)
    async with product.connect(server.url_of("other"), replica="r1") as router:
        for n in range(1, 4):
            router.record(TARGET, CallOutcome(kind="ok"))
            await until(lambda: router.reporter.counts.acked == n, "it is stored")  # noqa: B023

        async def folded() -> bool:
            return bool((await asyncio.to_thread(served.health))["projector"]["seq"] >= 3)

        await until(folded, "and folded", 60)

        async def answered() -> bool:
            client = router.link.client if router.link is not None else None
            assert isinstance(client, Client)
            reply = await client.request("sickbay.v1.status", b"{}", timeout=patience(2))
            return bool(json.loads(reply.data)["seq"] >= 3)

        await until(answered, "questions are answered", 60)


async def test_a_right_that_stays_away_does_not_make_a_storm_of_connections(server: Users) -> None:
    link = Link(NatsOptions.from_url(server.url_of("poor")))
    link.start()
    try:
        client = await link.wait_connected(patience(10))
        await client.flush()
        inbox = client.new_inbox()
        await client.subscribe(inbox)
        server.let(LESS)
        await refused(link)
        await until(lambda: link.connects >= 2, "one more try")
        assert link.connects <= 3
    finally:
        await link.close()
