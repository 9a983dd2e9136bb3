"""Following the view that the bucket republishes, loading it by pages whenever what comes does not fit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec
from nats.aio.client import Client

from sickbay_events.view import Checkpoint

from ..bus.bulk import BulkSubscription, Item, header_value, subscribe_bulk
from ..bus.entries import read_entries
from ..bus.jetstream import JetStreamApi, parse_rfc3339_ns
from ..bus.view_names import ViewNames
from ..view.digest_map import CHECKPOINT, Change, ViewMap, read_change
from ..view.entries import LogClock

PAGE_TIMEOUT_S: Final = 2.0
BEHIND_S: Final = 1.0
"""The feed has passed what the pages held so soon after they were read. What lies below it later is of another bucket,
made anew before the first message came by."""
_checkpoints: Final = msgspec.json.Decoder(Checkpoint)


class ViewFeed:
    """The view as it stands in the bucket, and the checkpoint in it.

    `on_changes` gets what is new, inside the loop, as it arrives. `moved_s` is the moment (monotonic clock)
    at which the checkpoint was last seen to move.
    """

    def __init__(self, on_changes: Callable[[list[Change]], None], names: ViewNames) -> None:
        self.names = names
        self.map = ViewMap()
        self.clock = LogClock(time.monotonic, time.time)
        self.checkpoint: Checkpoint | None = None
        self.moved_s = time.monotonic()
        self.loaded = False
        self.loads = 0
        self._loaded_s = 0.0
        self._on_changes = on_changes
        self._subscription: BulkSubscription | None = None

    async def open(self, client: Client) -> None:
        """Subscribe on a new client."""
        await self.close()
        self._subscription = await subscribe_bulk(client, f"{self.names.view_prefix}>", self._on_items)

    async def close(self) -> None:
        """Stop following."""
        subscription, self._subscription = self._subscription, None
        self.loaded = False
        if subscription is not None:
            await subscription.close()

    async def load(self, client: Client) -> list[Change]:
        """Page through the bucket; return all that stands there, with values, and the
        markers of what was swept away. Raises `ReadError`,
        `ApiError`, `nats.errors.Error` or `TimeoutError` (an `OSError`)."""
        names = self.names
        self.map.begin_load()
        found = await read_entries(client, names.stream, f"{names.gate_prefix}>", timeout_s=PAGE_TIMEOUT_S)
        info = await JetStreamApi(client, timeout_s=PAGE_TIMEOUT_S).request(f"STREAM.INFO.{names.stream}")
        start = len(names.gate_prefix)
        pages = [Change(e.subject[start:].decode(), e.revision, e.payload or None) for e in found.entries]
        standing = {change.key: change for change in pages}
        now_s = time.monotonic()
        if "ts" in info:
            # What the server's clock shows, not when something was stored: true before the feed has told any.
            self.clock.hear(parse_rfc3339_ns(info["ts"]) // 1_000_000, now_s)
        self.map.finish_load(pages, now_s)
        self.loaded, self._loaded_s = True, now_s
        self.loads += 1
        checkpoint = standing.get(CHECKPOINT)
        if CHECKPOINT not in self.map.standing:
            self.checkpoint = None
        elif checkpoint is not None and self.map.standing[CHECKPOINT][0] == checkpoint.revision:
            # Whether it moves nobody has seen yet; how long it has stood both times of the server tell.
            entry = next(e for e in reversed(found.entries) if e.revision == checkpoint.revision)
            age_s = (parse_rfc3339_ns(info["ts"]) - entry.time_ns) / 1e9 if "ts" in info else 0.0
            self._take_checkpoint(checkpoint, now_s - max(0.0, age_s))
        else:
            self.moved_s = now_s  # it moved while the pages were read; the next one says where to
        return list(standing.values())

    def _on_items(self, items: list[Item]) -> None:
        now_s = time.monotonic()
        new: list[Change] = []
        for item in items:
            change = read_change(item, self.names)
            if change is None:
                continue
            stamp = header_value(item[2], b"Nats-Time-Stamp")
            if stamp is not None:
                self.clock.hear(parse_rfc3339_ns(stamp.decode()) // 1_000_000, now_s)
            applied = self.map.apply(change, now_s)
            if applied == "other_bucket" or (applied == "known" and now_s - self._loaded_s > BEHIND_S):
                self.loaded = False
            elif applied == "new":
                new.append(change)
                if change.key == CHECKPOINT:
                    self._take_checkpoint(change, now_s)
        if new:
            self._on_changes(new)

    def _take_checkpoint(self, change: Change, moved_s: float) -> None:
        self.moved_s = moved_s
        try:
            self.checkpoint = None if change.value is None else _checkpoints.decode(change.value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.checkpoint = None  # written by hand or by a later version: it stands, but says nothing
