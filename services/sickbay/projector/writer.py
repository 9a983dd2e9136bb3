"""Writing the gate's view: the checkpoint by compare-and-set, and one put for each entry.

The projector whose checkpoint stands is the writer. It puts, and repeats a put, only within a second after its own
compare-and-set of the checkpoint succeeded; after a longer sleep it claims the checkpoint again first. A late put of a
projector that slept can still arrive. The writer sees it in the view and puts its own entry again.
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
"""How long a release stands that clears an entry which the state does not have."""

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

    wake        called when entries are to be put
    claim_now   called when entries wait for a new claim
    is_writer   whether this process holds the checkpoint, as far as it knows
    fresh       whether it may put now
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
        self._turn = 0
        """Rises whenever this process stops being the writer."""
        self._revision = 0
        """Of its own last checkpoint."""
        self._urgent: dict[str, None] = {}
        """Keys that the fold has just changed; they go out before the pending ones."""
        self._pending: dict[str, None] = {}
        """Keys whose entry in the bucket may differ from the state."""
        self._to_clear: set[str] = set()
        """Keys whose entry in the bucket holds or allows something that the state does not have."""
        self._under_way: dict[str, _Put] = {}
        self._last_revision: dict[str, int] = {}
        """By key: revisions that the view does not show, such as a marker's; the next put must name them."""
        self._policy: tuple[int, bytes] | None = None

    # -- the checkpoint --------------------------------------------------------------------------------

    @property
    def fresh(self) -> bool:
        """Whether the last compare-and-set of the checkpoint succeeded, at most a second ago."""
        return self.is_writer and not self.claim_wanted and time.monotonic() - self._claimed_s < LEASE_S

    @property
    def settled(self) -> bool:
        """Whether nothing is to be put and nothing under way."""
        return not (self._urgent or self._pending or self._under_way)

    async def claim(self, checkpoint: Checkpoint) -> bool:
        """Compare and set the checkpoint; True if it stands now. If another projector has it, this one is no writer any
        more; a lost answer changes nothing."""
        sent_s, turn = time.monotonic(), self._turn
        standing = self._view.map.standing.get(CHECKPOINT_KEY, (0, 0))[0]
        if self._is_anothers(standing):
            # Another projector claimed it while this one slept or was cut off. A compare with its revision would
            # take the checkpoint away from it.
            self.demote()
            return False
        expected = max(standing, self._revision) or self._last_revision.get(CHECKPOINT_KEY, 0)
        ack = await self._put_checkpoint(checkpoint, expected)
        if ack.error is not None and ack.error.is_wrong_last_sequence:
            # A rival wrote it, or it was deleted, or ours was stored and the acknowledgement lost.
            revision, writer = await self._standing_checkpoint()
            if writer not in ("", self.me):
                self.demote()
                return False
            sent_s = time.monotonic()
            ack = await self._put_checkpoint(checkpoint, revision)
        if ack.error is None:
            if turn != self._turn:
                return False  # it stopped being the writer meanwhile, and forgot what it knew of the bucket
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
        """The revision of what stands under the checkpoint's key, and its writer ("": there is none).

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
        """Another projector writes, or may: put nothing more."""
        self._turn += 1
        self.is_writer = self.claim_wanted = False
        self._claimed_s = -math.inf
        self.forget()

    def forget(self) -> None:
        """The connection or the bucket is another one: forget what was under way and what stood."""
        self._under_way.clear()
        self._urgent.clear()
        self._pending.clear()
        self._to_clear.clear()
        self._last_revision.clear()
        self._revision = 0
        self.claim_wanted = self.is_writer

    # -- entries ---------------------------------------------------------------------------------------

    def touch(self, keys: Iterable[str]) -> None:
        """The fold changed these: put them now."""
        if self.is_writer:
            self._urgent.update(dict.fromkeys(keys))
            self.pump()

    async def compare_all(self, standing: Iterable[Change]) -> None:
        """Compare every entry in the bucket, and every one that should be there, with the state."""
        self._pending.update(dict.fromkeys(self._state.fleet.keys()))
        self._pending[POLICY_KEY] = None
        for number, change in enumerate(standing, 1):
            if number % COMPARED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if change.value is None:
                self._last_revision[change.key] = change.revision
            elif change.key != CHECKPOINT_KEY:
                self._judge(change)

    def on_changes(self, changes: list[Change]) -> None:
        """Take what came by in the view: an own put is settled, anything else is compared with the state."""
        for change in changes:
            key = change.key
            if key == CHECKPOINT_KEY:
                self._see_checkpoint(change)
                continue
            if change.value is None:
                if len(self._last_revision) >= 10_000:
                    self._last_revision.clear()  # a put with a wrong revision costs one question, no more
                self._last_revision[key] = change.revision
            if not self.is_writer:
                continue
            put = self._under_way.get(key)
            if put is not None and self._view.map.standing.get(key, (0, 0))[1] == put.hash:
                del self._under_way[key]
                if put.again:
                    self._urgent[key] = None
                continue
            self._judge(change)
        if self._urgent or self._pending:
            self._wake()

    def _see_checkpoint(self, change: Change) -> None:
        if change.value is None:
            self._last_revision[CHECKPOINT_KEY] = change.revision
            self._revision = 0
            self.claim_wanted = self.is_writer
            return
        if self._is_anothers(change.revision):
            self.demote()

    def _is_anothers(self, revision: int) -> bool:
        """Whether the checkpoint in the view, of that revision, names another writer."""
        seen = self._view.checkpoint
        return self.is_writer and revision > self._revision and seen is not None and seen.writer not in (self.me, "")

    def _judge(self, change: Change) -> None:
        """Note a key whose entry differs from the state."""
        key = change.key
        wanted = self._wanted(key)
        if wanted is not None:
            stands = change.value is not None and entry_hash(key, change.value) == entry_hash(key, wanted[0])
            if not stands and key not in self._pending:
                self.mends += 1
                self._pending[key] = None
        elif change.value is not None and _is_scope_key(key) and _says_something(change.value, self.now_ms()):
            self.mends += 1
            self._to_clear.add(key)
            self._pending[key] = None

    def pump(self) -> None:
        """Put what is noted, as long as the checkpoint is this process's."""
        while self._urgent or (self._pending and len(self._under_way) < IN_FLIGHT_MAX):
            if not self.fresh:
                if self.is_writer:
                    self.claim_wanted = True
                    self._claim_now()
                return
            keys = self._urgent or self._pending
            key = next(iter(keys))
            del keys[key]
            self._put(key)

    def _put(self, key: str) -> None:
        put = self._under_way.get(key)
        if put is not None:
            put.again = True
            return
        wanted = self._wanted(key)
        if wanted is None:
            if key not in self._to_clear:
                return
            wanted = self._released(key)
        self._to_clear.discard(key)
        value, ttl_s = wanted
        revision, standing_hash = self._view.map.standing.get(key, (0, 0))
        value_hash = entry_hash(key, value)
        if standing_hash == value_hash:
            return
        headers = {"Nats-Expected-Last-Subject-Sequence": str(max(revision, self._last_revision.get(key, 0)))}
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
            # Only a writer that has just won the checkpoint may repeat it. After any other error (no room, no answer)
            # it is tried again when its time to settle is over.
            put.sent_s = -math.inf
            self.claim_wanted = self.is_writer
            self._wake()
            self._claim_now()

    async def look_after(self) -> None:
        """For each put that was refused or did not come by in the view: see what stands there, then put it again."""
        before = time.monotonic() - SETTLE_S
        for key in [key for key, put in self._under_way.items() if put.sent_s < before]:
            client = self._link.client
            if client is None:
                return
            entry = await read_entry(client, self._names.stream, self._names.gate_prefix + key)
            put = self._under_way.pop(key, None)
            if entry is None:
                self._last_revision.pop(key, None)
                if key in self._view.map.standing:
                    self._view.loaded = False  # the view shows what the bucket no longer has
            else:
                self._last_revision[key] = entry.revision
                if entry.revision > self._view.map.feed_revision and put is not None and put.sent_s > -math.inf:
                    self._view.loaded = False  # it was stored a second ago and has not come by
            value = None if entry is None or entry.gone else entry.payload or None
            self._judge(Change(key, 0 if entry is None else entry.revision, value))

    def _wanted(self, key: str) -> tuple[bytes, int] | None:
        """What should stand under a key, and for how many seconds (0: for ever); None: nothing."""
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
        # When the log's clock steps back, this process's clock is ahead of it for a minute. Until then a release must
        # still replace the hold that stands there.
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
    """Whether an entry has any effect now: a hold, an allow, a ramp or a clear that is not over."""
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
