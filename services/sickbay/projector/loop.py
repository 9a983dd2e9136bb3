"""The projector: folds the log and, where it holds the checkpoint, writes what follows from it.

    projector = Projector(link, name="box-7", policy=policy_of_a_file)
    await projector.run()          # until stop(); survives whatever the server and its streams do

Two things run side by side on one `ProjectorState`: the loop reads and folds the log, the maintenance (maintenance.py)
looks after the connection, the view and the writer's part.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from nats.aio.client import Client

from sickbay_events import CallOutcome, DerivedEvent, Poison, Policy
from sickbay_events.view import POLICY_KEY
from sickbay_projections import Fleet

from ..bus.connect import BusError
from ..bus.jetstream import JetStreamApi
from ..bus.link import Link
from ..bus.reader import CaughtUp, Chunk, Gap, Interrupted, LogChanged, LogReader, Resumed
from ..bus.reader import Event as ReaderEvent
from ..bus.topology import LOG, StreamLimits, ensure
from ..bus.transient import TRANSIENT_ERRORS
from ..control.policies import differing_keys, seed_policy
from ..log.control import fold_lost_control_events
from ..log.decode import DecodedBatch, Intake
from ..log.snapshots import newest_fit
from ..loggers import logger
from .deadletters import At
from .health import Phase, ProjectorHealth, health_of
from .maintenance import Maintenance
from .state import ProjectorState
from .transitions import read_end

_log = logger("sickbay.projector")

MARK_EVERY: Final = 16_384
"""The digest of the whole state is taken at multiples of this, so that two projectors can be compared."""
MARKS_KEPT: Final = 64
RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
REQUEST_S: Final = 5.0


class _Rebuild(Exception):
    """The state cannot go on with this log and is built anew. The text says why."""


class Projector:
    """One projector. Its owner starts and closes `link`; everything runs in the link's event loop.

    name          of this projector, for people; a random part makes it unique for each process
    policy        of a file: seeds an empty log, otherwise only compared with the policy in force
    snapshots     whether to store any (they are read in any case)
    dead_letters  whether to note what cannot be read, or only to count it
    limits        of the streams that it makes; None: the defaults
    view          name of the view to write; empty for the one without a name
    beside        beside the projector of another view: publishes no derived events and no dead letters, seeds nothing;
                  `policy`, if given, counts in the place of every one in the log
    """

    def __init__(
        self,
        link: Link,
        *,
        name: str,
        policy: Policy | None = None,
        snapshots: bool = True,
        dead_letters: bool = True,
        limits: StreamLimits | None = None,
        view: str = "",
        beside: bool = False,
    ) -> None:
        self.state = state = ProjectorState(
            link, name=name, policy=policy, dead_letters=dead_letters, limits=limits, view=view, beside=beside
        )
        self._maintenance = Maintenance(state, rebuild=self._rebuild, snapshots=snapshots)
        self.around_fold: Callable[[Chunk], AbstractContextManager[object]] = nullcontext
        """A hook: the context in which each chunk is folded, such as a span's."""
        self._intake = Intake(state.policy_override)
        self._compared_policy_seq = -1
        self._stop = asyncio.Event()
        self._round: asyncio.Task[None] | None = None
        self._why = ""

    # -- the public face -------------------------------------------------------------------------------

    @property
    def fleet(self) -> Fleet:
        """The state at `seq`; a standby has it too."""
        return self.state.fleet

    @property
    def seq(self) -> int:
        """The last log sequence that is folded or passed."""
        return self.state.fleet.seq

    @property
    def is_writer(self) -> bool:
        """Whether this projector holds the checkpoint, as far as it knows."""
        return self.state.is_writer

    @property
    def is_current(self) -> bool:
        """Whether questions can be answered from the state: see `ProjectorState.is_current`."""
        return self.state.is_current

    def now_ms(self) -> int:
        """Log time now, as far as this process has heard of it."""
        return self.state.writer.now_ms()

    async def folded_to(self, seq: int, timeout_s: float) -> bool:
        """Wait until the state is at `seq` or later. Returns False if it is not in time."""
        return await self.state.folded_to(seq, timeout_s)

    def stop(self) -> None:
        """End `run` soon: the projector publishes what waits and hands the checkpoint over."""
        self._stop.set()

    async def run(self) -> None:
        """Fold, and write while holding the checkpoint, until `stop`. Raises nothing that a server can cause."""
        maintenance = asyncio.create_task(self._maintenance.run(), name="sickbay-projector-maintenance")
        stopping = asyncio.create_task(self._stop.wait(), name="sickbay-projector-stop")
        retry_s = RETRY_MIN_S
        try:
            while not self._stop.is_set():
                self._round = asyncio.create_task(self._read_log(), name="sickbay-projector-fold")
                await asyncio.wait([self._round, stopping, maintenance], return_when=asyncio.FIRST_COMPLETED)
                if self._stop.is_set():
                    break
                if maintenance.done():
                    maintenance.result()  # only a mistake of ours ends it: it must not go unseen
                retry_s = RETRY_MIN_S if await self._ended(self._round) else min(2 * retry_s, RETRY_MAX_S)
                await asyncio.wait([stopping], timeout=retry_s)
            await self._maintenance.hand_over()
        finally:
            tasks = [task for task in (self._round, maintenance, stopping) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self.state.publisher.close()
            await self.state.view.close()

    def health(self) -> ProjectorHealth:
        """How it is doing now."""
        return health_of(self.state, self._phase())

    def _phase(self) -> Phase:
        if self._stop.is_set():
            return "stopped"
        if not self.state.is_loaded:
            return "starting"
        if self.is_writer:
            return "writing"
        return "standby" if self.state.is_caught_up else "catching_up"

    # -- reading the log -------------------------------------------------------------------------------

    def _rebuild(self, why: str) -> None:
        """Drop the state and build it anew: asked for by the maintenance."""
        if self._round is not None and not self._why:
            self._why = why
            # Nothing more of the old state may go out: the mark in the stream says what the new one need not tell.
            self.state.is_loaded = False
            self.state.transitions.request_resync()
            self._round.cancel()

    async def _ended(self, task: asyncio.Task[None]) -> bool:
        """Find out why the reading ended. Returns True if it begins anew at once."""
        await asyncio.wait([task])
        state = self.state
        why, self._why = self._why, ""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, _Rebuild):
            why = str(error)
        elif isinstance(error, TRANSIENT_ERRORS):
            state.note_error(error)
            return False
        elif error is not None:
            raise error
        if why:
            state.is_loaded = state.is_caught_up = False
            state.writer.demote()
            state.note_rebuild(why)
        return bool(why)

    async def _read_log(self) -> None:
        state = self.state
        state.is_interrupted = False
        client = await state.link.wait_connected()
        await state.while_connected(ensure(client, state.limits, state.view.names))
        if not state.is_loaded:
            await state.while_connected(self._load(client))
        reader = LogReader(
            state.link,
            LOG,
            after_seq=state.fleet.seq,
            created_at=state.log.created_at,
            time_ns=state.time_ns,
            name="projector",
        )
        try:
            async for item in reader:
                await self._take(item)
        finally:
            await reader.close()

    async def _load(self, client: Client) -> None:
        """Begin from the newest snapshot that fits the log, or from the log's beginning."""
        state = self.state
        if state.policy_file is not None and await seed_policy(client, state.policy_file):
            self._compared_policy_seq = 0  # the seed is on its way into the log
            _log.info("the policy file is the log's first event")
        log = await JetStreamApi(client, timeout_s=REQUEST_S).stream_at(LOG)
        end = await read_end(client, log.created_at)
        found, why = await newest_fit(
            client, log, None if state.is_beside else end, state.view.names, state.override_digest
        )
        if found is None and why and not state.rebuilds:
            state.note_rebuild(f"no snapshot can be used: {why}")
        state.fleet, state.time_ns = found or (state.new_fleet(), 0)
        state.snapshot_seq = state.fleet.seq
        state.log = log
        state.transitions.start(log.created_at, end)
        state.marks.clear()
        state.is_loaded, state.differs, state.was_at_end = True, False, False
        state.counters.is_live = False

    async def _take(self, item: ReaderEvent) -> None:
        state = self.state
        match item:
            case Chunk():
                with self.around_fold(item):
                    self._fold(item)
                if item.pending:
                    await asyncio.sleep(0)  # a long replay must not keep the checkpoint waiting
            case Gap():
                await self._pass(item)
            case CaughtUp():
                state.is_caught_up, state.was_at_end, state.lag = True, True, 0
                state.counters.is_live = True
                self._compare_file()
            case Interrupted():
                state.is_caught_up, state.is_interrupted = False, True
                state.note_error(BusError(f"reading the log is interrupted: {item.reason}"))
            case Resumed():
                state.is_interrupted = False
                state.log = item.stream
            case LogChanged():
                raise _Rebuild(_CHANGED[item.reason])

    async def _pass(self, gap: Gap) -> None:
        state = self.state
        if gap.reason != "trimmed":
            for seq in range(gap.first, gap.last + 1):
                state.fleet.passed(seq, state.fleet.time_ms, "gap")
            state.gaps += gap.last - gap.first + 1
            state.time_ns = 0
            _log.warning("the log has no events from %d to %d: noted and passed", gap.first, gap.last)
        elif state.fleet.seq == 0:
            client = await state.link.wait_connected()
            override = state.policy_override
            self._add_derived(await fold_lost_control_events(client, state.fleet, gap.last + 1, override))
        else:
            raise _Rebuild(f"the log has lost events from {gap.first} to {gap.last} before they were folded")

    def _fold(self, chunk: Chunk) -> None:
        """Fold one chunk of the log and send out what follows."""
        state = self.state
        batch = self._intake.batch(chunk)
        begin, last = 0, batch.seqs[-1]
        while (mark := (state.fleet.seq // MARK_EVERY + 1) * MARK_EVERY) <= last:
            end = bisect_right(batch.seqs, mark)
            self._apply(batch.cut(begin, end), chunk.payloads[begin:end])
            self._take_mark(mark)
            begin = end
        if begin < len(batch.seqs):
            self._apply(batch.cut(begin, len(batch.seqs)) if begin else batch, chunk.payloads[begin:])
        state.time_ns = chunk.times_ns[-1]
        state.lag = chunk.pending
        state.folded += len(batch.seqs)
        state.note_folded()

    def _take_mark(self, mark: int) -> None:
        marks = self.state.marks
        if self.seq == mark:
            marks[mark] = self.fleet.digest()
            if len(marks) > MARKS_KEPT:
                del marks[next(iter(marks))]

    def _apply(self, batch: DecodedBatch, payloads: Sequence[bytes]) -> None:
        """Fold, and send out at once what follows."""
        state, fleet = self.state, self.state.fleet
        policy_seq = fleet.policy_seq
        derived = fleet.apply_many(*batch)
        if derived:
            state.transitions.add(derived)
            state.counters.count_derived(derived)
        changed = fleet.take_changed()
        if fleet.policy_seq != policy_seq:
            changed.append(POLICY_KEY)
            self._compare_file()
        worth_telling: dict[str, None] = {}
        bad: list[str] = []
        others = 0
        for index, event in enumerate(batch.events):
            if type(event) is CallOutcome:
                if event.kind != "ok":
                    worth_telling[batch.subjects[index]] = None
                    bad.append(event.kind)
                continue
            others += 1
            if type(event) is Poison:
                self._note_poison(batch, index, event, payloads[index])
        state.counters.count(batch, bad, others, fleet.passed_over)
        if self.is_writer:
            state.documents.note([*changed, *map(_scope_key, worth_telling)])
            if changed:
                state.writer.touch(changed)
            if derived and state.writer.fresh:
                state.transitions.pump()

    def _add_derived(self, derived: list[DerivedEvent]) -> None:
        self.state.transitions.add(derived)
        self.fleet.take_changed()  # nobody writes yet: the writer compares everything when it begins

    def _note_poison(self, batch: DecodedBatch, index: int, poison: Poison, payload: bytes) -> None:
        seq, subject, dead = batch.seqs[index], batch.subjects[index], self.state.dead
        if dead.counts[poison.reason] == 0 or not dead.enabled:
            _log.warning("event %d on %s cannot be read and is passed: %s", seq, subject, poison.reason)
        dead.add(poison, At(self.state.log.created_at, seq, subject), payload)

    def _compare_file(self) -> None:
        """Log once for each policy in force how the file differs from it."""
        file, fleet = self.state.policy_file, self.fleet
        if file is None or not self.state.is_caught_up or not fleet.seq:
            return
        if self._compared_policy_seq == fleet.policy_seq:
            return
        self._compared_policy_seq = fleet.policy_seq
        if keys := differing_keys(file, fleet.policy):
            _log.warning(
                "what this process was given differs from the policy in force (log sequence %d), which counts: %s",
                *(fleet.policy_seq, ", ".join(keys)),
            )


def _scope_key(subject: str) -> str:
    """The scope key in an outcome's subject: what follows root, sort and replica."""
    return subject.split(".", 3)[-1]


_CHANGED: Final = {
    "recreated": "the log is another one: its stream was created anew",
    "shorter": "the log ends before what was folded: an older store was put in place",
    "rewritten": "the log has another event at the state's position: an older store was put in place",
}
