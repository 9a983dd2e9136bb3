"""Why one replica skipped a target when another did not: its place in a ramp, its own outcomes, what it said itself.

    seen = await seen_by(client, target, "router-2", fleet, at_ms)

The cluster tells every replica the same; what differs is its share of a ramp and its overlay (Rule 5.3). The overlay
is folded anew, under the policy in force, from the replica's own outcomes in the log, up to the position of the
fleet's state. It is what the replica would have held by itself; what only its process knew (which of its own trials a
call was, what the cluster's word ended) the log does not say.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Any, Final
from zlib import crc32

import msgspec
from nats.aio.client import Client

from sickbay_events import CallAnswered, CallOutcome, CallsRefused, Poison, Policy, Target, read_subject, rfc3339
from sickbay_events.names import token
from sickbay_events.view import RampView
from sickbay_projections import Fleet, Recorded
from sickbay_projections.rules.ramp import in_from_ms

from ..bus.jetstream import JetStreamApi, StreamAt
from ..bus.link import BorrowedConnection
from ..bus.reader import CaughtUp, Chunk, LogReader
from ..bus.topology import LOG, OUTCOME_PREFIX
from ..log.decode import Intake
from ..router.overlay import router_policy
from .past import REQUEST_S, log_now

LOOK_BACK_MS: Final = 12 * 3_600_000
"""No overlay remembers longer: its longest hold is a spent allowance, 6 h."""
TOLD_MAX: Final = 10
"""The newest refusals and skips that are shown."""
STARTS_MAX: Final = 4_096


async def seen_by(client: Client, target: Target, replica: str, fleet: Fleet, at_ms: int) -> dict[str, Any]:
    """What this replica had to go by at a log time, as plain data: `cluster`, `overlay`, `ramp`, and what it said
    itself: `refused`, `skipped`."""
    log = await log_now(client)
    own = _Own(target, replica, fleet.policy)
    begin = await _seq_at(client, log, at_ms - LOOK_BACK_MS)
    filters = (f"{OUTCOME_PREFIX}{token(replica)}.>",)
    if fleet.seq >= begin:
        reader = LogReader(BorrowedConnection(client), LOG, after_seq=begin - 1, filters=filters, name="explain")
        try:
            async for item in reader:
                if isinstance(item, Chunk):
                    own.take(item, fleet.seq)
                if isinstance(item, CaughtUp) or reader.seq >= fleet.seq:
                    break
        finally:
            await reader.close()
    cluster = fleet.decide(target, at_ms, replica)
    overlay = own.fleet.decide(target, at_ms, replica)
    return {
        "replica": replica,
        "at": rfc3339(at_ms),
        "allowed": cluster.allowed and overlay.allowed,
        "cluster": msgspec.to_builtins(cluster),
        "overlay": {
            **msgspec.to_builtins(overlay),
            "outcomes": own.outcomes,
            "holds": [hold for key in target.keys for hold in (own.fleet.document(key, at_ms) or {}).get("holds", ())],
        },
        "ramp": _ramp(fleet, target, replica, at_ms),
        "refused": list(own.refused),
        "skipped": list(own.skipped),
    }


class _Own:
    """The replica's own events, folded as its overlay folds them."""

    def __init__(self, target: Target, replica: str, policy: Policy) -> None:
        self.fleet = Fleet(router_policy(policy), overlay=True)
        self.outcomes = 0
        self.refused: deque[dict[str, Any]] = deque(maxlen=TOLD_MAX)
        self.skipped: deque[dict[str, Any]] = deque(maxlen=TOLD_MAX)
        self._target, self._replica = target, replica
        self._intake = Intake()
        self._ended_ms: deque[int] = deque(maxlen=STARTS_MAX)
        self._seq = 0

    def take(self, chunk: Chunk, last_seq: int) -> None:
        """Fold what of a chunk is not beyond `last_seq`."""
        for subject, event, seq, time_ms in zip(*self._intake.batch(chunk), strict=True):
            if seq > last_seq:
                return
            where = None if isinstance(event, Poison) else read_subject(subject).target
            if where is None:
                continue
            if isinstance(event, CallsRefused):
                if where == self._target:
                    fact = {"seq": seq, "at": rfc3339(time_ms), "count": event.count, "rule": event.rule}
                    self.refused.append({**fact, "minute": event.minute})
            elif isinstance(event, CallOutcome | CallAnswered):
                self._own(event, where, seq, time_ms)

    def _own(self, event: CallOutcome | CallAnswered, where: Target, seq: int, time_ms: int) -> None:
        if isinstance(event, CallOutcome):
            for skip in event.skipped or ():
                if (skip.provider, skip.model) == (self._target.provider, self._target.model):
                    self.skipped.append({"seq": seq, "at": rfc3339(time_ms), "reason": skip.reason})
        if where.scope.host != self._target.scope.host:
            return
        self.outcomes += where == self._target
        ended_ms = time_ms - round(event.queued_ms or 0)
        took_ms = (event.took_ms or 0) if isinstance(event, CallOutcome) else (event.ttft_ms or 0)
        # Its own counter when the call started: what it had recorded by then.
        seen = self._seq - len(self._ended_ms) + bisect_right(self._ended_ms, ended_ms - took_ms)
        self._ended_ms.append(ended_ms)
        self._seq += 1
        own = msgspec.structs.replace(event, seen_seq=seen, trial=None, id=None)
        self.fleet.apply(Recorded(own, where, replica=self._replica, seq=self._seq, time_ms=ended_ms))


def _ramp(fleet: Fleet, target: Target, replica: str, at_ms: int) -> dict[str, Any] | None:
    """The replica's place in the ramp that the cluster is in, and from when on it is in."""
    for key in target.keys:
        entry = fleet.entry(key)
        if entry is not None and entry.ramp is not None and entry.ramp.from_ms <= at_ms < entry.ramp.end_ms:
            return _place(entry.ramp, replica, fleet.replicas(at_ms), at_ms)
    return None


def _place(ramp: RampView, replica: str, replicas: int, at_ms: int) -> dict[str, Any]:
    in_ms = in_from_ms(ramp, replica)
    place = crc32(f"{replica} {ramp.began_seq}".encode("utf-8", "surrogatepass"))
    return {
        "rule": ramp.rule,
        "began_seq": ramp.began_seq,
        "place_percent": round(place * 100 / (1 << 32), 1),
        "in_from": rfc3339(in_ms),
        "is_in": at_ms >= in_ms or replicas < ramp.replicas,
        "ends": rfc3339(ramp.end_ms),
        "replicas": replicas,
        "counts_from_replicas": ramp.replicas,
    }


async def _seq_at(client: Client, log: StreamAt, time_ms: int) -> int:
    """First sequence at about this log time, by halving; the log's clock may have stepped back, so it is no bound."""
    api = JetStreamApi(client, timeout_s=REQUEST_S)
    low, high = max(1, log.first_seq), log.last_seq + 1
    while low < high:
        middle = (low + high) // 2
        there = await api.message_at(LOG, middle, or_next=True)
        if there is None or there.time_ns // 1_000_000 >= time_ms:
            high = middle
        else:
            low = there.seq + 1
    return low
