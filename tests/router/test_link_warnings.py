"""A router that never reaches NATS, or loses it, is told so in its log: once, with the reason."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

import sickbay
from nats_servers import NatsServer
from sickbay.bus.connect import NatsOptions, connect_once
from waiting import patience, until


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "sickbay.bus" and r.levelno == logging.WARNING]


async def test_an_address_where_nobody_listens_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Decisions go on as `stale`, which nobody would notice; attempts to connect follow each other, lines do not."""
    async with sickbay.connect("nats://user:hidden@127.0.0.1:1", replica="r") as sb:
        assert sb.link is not None
        await until(lambda: bool(_lines(caplog)))
        seen = sb.link.last_error
        await until(lambda: sb.link is not None and sb.link.last_error is not seen)
    (line,) = _lines(caplog)
    assert "nats://127.0.0.1:1" in line and "hidden" not in line


async def test_a_lost_connection_is_said_and_its_return_too(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """One line when it stays away, one when it is back."""
    caplog.set_level(logging.INFO, "sickbay.bus")
    async with sickbay.connect(nats_server.url, replica="r") as sb:
        assert sb.link is not None
        await sb.link.wait_connected(patience(10))
        assert _lines(caplog) == []
        nats_server.kill9()
        await until(lambda: bool(_lines(caplog)))
        nats_server.restart()
        await until(lambda: any("connected to NATS" in r.getMessage() for r in caplog.records))
    assert len(_lines(caplog)) == 1


async def test_giving_up_while_it_connects_leaves_nothing_for_asyncio_to_complain_of() -> None:
    """Whatever moment of an attempt to connect is hit, its exception is looked at: a router's stderr stays empty."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    options = NatsOptions.from_url("nats://127.0.0.1:1")
    for turn in range(120):
        connecting = asyncio.ensure_future(connect_once(options))
        for _ in range(turn % 60):
            await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
