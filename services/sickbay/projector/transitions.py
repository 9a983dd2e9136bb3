"""Publishing derived events to their stream: in order of cause, each once.

A projector that takes over reads the end of the stream and goes on from there. Each publish names the stream's last
sequence, so the server refuses what a projector that slept still sends. A message of somebody else shifts the
sequences: then the first of the events under way are refused, and a later one may happen to fit. So the events still to
be published are those whose ids do not stand in the stream.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any, Final

from nats.aio.client import Client

from sickbay_events import DerivedEvent, derived_subject
from sickbay_events.codec import derived_id, encode_derived

from ..bus.jetstream import JetStreamApi, StoredMessage, StreamAt
from ..bus.publish import Ack, AckedPublisher
from ..bus.topology import LOG, TRANSITIONS
from ..log.transitions import End

IN_FLIGHT_MAX: Final = 256
FOREIGN_MAX: Final = 1_024
"""After so many messages in a row that are not of this log, none of its own is looked for any more."""
_AT_ONCE: Final = 64
_REQUEST_S: Final = 2.0


class Transitions:
    """Queue of derived events that are not known to stand in the stream, oldest cause first.

    A standby keeps the events that may be missing there. It sends nothing before `take_over`.
    """

    def __init__(self, publisher: AckedPublisher) -> None:
        self.published = 0
        self.needs_resync = True
        """The stream's last sequence is not known; `take_over` is wanted before anything goes out."""
        self.log_created = ""
        self._publisher = publisher
        self._queue: deque[DerivedEvent] = deque()
        self._sent = 0  # how many of the queue's first are under way
        self._next_seq = 0  # expected last sequence of the next publish
        self._last_seq = -1  # of the stream, when last read or written to
        self._round = 0
        self._known = End("", 0, 0, frozenset())
        self._forgotten = 0  # cause of the newest that the writer said stands there
        self.mark = 0
        """The latest cause of what is known to stand in the stream."""
        self.is_gone = False
        """The stream lost events that stood in it: it was made anew, or an older store put in its place."""

    def start(self, log_created: str, end: End) -> None:
        """Begin anew for a state that is folded again. Events below the end's floor stand in the stream already."""
        self.log_created, self._known = log_created, end
        self._queue.clear()
        self._last_seq = -1
        self.mark, self._forgotten, self.is_gone = end.mark, 0, False
        self.request_resync()

    def add(self, events: Iterable[DerivedEvent]) -> None:
        """Take what the fold concluded, in order."""
        floor = self._known.floor
        self._queue.extend([event for event in events if event.cause_seq >= floor])

    def forget_through(self, told_seq: int, time_ms: int) -> None:
        """Drop what stands in the stream: the writer said so at this log time of all causes up to `told_seq`.

        A later event with such a sequence stays: the log may have lost its end and given the sequence again.
        """
        queue = self._queue
        while queue and not self._sent and queue[0].cause_seq <= told_seq and queue[0].time_ms <= time_ms:
            self._forgotten = queue.popleft().cause_seq

    @property
    def all_told(self) -> bool:
        """Whether everything concluded so far stands in the stream."""
        return not self._queue

    @property
    def waiting(self) -> int:
        """How many events are not known to stand there."""
        return len(self._queue)

    def told_seq(self, folded_seq: int) -> int:
        """The sequence up to which every derived event stands in the stream."""
        return min(folded_seq, self._queue[0].cause_seq - 1) if self._queue else folded_seq

    def request_resync(self) -> None:
        """Publish nothing before `take_over` has found out which of the events under way were stored."""
        self.needs_resync = True
        self._round += 1
        self._sent = 0

    async def take_over(self, client: Client) -> None:
        """Read what stands at the end of the stream and drop it from the queue. If events are missing there that stood
        there before, sets `is_gone`: the state has to be built anew, since the queue has forgotten them.

        Raises `ApiError` (no stream), `nats.errors.Error` or `TimeoutError`.
        """
        self.request_resync()
        turn, queue, known = self._round, self._queue, self._known
        if not queue and self.mark >= self._forgotten:
            at = await JetStreamApi(client, timeout_s=_REQUEST_S).stream_at(TRANSITIONS)
            if turn != self._round:
                return
            if (at.created_at, at.last_seq) == (known.created_at, self._last_seq):
                self._next_seq, self.needs_resync = at.last_seq, False
                return
        end = await read_end(client, self.log_created, since=queue[0].cause_seq if queue else None)
        if turn != self._round:
            return
        is_another = end.created_at != known.created_at or end.last_seq < known.last_seq
        if is_another or (end.mark < self._forgotten and not end.is_aged_out):
            self.is_gone = True
            return
        created = self.log_created
        kept = [event for event in queue if (derived_id(event, created), event.time_ms) not in end.told]
        queue.clear()
        queue.extend(kept)
        self.mark, self._known = end.mark, end._replace(floor=known.floor, told=frozenset())
        self._next_seq = self._last_seq = end.last_seq
        self.needs_resync = False

    def pump(self) -> None:
        """Publish what waits. Only the writer may call it."""
        queue = self._queue
        while not self.needs_resync and self._sent < min(len(queue), IN_FLIGHT_MAX):
            event = queue[self._sent]
            if queue[0].cause_seq < self.mark <= event.cause_seq:
                return  # events that were overtaken go first, and alone, so that no more events overtake them
            turn = self._round
            self._sent += 1
            headers = {
                "Nats-Msg-Id": derived_id(event, self.log_created),
                "Nats-Expected-Last-Sequence": str(self._next_seq),
            }
            self._next_seq += 1
            body = encode_derived(event, self.log_created)
            self._publisher.send(derived_subject(event), body, headers, partial(self._on_ack, turn))

    def _on_ack(self, turn: int, ack: Ack) -> None:
        if turn != self._round:
            return
        if ack.error is not None:
            self.request_resync()
            return
        # One publisher, one stream: acknowledgements come in the order of sending.
        self.mark = max(self.mark, self._queue.popleft().cause_seq)
        self._sent -= 1
        self._last_seq = ack.seq
        if ack.duplicate:
            self.request_resync()  # it stands further back, so the sequences expected after it are wrong
        else:
            self.published += 1


class NullTransitions(Transitions):
    """For a projector beside the running one, which publishes no derived events."""

    def add(self, events: Iterable[DerivedEvent]) -> None:
        """Drop them."""

    def start(self, log_created: str, end: End) -> None:  # noqa: ARG002 - there is no mark where nothing is told
        """Begin anew."""
        self.log_created, self.needs_resync = log_created, False

    def request_resync(self) -> None:
        """Nothing is under way."""

    async def take_over(self, client: Client) -> None:
        """Nothing is to be taken over."""


async def read_end(client: Client, log_created: str, *, since: int | None = None) -> End:
    """The end of the stream, for this log. With `since` it has all that stands there of this cause or a later one.

    At most `IN_FLIGHT_MAX` events can overtake another one. So after that many messages with earlier causes no message
    with a later cause follows.
    """
    api = JetStreamApi(client, timeout_s=_REQUEST_S)
    at, log = await api.stream_at(TRANSITIONS), await api.stream_at(LOG)
    told: set[tuple[str, int]] = set()
    mark = floor = lost = earlier = foreign = 0
    async for message in _from_the_end(api, at):
        body = _body(message)
        if body is None or not str(body["id"]).startswith(f"{log_created}:"):
            foreign += 1  # of another log, taken out by hand, or put in by hand
            if foreign > FOREIGN_MAX:
                break
            continue
        foreign, cause = 0, body["cause_seq"]
        if cause < log.first_seq:
            break  # the log has aged past it, and nothing of that is derived again
        if cause > mark:
            if cause == lost or not await _has_cause(api, body):
                lost = cause
                continue
            mark = cause
        told.add((str(body["id"]), body["time_ms"]))
        floor = min(floor or cause, cause)
        earlier = earlier + 1 if since is None or cause < since else 0
        if earlier >= IN_FLIGHT_MAX:
            break
    else:
        if at.first_seq <= 1:
            floor = min(floor, log.first_seq)  # the stream never lost a message: what is not in it was not published
    return End(at.created_at, at.last_seq, mark, frozenset(told), floor)


async def _from_the_end(api: JetStreamApi, at: StreamAt) -> AsyncIterator[StoredMessage | None]:
    """The messages of the stream as its leader has them, newest first; None for each that is gone."""
    for last in range(at.last_seq, max(1, at.first_seq) - 1, -_AT_ONCE):
        first = max(1, at.first_seq, last - _AT_ONCE + 1)
        for message in await asyncio.gather(*(api.message_at(TRANSITIONS, seq) for seq in range(last, first - 1, -1))):
            yield message


async def _has_cause(api: JetStreamApi, body: dict[str, Any]) -> bool:
    """Whether the log still has the event that caused this. A log that lost its end gives its sequences again, to
    later events."""
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
