"""The gate's copy of the view: who may not be called now, kept from what the bucket republishes.

Follows `sickbay.view.>` by plain subscription, compares number and digest at each checkpoint's revision, and
pages through the bucket by direct get when they differ, when the feed is silent, or when it is another bucket.
After a reconnect it reads the checkpoint and what changed since, and pages only if that does not fit.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client

from sickbay_events import Checkpoint, GateEntry, Policy, PolicyRefused, parse_rfc3339
from sickbay_events.view import PolicyInForce

from .bus.bulk import BulkSubscription, Item, header_value, subscribe_bulk
from .bus.entries import Entry, ReadError, read_entries, read_entry
from .bus.link import Link
from .bus.topology import CHECKPOINT_KEY, GATE_PREFIX, GATE_STREAM, POLICY_KEY, VIEW_PREFIX
from .bus.view import Change, ViewMap, read_change

_log = logging.getLogger("sickbay.mirror")

CLOCK_WINDOW_S: Final = 60
"""The largest offset of this long counts (SPEC 6)."""
SILENCE_S: Final = 1.5
"""Without a checkpoint for so long the feed is not believed any more; a live projector writes one a second."""
STALE_S: Final = 3.0
"""An answer is called stale from this age on; a standby takes over within it."""
CHECK_S: Final = 0.25
"""How often the silence is looked at."""
RETRY_MIN_S: Final = 0.02
RETRY_MAX_S: Final = 2.0
PAGE_WAIT_MIN_S: Final = 0.25
PAGE_WAIT_MAX_S: Final = 60.0
"""Between one paging that did not help and the next: doubles up to this while no checkpoint fits."""
SWEEP_S: Final = 5.0
"""How often entries that say nothing any more are dropped by the own clock."""
VERSION: Final = 1

Changed = Callable[[str, GateEntry | None, GateEntry | None], None]
"""Called with scope key, what stood there and what stands there now."""
PolicyTaken = Callable[[Policy, int], None]
"""Called with the policy in force and its log sequence."""
Passed = Callable[[int], None]
"""Called with the log sequence up to which the cluster has folded, at each checkpoint of a live projector."""

_entry: Final = msgspec.json.Decoder(GateEntry)
_checkpoint: Final = msgspec.json.Decoder(Checkpoint)
_policy: Final = msgspec.json.Decoder(PolicyInForce)


class LogClock:
    """Log time as a gate reckons it: its own monotonic clock plus the largest offset of the last 60 s.

    Before the first message it is the wall clock (`heard` is False then). Times in ms since the epoch.
    """

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self.heard = False
        self.offset_ms = 0.0
        self._monotonic, self._wall = monotonic, wall
        self._seconds: deque[tuple[int, float]] = deque()

    def hear(self, stamp_ms: int, at_s: float) -> None:
        """A message stamped by the server at `stamp_ms` arrived at `at_s` of the monotonic clock."""
        second, offset_ms = int(at_s), stamp_ms - at_s * 1000
        seconds = self._seconds
        if seconds and seconds[-1][0] == second:
            seconds[-1] = (second, max(seconds[-1][1], offset_ms))
        else:
            seconds.append((second, offset_ms))
        while seconds[0][0] <= second - CLOCK_WINDOW_S:
            seconds.popleft()
        self.offset_ms = max([offset for _, offset in seconds])
        self.heard = True

    def now_ms(self) -> int:
        """Asked-at, in whole milliseconds."""
        if self.heard:
            return int(self.offset_ms + self._monotonic() * 1000)
        return int(self._wall() * 1000)


class Mirror:
    """The entries of the view by scope key, with their age and the log's time.

    Belongs to the event loop in which `start` was called; reading `entries`, `seq`, `age_s()` and `now_ms()` is
    safe from any thread. Without a link it stands still, for tests: `put` then changes it.
    """

    def __init__(
        self,
        link: Link | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.entries: dict[str, GateEntry] = {}
        self.seq = 0
        """The largest log sequence seen in an entry or a checkpoint: `seen_seq` of a call that starts now."""
        self.policy = Policy()
        self.policy_seq = 0
        self.checkpoint: Checkpoint | None = None
        self.is_loaded = False
        """Whether the bucket was read once; before that nothing is known."""
        self.is_heard = False
        """Whether it was read and something came by the feed, so that the log's time is known too."""
        self.resyncs = 0
        """How often the bucket was paged through."""
        self.counts: Counter[str] = Counter()
        """`mismatch`, `other_bucket`, `silence`, `filled`, and what was not readable: `body`, `version`, `policy`."""
        self.clock = LogClock(monotonic, wall)
        self._monotonic = monotonic
        self.fresh_at_s = monotonic()
        """Monotonic time of the last checkpoint that a live projector wrote."""
        self._link = link
        self._view = ViewMap()
        self._feed: BulkSubscription | None = None
        self._changed: list[Changed] = []
        self._policy_taken: list[PolicyTaken] = []
        self._passed: list[Passed] = []
        self._on_loaded: list[Callable[[], None]] = []
        self._loaded = asyncio.Event()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._wants_load, self._wants_check = True, False
        self._checkpoint_at_s = monotonic()
        self._checkpoint_revision = 0
        self._lost_at_revision = 0
        self._retry_s = RETRY_MIN_S
        self._retry_at_s = 0.0
        self._page_wait_s = 0.0
        self._page_at_s = 0.0
        self._sweep_at_s = monotonic() + SWEEP_S

    def listen(
        self,
        *,
        changed: Changed | None = None,
        policy: PolicyTaken | None = None,
        passed: Passed | None = None,
        loaded: Callable[[], None] | None = None,
    ) -> None:
        """Add listeners, called in the loop; what they raise is logged. `is_loaded` is False in the first load."""
        if changed is not None:
            self._changed.append(changed)
        if policy is not None:
            self._policy_taken.append(policy)
        if passed is not None:
            self._passed.append(passed)
        if loaded is not None:
            self._on_loaded.append(loaded)

    def start(self) -> None:
        """Begin to follow, whether or not NATS is there; returns at once. A second call does nothing."""
        if self._task is None and self._link is not None:
            self._link.listen(connected=self._on_connected, disconnected=self._on_disconnected)
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="sickbay-mirror")

    async def stop(self) -> None:
        """Stop following; what is known stays and grows old. Never raises."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._feed is not None:
            await self._feed.close()

    async def wait_loaded(self, timeout_s: float | None = None) -> bool:
        """Wait until the bucket was read once; False if that took longer than `timeout_s` (None: no limit)."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._loaded.wait(), timeout_s)
        return self.is_loaded

    def age_s(self) -> float:
        """Seconds since the last checkpoint that a live projector wrote; before the first, since this began."""
        return self._monotonic() - self.fresh_at_s

    def now_ms(self) -> int:
        """Asked-at in log time (SPEC 6), ms since the epoch."""
        return self.clock.now_ms()

    @property
    def is_stale(self) -> bool:
        """Whether what is known is too old, or was never heard, to be called the cluster's word."""
        return not self.is_heard or self.age_s() > STALE_S

    def put(self, key: str, entry: GateEntry | None) -> None:
        """Set what stands under a scope key, and tell the listeners."""
        old = self.entries.get(key)
        if entry is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = entry
            self.seq = max(self.seq, entry.seq)
        if old is not None or entry is not None:
            for listener in self._changed:
                _call(listener, key, old, entry)

    # The feed.

    def _on_connected(self, _client: Client, _fresh: bool) -> None:
        # What was missed while away is asked for at once; the next checkpoint gets its time to come.
        self._wants_check = True
        self._checkpoint_at_s = self._monotonic()
        self._retry_s, self._retry_at_s, self._page_at_s = RETRY_MIN_S, 0.0, 0.0
        self._wake.set()

    def _on_disconnected(self) -> None:
        self._lost_at_revision = self._view.revision

    def _on_items(self, items: list[Item]) -> None:
        now_s = self._monotonic()
        # All of a run arrived at this moment, so the last of them has the largest offset.
        stamp = header_value(items[-1][2], b"Nats-Time-Stamp")
        if stamp is not None:
            self.clock.hear(parse_rfc3339(stamp.decode()), now_s)
            self.is_heard = self.is_loaded
        for item in items:
            change = read_change(item)
            if change is None:
                continue
            applied = self._view.apply(change, now_s)
            if applied == "other_bucket":
                self._want_load("other_bucket")
                self._page_at_s = 0.0
            elif change.key == CHECKPOINT_KEY:
                self._take_checkpoint(change, now_s, fed=True)
            elif applied == "new":
                self._take(change)

    def _take(self, change: Change) -> None:
        if change.key == CHECKPOINT_KEY:
            return
        if change.key == POLICY_KEY:
            self._take_policy(change)
            return
        entry = None
        if change.value is not None:
            try:
                entry = _entry.decode(change.value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._unreadable("body", change, str(error))
            else:
                if entry.v > VERSION:
                    self._unreadable("version", change, f"v {entry.v} is higher than {VERSION}")
                    entry = None
        self.put(change.key, entry)

    def _take_policy(self, change: Change) -> None:
        if change.value is None:
            return
        try:
            in_force = _policy.decode(change.value)
            if in_force.v > VERSION:
                self._unreadable("version", change, f"v {in_force.v} is higher than {VERSION}")
                return
            self.policy, self.policy_seq = Policy.from_data(in_force.policy), in_force.seq
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, PolicyRefused) as error:
            self._unreadable("policy", change, str(error))
            return
        for listener in self._policy_taken:
            _call(listener, self.policy, self.policy_seq)

    def _take_checkpoint(self, change: Change, now_s: float, *, fed: bool, stamp_ms: int = 0) -> None:
        if change.value is None:
            return
        try:
            checkpoint = _checkpoint.decode(change.value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._unreadable("body", change, str(error))
            return
        if checkpoint.v > VERSION:
            self._unreadable("version", change, f"v {checkpoint.v} is higher than {VERSION}")
            return
        before, self.checkpoint = self.checkpoint, checkpoint
        if before is not None and before.log_created != checkpoint.log_created:
            self.seq = 0  # another log counts anew
        self.seq = max(self.seq, checkpoint.seq)
        self._checkpoint_revision = change.revision
        if fed:
            self._checkpoint_at_s = now_s
        if checkpoint.live:
            age_s = 0.0 if fed else max(0.0, (self.now_ms() - stamp_ms) / 1000)
            # The first one known says how old the view is; later a fetched one can only make it younger.
            known_s = now_s - age_s if before is None else self.fresh_at_s
            self.fresh_at_s = max(known_s, now_s - age_s)
        self._compare(checkpoint)
        for listener in self._passed if checkpoint.live else ():
            _call(listener, checkpoint.seq)

    def _compare(self, checkpoint: Checkpoint) -> None:
        counted = self._view.counted_at(checkpoint.revision) if checkpoint.digest else None
        if counted is None or self._wants_load or self._wants_check or self._view.is_loading:
            return
        if (counted.entries, counted.digest) == (checkpoint.entries, checkpoint.digest):
            self._page_wait_s = self._page_at_s = 0.0
        else:
            self._want_load("mismatch")

    def _want_load(self, why: str) -> None:
        if not self._wants_load:
            self.counts[why] += 1
            _log.debug("the view is read again: %s", why)
        self._wants_load = True
        self._wake.set()

    def _unreadable(self, what: str, change: Change, why: str) -> None:
        self.counts[what] += 1
        if self.counts[what] in (1, 10, 100) or self.counts[what] % 1000 == 0:
            _log.warning(
                "entry %s (revision %d) is not readable and ignored: %s (%s so far: %d)",
                change.key, change.revision, why, what, self.counts[what],
            )  # fmt: skip

    # Reading the bucket.

    async def _keep(self) -> None:
        assert self._link is not None
        while True:
            wait_s = min(CHECK_S, max(0.001, self._retry_at_s - self._monotonic())) if self._retry_at_s else CHECK_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait_s)
            self._wake.clear()
            self._sweep()
            client, now_s = self._link.client, self._monotonic()
            if client is None or now_s < self._retry_at_s:
                continue
            try:
                await self._look(client)
                self._retry_s, self._retry_at_s = RETRY_MIN_S, 0.0
            except (ReadError, nats.errors.Error, OSError) as error:
                # The bucket is not there yet, or the server is on its way down or up: ask again soon.
                _log.debug("the view could not be read: %s", error)
                self._retry_at_s = self._monotonic() + self._retry_s
                self._retry_s = min(RETRY_MAX_S, self._retry_s * 2)
            except Exception:  # noqa: BLE001 - a fault in here must not leave the gate blind
                _log.exception("the mirror failed and goes on")
                self._retry_at_s = self._monotonic() + RETRY_MAX_S

    async def _look(self, client: Client) -> None:
        if self._feed is None or self._feed.client is not client:
            if self._feed is not None:
                await self._feed.close()
            self._feed = await subscribe_bulk(client, f"{VIEW_PREFIX}>", self._on_items)
        if self._wants_check and self.is_loaded and not self._wants_load:
            await self._check(client)
        self._wants_check = False
        now_s = self._monotonic()
        if not self._wants_load and now_s - self._checkpoint_at_s > SILENCE_S and now_s >= self._page_at_s:
            self._want_load("silence")
        if self._wants_load and now_s >= self._page_at_s:
            await self._load(client)

    async def _check(self, client: Client) -> None:
        """After a reconnect: the checkpoint, and what changed since the last message."""
        newest = await read_entry(client, GATE_STREAM, f"{GATE_PREFIX}{CHECKPOINT_KEY}")
        if newest is None or newest.gone or newest.revision < self._checkpoint_revision:
            self._want_load("other_bucket")
            return
        self._view.begin_load()
        later = await read_entries(client, GATE_STREAM, f"{GATE_PREFIX}>", from_seq=self._lost_at_revision + 1)
        self._wants_check = False
        pages = [_change(entry) for entry in later.entries]
        for change in self._view.finish_load(pages, self._monotonic(), keep=True):
            self.counts["filled"] += 1
            self._take(change)
        self._take_checkpoint(
            _change(newest), self._monotonic(), fed=False, stamp_ms=newest.time_ns // 1_000_000
        )  # fmt: skip

    async def _load(self, client: Client) -> None:
        """Page through the bucket and swap."""
        self._view.begin_load()
        read = await read_entries(client, GATE_STREAM, f"{GATE_PREFIX}>")
        known_revision = self._checkpoint_revision
        self.resyncs += 1
        self._wants_load = self._wants_check = False
        # A load that is not confirmed by a checkpoint makes the next one wait; the first two follow at once.
        wait_s, self._page_wait_s = self._page_wait_s, min(PAGE_WAIT_MAX_S, max(PAGE_WAIT_MIN_S, self._page_wait_s * 2))
        now_s = self._monotonic()
        changes = self._view.finish_load([_change(entry) for entry in read.entries], now_s)
        for entry in read.entries:
            if (
                entry.subject.endswith(CHECKPOINT_KEY.encode())
                and entry.subject.decode() == GATE_PREFIX + CHECKPOINT_KEY
            ):
                if entry.revision > known_revision:
                    # It moves, so a projector lives, and what the feed missed must be asked for more often.
                    wait_s = self._page_wait_s = PAGE_WAIT_MIN_S
                self._take_checkpoint(_change(entry), now_s, fed=False, stamp_ms=entry.time_ns // 1_000_000)
        for change in changes:
            self._take(change)
        # A fleet that lost its projector together must not ask together.
        self._page_at_s = now_s + wait_s * random.uniform(0.75, 1.25)
        if not self.is_loaded:
            for listener in self._on_loaded:
                _call(listener)
        self.is_loaded = True
        self.is_heard = self.clock.heard
        self._loaded.set()

    def _sweep(self) -> None:
        now_s = self._monotonic()
        if now_s < self._sweep_at_s:
            return
        self._sweep_at_s = now_s + SWEEP_S
        now_ms = self.now_ms()
        for key in [key for key, entry in self.entries.items() if 0 < entry.expires_ms <= now_ms]:
            del self.entries[key]


def _change(entry: Entry) -> Change:
    key = entry.subject.decode().removeprefix(GATE_PREFIX)
    return Change(key, entry.revision, None if entry.gone else entry.payload or None)


def _call(listener: Callable[..., None], *arguments: object) -> None:
    try:
        listener(*arguments)
    except Exception:  # noqa: BLE001 - a listener stops nobody
        _log.exception("a listener of the mirror failed")
