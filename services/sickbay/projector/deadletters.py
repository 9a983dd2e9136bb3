"""Notes for people about events that could not be read: where they are, why, and how they begin (Rule 2)."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from typing import Final, NamedTuple

import msgspec
from nats.aio.client import Client

from sickbay_events import Poison
from sickbay_events.redact import redact

from ..bus.jetstream import JetStreamApi
from ..bus.publish import AckedPublisher
from ..bus.topology import DEAD, DEAD_PREFIX

DATA_BYTES: Final = 200
PER_SECOND: Final = 10
WAITING_MAX: Final = 1_000


class Letter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event that was passed over."""

    reason: str
    seq: int
    """Its sequence in the log."""
    subject: str
    why: str
    data: str
    """How it begins: at most 200 bytes, after redaction."""
    log_created: str
    more: int = 0
    """How many events of the same reason were only counted since the last note."""


class At(NamedTuple):
    """The place of an event: in which log, and where in it."""

    log_created: str
    seq: int
    subject: str


class DeadLetters:
    """Notes for the writer to publish; a standby keeps the newest 1,000 in case it takes over.

    At most 10 a second for each reason; the next note says how many more there were. `enabled` False: only counts.
    """

    def __init__(self, publisher: AckedPublisher, *, enabled: bool) -> None:
        self.enabled = enabled
        self.counts: Counter[str] = Counter()
        self.noted = 0
        self._publisher = publisher
        self._waiting: deque[Letter] = deque(maxlen=WAITING_MAX)
        self._unnoted: Counter[str] = Counter()
        self._second: dict[str, tuple[int, int]] = {}
        self._mark = 0

    def add(self, poison: Poison, at: At, data: bytes) -> None:
        """Note an event that was passed over."""
        reason, seq = poison.reason, at.seq
        self.counts[reason] += 1
        if not self.enabled or seq <= self._mark:
            return
        second = int(time.monotonic())
        began, count = self._second.get(reason, (second, 0))
        count = count + 1 if began == second else 1
        self._second[reason] = (second, count)
        if count > PER_SECOND:
            self._unnoted[reason] += 1
            return
        shown = redact(data, DATA_BYTES).encode("utf-8", "replace")[:DATA_BYTES].decode("utf-8", "ignore")
        letter = Letter(
            reason=reason,
            seq=seq,
            subject=at.subject[:DATA_BYTES],
            why=redact(poison.why),
            data=shown,
            log_created=at.log_created,
            more=self._unnoted.pop(reason, 0),
        )
        self._waiting.append(letter)

    async def take_over(self, client: Client, log_created: str) -> None:
        """Drop what the writer before has noted already. Raises `ApiError`, `nats.errors.Error` or `TimeoutError`."""
        api = JetStreamApi(client, timeout_s=2.0)
        at = await api.stream_at(DEAD)
        message = await api.message_at(DEAD, at.last_seq) if at.last_seq else None
        self._mark = 0
        try:
            last = json.loads(message.payload) if message is not None else {}
            if last.get("log_created") == log_created:
                self._mark = int(last["seq"])
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # put there by hand
        mark = self._mark
        self._waiting = deque((letter for letter in self._waiting if letter.seq > mark), WAITING_MAX)

    def pump(self) -> None:
        """Publish what waits. A note whose acknowledgement is lost is not sent again."""
        while self._waiting:
            letter = self._waiting.popleft()
            self._mark = max(self._mark, letter.seq)
            self.noted += 1
            headers = {"Nats-Msg-Id": f"{letter.log_created}:{letter.seq}"}
            self._publisher.send(DEAD_PREFIX + letter.reason, msgspec.json.encode(letter), headers, lambda _: None)
