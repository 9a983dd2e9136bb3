"""The projector: folds the log and, where it holds the checkpoint, writes what follows from it.

    projector = Projector(link, name="box-7", policy=policy_of_a_file)
    await projector.run()          # until stop(); survives whatever the server and its streams do

Two things run side by side: here the log is read and folded, in `keeper.py` the connection, the view and the
writer's part are looked after.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from bisect import bisect_right
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from nats.aio.client import Client

from sickbay_events import CallOutcome, DerivedEvent, Poison, Policy
from sickbay_events.view import POLICY_KEY
from sickbay_projections import Fleet
from sickbay_projections.state.model import hash_of

from ..bus.connect import BusError
from ..bus.jetstream import JetStreamApi, StreamAt
from ..bus.link import Link
from ..bus.publish import AckedPublisher
from ..bus.reader import CaughtUp, Chunk, Gap, Interrupted, LogChanged, LogReader, Resumed
from ..bus.reader import Event as ReaderEvent
from ..bus.topology import LOG, StreamLimits, ensure
from ..bus.transient import TRANSIENT_ERRORS
from ..bus.view_names import view_names
from ..log.control import differing_keys, fold_lost_control_events, seed_policy
from ..log.decode import DecodedBatch, Intake
from ..log.snapshots import newest_fit
from .counters import Counters
from .deadletters import At, DeadLetters
from .documents import Documents
from .health import Phase, ProjectorHealth, health_of
from .maintenance import Keeper
from .transitions import NullTransitions, Transitions, read_end
from .view_feed import ProjectorView
from .writer import GateWriter

_log = logging.getLogger("sickbay.projector")
T = TypeVar("T")

MARK_EVERY: Final = 16_384
"""The digest of the whole state is taken at multiples of this, so that two projectors can be compared."""
MARKS_KEPT: Final = 64
RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
REQUEST_S: Final = 5.0


class _Rebuild(Exception):
    """The state cannot go on with this log; it is built anew. Its text says why."""


class Projector:
    """One projector. `link` is started and closed by its owner; everything runs in its event loop.

    name          of this projector, for people; its boot makes it unique
    policy        of a file: seeds an empty log, otherwise only compared with the policy in force
    snapshots     whether to store any (they are read in any case)
    dead_letters  whether to note what cannot be read, or only to count it
    view          name of the view to write; empty for the one without a name
    beside        beside the projector of another view: publishes no derived events and no dead letters, seeds nothing;
                  `policy`, if given, counts in the place of every one in the log

    `fleet` is the state at `seq`; a standby has it too.
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
        self.me = f"{name}/{secrets.token_hex(4)}"
        self.link = link
        self.limits = limits
        self.is_beside = beside
        self._pinned = policy if beside else None
        self.pinned = "" if self._pinned is None else policy_digest(self._pinned)
        """Digest of the policy that counts in the place of the log's; empty: the log's own."""
        self.fleet = Fleet(self._pinned or Policy())
        self.log = StreamAt("", 0, 0)
        """The log as it looked when reading last began."""
        self.time_ns = 0
        """The server's time of the event at the state's position; 0 if that is a gap."""
        self.loaded = False
        self.caught_up = False
        self._was_at_end = False
        self.interrupted = False
        """Reading the log stopped, and the reader is at work on it: its stream may be gone."""
        self.lag = 0
        self.marks: dict[int, str] = {}
        self.differs = False
        self.rebuilds = 0
        self.last_rebuild = ""
        self.last_error = ""
        self.folded = 0
        self.gaps = 0
        self.meters = Counters()
        self.publisher = AckedPublisher(link)
        names = view_names(view)
        self.view = ProjectorView(names)
        self.transitions = NullTransitions(self.publisher) if beside else Transitions(self.publisher)
        self.documents = Documents(self.publisher, names)
        self.dead = DeadLetters(self.publisher, enabled=dead_letters and not beside)
        self.keeper = Keeper(self, snapshots=snapshots)
        self.writer = GateWriter(
            self.publisher,
            self.view,
            self,
            wake=self.keeper.wake,
            claim_now=self.keeper.claim_now,
        )
        self.file = None if beside else policy
        self._file_compared = -1
        self._intake = Intake(self._pinned)
        self._stop = asyncio.Event()
        self._round: asyncio.Task[None] | None = None
        self._why = ""
        self._folded_more = asyncio.Event()
        self._lost = asyncio.Event()
        link.listen(disconnected=self._lost.set)

    # -- the public face -------------------------------------------------------------------------------

    @property
    def seq(self) -> int:
        """The last log sequence that is folded or passed."""
        return self.fleet.seq

    @property
    def is_writer(self) -> bool:
        """Whether this projector holds the checkpoint, as far as it knows."""
        return self.writer.is_writer

    def now_ms(self) -> int:
        """Log time now, as far as this process has heard of it."""
        return self.writer.now_ms()

    @property
    def is_current(self) -> bool:
        """Whether the state has been at the log's end since it was loaded, and the server has told its time. Before
        that holds stand here that may be over, and the policy may be another one."""
        return self.loaded and self._was_at_end and self.view.clock.heard

    def stop(self) -> None:
        """End `run` soon: it tells what it still has to tell and hands the checkpoint over."""
        self._stop.set()

    async def run(self) -> None:
        """Fold, and write where it is one's turn, until `stop`. Raises nothing that a server can cause."""
        keeper = asyncio.create_task(self.keeper.run(), name="sickbay-projector-keeper")
        stopping = asyncio.create_task(self._stop.wait(), name="sickbay-projector-stop")
        retry_s = RETRY_MIN_S
        try:
            while not self._stop.is_set():
                self._round = asyncio.create_task(self._read_log(), name="sickbay-projector-fold")
                await asyncio.wait([self._round, stopping, keeper], return_when=asyncio.FIRST_COMPLETED)
                if self._stop.is_set():
                    break
                if keeper.done():
                    keeper.result()  # only a mistake of ours ends it: it must not go unseen
                retry_s = RETRY_MIN_S if await self._ended(self._round) else min(2 * retry_s, RETRY_MAX_S)
                await asyncio.wait([stopping], timeout=retry_s)
            await self.keeper.hand_over()
        finally:
            tasks = [task for task in (self._round, keeper, stopping) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self.publisher.close()
            await self.view.close()

    def health(self) -> ProjectorHealth:
        """How it is doing now."""
        return health_of(self, self._phase())

    def _phase(self) -> Phase:
        if self._stop.is_set():
            return "stopped"
        if not self.loaded:
            return "starting"
        if self.is_writer:
            return "writing"
        return "standby" if self.caught_up else "catching_up"

    # -- reading the log -------------------------------------------------------------------------------

    def rebuild(self, why: str) -> None:
        """Drop the state and build it anew (asked for by the keeper)."""
        if self._round is not None and not self._why:
            self._why = why
            # Nothing more of the old state may go out: the mark in the stream says what the new one need not tell.
            self.loaded = False
            self.transitions.request_resync()
            self._round.cancel()

    async def _ended(self, task: asyncio.Task[None]) -> bool:
        """Why the reading ended; True if it begins anew at once."""
        await asyncio.wait([task])
        why, self._why = self._why, ""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, _Rebuild):
            why = str(error)
        elif isinstance(error, TRANSIENT_ERRORS):
            self.say(error)
            return False
        elif error is not None:
            raise error
        if why:
            self.loaded = self.caught_up = False
            self.writer.demote()
            self._note_rebuild(why)
        return bool(why)

    def _note_rebuild(self, why: str) -> None:
        self.rebuilds += 1
        self.last_rebuild = why
        _log.warning("the state is built anew: %s", why)

    def say(self, error: BaseException) -> None:
        """Something the server did; what follows from it is done elsewhere."""
        text = f"{type(error).__name__}: {error}"
        if text != self.last_error:
            _log.info("%s", text)
        self.last_error = text

    async def _read_log(self) -> None:
        self.interrupted = False
        client = await self.link.wait_connected()
        await self.while_connected(ensure(client, self.limits, self.view.names))
        if not self.loaded:
            await self.while_connected(self._load(client))
        reader = LogReader(
            self.link,
            LOG,
            after_seq=self.fleet.seq,
            created_at=self.log.created_at,
            time_ns=self.time_ns,
            name="projector",
        )
        try:
            async for item in reader:
                await self._take(item)
        finally:
            await reader.close()

    async def _load(self, client: Client) -> None:
        """Begin from the newest snapshot that fits the log, or from the log's beginning."""
        if self.file is not None and await seed_policy(client, self.file):
            self._file_compared = 0  # what it seeds is on its way into the log
            _log.info("the policy file is the log's first event")
        log = await JetStreamApi(client, timeout_s=REQUEST_S).stream_at(LOG)
        end = await read_end(client, log.created_at)
        found, why = await newest_fit(client, log, None if self.is_beside else end, self.view.names, self.pinned)
        if found is None and why and not self.rebuilds:
            self._note_rebuild(f"no snapshot can be used: {why}")
        self.fleet, self.time_ns = found or (Fleet(self._pinned or Policy()), 0)
        self.keeper.snapshot_seq = self.fleet.seq
        self.log = log
        self.transitions.start(log.created_at, end)
        self.marks.clear()
        self.loaded, self.differs, self._was_at_end = True, False, False
        self.meters.is_live = False

    async def _take(self, item: ReaderEvent) -> None:
        match item:
            case Chunk():
                self.fold(item)
                if item.pending:
                    await asyncio.sleep(0)  # a long replay must not keep the checkpoint waiting
            case Gap():
                await self._pass(item)
            case CaughtUp():
                self.caught_up, self._was_at_end, self.lag = True, True, 0
                self.meters.is_live = True
                self._compare_file()
            case Interrupted():
                self.caught_up, self.interrupted = False, True
                self.say(BusError(f"reading the log is interrupted: {item.reason}"))
            case Resumed():
                self.interrupted = False
                self.log = item.stream
            case LogChanged():
                raise _Rebuild(_CHANGED[item.reason])

    async def _pass(self, gap: Gap) -> None:
        if gap.reason != "trimmed":
            for seq in range(gap.first, gap.last + 1):
                self.fleet.passed(seq, self.fleet.time_ms, "gap")
            self.gaps += gap.last - gap.first + 1
            self.time_ns = 0
            _log.warning("the log has no events from %d to %d: noted and passed", gap.first, gap.last)
        elif self.fleet.seq == 0:
            client = await self.link.wait_connected()
            self._told(await fold_lost_control_events(client, self.fleet, gap.last + 1, self._pinned))
        else:
            raise _Rebuild(f"the log has lost events from {gap.first} to {gap.last} before they were folded")

    def fold(self, chunk: Chunk) -> None:
        """Fold one chunk of the log and send out what follows."""
        batch = self._intake.batch(chunk)
        begin, last = 0, batch.seqs[-1]
        while (mark := (self.fleet.seq // MARK_EVERY + 1) * MARK_EVERY) <= last:
            end = bisect_right(batch.seqs, mark)
            self._apply(batch.cut(begin, end), chunk.payloads[begin:end])
            self._take_mark(mark)
            begin = end
        if begin < len(batch.seqs):
            self._apply(batch.cut(begin, len(batch.seqs)) if begin else batch, chunk.payloads[begin:])
        self.time_ns = chunk.times_ns[-1]
        self.lag = chunk.pending
        self.folded += len(batch.seqs)
        self._folded_more.set()

    def _take_mark(self, mark: int) -> None:
        if self.fleet.seq == mark:
            self.marks[mark] = self.fleet.digest()
            if len(self.marks) > MARKS_KEPT:
                del self.marks[next(iter(self.marks))]

    def _apply(self, batch: DecodedBatch, payloads: Sequence[bytes]) -> None:
        """Fold, and send out at once what follows."""
        fleet = self.fleet
        policy_seq = fleet.policy_seq
        derived = fleet.apply_many(*batch)
        if derived:
            self.transitions.add(derived)
            self.meters.told(derived)
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
                self._note(batch, index, event, payloads[index])
        self.meters.count(batch, bad, others, fleet.passed_over)
        if self.is_writer:
            self.documents.note([*changed, *map(_scope_key, worth_telling)])
            if changed:
                self.writer.touch(changed)
            if derived and self.writer.fresh:
                self.transitions.pump()

    def _told(self, derived: list[DerivedEvent]) -> None:
        self.transitions.add(derived)
        self.fleet.take_changed()  # nobody writes yet: everything is compared when this one does

    def _note(self, batch: DecodedBatch, index: int, poison: Poison, payload: bytes) -> None:
        seq, subject = batch.seqs[index], batch.subjects[index]
        if self.dead.counts[poison.reason] == 0 or not self.dead.enabled:
            _log.warning("event %d on %s cannot be read and is passed: %s", seq, subject, poison.reason)
        self.dead.add(poison, At(self.log.created_at, seq, subject), payload)

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it, but give up at once when the connection is lost: no answer will come. Raises
        `ConnectionResetError` then."""
        self._lost.clear()
        task = asyncio.ensure_future(work)
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait([task, lost], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ConnectionResetError("the connection to NATS was lost")
        finally:
            for waiting in (task, lost):
                waiting.cancel()
            await asyncio.wait([task, lost])

    async def folded_to(self, seq: int, timeout_s: float) -> bool:
        """Wait until the state is at `seq` or later; False if it is not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.fleet.seq < seq:
                    self._folded_more.clear()
                    await self._folded_more.wait()
        return self.fleet.seq >= seq

    def _compare_file(self) -> None:
        """Say once for each policy in force how the file differs from it."""
        if (
            self.file is None
            or not self.caught_up
            or not self.fleet.seq
            or self._file_compared == self.fleet.policy_seq
        ):
            return
        self._file_compared = self.fleet.policy_seq
        keys = differing_keys(self.file, self.fleet.policy)
        if keys:
            _log.warning(
                "what this process was given differs from the policy in force (log sequence %d), which counts: %s",
                self.fleet.policy_seq,
                ", ".join(keys),
            )


def policy_digest(policy: Policy) -> str:
    """32 hex digits that say which policy this is."""
    return f"{hash_of('policy', policy.to_data()):032x}"


def _scope_key(subject: str) -> str:
    """The scope key in an outcome's subject: what follows root, sort and replica."""
    return subject.split(".", 3)[-1]


_CHANGED: Final = {
    "recreated": "the log is another one: its stream was created anew",
    "shorter": "the log ends before what was folded: an older store was put in place",
    "rewritten": "the log has another event at the state's position: an older store was put in place",
}
