"""Two views of one log beside each other: how far each is, and what they say differently.

    found = await compare_views(client, view_names(), view_names("next"))

A projector of another fold version, or under another policy, writes its own view and catches up. Of equal versions
and policies the digests of the whole state are compared where both took one: at a multiple of 16,384 sequences.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from nats.aio.client import Client

from sickbay_events import Checkpoint, GateEntry
from sickbay_events.view import CHECKPOINT_KEY, POLICY_KEY

from ..bus.entries import read_entries
from ..bus.view_names import ViewNames
from ..control.acts import log_now_ms
from .verify import TTL_SWEEP_MS, CannotVerify, Unexplained, read_checkpoint, says_something

LOOKS_MAX: Final = 10
LOOK_EVERY_S: Final = 0.3
"""Two writers put the same a moment apart."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the views, as its checkpoint says."""

    view: str
    seq: int
    fold: int
    pinned: str
    writer: str
    entries: int


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What two views say."""

    one: Side
    other: Side
    digest_seq: int
    """Where both took a digest of the whole state; 0: nowhere yet."""
    digests_equal: bool | None
    """None where they are not comparable: other versions, other policies, or no such sequence."""
    entries: int
    differences: list[Unexplained]
    """`written` is what the first says, `folded` what the other says."""

    @property
    def ok(self) -> bool:
        """They say the same."""
        return not self.differences and self.digests_equal is not False


async def compare_views(client: Client, one: ViewNames, other: ViewNames) -> Compared:
    """Compare; what differs is looked at again. Raises `CannotVerify`, `ReadError`."""
    look = 0
    while True:
        found = await _compare(client, one, other)
        look += 1
        waits = found.digests_equal is None and _is_comparable(found.one, found.other) and found.digest_seq
        if look == LOOKS_MAX or not (found.differences or waits):
            return found
        await asyncio.sleep(LOOK_EVERY_S)


def _is_comparable(one: Side, other: Side) -> bool:
    return (one.fold, one.pinned) == (other.fold, other.pinned)


async def _compare(client: Client, one: ViewNames, other: ViewNames) -> Compared:
    checkpoints = [await read_checkpoint(client, names) for names in (one, other)]
    if checkpoints[0].log_created != checkpoints[1].log_created:
        raise CannotVerify("the two views are of different logs")
    entries = [await _entries(client, names) for names in (one, other)]
    now_ms, seq = await log_now_ms(client), min(found.seq for found in checkpoints)
    differences: list[Unexplained] = []
    compared = 0
    for key in sorted(entries[0].keys() | entries[1].keys()):
        stand = [_telling(found.get(key), now_ms) for found in entries]
        if any(entry is not None and entry.seq > seq for entry in stand):
            continue  # one of them is not there yet
        compared += 1
        if stand[0] != stand[1]:
            plain = [None if entry is None else msgspec.to_builtins(entry) for entry in stand]
            differences.append(Unexplained(what="entry", key=f"gate.{key}", written=plain[0], folded=plain[1]))
    sides = [
        _side(names, checkpoint, len(found))
        for names, checkpoint, found in zip((one, other), checkpoints, entries, strict=True)
    ]
    marks = [(found.marked_seq, found.marked_digest) for found in checkpoints]
    is_same_place = marks[0][0] == marks[1][0] and marks[0][0] > 0 and _is_comparable(*sides)
    return Compared(
        one=sides[0],
        other=sides[1],
        digest_seq=min(marks[0][0], marks[1][0]),
        digests_equal=marks[0] == marks[1] if is_same_place else None,
        entries=compared,
        differences=differences,
    )


def _side(names: ViewNames, checkpoint: Checkpoint, entries: int) -> Side:
    return Side(
        view=names.name,
        seq=checkpoint.seq,
        fold=checkpoint.fold,
        pinned=checkpoint.pinned,
        writer=checkpoint.writer,
        entries=entries,
    )


async def _entries(client: Client, names: ViewNames) -> dict[str, GateEntry]:
    found: dict[str, GateEntry] = {}
    for entry in (await read_entries(client, names.stream, f"{names.gate_prefix}>")).entries:
        key = entry.subject.decode("utf-8", "replace").removeprefix(names.gate_prefix)
        if not entry.gone and key not in (CHECKPOINT_KEY, POLICY_KEY):
            found[key] = msgspec.json.decode(entry.payload, type=GateEntry)
    return found


def _telling(entry: GateEntry | None, now_ms: int) -> Any:
    """The entry, if it says more than that all is well."""
    return entry if entry is not None and says_something(entry, now_ms + TTL_SWEEP_MS) else None
