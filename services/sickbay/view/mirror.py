"""A router's copy of the view: which targets may not be called now, kept from what the bucket republishes.

The mirror follows `sickbay.view.>` by plain subscription and compares number and digest at each checkpoint's revision.
It pages through the bucket by direct get when they differ, when the feed is silent, or when it is another bucket. After
a reconnect it reads the checkpoint and what changed since, and pages only if that does not fit.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import nats.errors
from nats.aio.client import Client

from sickbay_events import Checkpoint
from sickbay_events.view import CHECKPOINT_KEY

from ..bus.entries import ReadError, read_entry
from ..bus.link import Link
from ..bus.view_names import MAIN, ViewNames
from ..loggers import logger
from .digest_map import Applied, Change
from .entries import View
from .feed import SLICE, ViewFeed, change_of

_log = logger("sickbay.mirror")

SILENCE_S: Final = 1.5
"""Without a checkpoint for so long the mirror pages; a live projector writes one every 0.4 s."""
CHECK_S: Final = 0.25
"""How often the mirror checks for silence."""
RETRY_MIN_S: Final = 0.02
RETRY_MAX_S: Final = 2.0
PAGE_WAIT_MIN_S: Final = 0.25
PAGE_WAIT_MAX_S: Final = 60.0
"""Between two pagings after which no checkpoint fits; doubles from the one to the other."""


class Mirror(View):
    """A view kept from the bucket. Belongs to the event loop in which `start` was called.

    counts     also `mismatch`, `other_bucket`, `silence` (why it paged) and `filled` (what it had missed)
    """

    def __init__(
        self,
        link: Link,
        *,
        names: ViewNames = MAIN,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(monotonic=monotonic, wall=wall)
        self._link = link
        self._feed = ViewFeed(names, self.clock, self._on_applied, monotonic=monotonic)
        self._map = self._feed.map
        self._was_loaded = asyncio.Event()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._wants_load = True
        self._is_deaf = False
        self._checkpoint_at_s = monotonic()
        self._checkpoint_revision = 0
        self._lost_at_revision: int | None = None
        """Where the feed was interrupted, until what it missed is read."""
        self._retry_s = RETRY_MIN_S
        self._retry_at_s = 0.0
        self._page_wait_s = 0.0
        self._page_at_s = 0.0

    def start(self) -> None:
        """Begin to follow, whether or not NATS is there; returns at once. A second call does nothing."""
        if self._task is None:
            self._link.listen(connected=self._on_connected, disconnected=self._on_disconnected)
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="sickbay-mirror")

    async def stop(self) -> None:
        """Stop following; what is known stays and grows old. Never raises."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._feed.close()

    async def wait_loaded(self, timeout_s: float | None = None) -> bool:
        """Wait until the bucket was read once; False if that took longer than `timeout_s` (None: no limit)."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._was_loaded.wait(), timeout_s)
        return self.is_loaded

    # The feed.

    def _on_connected(self, _client: Client, _fresh: bool) -> None:
        # What was missed is read at once; the next checkpoint gets its full time to come.
        self._checkpoint_at_s = self._monotonic()
        self._retry_s, self._retry_at_s, self._page_at_s = RETRY_MIN_S, 0.0, 0.0
        self._wake.set()

    def _on_disconnected(self) -> None:
        if self._lost_at_revision is None:
            self._lost_at_revision = self._map.revision

    def _on_applied(self, changes: list[tuple[Change, Applied]], now_s: float) -> None:
        self.is_heard = self.is_loaded and self.clock.heard
        for change, applied in changes:
            if applied == "other_bucket":
                self._want_load("other_bucket")
                self._page_at_s = 0.0
            elif change.key == CHECKPOINT_KEY:
                self._checkpoint(change, now_s)
            elif applied == "new":
                self.take(change)

    def _checkpoint(self, change: Change, now_s: float, *, fetched_ms: int | None = None) -> None:
        checkpoint = self.take_checkpoint(change, now_s, fetched_ms=fetched_ms)
        if checkpoint is None:
            return
        self._checkpoint_revision = change.revision
        if fetched_ms is None:
            self._checkpoint_at_s = now_s
        self._compare(checkpoint)

    def _compare(self, checkpoint: Checkpoint) -> None:
        counted = self._map.counted_at(checkpoint.revision) if checkpoint.digest else None
        if counted is None or self._wants_load or self._lost_at_revision is not None or self._map.is_loading:
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

    # Reading the bucket.

    async def _keep(self) -> None:
        # `wait_for` loses a cancellation when what it waits for is done at that moment; so `stop` clears the task.
        while self._task is not None:
            wait_s = min(CHECK_S, max(0.001, self._retry_at_s - self._monotonic())) if self._retry_at_s else CHECK_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait_s)
            self._wake.clear()
            self.sweep()
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
            except Exception:  # noqa: BLE001 - a fault in here must not end the mirror
                _log.exception("the mirror failed and goes on")
                self._retry_at_s = self._monotonic() + RETRY_MAX_S

    async def _look(self, client: Client) -> None:
        if self._feed.subscription is None or self._feed.subscription.client is not client or self._is_deaf:
            self._is_deaf = False
            await self._feed.open(client)
        if self._lost_at_revision is not None and self.is_loaded and not self._wants_load:
            await self._check(client, self._lost_at_revision)
        now_s = self._monotonic()
        if not self._wants_load and now_s - self._checkpoint_at_s > SILENCE_S and now_s >= self._page_at_s:
            self._want_load("silence")
        if self._wants_load and now_s >= self._page_at_s:
            await self._load(client)

    async def _check(self, client: Client, lost_at_revision: int) -> None:
        """After a reconnect: the checkpoint, and what changed since the last message."""
        names = self._feed.names
        newest = await read_entry(client, names.stream, f"{names.gate_prefix}{CHECKPOINT_KEY}")
        if newest is None or newest.gone or newest.revision < self._checkpoint_revision:
            self._want_load("other_bucket")
            return
        connects = self._link.connects
        loaded = await self._feed.load(client, after=lost_at_revision)
        if self._link.connects == connects:  # else it was lost again meanwhile
            self._lost_at_revision = None
        for change in loaded.changes:
            self.counts["filled"] += 1
            self.take(change)
        if self._feed.has(CHECKPOINT_KEY, newest.revision):
            fetched_ms = newest.time_ns // 1_000_000
            self._checkpoint(change_of(newest, names), self._monotonic(), fetched_ms=fetched_ms)

    async def _load(self, client: Client) -> None:
        """Page through the bucket and swap."""
        connects = self._link.connects
        loaded = await self._feed.load(client)
        known_revision = self._checkpoint_revision
        self.resyncs += 1
        self._wants_load = False
        if self._link.connects == connects:
            self._lost_at_revision = None
        # A load that is not confirmed by a checkpoint makes the next one wait; the first two follow at once.
        wait_s, self._page_wait_s = self._page_wait_s, min(PAGE_WAIT_MAX_S, max(PAGE_WAIT_MIN_S, self._page_wait_s * 2))
        now_s = self._monotonic()
        if (entry := loaded.checkpoint) is not None:
            if entry.revision > known_revision and now_s - self._checkpoint_at_s > SILENCE_S:
                # A projector is alive and the feed brings nothing: subscribe again, and do not page ever more rarely.
                self._is_deaf = True
                wait_s = self._page_wait_s = SILENCE_S
            self._checkpoint(change_of(entry, self._feed.names), now_s, fetched_ms=entry.time_ns // 1_000_000)
        # Routers that lost the projector at the same moment must not all page at the same moment.
        self._page_at_s = now_s + wait_s * random.uniform(0.75, 1.25)
        for at in range(0, len(loaded.changes), SLICE):
            for change in loaded.changes[at : at + SLICE]:
                # The feed may have brought something newer while other tasks ran.
                if self._feed.has(change.key, change.revision if change.value is not None else 0):
                    self.take(change)
            await asyncio.sleep(0)
        self.loaded()
        self._was_loaded.set()
