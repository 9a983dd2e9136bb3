"""What a projector looks after beside the log: connection, view, the writer's part, snapshots.

The keeper wakes when something happened and otherwise 20 times a second; the checkpoint has a task of its own,
so that nothing that takes long keeps it waiting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
from nats.aio.client import Client

from sickbay_events.view import CHECKPOINT_KEY, Checkpoint
from sickbay_projections import FOLD_VERSION

from ..bus.jetstream import JetStreamApi
from ..bus.topology import LOG, TRANSITIONS, ensure
from ..bus.transient import TRANSIENT_ERRORS
from ..log import snapshots
from ..throttled import Throttled
from .control_lag import ControlLag
from .writer import CHECKPOINT_EVERY_S

if TYPE_CHECKING:
    from .loop import Projector

_log = logging.getLogger("sickbay.projector")

TICK_S: Final = 0.05
RETRY_S: Final = 0.05
OVERSLEPT_S: Final = 0.5
"""A tick that comes this late says that the process stood still: what came meanwhile is not read yet."""
SILENT_S: Final = 3.0
"""A checkpoint that has not moved for so long may be claimed by somebody else."""
ENSURE_EVERY_S: Final = 0.5
LOOK_EVERY_S: Final = 10.0
"""A writer that has nothing to tell looks this often whether what it told still stands."""
CATCH_UP_S: Final = 5.0
HASH_EVERY_S: Final = 0.25
UNWRITTEN_S: Final = 5.0
"""A writer whose checkpoint has not moved for so long says so, and again every `UNWRITTEN_AGAIN_S`."""
UNWRITTEN_AGAIN_S: Final = 30.0
SNAPSHOT_EVENTS: Final = 50_000
SNAPSHOT_EVERY_S: Final = 30.0
SNAPSHOT_RETRY_S: Final = 1.0
HAND_OVER_S: Final = 2.0
REQUEST_S: Final = 2.0


class Keeper:
    """Looks after one projector's connection and its writer's part."""

    def __init__(self, projector: Projector, *, snapshots: bool) -> None:
        self.ensure_wanted = False
        self.snapshot_seq = 0
        self.live = False
        """Everything in the bucket was compared since the checkpoint was claimed."""
        self.acts = ControlLag()
        self._p = projector
        self._snapshots = snapshots
        self._snapshot_s = time.monotonic()
        self._storing: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._claim = asyncio.Event()
        self._ticked = asyncio.Event()
        self._checkpoints: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._reconnects = 0
        self._compared = False
        self._differed: tuple[int, str] | None = None
        """Mark and digest of a writer for whose sake the state was built anew: once is enough."""
        self._ensured_s = 0.0
        self._unwritten_lines = Throttled(UNWRITTEN_AGAIN_S)
        self._hashed_s = self._looked_s = 0.0

    def wake(self) -> None:
        """Something is to be done now."""
        self._woken.set()

    def claim_now(self) -> None:
        """Entries wait for a fresh claim."""
        self._claim.set()

    async def run(self) -> None:
        """Until cancelled."""
        self._checkpoints = asyncio.create_task(self._keep_checkpoint(), name="sickbay-projector-checkpoint")
        acts = asyncio.create_task(self._keep_acts(), name="sickbay-projector-acts")
        last_s = time.monotonic()
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._woken.wait()
                self._woken.clear()
                now_s = time.monotonic()
                try:
                    await self._p.while_connected(self._tick(overslept=now_s - last_s > OVERSLEPT_S))
                except TRANSIENT_ERRORS as error:
                    self._p.say(error)
                    self.ensure_wanted = True
                    await asyncio.sleep(RETRY_S)
                self._ticked.set()
                last_s = time.monotonic()
        finally:
            for task in (self._checkpoints, self._storing, acts):
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])

    async def _keep_checkpoint(self) -> None:
        p = self._p
        while True:
            wait_s = CHECKPOINT_EVERY_S
            if p.is_writer:
                began_s = time.monotonic()
                try:
                    if await p.writer.claim(self.checkpoint()):
                        p.meters.commits.observe(time.monotonic() - began_s)
                        self.wake_writer()
                    else:
                        wait_s = RETRY_S
                except TRANSIENT_ERRORS as error:
                    p.say(error)
                    wait_s = RETRY_S
                self._say_unwritten()
            self._claim.clear()
            began_s = time.monotonic()
            while (left_s := began_s + wait_s - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._claim.wait()
                self._claim.clear()
                if p.writer.claim_wanted and wait_s == CHECKPOINT_EVERY_S:
                    break

    async def _keep_acts(self) -> None:
        """Look now and then whether what operators decided gets into the log: who asks waits on a server."""
        p = self._p
        while True:
            await asyncio.sleep(self.acts.look_in_s)
            client = p.link.client
            if not p.is_writer or p.is_beside:
                self.acts.forget()
            elif client is not None:
                with suppress(
                    *TRANSIENT_ERRORS
                ):  # a stream without a leader: what else that means is noticed elsewhere
                    await self.acts.look(client)

    def _say_unwritten(self) -> None:
        """Every gate is stale while the checkpoint stands still: that must not pass in silence."""
        age_s = time.monotonic() - self._p.view.moved_s
        if age_s < UNWRITTEN_S or not self._unwritten_lines.due():
            return
        _log.warning(
            "nothing could be written for %.0f s, so every gate is stale: NATS stores nothing (a full disk, a limit, no"
            " leader); after freeing a disk, restart nats-server",
            age_s,
        )

    def wake_writer(self) -> None:
        """The checkpoint is one's own (again): what waited for it goes out."""
        self._p.writer.pump()
        self._woken.set()

    def checkpoint(self, writer: str | None = None) -> Checkpoint:
        """The checkpoint as of now. It signs the view only as far as it is certain."""
        p = self._p
        view, fleet = p.view, p.fleet
        marked_seq = next(reversed(p.marks), 0)
        checkpoint = Checkpoint(
            seq=fleet.seq,
            time_ms=fleet.time_ms,
            writer=p.me if writer is None else writer,
            fold=FOLD_VERSION,
            policy_seq=fleet.policy_seq,
            log_created=p.log.created_at,
            wrote_ms=p.writer.now_ms(),
            replicas=fleet.replicas(p.writer.now_ms()),
            live=self.live,
            told_seq=p.transitions.told_seq(fleet.seq),
            marked_seq=marked_seq,
            marked_digest=p.marks.get(marked_seq, ""),
            pinned=p.pinned,
        )
        if view.loaded and view.map.settled:
            counted = view.map.counted()
            checkpoint = msgspec.structs.replace(
                checkpoint, revision=counted.revision, entries=counted.entries, digest=counted.digest
            )
        return checkpoint

    async def _tick(self, *, overslept: bool) -> None:
        p = self._p
        client = p.link.client
        if client is None:
            return
        p.publisher.sweep()
        await self._attend(client)
        if p.writer.bucket_gone or self.ensure_wanted or p.interrupted:
            await self._ensure(client)
        if not p.view.loaded:
            self._compared = False
            await p.view.load_all(client)
        if not p.loaded:
            return
        self._hash_ahead()
        if p.is_writer:
            await self._write(client)
            return
        self.live = self._compared = False
        if not p.transitions.needs_resync:
            p.transitions.request_resync()
        self._heed_writer()
        if overslept:
            p.view.moved_s = max(p.view.moved_s, time.monotonic())
        if self._may_claim():
            await self._take_over(client)

    async def _attend(self, client: Client) -> None:
        """A new connection: what was under way on the one before is lost, and what the view missed unknown."""
        p = self._p
        reconnects = client.stats["reconnects"]
        if client is self._client and reconnects == self._reconnects:
            return
        if client is not self._client:
            await p.publisher.open(client)
            await p.view.open(client)
        else:
            p.publisher.lose("connection lost")
        p.view.loaded = False
        p.writer.forget()
        p.transitions.request_resync()
        self._client, self._reconnects = client, reconnects
        self.ensure_wanted = True

    async def _ensure(self, client: Client) -> None:
        """Make the streams that are gone again; each is an output that comes back, or the log itself."""
        p = self._p
        if time.monotonic() - self._ensured_s < ENSURE_EVERY_S:
            return
        self._ensured_s = time.monotonic()
        report = await ensure(client, p.limits, p.view.names)
        self.ensure_wanted = False
        if p.writer.bucket_gone:
            p.writer.bucket_gone = False
            p.writer.forget()
            p.view.loaded = False
        if report.created:
            _log.warning("created streams that were gone: %s", ", ".join(report.created))

    # -- as the writer -----------------------------------------------------------------------------------

    async def _write(self, client: Client) -> None:
        p = self._p
        if not self._compared:
            # One's own view may be whole, but what stands in the bucket is wanted with its values.
            standing = await p.view.load_all(client)
            if not p.is_writer:
                return
            await p.writer.compare_all(standing)
            p.documents.start(p.fleet)
            self._compared = True
        if p.transitions.all_told and time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            p.transitions.request_resync()
        if p.transitions.needs_resync:
            await p.transitions.take_over(client)
            if p.transitions.is_gone:
                p.rebuild(f"{TRANSITIONS} was gone: what was derived is published anew")
                return
            await p.dead.take_over(client, p.log.created_at)
            self._looked_s = time.monotonic()
        await p.writer.look_after()
        p.writer.pump()
        if p.writer.fresh:
            p.transitions.pump()
            p.dead.pump()
            p.documents.pump(p.fleet, p.writer.now_ms())
        if not self.live and p.writer.settled:
            self.live = True
            _log.info("this projector writes now, at log sequence %d", p.fleet.seq)
        self._maybe_snapshot(client)

    def _hash_ahead(self) -> None:
        """Hash what changed now and then, so that little is left to hash when a digest is wanted: what waits
        for it is the next hold."""
        p = self._p
        now_s = time.monotonic()
        if p.lag == 0 and now_s - self._hashed_s >= HASH_EVERY_S:
            self._hashed_s = now_s
            p.fleet.digest()

    def _maybe_snapshot(self, client: Client) -> None:
        p = self._p
        behind = p.fleet.seq - self.snapshot_seq
        late = time.monotonic() - self._snapshot_s >= SNAPSHOT_EVERY_S
        if not (self._snapshots and self.live and behind > 0 and (behind >= SNAPSHOT_EVENTS or late)):
            return
        if not p.transitions.all_told or p.transitions.needs_resync or not p.writer.fresh:
            return  # a state that is loaded derives nothing again: all that led to it must be told before
        if self._storing is not None and not self._storing.done():
            return
        self._storing = asyncio.create_task(self._store(client), name="sickbay-projector-snapshot")

    async def _store(self, client: Client) -> None:
        p = self._p
        fleet = p.fleet
        state = fleet.encode()
        info = snapshots.SnapshotInfo(
            seq=fleet.seq,
            time_ms=fleet.time_ms,
            time_ns=p.time_ns,
            fold=FOLD_VERSION,
            policy_seq=fleet.policy_seq,
            digest=fleet.digest(),
            log_created=p.log.created_at,
            mark=p.transitions.mark,
            compression=snapshots.compression(),
            size=len(state),
            untold=p.is_beside,
            pinned=p.pinned,
        )
        try:
            await snapshots.store(client, info, state, p.view.names)
        except TRANSIENT_ERRORS as error:
            p.say(error)
            self.ensure_wanted = True
            await asyncio.sleep(SNAPSHOT_RETRY_S)
        else:
            self.snapshot_seq, self._snapshot_s = info.seq, time.monotonic()

    async def hand_over(self) -> None:
        """At the end: tell what is still to be told, store the state, say that nobody writes now."""
        p = self._p
        client = p.link.client
        if not p.is_writer or client is None:
            return
        try:
            async with asyncio.timeout(HAND_OVER_S):
                while not (p.transitions.all_told and p.writer.settled) and p.is_writer:
                    self._ticked.clear()
                    await self._ticked.wait()
                if self._storing is not None:
                    await asyncio.wait([self._storing])
                if self._snapshots and self.live and p.fleet.seq > self.snapshot_seq and p.transitions.all_told:
                    await self._store(client)
                if self._checkpoints is not None:
                    self._checkpoints.cancel()
                    await asyncio.wait([self._checkpoints])
                if p.is_writer:
                    await p.writer.claim(self.checkpoint(writer=""))
                    p.writer.demote()
        except TRANSIENT_ERRORS as error:
            p.say(error)

    # -- as a standby ------------------------------------------------------------------------------------

    def _heed_writer(self) -> None:
        """What the writer's checkpoint says: what a standby need not keep, and whether its state is the same."""
        p = self._p
        theirs = p.view.checkpoint
        if theirs is None or theirs.log_created != p.log.created_at or theirs.writer in ("", p.me):
            return
        p.transitions.forget_through(theirs.told_seq, theirs.time_ms)
        mine = p.marks.get(theirs.marked_seq)
        if theirs.fold != FOLD_VERSION or mine is None:
            return
        # A writer that has gone silent may have marked a log whose end is lost: a state built anew is right then.
        p.differs = mine != theirs.marked_digest and not self._is_silent()
        if p.differs and self._differed != (theirs.marked_seq, theirs.marked_digest):
            self._differed = theirs.marked_seq, theirs.marked_digest
            p.rebuild(f"the state at {theirs.marked_seq} differs from the writer's")

    def _is_silent(self) -> bool:
        return time.monotonic() - self._p.view.moved_s >= SILENT_S

    def _may_claim(self) -> bool:
        p = self._p
        if not p.loaded or not p.caught_up or p.differs or not p.view.loaded:
            return False
        if CHECKPOINT_KEY not in p.view.map.standing:
            return True
        theirs = p.view.checkpoint
        if theirs is not None and theirs.writer in ("", p.me):
            return True
        return self._is_silent()

    async def _take_over(self, client: Client) -> None:
        """Fold to the log's end, then claim; only who has it compares the bucket."""
        p = self._p
        at = await JetStreamApi(client, timeout_s=REQUEST_S).stream_at(LOG)
        if at.created_at != p.log.created_at or at.last_seq < p.fleet.seq:
            return  # the reader finds out, and the state is built anew
        if not await p.folded_to(at.last_seq, CATCH_UP_S) or not self._may_claim():
            return
        self.live = self._compared = False
        p.transitions.request_resync()
        if await p.writer.claim(self.checkpoint()):
            self.wake()
