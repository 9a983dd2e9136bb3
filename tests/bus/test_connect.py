"""Connecting is bounded and says why it failed; a link is kept through whatever happens to the server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from nats_servers import NatsServer, free_port
from sickbay.bus.bulk import BulkParser
from sickbay.bus.connect import (
    AccessRefused,
    ConnectError,
    NatsOptions,
    OptionsError,
    PermissionDenied,
    connect_client,
    connect_once,
)
from sickbay.bus.link import Link
from waiting import patience, until

USERS = """
authorization { users: [
  { user: admin, password: "a/p@w" }
  { user: router, password: rpw, permissions: {
      publish: { allow: ["sickbay.outcome.>"] }, subscribe: { allow: ["_INBOX_router.>"] } } } ] }
"""


async def test_a_dead_port_is_said_within_the_time_and_with_the_address() -> None:
    port = free_port()
    began = time.monotonic()
    with pytest.raises(ConnectError, match=rf"127\.0\.0\.1:{port}.*Connect call failed") as caught:
        await connect_client(f"nats://user:hidden@127.0.0.1:{port}", timeout_s=0.5)
    assert 0.4 < time.monotonic() - began < patience(1.5)
    assert "hidden" not in str(caught.value)


async def test_a_port_that_takes_connections_and_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(ConnectError):
            await connect_client(f"nats://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.5)
        assert time.monotonic() - began < patience(1.5)


async def test_connect_waits_for_a_server_that_starts_a_moment_later() -> None:
    server = NatsServer()
    task = asyncio.create_task(connect_client(server.url, timeout_s=10))
    await asyncio.sleep(0.2)  # the time in which nobody is there is what this is about
    try:
        await asyncio.to_thread(server.start)
        client = await task
        assert client.is_connected
        assert isinstance(client._ps, BulkParser)
        await client.close()
    finally:
        server.stop()


async def test_cancelling_connect_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    task = asyncio.create_task(connect_client(f"nats://127.0.0.1:{free_port()}", timeout_s=30))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before


async def test_a_wrong_password_is_refused_at_once_and_said_so(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    server = nats_server_factory(config=USERS)
    began = time.monotonic()
    with pytest.raises(AccessRefused, match="refused the credentials") as caught:
        await connect_client(f"nats://admin:wrong@127.0.0.1:{server.port}", timeout_s=10)
    assert time.monotonic() - began < patience(2)
    assert "wrong" not in str(caught.value)


async def test_user_info_in_the_url_is_percent_decoded(nats_server_factory: Callable[..., NatsServer]) -> None:
    server = nats_server_factory(config=USERS)
    client = await connect_client(f"nats://admin:a%2Fp%40w@127.0.0.1:{server.port}")
    await client.request("$JS.API.INFO")
    await client.close()


async def test_a_token_connects(nats_server_factory: Callable[..., NatsServer]) -> None:
    server = nats_server_factory(config="authorization { token: s3cr3t }")
    for options in (
        NatsOptions.from_url(f"nats://s3cr3t@127.0.0.1:{server.port}"),
        NatsOptions.from_url(server.url, token="s3cr3t"),
    ):
        client = await connect_client(options)
        assert client.is_connected
        await client.close()
        assert "s3cr3t" not in repr(options)


async def test_tls_connects_with_its_own_authority(
    nats_server_factory: Callable[..., NatsServer], tmp_path: Path
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl command to make a certificate with")
    server = nats_server_factory(config=f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}')
    url = f"tls://localhost:{server.port}"
    client = await connect_client(NatsOptions.from_url(url, tls_ca=str(certificate)))
    await client.request("$JS.API.INFO")
    await client.close()
    with pytest.raises(ConnectError, match="certificate"):
        await connect_client(NatsOptions.from_url(url), timeout_s=1)
    with pytest.raises(OptionsError, match="tls_ca"):
        await connect_client(NatsOptions.from_url(url, tls_ca=str(tmp_path / "none.pem")))


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("http://host:4222", {}, "NATS URL"),
        ("nats://", {}, "NATS URL"),
        ("", {}, "NATS URL"),
        ("nats://host:port", {}, "NATS URL"),
        ("nats://a b", {}, "NATS URL"),
        ("nats://host", {"user": "u"}, "password"),
        ("nats://host", {"user": "u", "password": "p", "token": "t"}, "token"),
        ("nats://host", {"tls_key": "k.pem"}, "tls_cert"),
        ("nats://host", {"inbox_prefix": "_INBOX.>"}, "inbox_prefix"),
        ("nats://host,ws://host", {}, "servers"),
    ],
)
def test_unusable_options_are_named(url: str, options: dict[str, str], named: str) -> None:
    with pytest.raises(OptionsError, match=named):
        NatsOptions.from_url(url, **options)


def test_an_unusable_url_does_not_show_its_secret() -> None:
    with pytest.raises(OptionsError) as caught:
        NatsOptions.from_url("http://user:hidden@host")
    assert "hidden" not in str(caught.value)


def test_urls_get_scheme_and_port() -> None:
    assert NatsOptions.from_url("host").servers == ("nats://host:4222",)
    assert NatsOptions.from_url("a:1, tls://[::1]").servers == ("nats://a:1", "tls://[::1]:4222")
    assert NatsOptions.from_url("wss://a").servers == ("wss://a:443",)


async def test_creds_without_the_package_for_them_is_said() -> None:
    with pytest.raises(OptionsError, match="nkeys"):
        await connect_client(NatsOptions.from_url("nats://host", creds="router.creds"))


async def test_a_refused_publish_surfaces_at_once_with_its_subject(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    """Nothing else tells: the publish itself succeeds. The subject comes back in its own case."""
    server = nats_server_factory(config=USERS)
    errors: list[Exception] = []
    options = NatsOptions.from_url(server.url, user="router", password="rpw", inbox_prefix="_INBOX_router")
    client = await connect_client(options, on_error=errors.append)
    await client.publish("$KV.sickbay.gate.Openrouter=2Eai", b"x")
    await until(lambda: bool(errors))
    error = errors[0]
    assert isinstance(error, PermissionDenied)
    assert (error.action, error.subject) == ("publish", "$KV.sickbay.gate.Openrouter=2Eai")
    await client.subscribe("Foreign.>")
    await until(lambda: len(errors) == 2)
    assert "subscribe to 'Foreign.>'" in str(errors[1])
    assert client.is_connected
    await client.close()


class Log:
    """A listener that writes down what a link tells."""

    def __init__(self, link: Link) -> None:
        self.calls: list[str] = []
        link.listen(
            connected=lambda _client, fresh: self.calls.append("fresh" if fresh else "again"),
            disconnected=lambda: self.calls.append("lost"),
        )


async def test_a_link_begins_before_its_server_and_outlives_a_kill() -> None:
    server = NatsServer()
    link = Link(NatsOptions.from_url(server.url))
    log = Log(link)
    link.start()
    assert link.client is None
    with pytest.raises(ConnectError, match="Connect call failed"):
        await link.wait_connected(0.3)
    try:
        await asyncio.to_thread(server.start)
        client = await link.wait_connected(patience(5))
        assert log.calls == ["fresh"]
        server.kill9()
        await until(lambda: log.calls == ["fresh", "lost"])
        assert link.client is None
        await asyncio.to_thread(server.restart)
        began = time.monotonic()
        await until(lambda: log.calls == ["fresh", "lost", "again"])
        assert time.monotonic() - began < patience(0.3), "the wait between attempts stays short for a short outage"
        assert link.client is client
    finally:
        await link.close()
        server.stop()
    assert log.calls == ["fresh", "lost", "again"], "closing is no loss"
    assert client.is_closed


async def test_a_link_replaces_a_client_that_the_server_closed_for_good(nats_server: NatsServer) -> None:
    """A control line beyond the server's limit is answered with -ERR, after which a nats-py client stays closed."""
    link = Link(NatsOptions.from_url(nats_server.url))
    log = Log(link)
    link.start()
    client = await link.wait_connected(patience(5))
    await client.publish("a." + "x" * 5000, b"")
    await until(lambda: client.is_closed)
    second = await link.wait_connected(patience(5))
    assert second is not client
    assert log.calls == ["fresh", "lost", "fresh"]
    await second.request("$JS.API.INFO")
    await link.close()


async def test_a_link_notices_a_server_that_has_gone_silent_within_seconds(nats_server: NatsServer) -> None:
    link = Link(NatsOptions.from_url(nats_server.url))
    log = Log(link)
    link.start()
    await link.wait_connected(patience(5))
    nats_server.pause()
    try:
        began = time.monotonic()
        await until(lambda: "lost" in log.calls)
        assert time.monotonic() - began < patience(5)
    finally:
        nats_server.resume()
    await until(lambda: link.client is not None)
    await link.close()


async def test_a_link_replaces_a_client_whose_reconnecting_has_died(nats_server: NatsServer) -> None:
    """nats-py's reconnect task ends without a word when something unforeseen is raised in it."""
    link = Link(NatsOptions.from_url(nats_server.url))
    link.start()
    client = await link.wait_connected(patience(5))
    nats_server.kill9()
    await until(lambda: client._reconnection_task is not None)
    task = client._reconnection_task
    assert task is not None
    await until(lambda: not task.cancel(), "it is dead: one cancellation may be swallowed where it tries a server")
    await asyncio.to_thread(nats_server.restart)
    second = await link.wait_connected(patience(10))
    assert second is not client
    await link.close()


async def test_a_link_closed_just_as_its_connection_is_made_closes(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio's wait_for gives the result and forgets the cancellation when both come at once: a process that ended
    in that moment would go on for ever."""
    made = asyncio.Event()
    connected = asyncio.Event()

    async def late(*given: Any, **options: Any) -> Client:
        client = await connect_once(*given, **options)
        made.set()
        with contextlib.suppress(asyncio.CancelledError):
            await connected.wait()
        return client

    monkeypatch.setattr("sickbay.bus.link.connect_once", late)
    link = Link(NatsOptions.from_url(nats_server.url))
    link.start()
    await made.wait()
    async with asyncio.timeout(patience(5)):
        await link.close()
    assert link.client is None


async def test_a_failing_listener_stops_nobody(nats_server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_client: Client, _fresh: bool) -> None:
        raise ValueError("listener")

    link = Link(NatsOptions.from_url(nats_server.url))
    link.listen(connected=broken)
    log = Log(link)
    link.start()
    await link.wait_connected(patience(5))
    await until(lambda: log.calls == ["fresh"])
    assert "a listener of the NATS connection failed" in caplog.text
    late = Log(link)
    assert late.calls == ["fresh"], "who listens late is told of the connection that stands"
    await link.close()
    await link.close()


async def test_a_link_warns_once_of_each_refused_subject(
    nats_server_factory: Callable[..., NatsServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = nats_server_factory(config=USERS)
    link = Link(NatsOptions.from_url(server.url, user="router", password="rpw", inbox_prefix="_INBOX_router"))
    errors: list[Exception] = []
    link.listen(error=errors.append)
    link.start()
    client = await link.wait_connected(patience(5))
    with caplog.at_level(logging.WARNING, "sickbay.bus"):
        for _ in range(3):
            await client.publish("forbidden.A", b"")
        await until(lambda: len(errors) == 3)
    assert [record.getMessage() for record in caplog.records].count(str(errors[0])) == 1
    await link.close()


async def test_a_link_with_refused_credentials_says_why_and_comes_up_when_they_are_let_in(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    server = nats_server_factory(config="authorization { user: other, password: pw }")
    link = Link(NatsOptions.from_url(server.url, user="router", password="rpw"))
    link.start()
    await until(lambda: isinstance(link.last_error, AccessRefused))
    server.config = "authorization { user: router, password: rpw }"
    await asyncio.to_thread(server.restart)
    await link.wait_connected(patience(5))
    await link.close()


UNDER_UVLOOP = """
import asyncio, sys, uvloop
from sickbay.bus.connect import NatsOptions
from sickbay.bus.link import Link
async def main():
    link = Link(NatsOptions.from_url(sys.argv[1])); link.start()
    client = await link.wait_connected(60)
    await client.request("$JS.API.INFO"); await link.close(); print("done", type(asyncio.get_running_loop()).__module__)
uvloop.run(main())
"""


def test_a_link_works_under_uvloop(nats_server: NatsServer) -> None:
    pytest.importorskip("uvloop")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", UNDER_UVLOOP, nats_server.url],
        capture_output=True,
        text=True,
        timeout=patience(30),
        check=False,
    )
    assert done.stdout.split() == ["done", "uvloop"], done.stderr


def test_the_router_side_of_the_bus_needs_no_more_than_a_router_installs() -> None:
    heavy = "{'faststream', 'typer', 'rich', 'sqlite_utils', 'uvloop', 'sickbay.bus.embedded'}"
    modules = "from sickbay.bus import bulk, connect, entries, link, reader, topology"
    code = f"import sys; {modules}; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("config", [None, "authorization { user: router, password: right }"])
async def test_a_server_that_is_not_there_or_refuses_leaves_no_clients_behind(config: str | None) -> None:
    """However long it lasts: each attempt makes a client, and none is kept."""
    server = None if config is None else NatsServer(config=config).start()
    try:
        url = f"nats://router:wrong@127.0.0.1:{server.port if server else free_port()}"
        before = {id(one) for one in _clients()}
        for _ in range(20):
            with pytest.raises(ConnectError):
                await connect_once(NatsOptions.from_url(url), timeout_s=patience(2))
        await until(lambda: len([one for one in _clients() if id(one) not in before]) <= 1, "the clients are let go")
    finally:
        if server is not None:
            server.stop()


def _clients() -> list[Client]:
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, Client)]
