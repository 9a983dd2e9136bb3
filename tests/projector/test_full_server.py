"""A server that stores nothing more is said, in the log and by `sickbay status`: every gate is stale then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from cli_runs import Serve, serve_fixture, sickbay  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsServer
from sickbay.bus.connect import NatsOptions, connect_client
from sickbay.bus.link import Link
from sickbay.bus.topology import GATE_STREAM
from sickbay.projector import Projector
from waiting import patience, until, until_sync


async def test_a_writer_whose_bucket_takes_nothing_says_that_every_gate_is_stale(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Held back by a limit of the stream, as by a full disk: one warning within seconds, not one a tick."""
    caplog.set_level(logging.WARNING, "sickbay.projector")
    link = Link(NatsOptions.from_url(nats_server.url))
    link.start()
    projector = Projector(link, name="p", snapshots=False)
    running = asyncio.create_task(projector.run())
    await until(lambda: projector.is_writer)
    client = await connect_client(nats_server.url)
    js = client.jetstream()
    config = (await js.stream_info(GATE_STREAM)).config
    await js.update_stream(config, max_bytes=1)
    try:
        await until(lambda: "every gate is stale" in caplog.text)
        assert caplog.text.count("every gate is stale") == 1
        assert projector.health().checkpoint_age_s >= 5
    finally:
        projector.stop()
        await asyncio.wait_for(running, patience(20))
        await client.close()
        await link.close()


def test_status_says_that_nothing_is_written(serve: Callable[..., Serve], nats_server: NatsServer) -> None:
    """The command does not call a writer well whose checkpoint stands still."""
    serve("--nats", nats_server.url).ready()

    async def limit() -> None:
        client = await connect_client(nats_server.url)
        js = client.jetstream()
        await js.update_stream((await js.stream_info(GATE_STREAM)).config, max_bytes=1)
        await client.close()

    asyncio.run(limit())
    until_sync(lambda: "every gate is stale" in sickbay("status", "--nats", nats_server.url).stdout, "status says it")
