"""Who writes the gate's view, and what: the checkpoint by compare-and-set, and one put an entry.

The checkpoint decides who writes. No put leaves here, and none is repeated, unless one's own checkpoint compare
succeeded within the last second; whoever slept claims it again first. What an overslept put does all the same
comes by in the view, and the writer puts again whatever differs from its state.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec
import nats.errors

from sickbay_events import GateEntry, Scope, TokenRefused
from sickbay_events.view import CHECKPOINT_KEY, POLICY_KEY, Checkpoint, PolicyInForce
from sickbay_projections import Fleet

from ..bus.entries import read_entry
from ..bus.link import Link
from ..bus.publish import Ack, AckedPublisher
from ..view.digest_map import Change, entry_hash
from .view_feed import ProjectorView

LEASE_S: Final = 1.0
"""How long one successful checkpoint compare lets its writer put."""
CHECKPOINT_EVERY_S: Final = 0.4
IN_FLIGHT_MAX: Final = 512
"""Puts under way while the whole bucket is compared; what the fold has just changed goes out at once."""
SETTLE_S: Final = 1.0
COMPARED_AT_ONCE: Final = 200
RELEASED_S: Final = 60
"""How long a release stands that undoes an entry of which the state knows nothing."""

_encode = msgspec.json.Encoder().encode
_entries: Final = msgspec.json.Decoder(GateEntry)


class State(Protocol):
    """What the writer needs of the projector."""

    me: str
    """Name and boot."""
    link: Link
    fleet: Fleet
    """The state as folded so far."""


class _Put:
    """One put under way."""

    __slots__ = ("again", "hash", "sent_s")

    def __init__(self, sent_s: float, value_hash: int) -> None:
        self.sent_s = sent_s
        self.hash = value_hash
        self.again = False


class GateWriter:
    """Puts gate entries and checkpoints. Belongs to one event loop.

    `wake` is called when entries are due, `claim_now` when they wait for a fresh claim. `is_writer` says who
    holds the checkpoint as far as this process knows; `fresh` whether it may put.
    """

    def __init__(
        self,
        publisher: AckedPublisher,
        view: ProjectorView,
        state: State,
        *,
        wake: Callable[[], None],
        claim_now: Callable[[], None],
    ) -> None:
        self.is_writer = False
        self.me = state.me
        self.claim_wanted = False
        self.bucket_gone = False
        self.puts = self.refused = self.mends = 0
        self._link, self._publisher, self._view, self._state = state.link, publisher, view, state
        view.on_changes = self.on_changes
        self._names = view.names
        self._wake, self._claim_now = wake, claim_now
        self._claimed_s = -math.inf
        self._turn = 0  # rises when the writer's part is lost
        self._revision = 0  # of one's own last checkpoint
        self._hot: dict[str, None] = {}
        self._due: dict[str, None] = {}
        self._undo: set[str] = set()  # keys under which something stands that the state does not say
        self._under_way: dict[str, _Put] = {}
        self._beneath: dict[str, int] = {}  # revisions that the view does not show: markers, what was asked for
        self._policy: tuple[int, bytes] | None = None

    # -- the checkpoint --------------------------------------------------------------------------------

    @property
    def fresh(self) -> bool:
        """One's own checkpoint compare succeeded within the last second."""
        return self.is_writer and not self.claim_wanted and time.monotonic() - self._claimed_s < LEASE_S

    @property
    def settled(self) -> bool:
        """Nothing is due and nothing under way."""
        return not (self._hot or self._due or self._under_way)

    async def claim(self, checkpoint: Checkpoint) -> bool:
        """Compare and set the checkpoint; True if it is one's own now. Loses the writer's part to whoever has
        it, but not because nobody answered."""
        sent_s, turn = time.monotonic(), self._turn
        standing = self._view.map.standing.get(CHECKPOINT_KEY, (0, 0))[0]
        if self._is_anothers(standing):
            # It was claimed while this one slept or was cut off; comparing with it would take it away again.
            self.demote()
            return False
        expected = max(standing, self._revision) or self._beneath.get(CHECKPOINT_KEY, 0)
        ack = await self._put_checkpoint(checkpoint, expected)
        if ack.error is not None and ack.error.is_wrong_last_sequence:
            # Either a rival wrote, or one's own was stored and its acknowledgement was lost, or it was deleted.
            revision, writer = await self._standing_checkpoint()
            if writer not in ("", self.me):
                self.demote()
                return False
            sent_s = time.monotonic()
            ack = await self._put_checkpoint(checkpoint, revision)
        if ack.error is None:
            if turn != self._turn:
                return False  # the part was lost meanwhile, and with it what is known of the bucket
            self._claimed_s, self._revision = sent_s, ack.seq
            self.is_writer, self.claim_wanted = True, False
            return True
        if ack.error.is_without_stream:
            self.bucket_gone = True
        elif ack.error.is_wrong_last_sequence:
            self.demote()
        return False

    async def _put_checkpoint(self, checkpoint: Checkpoint, expected: int) -> Ack:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expected)}
        return await self._publisher.publish(self._names.gate_prefix + CHECKPOINT_KEY, _encode(checkpoint), headers)

    async def _standing_checkpoint(self) -> tuple[int, str]:
        """Revision of what stands under the checkpoint's key, and its writer; "" if nobody is.

        Raises `ReadError`, `nats.errors.Error` or `TimeoutError`.
        """
        client = self._link.client
        if client is None:
            raise nats.errors.ConnectionClosedError
        entry = await read_entry(client, self._names.stream, self._names.gate_prefix + CHECKPOINT_KEY)
        if entry is None:
            return 0, ""
        if entry.gone or not entry.payload:
            return entry.revision, ""
        try:
            return entry.revision, msgspec.json.decode(entry.payload, type=Checkpoint).writer
        except (msgspec.DecodeError, UnicodeDecodeError):
            return entry.revision, ""

    def demote(self) -> None:
        """Somebody else writes, or nobody can say: put nothing more."""
        self._turn += 1
        self.is_writer = self.claim_wanted = False
        self._claimed_s = -math.inf
        self.forget()

    def forget(self) -> None:
        """The connection or the bucket is another one: what was under way and what stood is not known."""
        self._under_way.clear()
        self._hot.clear()
        self._due.clear()
        self._undo.clear()
        self._beneath.clear()
        self._revision = 0
        self.claim_wanted = self.is_writer

    # -- entries ---------------------------------------------------------------------------------------

    def touch(self, keys: Iterable[str]) -> None:
        """The fold changed these: put them now."""
        if self.is_writer:
            self._hot.update(dict.fromkeys(keys))
            self.pump()

    async def compare_all(self, standing: Iterable[Change]) -> None:
        """Compare everything that stands, and everything that should, with the state."""
        self._due.update(dict.fromkeys(self._state.fleet.keys()))
        self._due[POLICY_KEY] = None
        for number, change in enumerate(standing, 1):
            if number % COMPARED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if change.value is None:
                self._beneath[change.key] = change.revision
            elif change.key != CHECKPOINT_KEY:
                self._judge(change)

    def on_changes(self, changes: list[Change]) -> None:
        """What came by in the view: one's own puts settle, anything else is compared with the state."""
        for change in changes:
            key = change.key
            if key == CHECKPOINT_KEY:
                self._see_checkpoint(change)
                continue
            if change.value is None:
                if len(self._beneath) >= 10_000:
                    self._beneath.clear()  # a wrong guess costs one question, no more
                self._beneath[key] = change.revision
            if not self.is_writer:
                continue
            put = self._under_way.get(key)
            if put is not None and self._view.map.standing.get(key, (0, 0))[1] == put.hash:
                del self._under_way[key]
                if put.again:
                    self._hot[key] = None
                continue
            self._judge(change)
        if self._hot or self._due:
            self._wake()

    def _see_checkpoint(self, change: Change) -> None:
        if change.value is None:
            self._beneath[CHECKPOINT_KEY] = change.revision
            self._revision = 0
            self.claim_wanted = self.is_writer
            return
        if self._is_anothers(change.revision):
            self.demote()

    def _is_anothers(self, revision: int) -> bool:
        """Whether the checkpoint in the view, of that revision, says that somebody else writes now."""
        seen = self._view.checkpoint
        return self.is_writer and revision > self._revision and seen is not None and seen.writer not in (self.me, "")

    def _judge(self, change: Change) -> None:
        """Make a key due whose entry differs from the state."""
        key = change.key
        wanted = self._wanted(key)
        if wanted is not None:
            stands = change.value is not None and entry_hash(key, change.value) == entry_hash(key, wanted[0])
            if not stands and key not in self._due:
                self.mends += 1
                self._due[key] = None
        elif change.value is not None and _is_scope_key(key) and _says_something(change.value, self.now_ms()):
            self.mends += 1
            self._undo.add(key)
            self._due[key] = None

    def pump(self) -> None:
        """Send what is due, as long as the checkpoint is one's own."""
        while self._hot or (self._due and len(self._under_way) < IN_FLIGHT_MAX):
            if not self.fresh:
                if self.is_writer:
                    self.claim_wanted = True
                    self._claim_now()
                return
            due = self._hot or self._due
            key = next(iter(due))
            del due[key]
            self._put(key)

    def _put(self, key: str) -> None:
        put = self._under_way.get(key)
        if put is not None:
            put.again = True
            return
        wanted = self._wanted(key)
        if wanted is None:
            if key not in self._undo:
                return
            wanted = self._released(key)
        self._undo.discard(key)
        value, ttl_s = wanted
        revision, standing_hash = self._view.map.standing.get(key, (0, 0))
        value_hash = entry_hash(key, value)
        if standing_hash == value_hash:
            return
        headers = {"Nats-Expected-Last-Subject-Sequence": str(max(revision, self._beneath.get(key, 0)))}
        if ttl_s:
            headers["Nats-TTL"] = f"{ttl_s}s"
        self._under_way[key] = sent = _Put(time.monotonic(), value_hash)
        self.puts += 1
        self._publisher.send(self._names.gate_prefix + key, value, headers, lambda ack: self._on_ack(key, sent, ack))

    def _on_ack(self, key: str, put: _Put, ack: Ack) -> None:
        if ack.error is None or self._under_way.get(key) is not put:
            return  # it is settled when it comes by in the view
        self.refused += 1
        if ack.error.is_without_stream:
            self.bucket_gone = True
        if ack.error.is_wrong_last_sequence:
            # Repeating it is safe only for who has just won the checkpoint. What else can be wrong (no room, no
            # answer) is tried again when its time to settle is over.
            put.sent_s = -math.inf
            self.claim_wanted = self.is_writer
            self._wake()
            self._claim_now()

    async def look_after(self) -> None:
        """What was refused, or does not come by in the view: see what stands there, then put it again."""
        before = time.monotonic() - SETTLE_S
        for key in [key for key, put in self._under_way.items() if put.sent_s < before]:
            client = self._link.client
            if client is None:
                return
            entry = await read_entry(client, self._names.stream, self._names.gate_prefix + key)
            put = self._under_way.pop(key, None)
            if entry is None:
                self._beneath.pop(key, None)
                if key in self._view.map.standing:
                    self._view.loaded = False  # the view shows what the bucket no longer has
            else:
                self._beneath[key] = entry.revision
                if entry.revision > self._view.map.feed_revision and put is not None and put.sent_s > -math.inf:
                    self._view.loaded = False  # it was stored a second ago and has not come by
            value = None if entry is None or entry.gone else entry.payload or None
            self._judge(Change(key, 0 if entry is None else entry.revision, value))

    def _wanted(self, key: str) -> tuple[bytes, int] | None:
        """What should stand under a key, and for how many seconds (0: for good); None if nothing need."""
        fleet = self._state.fleet
        if key == POLICY_KEY:
            if self._policy is None or self._policy[0] != fleet.policy_seq:
                data = PolicyInForce(seq=fleet.policy_seq, policy=fleet.policy.to_data())
                self._policy = (fleet.policy_seq, _encode(data))
            return self._policy[1], 0
        entry = fleet.entry(key)
        if entry is None:
            return None
        left_ms = entry.expires_ms - self.now_ms()
        if left_ms <= 0 and key not in self._view.map.standing:
            return None
        # After a step back of the log's clock this process's own one is ahead for a minute: a release must replace the
        # hold that stands there even so.
        return _encode(entry), max(1, math.ceil(left_ms / 1000))

    def _released(self, key: str) -> tuple[bytes, int]:
        scope = Scope.of_key(key)
        fleet = self._state.fleet
        entry = GateEntry(
            provider=scope.provider,
            model=scope.model,
            scope=scope.name,
            reason="released",
            by="mended",
            seq=fleet.seq,
            time_ms=fleet.time_ms,
            expires_ms=self.now_ms() + RELEASED_S * 1000,
        )
        return _encode(entry), RELEASED_S

    def now_ms(self) -> int:
        """Log time now (Rule 6); this process's wall clock until the server has told its own."""
        return self._view.clock.now_ms()


def _says_something(value: bytes, now_ms: int) -> bool:
    """Whether an entry says more than that all is well: a hold, an allow, a ramp or a clear that still counts."""
    try:
        entry = _entries.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
    return entry.expires_ms > now_ms and bool(entry.holds or entry.allow or entry.ramp or entry.cleared_seq)


def _is_scope_key(key: str) -> bool:
    """Whether a key of the bucket is a scope's."""
    try:
        Scope.of_key(key)
    except TokenRefused:
        return False
    return True
