"""Snapshots of the whole state in the object store: what a start begins from, never needed to be right.

One object a snapshot, compressed. What it is of stands as JSON in the object's description, where a person
sees it and a start reads it without the object.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js import api
from nats.js.errors import Error as JetStreamError

from sickbay_projections import FOLD_VERSION, Fleet

from ..bus.connect import BusError
from ..bus.entries import read_entries
from ..bus.jetstream import JetStreamApi, StreamAt
from ..bus.topology import LOG
from ..bus.view_names import MAIN, ViewNames
from ..loggers import logger
from .transitions import End

try:
    import zstandard

    _DAMAGED: tuple[type[Exception], ...] = (zlib.error, zstandard.ZstdError)
except ImportError:  # an installation without the server extra: larger snapshots, the same meaning
    zstandard = None  # type: ignore[assignment]
    _DAMAGED = (zlib.error,)

_log = logger("sickbay.projector")

NEWEST: Final = 3
HOURLY_S: Final = 7 * 86_400
DAILY_S: Final = 90 * 86_400
LEVEL: Final = 3
_REQUEST_S: Final = 5.0


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot is of."""

    seq: int
    """Log sequence of the last event in it."""
    time_ms: int
    time_ns: int
    """The server's time of that event: says whether the log still has the same event there."""
    fold: int
    policy_seq: int
    digest: str
    log_created: str
    mark: int
    """Cause of the last derived event that stood in its stream; 0: none had."""
    compression: str
    """`zstd` or `zlib`."""
    size: int
    """Bytes before compression."""
    untold: bool = False
    """Whether it is of a projector beside the running one, which published nothing of what it concluded up to here."""
    pinned: str = ""
    """Digest of the policy that counted in the place of the log's; empty: the log's own."""


class StoredSnapshot(msgspec.Struct, frozen=True):
    """A snapshot in the store: what it is of, under which name, and where its bytes are."""

    info: SnapshotInfo
    name: str
    nuid: str
    sha: str


def compression() -> str:
    """How snapshots are compressed by this installation."""
    return "zlib" if zstandard is None else "zstd"


def compress(data: bytes) -> bytes:
    """Compress as `compression` says. Lets other threads run."""
    return zlib.compress(data, LEVEL) if zstandard is None else zstandard.ZstdCompressor(LEVEL).compress(data)


def decompress(data: bytes, how: str) -> bytes:
    """Undo it. Raises ValueError for damaged data, or for zstd where that is not installed."""
    try:
        if how == "zlib":
            return zlib.decompress(data)
        if zstandard is None:
            raise ValueError("the snapshot is zstd and the package zstandard is not installed")
        return zstandard.ZstdDecompressor().decompress(data)
    except _DAMAGED as error:
        raise ValueError(f"damaged snapshot: {error}") from error


async def list_snapshots(client: Client, names: ViewNames = MAIN) -> list[StoredSnapshot]:
    """All snapshots, newest first (by log time, then sequence). Raises `ReadError`, `nats.errors.Error`."""
    found: list[StoredSnapshot] = []
    for entry in (await read_entries(client, names.snapshots_stream, f"{_meta(names)}>", timeout_s=_REQUEST_S)).entries:
        with suppress(ValueError, KeyError, msgspec.ValidationError):  # put there by somebody else
            meta = json.loads(entry.payload)
            if not meta.get("deleted"):
                info = msgspec.json.decode(meta["description"].encode(), type=SnapshotInfo)
                found.append(StoredSnapshot(info, meta["name"], meta["nuid"], meta.get("digest", "")))
    return sorted(found, key=lambda one: (one.info.time_ms, one.info.seq), reverse=True)


async def load(client: Client, found: StoredSnapshot, names: ViewNames = MAIN) -> Fleet:
    """Read a snapshot back. Raises ValueError if it is not what it says, `ReadError`, `nats.errors.Error`."""
    pages = await read_entries(client, names.snapshots_stream, _chunk(names) + found.nuid, timeout_s=_REQUEST_S)
    data = b"".join([entry.payload for entry in pages.entries])
    if found.sha.rpartition("SHA-256=")[2] != urlsafe_b64encode(sha256(data).digest()).decode():
        raise ValueError("its bytes are not those that were stored")
    fleet = Fleet.decode(decompress(data, found.info.compression))
    if fleet.seq != found.info.seq or fleet.digest() != found.info.digest:
        raise ValueError(f"its state is at {fleet.seq} and not what was stored at {found.info.seq}")
    return fleet


async def unfit(client: Client, info: SnapshotInfo, log: StreamAt, pinned: str = "") -> str:
    """Why a state cannot go on with this log, and under this policy; "" if it can. Raises as `JetStreamApi` does."""
    if info.fold != FOLD_VERSION:
        return f"it is of fold version {info.fold}, this is {FOLD_VERSION}"
    if info.log_created != log.created_at:
        return "it is of another log"
    if info.pinned != pinned:
        return "another policy was pinned" if info.pinned else "no policy was pinned"
    if info.seq > log.last_seq:
        return f"the log ends at {log.last_seq}, before it: an older store was put in place"
    if info.seq < log.first_seq - 1:
        return f"the log begins at {log.first_seq}, later than its end: events between are gone"
    if info.seq >= log.first_seq:
        there = await JetStreamApi(client, timeout_s=_REQUEST_S).message_at(LOG, info.seq)
        if there is not None and there.time_ns != info.time_ns:
            return f"the log has another event at {info.seq}"
    return ""


async def newest_fit(
    client: Client, log: StreamAt, told: End | None, names: ViewNames = MAIN, pinned: str = ""
) -> tuple[tuple[Fleet, int] | None, str]:
    """The newest state that can go on with this log, with the server's time of its last event; and why not the
    newest of all ("" if it is that one or there is none).

    A snapshot does not fit if derived events from before it are gone from their stream, or were not published: a state
    built from the log derives them again. `told` None: this projector publishes none. Raises as `JetStreamApi` and
    `list_snapshots` do.
    """
    first_why = ""
    for found in await list_snapshots(client, names):
        why = await unfit(client, found.info, log, pinned)
        if told is not None and found.info.mark > told.mark and not told.is_aged_out:
            why = "the derived events that came before it are gone"
        if told is not None and found.info.untold and found.info.seq > told.mark:
            why = "what was concluded up to it was not published"
        if not why:
            try:
                return (await load(client, found, names), found.info.time_ns), first_why
            except (ValueError, msgspec.MsgspecError) as error:
                why = str(error)
        _log.info("snapshot at %d is not used: %s", found.info.seq, why)
        first_why = first_why or why
    return None, first_why


async def store(client: Client, info: SnapshotInfo, state: bytes, names: ViewNames = MAIN) -> None:
    """Compress and store a state, then drop the snapshots that are not kept. Raises `nats.errors.Error`,
    `BusError`, `TimeoutError`."""
    data = await asyncio.to_thread(compress, state)
    bucket = await client.jetstream(timeout=_REQUEST_S).object_store(names.snapshots_bucket)
    name = f"{info.log_created}/{info.fold}/{info.seq:020d}"
    described = msgspec.json.encode(info).decode()
    meta = api.ObjectMeta(name=name, description=described)
    await bucket.put(name, data, meta=meta)
    for old in to_drop(await list_snapshots(client, names), int(time.time() * 1000)):
        await _drop(client, old, names)


def to_drop(found: Sequence[StoredSnapshot], now_ms: int) -> list[StoredSnapshot]:
    """Which of these (newest first) are not kept: all but the newest 3, one an hour for 7 days, one a day for 90.

    So for each log, fold version and pinned policy by itself: those of another version are what a switch back starts
    from.
    """
    seen: set[tuple[object, ...]] = set()
    numbers: Counter[tuple[object, ...]] = Counter()
    dropped: list[StoredSnapshot] = []
    for one in found:
        info = one.info
        kin = (info.log_created, info.fold, info.pinned)
        age_s = (now_ms - info.time_ms) / 1000
        slots = []
        if age_s < HOURLY_S:
            slots.append((*kin, "hour", info.time_ms // 3_600_000))
        if age_s < DAILY_S:
            slots.append((*kin, "day", info.time_ms // 86_400_000))
        keeps = numbers[kin] < NEWEST or any(slot not in seen for slot in slots)
        numbers[kin] += 1
        seen.update(slots)
        if not keeps:
            dropped.append(one)
    return dropped


async def _drop(client: Client, old: StoredSnapshot, names: ViewNames) -> None:
    # The client's own delete leaves a tombstone for every name for ever; names here are never used again.
    request = JetStreamApi(client, timeout_s=_REQUEST_S)
    encoded = urlsafe_b64encode(old.name.encode()).decode()
    try:
        await request.request(f"STREAM.PURGE.{names.snapshots_stream}", {"filter": _meta(names) + encoded})
        await request.request(f"STREAM.PURGE.{names.snapshots_stream}", {"filter": _chunk(names) + old.nuid})
    except (BusError, JetStreamError, nats.errors.Error, OSError) as error:
        _log.info("an old snapshot could not be dropped: %s", error)


def _meta(names: ViewNames) -> str:
    return f"$O.{names.snapshots_bucket}.M."


def _chunk(names: ViewNames) -> str:
    return f"$O.{names.snapshots_bucket}.C."
