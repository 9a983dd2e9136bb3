"""Background work of a projector: connection, view, writer election, snapshots.

The maintenance wakes when something happened and otherwise 20 times a second. The checkpoint has a task of its own, so
that nothing slow delays it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from nats.aio.client import Client

from sickbay_events.view import CHECKPOINT_KEY, Checkpoint
from sickbay_projections import FOLD_VERSION

from ..bus.jetstream import JetStreamApi
from ..bus.topology import LOG, TRANSITIONS, ensure
from ..bus.transient import TRANSIENT_ERRORS
from ..log import snapshots
from ..loggers import logger
from ..throttled import Throttled
from .state import ProjectorState
from .writer import CHECKPOINT_EVERY_S

_log = logger("sickbay.projector")

TICK_S: Final = 0.05
RETRY_S: Final = 0.05
OVERSLEPT_S: Final = 0.5
"""A tick this late shows that the process stood still, so that what arrived meanwhile is not read yet."""
SILENT_S: Final = 3.0
"""A standby may claim a checkpoint that has not moved for so long."""
ENSURE_EVERY_S: Final = 0.5
LOOK_EVERY_S: Final = 10.0
"""A writer with nothing to publish checks this often that what it published still stands."""
PURGE_LOOK_EVERY_S: Final = 10.0
CATCH_UP_S: Final = 5.0
HASH_EVERY_S: Final = 0.25
UNWRITTEN_S: Final = 5.0
"""A writer warns when its checkpoint has not moved for so long, and again every `UNWRITTEN_AGAIN_S`."""
UNWRITTEN_AGAIN_S: Final = 30.0
SNAPSHOT_EVENTS: Final = 50_000
SNAPSHOT_EVERY_S: Final = 30.0
SNAPSHOT_RETRY_S: Final = 1.0
HAND_OVER_S: Final = 2.0
REQUEST_S: Final = 2.0


class Maintenance:
    """Looks after one projector's connection and its writer's part.

    rebuild     drops the state and begins anew; its argument says why
    snapshots   whether to store any
    """

    def __init__(self, state: ProjectorState, *, rebuild: Callable[[str], None], snapshots: bool) -> None:
        self._state = state
        self._rebuild = rebuild
        self._snapshots = snapshots
        self._ensure_wanted = False
        self._snapshot_s = time.monotonic()
        self._storing: asyncio.Task[None] | None = None
        self._ticked = asyncio.Event()
        self._checkpoints: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._reconnects = 0
        self._compared = False
        self._differed: tuple[int, str] | None = None
        """Mark and digest of the writer that caused the last rebuild: once for each is enough."""
        self._ensured_s = 0.0
        self._unwritten_lines = Throttled(UNWRITTEN_AGAIN_S)
        self._hashed_s = self._looked_s = 0.0
        self._purge_looked_s = time.monotonic()

    async def run(self) -> None:
        """Run until cancelled."""
        state = self._state
        self._checkpoints = asyncio.create_task(self._keep_checkpoint(), name="sickbay-projector-checkpoint")
        acts = asyncio.create_task(self._keep_acts(), name="sickbay-projector-acts")
        last_s = time.monotonic()
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await state.woken.wait()
                state.woken.clear()
                now_s = time.monotonic()
                try:
                    await state.while_connected(self._tick(overslept=now_s - last_s > OVERSLEPT_S))
                except TRANSIENT_ERRORS as error:
                    state.note_error(error)
                    self._ensure_wanted = True
                    await asyncio.sleep(RETRY_S)
                self._ticked.set()
                last_s = time.monotonic()
        finally:
            for task in (self._checkpoints, self._storing, acts):
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])

    async def _keep_checkpoint(self) -> None:
        """While writing, renew the checkpoint at its pace, or at once when entries wait for a fresh claim."""
        state = self._state
        while True:
            wait_s = CHECKPOINT_EVERY_S
            if state.is_writer:
                began_s = time.monotonic()
                try:
                    if await state.writer.claim(self._checkpoint()):
                        state.counters.commits.observe(time.monotonic() - began_s)
                        state.writer.pump()  # what waited for the claim goes out
                        state.woken.set()
                    else:
                        wait_s = RETRY_S
                except TRANSIENT_ERRORS as error:
                    state.note_error(error)
                    wait_s = RETRY_S
                self._say_unwritten()
            state.claim_now.clear()
            began_s = time.monotonic()
            while (left_s := began_s + wait_s - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await state.claim_now.wait()
                state.claim_now.clear()
                if state.writer.claim_wanted and wait_s == CHECKPOINT_EVERY_S:
                    break

    async def _keep_acts(self) -> None:
        """Look now and then whether operators' acts reach the log: in a task of its own, as each look waits."""
        state = self._state
        while True:
            await asyncio.sleep(state.control_lag.look_in_s)
            client = state.link.client
            if not state.is_writer or state.is_beside:
                state.control_lag.forget()
            elif client is not None:
                try:
                    await state.control_lag.look(client)
                except TRANSIENT_ERRORS:  # the stream is gone, or has no leader: the tick finds out which
                    self._ensure_wanted = True

    def _say_unwritten(self) -> None:
        """Warn while the checkpoint stands still, because every gate is stale then."""
        age_s = time.monotonic() - self._state.view.moved_s
        if age_s < UNWRITTEN_S or not self._unwritten_lines.due():
            return
        _log.warning(
            "nothing could be written for %.0f s, so every gate is stale: NATS stores nothing (a full disk, a limit, no"
            " leader); after freeing a disk, restart nats-server (an embedded one begins anew by itself)",
            age_s,
        )

    def _checkpoint(self, writer: str | None = None) -> Checkpoint:
        """The checkpoint as of now, with a digest of the view once the view is known for certain."""
        state = self._state
        view, fleet = state.view, state.fleet
        marked_seq = next(reversed(state.marks), 0)
        checkpoint = Checkpoint(
            seq=fleet.seq,
            time_ms=fleet.time_ms,
            writer=state.me if writer is None else writer,
            fold=FOLD_VERSION,
            policy_seq=fleet.policy_seq,
            log_created=state.log.created_at,
            wrote_ms=state.writer.now_ms(),
            replicas=fleet.replicas(state.writer.now_ms()),
            live=state.is_live,
            told_seq=state.transitions.told_seq(fleet.seq),
            marked_seq=marked_seq,
            marked_digest=state.marks.get(marked_seq, ""),
            pinned=state.override_digest,
        )
        if view.loaded and view.map.settled:
            counted = view.map.counted()
            checkpoint = msgspec.structs.replace(
                checkpoint, revision=counted.revision, entries=counted.entries, digest=counted.digest
            )
        return checkpoint

    async def _tick(self, *, overslept: bool) -> None:
        state = self._state
        client = state.link.client
        if client is None:
            return
        state.publisher.sweep()
        await self._attend(client)
        if state.writer.bucket_gone or self._ensure_wanted or state.is_interrupted:
            await self._ensure(client)
        if not state.view.loaded:
            self._compared = False
            await state.view.load_all(client)
        if not state.is_loaded:
            return
        self._hash_ahead()
        if state.is_writer:
            await self._write(client)
            return
        state.is_live = self._compared = False
        if not state.transitions.needs_resync:
            state.transitions.request_resync()
        self._heed_writer()
        if overslept:
            state.view.moved_s = max(state.view.moved_s, time.monotonic())
        if self._may_claim():
            await self._take_over(client)

    async def _attend(self, client: Client) -> None:
        """Begin anew on a new connection: publishes under way are lost, and the view may have missed changes."""
        state = self._state
        reconnects = client.stats["reconnects"]
        if client is self._client and reconnects == self._reconnects:
            return
        if client is not self._client:
            await state.publisher.open(client)
            await state.view.open(client)
        else:
            state.publisher.lose("connection lost")
        state.view.loaded = False
        state.writer.forget()
        state.transitions.request_resync()
        self._client, self._reconnects = client, reconnects
        self._ensure_wanted = True

    async def _ensure(self, client: Client) -> None:
        """Create again the streams that are gone: outputs that are written anew, or the log itself."""
        state = self._state
        if time.monotonic() - self._ensured_s < ENSURE_EVERY_S:
            return
        self._ensured_s = time.monotonic()
        report = await ensure(client, state.limits, state.view.names)
        self._ensure_wanted = False
        if state.writer.bucket_gone:
            state.writer.bucket_gone = False
            state.writer.forget()
            state.view.loaded = False
        if report.created:
            _log.warning("created streams that were gone: %s", ", ".join(report.created))

    # -- as the writer -----------------------------------------------------------------------------------

    async def _write(self, client: Client) -> None:
        state = self._state
        if not self._compared:
            # The view that is followed knows hashes only; the comparison needs the values in the bucket.
            standing = await state.view.load_all(client)
            if not state.is_writer:
                return
            await state.writer.compare_all(standing)
            state.documents.start(state.fleet)
            self._compared = True
        if state.transitions.all_told and time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            state.transitions.request_resync()
        if state.transitions.needs_resync:
            await state.transitions.take_over(client)
            if state.transitions.is_gone:
                self._rebuild(f"{TRANSITIONS} was gone: what was derived is published anew")
                return
            await state.dead.take_over(client, state.log.created_at)
            self._looked_s = time.monotonic()
        if time.monotonic() - self._purge_looked_s >= PURGE_LOOK_EVERY_S:
            self._purge_looked_s = time.monotonic()
            self._ensure_wanted = True  # a stream that nothing is written to just now is missed by nobody
            if await state.view.was_purged(client):
                _log.warning(
                    "entries are gone from %s that nobody took away: they are put again", state.view.names.bucket
                )
                state.writer.forget()
                state.view.loaded = self._compared = False
                return
        await state.writer.look_after()
        state.writer.pump()
        if state.writer.fresh:
            state.transitions.pump()
            state.dead.pump()
            state.documents.pump(state.fleet, state.writer.now_ms())
        if not state.is_live and state.writer.settled:
            state.is_live = True
            _log.info("this projector writes now, at log sequence %d", state.fleet.seq)
        self._maybe_snapshot(client)

    def _hash_ahead(self) -> None:
        """Hash what changed now and then, so that a digest has little left to hash: the next hold waits for it."""
        state = self._state
        now_s = time.monotonic()
        if state.lag == 0 and now_s - self._hashed_s >= HASH_EVERY_S:
            self._hashed_s = now_s
            state.fleet.digest()

    def _maybe_snapshot(self, client: Client) -> None:
        state = self._state
        behind = state.fleet.seq - state.snapshot_seq
        late = time.monotonic() - self._snapshot_s >= SNAPSHOT_EVERY_S
        if not (self._snapshots and state.is_live and behind > 0 and (behind >= SNAPSHOT_EVENTS or late)):
            return
        if not state.transitions.all_told or state.transitions.needs_resync or not state.writer.fresh:
            return  # a loaded state derives nothing again, so all that led to it must be published before
        if self._storing is not None and not self._storing.done():
            return
        self._storing = asyncio.create_task(self._store(client), name="sickbay-projector-snapshot")

    async def _store(self, client: Client) -> None:
        state = self._state
        fleet = state.fleet
        data = fleet.encode()
        info = snapshots.SnapshotInfo(
            seq=fleet.seq,
            time_ms=fleet.time_ms,
            time_ns=state.time_ns,
            fold=FOLD_VERSION,
            policy_seq=fleet.policy_seq,
            digest=fleet.digest(),
            log_created=state.log.created_at,
            mark=state.transitions.mark,
            compression=snapshots.compression(),
            size=len(data),
            untold=state.is_beside,
            pinned=state.override_digest,
        )
        try:
            await snapshots.store(client, info, data, state.view.names)
        except TRANSIENT_ERRORS as error:
            state.note_error(error)
            self._ensure_wanted = True
            await asyncio.sleep(SNAPSHOT_RETRY_S)
        else:
            state.snapshot_seq, self._snapshot_s = info.seq, time.monotonic()

    async def hand_over(self) -> None:
        """At the end: publish what waits, store a snapshot, give the checkpoint back."""
        state = self._state
        client = state.link.client
        if not state.is_writer or client is None:
            return
        try:
            async with asyncio.timeout(HAND_OVER_S):
                while not (state.transitions.all_told and state.writer.settled) and state.is_writer:
                    self._ticked.clear()
                    await self._ticked.wait()
                if self._storing is not None:
                    await asyncio.wait([self._storing])
                if (
                    self._snapshots
                    and state.is_live
                    and state.fleet.seq > state.snapshot_seq
                    and state.transitions.all_told
                ):
                    await self._store(client)
                if self._checkpoints is not None:
                    self._checkpoints.cancel()
                    await asyncio.wait([self._checkpoints])
                if state.is_writer:
                    await state.writer.claim(self._checkpoint(writer=""))
                    state.writer.demote()
        except TRANSIENT_ERRORS as error:
            state.note_error(error)

    # -- as a standby ------------------------------------------------------------------------------------

    def _heed_writer(self) -> None:
        """Read the writer's checkpoint: what a standby need not keep, and whether both states are the same."""
        state = self._state
        theirs = state.view.checkpoint
        if theirs is None or theirs.log_created != state.log.created_at or theirs.writer in ("", state.me):
            return
        state.transitions.forget_through(theirs.told_seq, theirs.time_ms)
        mine = state.marks.get(theirs.marked_seq)
        if theirs.fold != FOLD_VERSION or mine is None:
            return
        # A silent writer may have marked a log whose end is lost. The state built from what is left is right then.
        state.differs = mine != theirs.marked_digest and not self._is_silent()
        if state.differs and self._differed != (theirs.marked_seq, theirs.marked_digest):
            self._differed = theirs.marked_seq, theirs.marked_digest
            self._rebuild(f"the state at {theirs.marked_seq} differs from the writer's")

    def _is_silent(self) -> bool:
        return time.monotonic() - self._state.view.moved_s >= SILENT_S

    def _may_claim(self) -> bool:
        state = self._state
        if not state.is_loaded or not state.is_caught_up or state.differs or not state.view.loaded:
            return False
        if CHECKPOINT_KEY not in state.view.map.standing:
            return True
        theirs = state.view.checkpoint
        if theirs is not None and theirs.writer in ("", state.me):
            return True
        return self._is_silent()

    async def _take_over(self, client: Client) -> None:
        """Fold to the log's end, then claim the checkpoint. The bucket is compared only after that."""
        state = self._state
        at = await JetStreamApi(client, timeout_s=REQUEST_S).stream_at(LOG)
        if at.created_at != state.log.created_at or at.last_seq < state.fleet.seq:
            return  # the reader finds out, and the state is built anew
        if not await state.folded_to(at.last_seq, CATCH_UP_S) or not self._may_claim():
            return
        state.is_live = self._compared = False
        state.transitions.request_resync()
        if await state.writer.claim(self._checkpoint()):
            state.woken.set()
