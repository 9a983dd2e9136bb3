"""Whether what is written follows from the log: the log is folded anew and compared with what the projector wrote.

    found = await verify(client)
    found.ok, found.differences

Three things are compared. The digest of the whole state, at every sequence for which there is one (of the running
services, the checkpoint's mark, snapshots). The gate entries and the policy in force, as of the checkpoint. The
documents of targets, each at the sequence at which it was written. What has changed since is counted, not compared.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client

from sickbay_events import Checkpoint, GateEntry, Policy
from sickbay_events.view import CHECKPOINT_KEY, POLICY_KEY, PolicyInForce
from sickbay_projections import FOLD_VERSION, Fleet

from ..bus.connect import BusError
from ..bus.entries import BucketEntry, read_entries, read_entry
from ..bus.jetstream import StreamAt, parse_rfc3339_ns
from ..bus.view_names import MAIN, ViewNames
from ..control.acts import log_now_ms
from ..log.folding import Bound, Folding, InspectAt
from .past import Base, find_base, fold_live, log_now, stored_snapshots

RPC_TIMEOUT_S: Final = 5.0
LOOKS_MAX: Final = 20
LOOK_EVERY_S: Final = 0.3
"""What differs is read again: a put may be under way, or a standby may just be taking over."""
TTL_SWEEP_MS: Final = 2_000
"""The server removes an entry at about its end; the log's clock is known to about this."""
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)


class CannotVerify(BusError):
    """There is nothing to compare with the log. The text says why."""


class Unexplained(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that does not follow from the log."""

    what: str
    """`digest`, `entry`, `policy` or `document`."""
    key: str
    """A sequence with its source for a digest, else the key in the bucket."""
    written: Any
    """As it stands; None: nothing does."""
    folded: Any
    """As the log says."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared, and what differed."""

    seq: int
    """The log was folded up to here."""
    begins: str
    """`beginning` or `snapshot`: where the fold began, and at which sequence."""
    from_seq: int
    folded: int
    digests: list[str]
    """Where digests were compared: `<sequence> <source>`."""
    entries: int
    documents: int
    moved_on: int
    """Entries and documents that changed while they were compared, or are older than the fold's beginning."""
    digest: str
    differences: list[Unexplained]

    @property
    def ok(self) -> bool:
        """Everything that was compared follows from the log."""
        return not self.differences


class _Written(msgspec.Struct):
    """What the projector wrote, and what others said of its state, read before the fold begins."""

    checkpoint: Checkpoint
    names: ViewNames
    pinned: Policy | None = None
    """The policy that counts in the place of the log's."""
    digests: dict[int, list[tuple[str, str]]] = {}
    """By sequence: the source, and the digest."""
    documents: dict[int, list[tuple[str, dict[str, Any]]]] = {}
    """By the sequence each was written at: key and document."""

    def add_digest(self, seq: int, source: str, digest: str) -> None:
        if seq and digest:
            self.digests.setdefault(seq, []).append((source, digest))


async def verify(
    client: Client,
    *,
    names: ViewNames = MAIN,
    is_beside: bool = False,
    quick: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Verified:
    """Fold the log and compare. From its beginning, or the oldest snapshot where that is gone; `quick`: from the newest
    snapshot that lies before what there is to compare. `names`: which view; `is_beside`: it is not the
    fleet's, so that the services do not speak of it.

    Raises `CannotVerify`, `OutOfReach`, `BusError`.
    """
    written = await _read_written(client, names, is_beside=is_beside)
    log = await log_now(client)
    if written.checkpoint.log_created != log.created_at:
        raise CannotVerify("the checkpoint is of another log: no projector has folded this one yet")
    end_seq = min(log.last_seq, max([written.checkpoint.seq, *written.digests]))
    base = await _base(client, log, written, end_seq, quick=quick)
    if written.pinned is not None and base.begins == "beginning":
        base = base._replace(fleet=Fleet(written.pinned))
    from_seq = base.fleet.seq
    comparison = _Comparison(written, from_seq)
    folding = Folding(base.fleet, end=Bound(seq=end_seq), looks=comparison.looks(), pinned=written.pinned)
    await fold_live(client, folding, base, log, progress)
    entries = await _compare_view(client, names, base.fleet, comparison)
    return Verified(
        seq=base.fleet.seq,
        begins=base.begins,
        from_seq=from_seq,
        folded=folding.events,
        digests=comparison.digests,
        entries=entries,
        documents=comparison.documents,
        moved_on=comparison.moved_on,
        digest=base.fleet.digest(),
        differences=comparison.differences,
    )


async def read_checkpoint(client: Client, names: ViewNames) -> Checkpoint:
    """The checkpoint of a view. Raises `CannotVerify` where there is none, `ReadError`."""
    entry = await read_entry(client, names.stream, names.gate_prefix + CHECKPOINT_KEY)
    if entry is None or entry.gone:
        raise CannotVerify(f"there is no checkpoint in {names.bucket}: no projector has written anything yet")
    return msgspec.json.decode(entry.payload, type=Checkpoint)


async def _read_written(client: Client, names: ViewNames, *, is_beside: bool) -> _Written:
    checkpoint = await read_checkpoint(client, names)
    written = _Written(checkpoint, names)
    if checkpoint.pinned:
        policy = await read_entry(client, names.stream, names.gate_prefix + POLICY_KEY)
        if policy is None or policy.gone:
            raise CannotVerify("the policy that was pinned does not stand in the bucket")
        written.pinned = Policy.from_data(msgspec.json.decode(policy.payload, type=PolicyInForce).policy)
    if checkpoint.fold != FOLD_VERSION:
        raise CannotVerify(f"the projector folds by version {checkpoint.fold}, this is version {FOLD_VERSION}")
    written.add_digest(checkpoint.marked_seq, "checkpoint", checkpoint.marked_digest)
    for found in await stored_snapshots(client, names):
        info = found.info
        is_kin = info.fold == FOLD_VERSION and info.pinned == checkpoint.pinned
        if is_kin and info.log_created == checkpoint.log_created:
            written.add_digest(found.info.seq, "snapshot", found.info.digest)
    for entry in (await read_entries(client, names.stream, f"{names.target_prefix}>")).entries:
        document = None if entry.gone else _document(entry)
        # One that was put before this log began is of the log before; it goes by its own time.
        if document is not None and entry.time_ns >= parse_rfc3339_ns(checkpoint.log_created):
            written.documents.setdefault(document["seq"], []).append((_key(entry, names.target_prefix), document))
    if not is_beside:
        await _ask_digest(client, written)
    return written


def _document(entry: BucketEntry) -> dict[str, Any] | None:
    """A document that says at which sequence it was true; the last one of a target says only that there is none."""
    try:
        found = json.loads(entry.payload)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("seq"), int) else None


async def _ask_digest(client: Client, written: _Written) -> None:
    """Ask the services for their digest, at the sequence at which they are now."""
    question = b'{"digest":true,"limit":1}'
    try:
        reply = await client.request("sickbay.v1.status", question, timeout=RPC_TIMEOUT_S)
    except (nats.errors.NoRespondersError, TimeoutError):
        return
    found = json.loads(reply.data)
    if found.get("digest"):
        written.add_digest(found["seq"], f"services {found['projector']['name']}", found["digest"])


async def _base(client: Client, log: StreamAt, written: _Written, end_seq: int, *, quick: bool) -> Base:
    """What to fold from; with `quick` the newest state before the last thing there is to compare."""
    place = (
        Bound(seq=max(0, max([written.checkpoint.seq, *written.digests], default=1) - 1)) if quick else Bound(end_seq)
    )
    base = await find_base(client, log, place, oldest=not quick, names=written.names, pinned=written.checkpoint.pinned)
    if base.begins == "trimmed":
        raise CannotVerify(f"no snapshot fits: {base.note}")
    return base


class _Comparison:
    """What is compared on the way, and the result."""

    def __init__(self, written: _Written, from_seq: int) -> None:
        self.differences: list[Unexplained] = []
        self.digests: list[str] = []
        self.documents = self.moved_on = 0
        self._written, self._from_seq = written, from_seq

    def looks(self) -> list[InspectAt]:
        """One at each sequence for which there is something to compare."""
        seqs = sorted(self._written.digests.keys() | self._written.documents.keys())
        self.moved_on += sum(len(found) for seq, found in self._written.documents.items() if seq < self._from_seq)
        return [InspectAt(Bound(seq=seq), self._see(seq)) for seq in seqs if seq >= self._from_seq]

    def _see(self, seq: int) -> Callable[[Fleet], None]:
        def see(fleet: Fleet) -> None:
            if fleet.seq != seq:
                # The log ends before it, or the projector was never at this sequence.
                self.moved_on += len(self._written.documents.get(seq, ()))
                return
            for source, digest in self._written.digests.get(seq, ()):
                folded = fleet.digest()
                self.digests.append(f"{seq} {source}")
                if folded != digest:
                    self._differ("digest", f"{seq} {source}", digest, folded)
            for key, document in self._written.documents.get(seq, ()):
                self.documents += 1
                folded_document = fleet.document(key, document["at_ms"])
                # Through JSON, as the written one came.
                again = json.loads(msgspec.json.encode(folded_document))
                if again != document:
                    self._differ("document", f"target.{key}", *_apart(document, again))

        return see

    def _differ(self, what: str, key: str, written: Any, folded: Any) -> None:
        self.differences.append(Unexplained(what=what, key=key, written=written, folded=folded))


def _apart(written: dict[str, Any], folded: Any) -> tuple[Any, Any]:
    """Of two documents only the fields that differ."""
    if not isinstance(folded, dict):
        return written, folded
    keys = [key for key in sorted(written.keys() | folded.keys()) if written.get(key) != folded.get(key)]
    return {key: written.get(key) for key in keys}, {key: folded.get(key) for key in keys}


async def _compare_view(client: Client, names: ViewNames, fleet: Fleet, comparison: _Comparison) -> int:
    """Compare gate entries and policy; what differs is looked at again until it no longer does, or does for long."""
    suspects: dict[str, Unexplained] = {}
    compared = moved_on = 0
    for look in range(LOOKS_MAX):
        if look:
            await asyncio.sleep(LOOK_EVERY_S)
        found = await read_entries(client, names.stream, f"{names.gate_prefix}>")
        standing = {_key(entry, names.gate_prefix): entry for entry in found.entries}
        suspects, compared, moved_on = _differing(standing, fleet, await log_now_ms(client))
        if not suspects:
            break
    comparison.differences += suspects.values()
    comparison.moved_on += moved_on
    return compared


def _differing(standing: dict[str, BucketEntry], fleet: Fleet, now_ms: int) -> tuple[dict[str, Unexplained], int, int]:
    """What differs by key; how many were compared; how many have changed since the fold's end."""
    wanted: dict[str, Any] = {key: entry for key, entry in fleet.entries() if entry.expires_ms > now_ms + TTL_SWEEP_MS}
    wanted[POLICY_KEY] = PolicyInForce(seq=fleet.policy_seq, policy=fleet.policy.to_data())
    suspects: dict[str, Unexplained] = {}
    compared = moved_on = 0
    for key in sorted(standing.keys() | wanted.keys()):
        if key == CHECKPOINT_KEY:
            continue
        what = "policy" if key == POLICY_KEY else "entry"
        entry = standing.get(key)
        payload = None if entry is None or entry.gone else entry.payload
        stands = None if payload is None else _read(payload, PolicyInForce if key == POLICY_KEY else GateEntry)
        if isinstance(stands, GateEntry | PolicyInForce) and stands.seq > fleet.seq:
            moved_on += 1
            continue
        compared += 1
        folded = wanted.get(key)
        if payload is None and folded is None:
            continue
        if payload is not None and folded is not None and msgspec.json.encode(folded) == payload:
            continue
        if folded is None and isinstance(stands, GateEntry) and not says_something(stands, now_ms + TTL_SWEEP_MS):
            continue
        written = None if payload is None else _plain(stands, payload)
        suspects[key] = Unexplained(what=what, key=f"gate.{key}", written=written, folded=_plain(folded, b""))
    return suspects, compared, moved_on


def says_something(entry: GateEntry, at_ms: int) -> bool:
    """Whether an entry says more at a log time than that all is well."""
    if entry.expires_ms <= at_ms:
        return False
    return bool(entry.holds or entry.allow or entry.ramp or entry.cleared_seq)


def _read(payload: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(payload, type=kind)
    except _UNREADABLE:
        return None


def _plain(value: Any, payload: bytes) -> Any:
    if value is None:
        return payload.decode("utf-8", "replace") if payload else None
    return msgspec.to_builtins(value)


def _key(entry: BucketEntry, prefix: str) -> str:
    return entry.subject.decode("utf-8", "replace").removeprefix(prefix)
