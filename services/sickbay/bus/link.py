"""A connection to NATS that is kept for as long as the process wants one.

A nats-py client reconnects by itself, but not always: it closes for good after most -ERR lines of a server, and stops
trying when its own tasks raise something unforeseen. And it cannot begin before a server is there. A `Link` begins in
the background, replaces a client that closed, and calls its listeners.

    link = Link(NatsOptions.from_url("nats://127.0.0.1:4222"))
    link.listen(connected=start_feeds, disconnected=note_time)
    link.start()                       # returns at once, whether or not a server is there
    ...
    if (client := link.client) is not None: ...      # connected at this moment
    await link.close()
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import nats.errors
from nats.aio.client import Client

from ..loggers import logger
from ..throttled import Throttled
from .connect import Backoff, ConnectError, NatsOptions, PermissionDenied, Report, connect_once

_log = logger("sickbay.bus")

WATCH_S = 0.5  # how often a client is checked for having died silently
ROUND_TIMEOUT_S = 10.0  # one round over all servers
STUCK_CHECKS = 4  # checks in a row without connection and without a task that tries to make one
DOWN_CHECKS = 4  # checks in a row without connection before a warning; a restart of the server takes less
RENEW_MIN_S, RENEW_MAX_S = 1.0, 30.0  # before a client is replaced whose inbox the server has ended
SAY_EVERY_S = 300.0  # between two warnings that there is no connection

Connected = Callable[[Client, bool], None]
Disconnected = Callable[[], None]


class Link:
    """Owner of the one NATS connection of a process (router or service). Not thread-safe: belongs to the event
    loop in which `start` was called.

    Listeners are plain functions called in the loop; what one raises is logged, and the others are called all the same:
    connected(client, fresh)   a connection stands; `fresh` is True when `client` is a new object, whose
                               subscriptions have to be made, and False after a reconnect of the same client,
                               which has renewed its subscriptions (pull requests and what was in flight are lost)
    disconnected()             the connection is lost; called once per loss
    error(exception)           `PermissionDenied` and other errors the server or client reports
    """

    def __init__(self, options: NatsOptions) -> None:
        self.options = options
        self.last_error: Exception | None = None
        self.connects = 0  # how often a connection came to stand
        self._client: Client | None = None
        self._up = asyncio.Event()
        self._closed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connected: list[Connected] = []
        self._disconnected: list[Disconnected] = []
        self._error: list[Report] = []
        self._denied: set[str] = set()
        self._inbox_ended = asyncio.Event()
        self._renew_s = RENEW_MIN_S
        self._down_lines = Throttled(SAY_EVERY_S)

    @property
    def client(self) -> Client | None:
        """The client while it is connected, else None. Do not keep it across an await."""
        client = self._client
        return client if client is not None and self._up.is_set() and client.is_connected else None

    def listen(
        self,
        *,
        connected: Connected | None = None,
        disconnected: Disconnected | None = None,
        error: Report | None = None,
    ) -> None:
        """Add listeners. If a connection stands already, `connected(client, True)` is called at once."""
        if disconnected is not None:
            self._disconnected.append(disconnected)
        if error is not None:
            self._error.append(error)
        if connected is not None:
            self._connected.append(connected)
            if (client := self.client) is not None:
                _call([connected], client, True)

    def start(self) -> None:
        """Begin to connect in the background; returns at once. A second call does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="sickbay-link")

    async def wait_connected(self, timeout_s: float | None = None) -> Client:
        """Wait until a connection stands and return its client.

        Raises `ConnectError` with the last reason after `timeout_s` seconds (None: waits for ever).
        """
        try:
            await asyncio.wait_for(self._up.wait(), timeout_s)
        except TimeoutError:
            last = self.last_error
            reasons = last.reasons if isinstance(last, ConnectError) else (str(last),) if last else ()
            raise ConnectError(self.options.servers, reasons, timeout_s or 0.0) from None
        assert self._client is not None
        return self._client

    async def close(self, timeout_s: float = 1.0) -> None:
        """Close the connection and stop trying. What was written before is sent out if that takes no longer
        than `timeout_s`. Never raises; a second call does nothing."""
        self._closed.set()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        client, self._client = self._client, None
        self._up.clear()
        if client is not None:
            await close_client(client, timeout_s)

    async def _keep(self) -> None:
        backoff = Backoff()
        while not self._closed.is_set():
            dead = asyncio.Event()
            try:
                client = await self._make(dead)
            except ConnectError as error:
                self.last_error = error
                self._say_down(error)
                await asyncio.sleep(backoff.wait_s())
                continue
            except Exception as error:  # noqa: BLE001 - no other task would try again
                self._report(error)
                self._say_down(error)
                await asyncio.sleep(max(1.0, backoff.wait_s()))
                continue
            self._client = client
            self._inbox_ended.clear()
            self._stands(client, fresh=True)
            began_s = time.monotonic()
            await self._watch(client, dead)
            if self._inbox_ended.is_set():
                # No answer comes any more, whoever asks. Every subscription is made anew by a new client.
                calm = time.monotonic() - began_s > RENEW_MAX_S
                self._renew_s = RENEW_MIN_S if calm else min(2 * self._renew_s, RENEW_MAX_S)
                await asyncio.sleep(self._renew_s)
            self._lost()
            await close_client(client, 0.0)
            self._client = None
            backoff.restart()

    async def _make(self, dead: asyncio.Event) -> Client:
        made: list[Client] = []

        async def disconnected() -> None:
            self._lost()

        async def reconnected() -> None:
            if made and made[0] is self._client:
                self._stands(made[0], fresh=False)

        async def closed() -> None:
            dead.set()

        made.append(
            await connect_once(
                self.options,
                timeout_s=ROUND_TIMEOUT_S,
                on_error=self._report,
                disconnected_cb=disconnected,
                reconnected_cb=reconnected,
                closed_cb=closed,
            )
        )
        return made[0]

    async def _watch(self, client: Client, dead: asyncio.Event) -> None:
        """Return when the client is of no more use."""
        stuck = down = 0
        # Until Python 3.12 a cancellation at the moment when the connection is made is lost.
        while not (client.is_closed or self._closed.is_set()):
            with suppress(TimeoutError):
                await asyncio.wait_for(dead.wait(), WATCH_S)
            if dead.is_set() or self._inbox_ended.is_set():
                return
            # nats-py's reconnect task ends without a word after an exception that it does not expect.
            task = client._reconnection_task
            trying = task is not None and not task.done()
            stuck = 0 if client.is_connected or trying else stuck + 1
            down = 0 if client.is_connected else down + 1
            if down >= DOWN_CHECKS:
                self._say_down(self.last_error)
            if stuck >= STUCK_CHECKS:
                return

    def _stands(self, client: Client, *, fresh: bool) -> None:
        if self._closed.is_set():
            return
        self.connects += 1
        self._up.set()
        if self._down_lines.forget():
            _log.info("connected to NATS at %s", ", ".join(self.options.servers))
        _call(self._connected, client, fresh)

    def _lost(self) -> None:
        if not self._up.is_set():
            return
        self._up.clear()
        if not self._closed.is_set():
            _call(self._disconnected)

    def _say_down(self, error: Exception | None) -> None:
        """Warn. Without it a wrong address or password would show only in the source of decisions."""
        if self._down_lines.due():
            where = ", ".join(self.options.servers)
            _log.warning("no connection to NATS at %s, it is tried again and again: %s", where, error or "it was lost")

    def _report(self, error: Exception) -> None:
        self.last_error = error
        if isinstance(error, PermissionDenied):
            if error.action != "publish" and error.subject.startswith(f"{self.options.inbox_prefix}."):
                self._inbox_ended.set()
            if error.subject not in self._denied and len(self._denied) < 1000:
                self._denied.add(error.subject)  # each subject once: a refused publisher goes on publishing
                _log.warning("%s", error)
        elif isinstance(error, nats.errors.SlowConsumerError):
            _log.warning("NATS client: a subscription is too slow and loses messages: %s", error)
        else:
            _log.debug("NATS client: %s: %s", type(error).__name__, error)
        _call(self._error, error)


class BorrowedConnection:
    """What a reader needs of a `Link`, over one client that its owner connects and closes."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def client(self) -> Client | None:
        """The client while it is connected, else None."""
        # While nats-py's reconnect task still renews subscriptions, an answer could come before its subscription.
        task = self._client._reconnection_task
        return self._client if self._client.is_connected and (task is None or task.done()) else None


def call_listeners(log: logging.Logger, of: str, listeners: Iterable[Callable[..., None]], *arguments: object) -> None:
    """Call each. What one raises is logged, and the others are called all the same."""
    for listener in tuple(listeners):
        try:
            listener(*arguments)
        except Exception:
            log.exception("a listener of %s failed", of)


def _call(listeners: Iterable[Callable[..., None]], *arguments: object) -> None:
    call_listeners(_log, "the NATS connection", listeners, *arguments)


async def close_client(client: Client, flush_s: float = 0.0) -> None:
    """Close a client in whatever state it is; what it has written goes out if that takes no longer than `flush_s`.
    Raises nothing that a server can cause."""
    with suppress(Exception):  # closing goes on whatever the server does
        if client.is_connected and flush_s > 0:
            await asyncio.wait_for(client.flush(), flush_s)
    try:
        await asyncio.wait_for(client.close(), max(flush_s, 0.5))
    except asyncio.CancelledError:
        # nats-py itself waits for its stream's close future. A wait that was given up has cancelled that future for
        # every later one. It is our own cancellation only if this task was cancelled.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
    except Exception:  # noqa: BLE001, S110 - closing goes on whatever the server does
        pass
