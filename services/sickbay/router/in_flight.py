"""What is on its way from a reporter to the log: written, not yet acknowledged. Runs in the link's event loop.

What is not acknowledged (`bus.publish`) is written again under the same message id, encoded anew so that `queued_ms`
is true. Nothing is given to nats-py's own buffer: a stale copy sent from there would be stored first, and the server's
dedupe window would drop the true one.

When the log does not take events (no answer, no stream, stream full) one event is tried again, less and less
often, and the rest waits; the first acknowledgement sets everything going again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

import msgspec
from nats.aio.client import Client

from sickbay_events import CallsRefused, token
from sickbay_events.outcome import DAY_MS, ProbeResult

from ..bus.link import Link
from ..bus.publish import Ack, AckedPublisher, Blocked, Outgoing
from .outbox import WINDOW, QueuedEvent

TICK_S: Final = 0.2
"""How often what is overdue is sent again, while something is on its way."""
RESEND_S: Final = 2.0
"""An event unacknowledged for this long is sent again, doubling up to `RESEND_MAX_S`."""
RESEND_MAX_S: Final = 16.0
ANSWER_MAX_S: Final = 60.0
"""An answer that comes later than this is not looked at any more."""
SILENCE_S: Final = 1.0
"""With no acknowledgement at all for this long nothing new is written: a network that swallows packets would
deliver it later, with a `queued_ms` that is no longer true."""
TRY_MIN_S: Final = 0.25
TRY_MAX_S: Final = 5.0
REFUSALS_MAX: Final = 3
"""An event is given up if the server refused it so often while it took others,"""
SENDS_MAX: Final = 12
"""or if it was sent so often without an answer while others were answered,"""
FAILURES_MAX: Final = 5
"""or if no stream took it in so many outages, each of which ended with another event being taken."""
TRY_AMONG: Final = 8
TRIES_EACH: Final = 4
"""While the log takes nothing, the oldest event is tried so often, then the next, in turn among the oldest
`TRY_AMONG`, so that no single event blocks all others."""
BATCH: Final = 250

Say: TypeAlias = Callable[[int, str, str], None]
"""Log with this level, under this key (each key not too often), this text."""
_encode: Final = msgspec.json.Encoder().encode


class InFlight:
    """Sends what `backlog` holds over `link` and follows it until it is acknowledged.

    acked(entry, seq)       an event is in the log at this sequence
    given_up(entry, why)    an event will not be sent again: the server refuses just this one
    say(level, key, text)   log something, each key not too often
    """

    def __init__(
        self,
        link: Link,
        backlog: Callable[[int, int | None], list[QueuedEvent]],
        *,
        boot: str,
        replica: str,
        acked: Callable[[QueuedEvent, int], None],
        given_up: Callable[[QueuedEvent, str], None],
        say: Say,
    ) -> None:
        self.entries: dict[int, QueuedEvent] = {}  # by number, in order of number
        self.duplicates = 0
        self.resent = 0
        self.blocked: Blocked = ""
        self.why = ""  # what the server said, when it said something
        self._link, self._take, self._boot = link, backlog, boot
        self._acked, self._given_up, self._say = acked, given_up, say
        self._prefixes = tuple(f"sickbay.{sort}.{token(replica)}." for sort in ("outcome", "probe"))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._publisher = AckedPublisher(link, timeout_s=ANSWER_MAX_S)
        self._opening: asyncio.Task[None] | None = None
        self._will_pump = False
        self._timer: asyncio.TimerHandle | None = None
        self._heard_s = 0.0  # last answer, or when there began to be something to answer
        self._taken_s = 0.0  # last acknowledgement
        self._tries = 0
        self._try_at_s = 0.0
        self._closed = False

    @property
    def late(self) -> int:
        """Acknowledgements for what is not waited for any more."""
        return self._publisher.late

    def start(self) -> None:
        """Begin in the running loop; returns at once, whether or not there is a connection."""
        self._loop = asyncio.get_running_loop()
        self._link.listen(connected=self._connected, error=self._publisher.on_error)

    async def close(self) -> None:
        """Send nothing more. What is in `entries` stays there. Never raises."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await self._publisher.close()

    def pump(self) -> None:
        """Send as much of the backlog as may be on its way."""
        self._will_pump = False
        if self.blocked or self._publisher.client is None:
            self._arm()
            return
        while len(self.entries) < WINDOW:
            oldest = next(iter(self.entries), None)
            new = self._take(min(BATCH, WINDOW - len(self.entries)), oldest)
            if not new:
                break
            if oldest is None:
                self._heard_s = time.monotonic()
            self.entries.update([(entry.n, entry) for entry in new])
            self._send(new)
        self._arm()

    # Connection

    def _connected(self, client: Client, fresh: bool) -> None:
        if self._closed:
            return
        if not fresh and client is self._publisher.client:
            self._begin()
            return
        if self._opening is not None:
            self._opening.cancel()
        assert self._loop is not None
        self._opening = self._loop.create_task(self._open(client), name="sickbay-reporter-inbox")

    async def _open(self, client: Client) -> None:
        while self._link.client is client:
            try:
                await self._publisher.open(client)
            except Exception as error:  # noqa: BLE001 - nats-py raises many; the next connection tries again
                self._say(logging.DEBUG, "inbox", f"no inbox for acknowledgements yet: {error!r}")
                await asyncio.sleep(TRY_MIN_S)
            else:
                self._begin()
                return

    def _begin(self) -> None:
        """A connection stands: what was on its way over the one before is sent again, first of all."""
        now = time.monotonic()
        self._heard_s = now
        self._unblock(now, again=True)

    # Sending

    def _subject(self, entry: QueuedEvent) -> str:
        return self._prefixes[type(entry.event) is ProbeResult] + entry.target.key

    def _send(self, entries: list[QueuedEvent]) -> None:
        """Write entries to the connection; those it does not take stay due."""
        client = self._publisher.client
        now = time.monotonic()
        messages: list[Outgoing] = []
        sent: list[QueuedEvent] = []
        for entry in entries:
            msg_id = f"{self._boot}-{entry.n}"
            changes: dict[str, object] = {"id": msg_id}
            if type(entry.event) is not CallsRefused:
                changes["queued_ms"] = min(round((now - entry.recorded_s) * 1000), DAY_MS)
            data = _encode(msgspec.structs.replace(entry.event, **changes))
            if client is not None and len(data) > client.max_payload:
                self._give_up(entry, f"the server takes messages of at most {client.max_payload} bytes")
                continue
            done = partial(self._answered, entry)
            messages.append(Outgoing(self._subject(entry), data, {"Nats-Msg-Id": msg_id}, done))
            sent.append(entry)
        if not self._publisher.send_all(messages):
            return
        for entry in sent:
            self.resent += entry.sends > 0
            entry.sends += 1
            entry.first_sent_s = entry.first_sent_s or now
            entry.due_s = now + min(RESEND_S * 2 ** (entry.sends - 1), RESEND_MAX_S)
            entry.failed = False

    def _arm(self) -> None:
        if self._timer is None and (self.entries or self.blocked) and self._loop and not self._closed:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._publisher.sweep()
        self._send_due()
        self.pump()

    def _send_due(self) -> None:
        if self._publisher.client is None:
            return
        now = time.monotonic()
        if not self.blocked and self.entries and now - self._heard_s > SILENCE_S:
            self._block("no_answer", "")
        if self.blocked:
            if now < self._try_at_s:
                return
            due = self._next_try(now)
        else:
            due = [entry for entry in self.entries.values() if entry.due_s <= now]
            for entry in [entry for entry in due if entry.sends >= SENDS_MAX and self._others_taken_since(entry)]:
                self._give_up(entry, f"no answer after {entry.sends} sendings")
                due.remove(entry)
        for at in range(0, len(due), BATCH):
            self._send(due[at : at + BATCH])

    def _next_try(self, now: float) -> list[QueuedEvent]:
        """The one event to try with while the log takes nothing."""
        self._tries += 1
        self._try_at_s = now + min(TRY_MIN_S * 2**self._tries, TRY_MAX_S)
        if len(self.entries) < TRY_AMONG:
            self.entries.update([(entry.n, entry) for entry in self._take(1, next(iter(self.entries), None))])
        if not self.entries:
            self.blocked = ""  # the next event will tell
        among = list(islice(self.entries.values(), TRY_AMONG))
        return [among[(self._tries - 1) // TRIES_EACH % len(among)]] if among else []

    # What comes back

    def _answered(self, entry: QueuedEvent, ack: Ack) -> None:
        error = ack.error
        if self.entries.get(entry.n) is not entry:
            self._publisher.late += error is None or not error.is_lost
        elif error is None:
            del self.entries[entry.n]
            self.duplicates += ack.duplicate
            self._heard_s = self._taken_s = time.monotonic()
            if self.blocked:
                self._unblock(self._heard_s, again=False)
            self._acked(entry, ack.seq)
        elif error.is_lost:
            return  # it is sent again when it is due
        elif error.blocked:
            self._failed(entry, error.blocked, str(error))
        else:
            if not error.is_denied:
                self._heard_s = time.monotonic()
            self._refused(entry, str(error))
        if not self._will_pump:
            # After all that arrived together, so that what goes out next is written together too.
            self._will_pump = True
            assert self._loop is not None
            self._loop.call_soon(self.pump)

    def _failed(self, entry: QueuedEvent, reason: Blocked, why: str) -> None:
        """The log takes nothing at present; the event stays and is sent again."""
        entry.failed = True
        self._block(reason, why)

    def _refused(self, entry: QueuedEvent, why: str) -> None:
        """The server refuses this event: try it a few times more, then give it up, so that it does not block others."""
        entry.refusals += 1
        entry.due_s = time.monotonic() + min(2.0**entry.refusals, RESEND_MAX_S)
        if entry.refusals >= REFUSALS_MAX and self._others_taken_since(entry):
            self._give_up(entry, why)

    def _others_taken_since(self, entry: QueuedEvent) -> bool:
        return self._taken_s > entry.first_sent_s > 0

    def _give_up(self, entry: QueuedEvent, why: str) -> None:
        self.entries.pop(entry.n, None)
        self._given_up(entry, why)

    # The log does not take events

    def _block(self, reason: Blocked, why: str) -> None:
        if not self.blocked:
            self._tries = 0
            self._try_at_s = time.monotonic() + TRY_MIN_S
        self.blocked, self.why = reason, why
        text = f"outcomes wait: {reason}: {why}" if why else f"outcomes wait: {reason}"
        self._say(logging.WARNING, f"blocked {reason}", text)

    def _unblock(self, now: float, *, again: bool) -> None:
        """Go on. With `again` everything is sent anew; else only what was answered with an error, and the rest if no
        acknowledgement follows soon."""
        if self.blocked:
            self._say(logging.INFO, "unblocked", f"outcomes are taken again after {self.blocked}")
        self.blocked, self.why = "", ""
        for entry in list(self.entries.values()):
            entry.due_s = now if again or entry.failed else max(entry.due_s, now + TRY_MIN_S)
            entry.failures += entry.failed and not again
            if entry.failures >= FAILURES_MAX:
                self._give_up(entry, f"no stream took it in {entry.failures} outages")
        assert self._loop is not None
        self._loop.call_soon(self._send_due)
        self._loop.call_soon(self.pump)
