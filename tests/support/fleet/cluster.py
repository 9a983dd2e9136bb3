"""The cluster as routers meet it: a log, the fold behind it, the view it feeds, and the services' leases."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import msgspec

from sickbay.bus.link import Link
from sickbay.bus.topology import TRIALS_STREAM
from sickbay.router.outbox import Reportable
from sickbay.service.leases import Leases
from sickbay.view.digest_map import Change
from sickbay.view.entries import View
from sickbay_events import Checkpoint, Policy, Target, rfc3339
from sickbay_events.lease_wire import TrialAsk
from sickbay_events.view import CHECKPOINT_KEY
from sickbay_projections import FOLD_VERSION, Fleet, Recorded

FOLD_S: Final = 0.002
"""From the log into the fold and out to the bucket."""
BUCKET_S: Final = 0.001
"""One request to the trials bucket."""
_encode: Final = msgspec.json.Encoder().encode


class Reply(NamedTuple):
    """What a request gets."""

    data: bytes
    headers: dict[str, str] | None = None


class Bucket:
    """The trials bucket: put by compare-and-set with a time to live, get by subject."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms, self._seq = now_ms, 0
        self._keys: dict[str, tuple[int, int, int, bytes]] = {}
        """Subject -> sequence, stored at, gone from, value."""

    async def request(
        self, subject: str, payload: bytes, *, timeout: float, headers: dict[str, str] | None = None
    ) -> Reply:
        """As a client of the server."""
        await asyncio.sleep(BUCKET_S)
        now_ms = self._now_ms()
        if subject == f"$JS.API.STREAM.MSG.GET.{TRIALS_STREAM}":
            return Reply(_encode(self._get(msgspec.json.decode(payload)["last_by_subj"], now_ms)))
        assert headers is not None, subject
        standing = self._standing(subject, now_ms)
        if (standing[0] if standing else 0) != int(headers["Nats-Expected-Last-Subject-Sequence"]):
            return Reply(_encode({"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence"}}))
        self._seq += 1
        ttl_s = int(headers["Nats-TTL"].removesuffix("s"))
        self._keys[subject] = (self._seq, now_ms, now_ms + ttl_s * 1000, payload)
        return Reply(_encode({"stream": TRIALS_STREAM, "seq": self._seq}))

    def _standing(self, subject: str, now_ms: int) -> tuple[int, int, int, bytes] | None:
        found = self._keys.get(subject)
        return found if found is not None and now_ms < found[2] else None

    def _get(self, subject: str, now_ms: int) -> dict[str, Any]:
        found = self._standing(subject, now_ms)
        if found is None:
            return {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}
        seq, stored_ms, _, payload = found
        return {
            "message": {"seq": seq, "subject": subject, "time": rfc3339(stored_ms), "data": b64encode(payload).decode()}
        }


class _Wire:
    """A router's connection: asks for leases, over a network that takes its time."""

    def __init__(self, leases: Leases, delay_s: float) -> None:
        self._leases, self._delay_s = leases, delay_s
        self.client = self

    async def request(self, _subject: str, payload: bytes, *, timeout: float) -> Reply:
        """As a client of the server."""
        await asyncio.sleep(self._delay_s)
        answer = await self._leases.answer(msgspec.json.decode(payload, type=TrialAsk))
        await asyncio.sleep(self._delay_s)
        return Reply(_encode(answer))


class Cluster:
    """One log with one projector and the services beside it. `now_ms` is log time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now_ms: Callable[[], int], *, policy: Policy, checkpoint_every_s: float
    ) -> None:
        self.fleet = Fleet(policy)
        self.on_held: Callable[[], None] = lambda: None
        """Told of each hold of the fleet when it begins."""
        self.folded: Callable[[Recorded], None] = lambda recorded: None
        """Told of each event before it is folded."""
        self._loop, self._now_ms, self._every_s = loop, now_ms, checkpoint_every_s
        self._views: list[tuple[View, float]] = []
        self._seq = self._revision = 0
        self._leases = Leases(
            cast(Any, Bucket(now_ms)), fleet=lambda: self.fleet, now_ms=now_ms, is_current=lambda: True
        )

    def start(self) -> None:
        """Begin to write checkpoints."""
        self._checkpoint()

    def link(self, delay_s: float) -> Link:
        """A connection for leases."""
        return cast(Link, _Wire(self._leases, delay_s))

    def join(self, view: View, delay_s: float) -> None:
        """Feed a router's view from now on."""
        self._views.append((view, delay_s))

    def publish(
        self, replica: str, target: Target, event: Reportable, delay_s: float, acked: Callable[[int], None]
    ) -> None:
        """An event on its way into the log; `acked` is told its sequence when the acknowledgement is back."""
        self._loop.call_later(delay_s, self._store, replica, target, event, delay_s, acked)

    def _store(
        self, replica: str, target: Target, event: Reportable, delay_s: float, acked: Callable[[int], None]
    ) -> None:
        self._seq += 1
        recorded = Recorded(event, target=target, replica=replica, seq=self._seq, time_ms=self._now_ms())
        self._loop.call_later(FOLD_S, self._fold, recorded)
        self._loop.call_later(delay_s, acked, self._seq)

    def _fold(self, recorded: Recorded) -> None:
        self.folded(recorded)
        self.fleet.apply(recorded)
        changes = []
        for key in self.fleet.take_changed():
            entry = self.fleet.entry(key)
            if entry is not None and entry.expires_ms > self._now_ms():
                changes.append(self._change(key, entry))
                if any(hold.began_seq == recorded.seq for hold in entry.holds):
                    self.on_held()
        if changes:
            self._feed(changes)

    def _checkpoint(self) -> None:
        fleet, now_ms = self.fleet, self._now_ms()
        checkpoint = Checkpoint(
            seq=fleet.seq, time_ms=fleet.time_ms, writer="p", fold=FOLD_VERSION, wrote_ms=now_ms,
            replicas=fleet.replicas(now_ms),
        )  # fmt: skip
        self._feed([self._change(CHECKPOINT_KEY, checkpoint)])
        self._loop.call_later(self._every_s, self._checkpoint)

    def _change(self, key: str, value: msgspec.Struct) -> Change:
        self._revision += 1
        return Change(key, self._revision, _encode(value))

    def _feed(self, changes: list[Change]) -> None:
        stamp_ms = self._now_ms()
        for view, delay_s in self._views:
            self._loop.call_later(delay_s, _arrive, self._loop, view, changes, stamp_ms)


def _arrive(loop: asyncio.AbstractEventLoop, view: View, changes: list[Change], stamp_ms: int) -> None:
    """What a mirror does with messages of its feed."""
    at_s = loop.time()
    view.clock.hear(stamp_ms, at_s)
    for change in changes:
        if change.key == CHECKPOINT_KEY:
            view.take_checkpoint(change, at_s)
        else:
            view.take(change)
    if not view.is_heard:
        view.loaded()
    view.sweep()
