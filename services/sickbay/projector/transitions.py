"""Derived events into their stream: in order of cause, each once.

The mark is the cause of the last message in the stream: whoever takes over goes on after it. Each publish
names the stream's last sequence, so that what an overslept projector still sends is refused.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from nats.aio.client import Client

from sickbay_events import DerivedEvent, derived_subject
from sickbay_events.codec import derived_id, encode_derived

from ..bus.jetstream import JetStreamApi, StoredMessage
from ..bus.topology import LOG, TRANSITIONS
from .acks import Ack, Acks, Refused

IN_FLIGHT_MAX: Final = 256
_REQUEST_S: Final = 2.0


class End(NamedTuple):
    """Where the stream ends.

    created_at   of the stream
    mark         cause of its last message that the log still has; 0 if that is of another log or there is none
    seam         ids of all messages with that cause
    """

    created_at: str
    last_seq: int
    mark: int
    seam: frozenset[str]

    @property
    def is_aged_out(self) -> bool:
        """Nothing stands there any more, or nothing of this log, though something did."""
        return self.last_seq > 0 and not self.mark


class Transitions:
    """Queue of derived events that are not known to stand in the stream, oldest cause first.

    A standby keeps what lies above the mark; only after `take_over` anything is sent.
    """

    def __init__(self, acks: Acks) -> None:
        self.published = 0
        self.out_of_step = True
        """The stream's last sequence is not known; `take_over` is wanted before anything goes out."""
        self.log_created = ""
        self._acks = acks
        self._queue: deque[DerivedEvent] = deque()
        self._sent = 0  # how many of the queue's first are under way
        self._next_seq = 0  # expected last sequence of the next publish
        self._round = 0
        self._known = End("", 0, 0, frozenset())
        self._forgotten = 0  # cause of the newest that stands there by the writer's word
        self.mark = 0
        """Cause of the last message known to stand in the stream."""
        self.is_gone = False
        """What stood in the stream is not there any more: it was made anew, or an older one put in its place."""

    def start(self, log_created: str, end: End) -> None:
        """Begin anew for a state that is folded again: what lies below the mark stands already."""
        self.log_created, self._known = log_created, end
        self._queue.clear()
        self.mark, self._forgotten, self.is_gone = end.mark, 0, False
        self.desync()

    def add(self, events: Iterable[DerivedEvent]) -> None:
        """What the fold concluded, in order."""
        mark = self.mark
        self._queue.extend([event for event in events if event.cause_seq >= mark])

    def forget_through(self, told_seq: int, time_ms: int) -> None:
        """The writer said at this log time that all up to this cause stands; a standby need not keep it.

        What is later may have a sequence that was given again, after the log lost its end.
        """
        queue = self._queue
        while queue and not self._sent and queue[0].cause_seq <= told_seq and queue[0].time_ms <= time_ms:
            self._forgotten = queue.popleft().cause_seq

    @property
    def all_told(self) -> bool:
        """Everything that was concluded so far stands in the stream."""
        return not self._queue

    @property
    def waiting(self) -> int:
        """How many are not known to stand there."""
        return len(self._queue)

    def told_seq(self, folded_seq: int) -> int:
        """The sequence up to which every derived event stands in the stream."""
        return min(folded_seq, self._queue[0].cause_seq - 1) if self._queue else folded_seq

    def desync(self) -> None:
        """What is under way may or may not be stored: find out before the next one goes out."""
        self.out_of_step = True
        self._round += 1
        self._sent = 0

    async def take_over(self, client: Client) -> None:
        """Read what stands at the end of the stream and drop it from the queue. If less stands there than did, the
        state has to be built anew (`is_gone`): what led to it was told and forgotten.

        Raises `ApiError` (no stream), `nats.errors.Error` or `TimeoutError`.
        """
        self.desync()
        turn = self._round
        end = await read_end(client, self.log_created)
        if turn != self._round:
            return
        is_another = end.created_at != self._known.created_at or end.last_seq < self._known.last_seq
        if is_another or (end.mark < self._forgotten and not end.is_aged_out):
            self.is_gone = True
            return
        queue, created, mark, seam = self._queue, self.log_created, end.mark, end.seam
        kept = [e for e in queue if e.cause_seq > mark or (e.cause_seq == mark and derived_id(e, created) not in seam)]
        queue.clear()
        queue.extend(kept)
        self.mark, self._known = mark, end
        self._next_seq = end.last_seq
        self.out_of_step = False

    def pump(self) -> None:
        """Send on what waits; only for who holds the checkpoint."""
        while not self.out_of_step and self._sent < min(len(self._queue), IN_FLIGHT_MAX):
            event = self._queue[self._sent]
            turn = self._round
            self._sent += 1
            headers = {
                "Nats-Msg-Id": derived_id(event, self.log_created),
                "Nats-Expected-Last-Sequence": str(self._next_seq),
            }
            self._next_seq += 1
            body = encode_derived(event, self.log_created)
            self._acks.send(derived_subject(event), body, headers, partial(self._on_ack, turn))

    def _on_ack(self, turn: int, ack: Ack) -> None:
        if turn != self._round:
            return
        if isinstance(ack, Refused):
            self.desync()
            return
        # One publisher, one stream: acknowledgements come in the order of sending.
        self.mark = self._queue.popleft().cause_seq
        self._sent -= 1
        if ack.duplicate:
            self.desync()  # it stands further back, so that the sequences expected after it are wrong
        else:
            self.published += 1


class Untold(Transitions):
    """The transitions of a projector beside the running one: what it concludes is told by nobody."""

    def add(self, events: Iterable[DerivedEvent]) -> None:
        """Drop them."""

    def start(self, log_created: str, end: End) -> None:  # noqa: ARG002 - there is no mark where nothing is told
        """Begin anew."""
        self.log_created, self.out_of_step = log_created, False

    def desync(self) -> None:
        """Nothing is under way."""

    async def take_over(self, client: Client) -> None:
        """Nothing is to be taken over."""


async def read_end(client: Client, log_created: str) -> End:
    """Read it, for this log."""
    api = JetStreamApi(client, timeout_s=_REQUEST_S)
    at = await api.stream_at(TRANSITIONS)
    seam: set[str] = set()
    mark = lost = 0
    seq = at.last_seq
    while seq >= max(1, at.first_seq):
        message = await api.message_at(TRANSITIONS, seq)
        seq -= 1
        body = _body(message)
        if body is None or (body["cause_seq"] == lost and not seam):
            continue  # taken out by hand, or put in by hand
        if not str(body["id"]).startswith(f"{log_created}:") or (seam and body["cause_seq"] != mark):
            break
        if not seam and not await _has_cause(api, body):
            lost = body["cause_seq"]
            continue
        mark = body["cause_seq"]
        seam.add(str(body["id"]))
    return End(at.created_at, at.last_seq, mark, frozenset(seam))


async def _has_cause(api: JetStreamApi, body: dict[str, Any]) -> bool:
    """Whether the log still has the event that caused this. One that lost its end gives the sequences anew, to events
    that came later."""
    cause = await api.message_at(LOG, body["cause_seq"])
    return cause is not None and cause.time_ns // 1_000_000 <= body["time_ms"]


def _body(message: StoredMessage | None) -> dict[str, Any] | None:
    if message is None:
        return None
    try:
        body = json.loads(message.payload)
    except ValueError:
        return None
    numbers = ("cause_seq", "time_ms")
    if isinstance(body, dict) and "id" in body and all(isinstance(body.get(name), int) for name in numbers):
        return body
    return None
