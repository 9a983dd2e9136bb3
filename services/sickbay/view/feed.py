"""Following a view: what its bucket republishes, and by pages what stands in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from nats.aio.client import Client

from sickbay_events import parse_rfc3339
from sickbay_events.view import CHECKPOINT_KEY

from ..bus.bulk import BulkSubscription, Item, header_value, subscribe_bulk
from ..bus.entries import BucketEntry, read_entries
from ..bus.view_names import ViewNames
from .clock import LogClock
from .digest_map import Applied, Change, ViewMap, entry_hash, read_change

SLICE: Final = 250
"""Entries handled before the event loop has its turn: a router must not stand still while 20,000 are read."""

OnApplied = Callable[[list[tuple[Change, Applied]], float], None]
"""Called in the loop with the messages that arrived together, in order, and the monotonic time of their arrival."""


class Loaded(NamedTuple):
    """What a load found."""

    entries: list[Change]
    """What the pages hold, each key once; without a value: a marker."""
    changes: list[Change]
    """What is otherwise than before."""
    checkpoint: BucketEntry | None
    """The checkpoint on the pages, if no later one came by the feed."""


class ViewFeed:
    """Keeps a `ViewMap` and the log's clock from one view. Belongs to one event loop; `open` it on each new client."""

    def __init__(
        self,
        names: ViewNames,
        clock: LogClock,
        on_applied: OnApplied,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.names, self.clock = names, clock
        self.map = ViewMap()
        self.subscription: BulkSubscription | None = None
        self._on_applied, self._monotonic = on_applied, monotonic

    async def open(self, client: Client) -> None:
        """Subscribe, in the place of an earlier subscription."""
        await self.close()
        self.subscription = await subscribe_bulk(client, f"{self.names.view_prefix}>", self._on_items)

    async def close(self) -> None:
        """Stop following. Never raises."""
        subscription, self.subscription = self.subscription, None
        if subscription is not None:
            await subscription.close()

    async def load(self, client: Client, *, after: int | None = None) -> Loaded:
        """Page through the bucket and bring the map up to it; with `after` only through what changed since that
        revision. Raises `ReadError`, `nats.errors.Error` or `TimeoutError` (an `OSError`)."""
        self.map.begin_load()
        names = self.names
        found = await read_entries(client, names.stream, f"{names.gate_prefix}>", from_seq=(after or 0) + 1)
        pages: dict[str, Change] = {}
        for at in range(0, len(found.entries), SLICE):
            changes = [change_of(entry, names) for entry in found.entries[at : at + SLICE]]
            pages.update([(change.key, change) for change in changes])
            await asyncio.sleep(0)
        changes = self.map.finish_load(pages.values(), self._monotonic(), keep=after is not None)
        checkpoint = None
        if (paged := pages.get(CHECKPOINT_KEY)) is not None and self.has(CHECKPOINT_KEY, paged.revision):
            checkpoint = next(entry for entry in reversed(found.entries) if entry.revision == paged.revision)
        return Loaded(list(pages.values()), changes, checkpoint)

    def has(self, key: str, revision: int) -> bool:
        """Whether what stands under a key is of that revision; 0: nothing stands there."""
        return self.map.standing.get(key, (0, 0))[0] == revision

    def _on_items(self, items: list[Item]) -> None:
        now_s = self._monotonic()
        stamp: bytes | None = None
        changes: list[Change] = []
        for item in items:
            change = read_change(item, self.names)
            if change is not None:
                changes.append(change)
                stamp = header_value(item[2], b"Nats-Time-Stamp")
        if stamp is not None:  # all arrived at this moment, so the last of them has the largest offset
            with suppress(ValueError):
                self.clock.hear(parse_rfc3339(stamp.decode("ascii", "replace")), now_s)
        if changes:
            self._on_applied([(change, self.map.apply(change, now_s)) for change in changes], now_s)


def change_of(entry: BucketEntry, names: ViewNames) -> Change:
    """An entry of the bucket as a change, with its hash."""
    key = entry.subject.decode("utf-8", "replace").removeprefix(names.gate_prefix)
    value = None if entry.gone else entry.payload or None
    return Change(key, entry.revision, value, entry_hash(key, value) if value is not None else 0)
