"""Connecting to NATS: bounded in time, with messages a person can act on, and for good.

    options = NatsOptions.from_url("nats://router:secret@127.0.0.1:4222", inbox_prefix="_INBOX_router")
    client = await connect(options, timeout_s=5)          # a nats-py client, or ConnectError

This module mends what nats-py does by itself: it waits two minutes for a dead port, tries a wrong password for ever,
reports a refused publish only to an error callback, and notices a dead peer behind a silent network after four minutes.
For a connection that is kept for ever see `link.py`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit
from weakref import ReferenceType, WeakKeyDictionary, ref

import msgspec
import nats.errors
from nats.aio.client import Client, Server
from nats.aio.msg import Msg

from .bulk import bulk_parser

PING_INTERVAL_S = 1.0
PINGS_OUTSTANDING_MAX = 2  # a silent peer is given up after (2 + 1) pings
ATTEMPT_TIMEOUT_S = 2.0  # one TCP connect, one wait for the server's first words
WAIT_MIN_S = 0.05
WAIT_MAX_S = 2.0
WAIT_SHARE = 0.01  # wait one hundredth of the outage so far: 0.05 s after 5 s, 0.6 s after a minute

_SCHEMES = ("nats", "tls", "ws", "wss")
_PERMISSION = re.compile(r"permissions violation for (publish|subscription) to \"([^\"]*)\"", re.IGNORECASE)


class BusError(Exception):
    """Base of everything the bus raises."""


class OptionsError(BusError, ValueError):
    """An option for the connection is not usable; the message names it and the accepted form."""


class ConnectError(BusError, ConnectionError):
    """No connection within the time. `servers` without credentials, `reasons` what each attempt said."""

    def __init__(self, servers: tuple[str, ...], reasons: tuple[str, ...], waited_s: float) -> None:
        self.servers = servers
        self.reasons = reasons
        self.waited_s = waited_s
        why = "; ".join(reasons) or "no answer"
        super().__init__(f"no NATS server could be reached at {', '.join(servers)} in {waited_s:.1f} s: {why}")


class AccessRefused(ConnectError):
    """A server is there and refused the credentials. Trying again with the same ones is of no use."""

    def __str__(self) -> str:
        return f"NATS at {', '.join(self.servers)} refused the credentials: {'; '.join(self.reasons)}"


class PermissionDenied(BusError):
    """The server refused a publish or a subscription. Nothing else tells of it: the publisher's call
    succeeded. `action` is "publish" or "subscribe", `subject` the one refused, in its original case."""

    def __init__(self, action: str, subject: str) -> None:
        self.action = action
        self.subject = subject
        super().__init__(f"the NATS user may not {action} {subject!r}: its permissions lack this subject")


class NatsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach NATS. Make it with `from_url`, which checks it.

    servers        URLs without user info, e.g. ("nats://127.0.0.1:4222",)
    user, password / token / creds     one of the three ways, or none; creds is a path to a .creds file
    tls_ca, tls_cert, tls_key          paths to PEM files; tls_hostname the name to check instead of the URL's
    inbox_prefix   first part of the subjects on which answers come, e.g. "_INBOX_router"
    name           shown in the server's list of connections
    """

    servers: tuple[str, ...]
    user: str | None = None
    password: str | None = None
    token: str | None = None
    creds: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_hostname: str | None = None
    inbox_prefix: str = "_INBOX"
    name: str = "sickbay"

    def __repr__(self) -> str:
        return f"NatsOptions({', '.join(self.servers)})"  # never the secrets

    @classmethod
    def from_url(cls, url: str, **options: Any) -> NatsOptions:
        """From `nats://[user:password@|token@]host[:port][,…]` and the other fields by name.

        User info is percent-decoded and taken out of the URLs, so that no message can show it. Options given
        by name win over it. Raises `OptionsError`.
        """
        servers: list[str] = []
        found: dict[str, str] = {}
        for part in (piece.strip() for piece in url.split(",")):
            server, credentials = _split_url(part)
            servers.append(server)
            found = found or credentials
        if any(options.get(field) is not None for field in ("user", "password", "token", "creds")):
            found = {}
        made = cls(servers=tuple(servers), **{**found, **{k: v for k, v in options.items() if v is not None}})
        made._check()
        return made

    def _check(self) -> None:
        ways = [self.user is not None, self.token is not None, self.creds is not None]
        if sum(ways) > 1:
            raise OptionsError("user, token, creds: give one of the three, not several")
        if (self.user is None) != (self.password is None):
            raise OptionsError("user, password: give both or neither")
        if self.tls_key is not None and self.tls_cert is None:
            raise OptionsError("tls_key: needs tls_cert, the certificate that belongs to it")
        if not re.fullmatch(r"[^\s.*>]+(\.[^\s.*>]+)*", self.inbox_prefix):
            raise OptionsError(
                f"inbox_prefix: {self.inbox_prefix!r} is no subject; give words joined by dots, e.g. _INBOX_router"
            )
        if len({urlsplit(server).scheme in ("ws", "wss") for server in self.servers}) > 1:
            raise OptionsError("servers: give either nats:// and tls:// or ws:// and wss://, not both kinds")


def _split_url(part: str) -> tuple[str, dict[str, str]]:
    """One URL without its user info, and that user info as option fields."""
    full = part if "://" in part else f"nats://{part}"
    try:
        split = urlsplit(full)
        port = split.port
    except ValueError:
        split, port = urlsplit("nats://"), None
    if split.scheme not in _SCHEMES or not split.hostname or " " in full:
        shown = re.sub(r"//[^/]*@", "//…@", part)
        raise OptionsError(f"NATS URL: {shown!r} is none; give nats://host:port (or tls://, ws://, wss://)")
    credentials: dict[str, str] = {}
    if split.username and split.password is not None:
        credentials = {"user": unquote(split.username), "password": unquote(split.password)}
    elif split.username:
        credentials = {"token": unquote(split.username)}
    host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
    if port is None:
        port = {"ws": 80, "wss": 443}.get(split.scheme, 4222)
    return f"{split.scheme}://{host}:{port}", credentials


class Backoff:
    """The wait before the next attempt: a hundredth of the outage so far, between 0.05 and 2 s, +-50 %."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def restart(self) -> None:
        """The outage begins now."""
        self._since = time.monotonic()

    def wait_s(self) -> float:
        """Seconds to wait now."""
        outage_s = time.monotonic() - self._since
        return min(max(outage_s * WAIT_SHARE, WAIT_MIN_S), WAIT_MAX_S) * random.uniform(0.5, 1.5)


Report = Callable[[Exception], None]
Callback = Callable[[], Awaitable[None]]


class _GiveUp(Exception):
    """Raised through nats-py's connect loop to end it after one round over the servers."""


class _Watch:
    """The callbacks of one client: collects what failed while connecting, reports what fails later."""

    def __init__(self, servers_count: int, on_error: Report | None) -> None:
        self.reasons: list[str] = []
        self.refused = False
        self.connected = False
        self.backoff = Backoff()
        self.of: ReferenceType[Client] | None = None
        """Weak: what a dictionary holds under weak keys must not hold those."""
        self.asking: dict[str, set[asyncio.Future[Msg]]] = {}
        """Requests that wait for an answer, by subject."""
        self._servers_count = servers_count
        self._on_error = on_error

    async def error(self, error: Exception) -> None:
        """nats-py's error callback."""
        if not self.connected:
            text = str(error) or type(error).__name__
            self.reasons.append(text)
            self.refused = self.refused or "authorization violation" in text.lower()
            if self.refused or len(self.reasons) >= self._servers_count:
                raise _GiveUp
            return
        named = self._named(error)
        if isinstance(named, PermissionDenied) and named.action == "publish":
            for asked in self.asking.get(named.subject, ()):
                if not asked.done():
                    asked.set_exception(named)
        if self._on_error is not None:
            self._on_error(named)

    def _named(self, error: Exception) -> Exception:
        # The parser keeps the server's words as they came; nats-py has put the subject in lower case.
        client = self.of() if self.of is not None else None
        if "permissions violation" not in str(error).lower() or client is None:
            return error
        match = _PERMISSION.search(bulk_parser(client).last_err) or _PERMISSION.search(str(error))
        if match is None:
            return error
        return PermissionDenied("publish" if match[1].lower() == "publish" else "subscribe to", match[2])

    def next_server(self, servers: list[Server], _info: dict[str, Any]) -> tuple[Server | None, float]:
        """nats-py asks before each reconnect: the server tried least often, and the wait before it."""
        client = self.of() if self.of is not None else None
        transport: Any = client and client._transport
        if transport is not None:
            transport.close()  # nats-py forgets the socket of an attempt that timed out
        fewest = min(servers, key=lambda server: server.reconnects)
        return fewest, 0.0 if fewest.reconnects == 0 else self.backoff.wait_s()


_watches: WeakKeyDictionary[Client, _Watch] = WeakKeyDictionary()


async def request(
    client: Client, subject: str, payload: bytes = b"", *, timeout_s: float, headers: dict[str, str] | None = None
) -> Msg:
    """The client's own request, but what its user may not publish raises `PermissionDenied` at once, not a time-out.

    Raises what that raises besides: `TimeoutError`, `nats.errors.Error`.
    """
    watch = _watches.get(client)
    if watch is None:  # made elsewhere, by somebody with callbacks of his own
        return await client.request(subject, payload, timeout=timeout_s, headers=headers)
    asked = asyncio.ensure_future(client.request(subject, payload, timeout=timeout_s, headers=headers))
    denied: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
    waiting = watch.asking.setdefault(subject, set())
    waiting.add(denied)
    try:
        await asyncio.wait((asked, denied), return_when=asyncio.FIRST_COMPLETED)
        return denied.result() if denied.done() else asked.result()
    finally:
        asked.cancel()
        denied.cancel()
        waiting.discard(denied)
        if not waiting:
            watch.asking.pop(subject, None)


async def connect_client(
    options: NatsOptions | str,
    *,
    timeout_s: float = 5.0,
    on_error: Report | None = None,
    disconnected_cb: Callback | None = None,
    reconnected_cb: Callback | None = None,
    closed_cb: Callback | None = None,
) -> Client:
    """A connected nats-py client with the bulk parser in place; it reconnects by itself for as long as it lives.

    Tries again and again for `timeout_s`, then raises `ConnectError` with what each server said;
    `AccessRefused` at once when a server refuses the credentials. `on_error` gets what goes wrong later, in
    the loop and at once: `PermissionDenied` with the subject, failed reconnects, slow consumers. The callbacks
    are nats-py's. Raises `OptionsError` for options that cannot work.
    """
    if isinstance(options, str):
        options = NatsOptions.from_url(options)
    began = time.monotonic()
    deadline = began + timeout_s
    backoff = Backoff()
    reasons: tuple[str, ...] = ()
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise ConnectError(options.servers, reasons, time.monotonic() - began)
        try:
            return await connect_once(
                options,
                timeout_s=left_s,
                on_error=on_error,
                disconnected_cb=disconnected_cb,
                reconnected_cb=reconnected_cb,
                closed_cb=closed_cb,
            )
        except AccessRefused:
            raise
        except ConnectError as error:
            reasons = error.reasons or reasons
        await asyncio.sleep(max(0.0, min(backoff.wait_s(), deadline - time.monotonic())))


async def connect_once(
    options: NatsOptions,
    *,
    timeout_s: float = 5.0,
    on_error: Report | None = None,
    disconnected_cb: Callback | None = None,
    reconnected_cb: Callback | None = None,
    closed_cb: Callback | None = None,
) -> Client:
    """As `connect_client`, but one round over the servers: raises `ConnectError` as soon as each has failed."""
    client = Client()
    bulk_parser(client)
    watch = _Watch(len(options.servers), on_error)
    watch.of = ref(client)
    _watches[client] = watch

    async def disconnected() -> None:
        watch.backoff.restart()
        if disconnected_cb is not None:
            await disconnected_cb()

    began = time.monotonic()
    try:
        connecting = asyncio.ensure_future(
            client.connect(
                error_cb=watch.error,
                disconnected_cb=disconnected,
                reconnected_cb=reconnected_cb,
                closed_cb=closed_cb,
                reconnect_to_server_handler=watch.next_server,
                **client_arguments(options),
            )
        )
        # When it is cancelled as it fails, its exception must be looked at here, or asyncio complains.
        connecting.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait_for(connecting, timeout_s)
    except (_GiveUp, OSError, nats.errors.Error) as error:
        watch.connected = True  # errors while it closes are not reported
        await _discard(client)
        kind = AccessRefused if watch.refused else ConnectError
        raise kind(options.servers, tuple(watch.reasons), time.monotonic() - began) from error
    except BaseException:
        watch.connected = True
        await _discard(client)
        raise
    watch.connected = True
    return client


def client_arguments(options: NatsOptions) -> dict[str, Any]:
    """The options as keyword arguments of nats-py's `connect`, callbacks excepted: for whoever makes a client elsewhere
    (a FastStream broker). With these alone a first connect waits for ever. Raises `OptionsError`."""
    given: dict[str, Any] = {
        "servers": list(options.servers),
        "name": options.name,
        "inbox_prefix": options.inbox_prefix,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": WAIT_MIN_S,
        "connect_timeout": ATTEMPT_TIMEOUT_S,
        "ping_interval": PING_INTERVAL_S,
        "max_outstanding_pings": PINGS_OUTSTANDING_MAX,
    }
    for ours, theirs in (("user", "user"), ("password", "password"), ("token", "token"), ("creds", "user_credentials")):
        if getattr(options, ours) is not None:
            given[theirs] = getattr(options, ours)
    if options.creds is not None and find_spec("nkeys") is None:
        raise OptionsError("creds: a .creds file needs the package nkeys: pip install 'nats-py[nkeys]'")
    if options.servers[0].startswith("ws") and find_spec("aiohttp") is None:
        raise OptionsError("servers: ws:// and wss:// need the package aiohttp: pip install 'nats-py[aiohttp]'")
    if options.tls_ca or options.tls_cert:
        try:
            context = ssl.create_default_context(cafile=options.tls_ca)
            if options.tls_cert:
                context.load_cert_chain(options.tls_cert, options.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise OptionsError(f"tls_ca, tls_cert, tls_key: not readable as PEM files: {error}") from error
        given["tls"] = context
        logging.getLogger("asyncio").addFilter(_is_worth_saying)
    if options.tls_hostname is not None:
        given["tls_hostname"] = options.tls_hostname
    return given


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """nats-py goes over to TLS on an open connection, and at each one's end asyncio then warns of what is not amiss."""
    return "returning true from eof_received()" not in record.getMessage()


async def _discard(client: Client) -> None:
    """Close a client that never came to life, whatever state it is in."""
    try:
        with suppress(Exception):  # half-made clients fail in many ways
            await asyncio.wait_for(client.close(), 1.0)
    finally:
        transport: Any = client._transport
        if transport is not None and transport._io_writer is not None:
            transport.close()  # nats-py forgets the socket of an attempt that is cancelled half-way
