"""From the log of transitions to the receivers, kept going for as long as the services run.

Each receiver has a durable consumer of its own on NATS. A transition is acknowledged there when the message that tells
of it was taken by the receiver, or given up; until then its time is renewed. So a restart loses nothing and repeats no
more than what was taken and not yet acknowledged, and a receiver that is down keeps no other waiting. Only the process
that writes the view tells; what it has not told yet it hands back when another one takes over.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import httpx
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from ..bus.connect import BusError
from ..bus.jetstream import JetStreamApi
from ..bus.topology import HELD_PREFIX, RELEASED_PREFIX, TRANSITIONS, WARNING_PREFIX
from ..loggers import logger
from .grouping import WAITING_MAX, AlertBatch, Grouping, read_fact
from .message import AlertMessage, message_of
from .send import Failed, alert_client, send, shown
from .settings import Alerts, Receiver, Way, is_wanted

_log = logger("sickbay.alerts")

CONSUMER: Final = "sickbay-alerts-to-"
"""+ receiver's name: its durable consumer."""
ACK_WAIT_S: Final = 6
"""How long after a kill another process gets what the killed one had."""
RENEW_S: Final = 2.0
"""How often what waits has its time renewed: well within `ACK_WAIT_S`. What comes again all the same is known."""
IDLE_S: Final = 7 * 86_400
"""A consumer that nobody asked for so long is dropped: what a receiver missed in longer it is not told."""
FETCH: Final = 500
FETCH_S: Final = 1.0
_BACK: Final = b'-NAK {"delay": %d}' % round(1.5 * FETCH_S * 1e9)
"""Handed back for when this process's own last request for messages is over, which would get it else."""
_ENDED: Final = ("404", "408")
"""What a server says when there are no more messages, or the request's time is over."""
LOOK_S: Final = 0.5
"""How often is looked whether this process is the one that tells, and connected."""
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
REQUEST_S: Final = 5.0
SUBJECTS: Final = {"held": HELD_PREFIX, "released": RELEASED_PREFIX, "warning": WARNING_PREFIX}
_NATS_ERRORS: Final = (BusError, nats.errors.Error, nats.js.errors.Error, OSError)  # a time-out is an OSError


class _Pull:
    """One request for messages: over when they are all there, when its time is, or when the server says so."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self._left, self._gone = FETCH, ""

    def begin(self) -> None:
        """Another request goes out."""
        self._over.clear()
        self._left = FETCH

    def note(self, message: Msg) -> bool:
        """Whether it is a transition, not a word of the server about the request."""
        status = (message.headers or {}).get("Status")
        if status is None:
            self._left -= 1
        elif status not in _ENDED:
            self._gone = f"its consumer is gone ({status} {(message.headers or {}).get('Description', '')})"
        if status is not None or self._left <= 0:
            self._over.set()
        return status is None

    async def wait(self) -> None:
        """Until it is over; a request that was lost with a connection is over by time. Raises `BusError`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), FETCH_S + 1)
        if self._gone:
            raise BusError(self._gone)


class Relay:
    """The alerts of one receiver: heard, grouped, sent. `client` is the connection, None while there is none."""

    def __init__(
        self,
        settings: Alerts,
        receiver: Receiver,
        way: Way,
        *,
        client: Callable[[], Client | None],
        is_active: Callable[[], bool],
    ) -> None:
        self.receiver, self._settings, self._way = receiver, settings, way
        self._client, self._is_active = client, is_active
        self._grouping = Grouping(settings, time.monotonic())
        self._changed = asyncio.Event()
        self._failing_since_s: float | None = None
        self.delivered = self.told = self.failures = self.not_delivered = 0
        self.last_error = ""

    async def run(self, http: httpx.AsyncClient) -> None:
        """Hear and send until cancelled."""
        hearing = asyncio.create_task(self._hear(), name=f"sickbay-alerts-{self.receiver.name}")
        try:
            await self._send(http)
        finally:
            hearing.cancel()
            await asyncio.wait([hearing])
            await self._answer(self._grouping.handles, b"-NAK")  # what was under way

    def facts(self) -> dict[str, Any]:
        """How it is doing, for /healthz, doctor and metrics. Counts are since the process started.

        delivered, told   messages that were taken, and alerts they told of
        waiting           alerts that no message has told yet
        failures          deliveries that failed, of messages that were tried again included
        not_delivered     alerts that were given up
        """
        since_s = self._failing_since_s
        return {
            "name": self.receiver.name,
            "kind": self.receiver.kind,
            "ok": since_s is None,
            "failing_for_s": None if since_s is None else round(time.monotonic() - since_s, 1),
            "waiting": len(self._grouping.handles),
            "delivered": self.delivered,
            "told": self.told,
            "failures": self.failures,
            "not_delivered": self.not_delivered,
            "last_error": self.last_error,
        }

    async def _hear(self) -> None:
        said = False
        while True:
            client = self._client()
            if client is not None and self._is_active():
                try:
                    await self._follow(client)
                    said = False
                except Exception as error:  # noqa: BLE001 - this task is the last one who can try again
                    if not said:
                        _log.warning("alerts for %s cannot be read, they wait: %s", self.receiver.name, error)
                    said = True
            await asyncio.sleep(LOOK_S)

    async def prepare(self, client: Client) -> None:
        """Make its consumer, or find it where it stood: from then on nothing is missed. Raises what NATS can."""
        name = CONSUMER + self.receiver.name
        config = {
            "durable_name": name,
            "name": name,
            "description": f"Sickbay: alerts for {self.receiver.name}",
            "deliver_policy": "new",
            "ack_policy": "explicit",
            "ack_wait": ACK_WAIT_S * 10**9,
            "max_ack_pending": WAITING_MAX,
            "inactive_threshold": IDLE_S * 10**9,
            "filter_subjects": sorted(f"{SUBJECTS[word]}>" for word in set(self.receiver.types)),
        }
        body = {"stream_name": TRANSITIONS, "config": config}
        await JetStreamApi(client, timeout_s=REQUEST_S).request(f"CONSUMER.CREATE.{TRANSITIONS}.{name}", body)

    async def _follow(self, client: Client) -> None:
        """Take transitions for as long as this process is the one that tells. Raises what NATS can.

        Not by nats-py's `fetch`, whose waits that run out can lose the message that came at that moment.
        """
        await self.prepare(client)
        inbox, pull = client.new_inbox(), _Pull()

        async def heard(message: Msg) -> None:
            if pull.note(message):
                await self._take(message)

        subject = f"$JS.API.CONSUMER.MSG.NEXT.{TRANSITIONS}.{CONSUMER}{self.receiver.name}"
        ask = json.dumps({"batch": FETCH, "expires": round(FETCH_S * 1e9)}).encode()
        subscription = await client.subscribe(inbox, cb=heard)
        renewed_s = time.monotonic()
        try:
            while self._client() is client and self._is_active():
                pull.begin()
                await client.publish(subject, ask, inbox)
                await pull.wait()
                if time.monotonic() - renewed_s >= RENEW_S:
                    renewed_s = time.monotonic()
                    await self._answer(self._grouping.handles, b"+WPI")
        finally:
            with suppress(*_NATS_ERRORS):
                await subscription.unsubscribe()
            # The next process that sends alerts gets them at once, also if that is this one after a restart.
            await self._answer(self._grouping.drop(), b"-NAK")

    async def _take(self, heard: Msg) -> None:
        fact = read_fact(heard.data)
        wanted = fact if fact is not None and is_wanted(self.receiver, fact) else None
        if wanted is not None and not self._is_active():
            await self._answer([heard.reply], _BACK)
        elif wanted is not None and self._grouping.add(wanted, heard.reply, time.monotonic()):
            self._changed.set()
        else:
            await self._answer([heard.reply], b"+ACK")

    async def _answer(self, handles: list[str], word: bytes) -> None:
        """Say it to NATS; while there is no connection it is said when the alert comes again."""
        client = self._client()
        with suppress(*_NATS_ERRORS):
            for handle in handles if client is not None else ():
                await client.publish(handle, word)  # type: ignore[union-attr]

    async def _send(self, http: httpx.AsyncClient) -> None:
        while True:
            self._changed.clear()
            now_s = time.monotonic()
            batch = self._grouping.due(now_s)
            if batch is None:
                next_s = self._grouping.next_s(now_s)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), None if next_s is None else max(0.01, next_s - now_s))
                continue
            delivered = await self._deliver(http, batch)
            if delivered is None:
                await self._answer(self._grouping.back(), _BACK)
            else:
                await self._answer(self._grouping.done(delivered=delivered), b"+ACK")

    async def _deliver(self, http: httpx.AsyncClient, batch: AlertBatch) -> bool | None:
        """Send one message, again and again until it is taken (True), given up (False), or another one's to tell."""
        message, name = message_of(batch, self._settings.named), self.receiver.name
        began_s, wait_s = time.monotonic(), RETRY_S
        while True:
            failed = await self._attempt(http, message)
            if failed is None:
                self.delivered, self.told = self.delivered + 1, self.told + message.count
                if self._failing_since_s is not None:
                    _log.info("alerts arrive at %s again", name)
                self._failing_since_s, self.last_error = None, ""
                return True
            if self._failing_since_s is None:
                self._failing_since_s = time.monotonic()
                _log.warning("alerts do not arrive at %s (%s): %s", name, self._way.where, failed.why)
            self.failures, self.last_error = self.failures + 1, failed.why
            left_s = began_s + self._settings.give_up_s - time.monotonic()
            if failed.final or left_s <= 0 or (failed.retry_after_s or 0) > left_s:
                self.not_delivered += message.count
                _log.error("%d alerts for %s are given up: %s", message.count, name, failed.why)
                return False
            pause_s = min(wait_s * random.uniform(0.8, 1.2), left_s)
            await asyncio.sleep(max(pause_s, failed.retry_after_s or 0))
            if not self._is_active():
                self._failing_since_s, self.last_error = None, ""
                return None
            wait_s = min(2 * wait_s, RETRY_MAX_S)

    async def _attempt(self, http: httpx.AsyncClient, message: AlertMessage) -> Failed | None:
        try:
            await send(http, self.receiver, self._way, message)
        except Failed as failed:
            return failed
        except Exception as error:  # noqa: BLE001 - one receiver's fault, whatever it is, stops nobody
            return Failed(f"{type(error).__name__}: {shown(str(error), self._way)}")
        return None


class Alerting:
    """All receivers of a file, each by itself."""

    def __init__(
        self,
        settings: Alerts,
        ways: dict[str, Way],
        *,
        client: Callable[[], Client | None],
        is_active: Callable[[], bool],
    ) -> None:
        self.relays = [
            Relay(settings, one, ways[one.name], client=client, is_active=is_active) for one in settings.receiver
        ]

    async def prepare(self, client: Client) -> None:
        """Before anything is told: what is concluded from now on is missed by no receiver. Never raises."""
        for relay in self.relays:
            with suppress(*_NATS_ERRORS):  # it is tried again, and then said
                await relay.prepare(client)

    async def run(self) -> None:
        """Tell them until cancelled."""
        async with alert_client() as http, asyncio.TaskGroup() as group:
            for relay in self.relays:
                group.create_task(relay.run(http), name=f"sickbay-alerts-{relay.receiver.name}")

    def facts(self) -> list[dict[str, Any]]:
        """How each is doing."""
        return [relay.facts() for relay in self.relays]
