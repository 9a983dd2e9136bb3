"""The view as the projector follows it: whether it is whole, and whether the checkpoint in it moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec
from nats.aio.client import Client

from sickbay_events.view import CHECKPOINT_KEY, Checkpoint

from ..bus.jetstream import JetStreamApi, parse_rfc3339_ns
from ..bus.view_names import ViewNames
from ..view.clock import LogClock
from ..view.digest_map import Applied, Change
from ..view.feed import ViewFeed

REQUEST_S: Final = 2.0
SUBJECTS_MAX: Final = 100_000
"""A server names no more in one answer."""
BEHIND_S: Final = 1.0
"""The feed has passed what the pages held so soon after they were read. What lies below it later is of another bucket,
made anew before the first message came by."""
_checkpoints: Final = msgspec.json.Decoder(Checkpoint)


class ProjectorView(ViewFeed):
    """A view's map, and the checkpoint in it.

    loaded       what stands in `map` is what stands in the bucket; if not, the maintenance loads it again
    moved_s      when (monotonic clock) the checkpoint was last seen to move
    on_changes   gets what is new, in the loop, as it arrives
    """

    def __init__(self, names: ViewNames) -> None:
        super().__init__(names, LogClock(time.monotonic, time.time), self._take)
        self.on_changes: Callable[[list[Change]], None] = lambda _: None
        self.checkpoint: Checkpoint | None = None
        self.moved_s = time.monotonic()
        self.loaded = False
        self.loads = 0
        self._loaded_s = 0.0

    async def close(self) -> None:
        """Stop following. Never raises."""
        self.loaded = False
        await super().close()

    async def load_all(self, client: Client) -> list[Change]:
        """Page through the bucket; return all that stands there, with values, and the markers of what was swept away.
        Raises `ReadError`, `ApiError`, `nats.errors.Error` or `TimeoutError` (an `OSError`)."""
        info = await JetStreamApi(client, timeout_s=REQUEST_S).request(f"STREAM.INFO.{self.names.stream}")
        asked_s = time.monotonic()
        if "ts" in info:
            # What the server's clock shows, not when something was stored: true before the feed has told any.
            self.clock.hear(parse_rfc3339_ns(info["ts"]) // 1_000_000, asked_s)
        loaded = await self.load(client)
        now_s = time.monotonic()
        self.loaded, self._loaded_s = True, now_s
        self.loads += 1
        if (entry := loaded.checkpoint) is not None:
            # Nobody has seen yet whether it moves. Both times of the server tell how long it has stood.
            age_s = (parse_rfc3339_ns(info["ts"]) - entry.time_ns) / 1e9 if "ts" in info else 0.0
            self._take_checkpoint(entry.payload, min(now_s, asked_s - age_s))
        elif CHECKPOINT_KEY in self.map.standing:
            self.moved_s = now_s  # it moved while the pages were read; the next one says where to
        else:
            self.checkpoint = None
        return loaded.entries

    async def was_purged(self, client: Client) -> bool:
        """Whether fewer keys stand in the bucket than in the map: a purge takes them away without a message. Raises as
        `load_all` does."""
        if not (self.loaded and self.map.settled):
            return False
        known, api = len(self.map.standing), JetStreamApi(client, timeout_s=REQUEST_S)
        body = {"subjects_filter": f"{self.names.gate_prefix}>"}
        found = (await api.request(f"STREAM.INFO.{self.names.stream}", body))["state"]
        return len(found.get("subjects") or ()) < min(known, SUBJECTS_MAX)

    def _take(self, changes: list[tuple[Change, Applied]], now_s: float) -> None:
        new: list[Change] = []
        for change, applied in changes:
            if applied == "other_bucket" or (applied == "known" and now_s - self._loaded_s > BEHIND_S):
                self.loaded = False
            elif applied == "new":
                new.append(change)
                if change.key == CHECKPOINT_KEY:
                    self._take_checkpoint(change.value, now_s)
        if new:
            self.on_changes(new)

    def _take_checkpoint(self, value: bytes | None, moved_s: float) -> None:
        self.moved_s = moved_s
        try:
            self.checkpoint = None if value is None else _checkpoints.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.checkpoint = None  # written by hand or by a later version: it stands, but says nothing
