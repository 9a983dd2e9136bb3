"""The historian: follows the log, folds along, and keeps the history's file up with it.

    historian = Historian(link, Path("history.db"))
    await historian.run()          # until stop(); survives whatever the server, its streams and the file do

It folds along rather than read the stream of derived events, so that a transition and the counts around it have one
position and are written in one transaction, a log as a file gives the same history, and a history that is built anew
says what the log says. The state of the fold is not kept here: it begins from a snapshot at or before the history's
position, or from the log's beginning, and folds quietly up to there.

Reading and folding is done in the event loop, writing in one thread; one transaction is written while the next grows.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from nats.aio.client import Client

from sickbay_projections import FOLD_VERSION, Fleet
from sickbay_projections.replay.history import History

from ..bus.filelock import FileLock
from ..bus.jetstream import JetStreamApi, StreamAt
from ..bus.link import Link
from ..bus.reader import Chunk, Gap, Interrupted, LogChanged, LogReader, Resumed
from ..bus.reader import Event as ReaderEvent
from ..bus.topology import LOG
from ..bus.transient import TRANSIENT_ERRORS
from ..log.control import fold_lost_control_events
from ..log.decode import Intake
from ..log.snapshots import list_snapshots, load, unfit
from ..loggers import logger
from .errors import HistoryRefused, HistoryUnusable
from .store import Book, Keep, Position, set_aside

_log = logger("sickbay.historian")
T = TypeVar("T")

COMMIT_S: Final = 1.0
"""What was read is in the file after so long at the latest."""
COMMIT_EVENTS: Final = 20_000
WAITING_MAX: Final = 100_000
"""Events that may wait for a slow disk before reading waits too."""
RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 5.0
REQUEST_S: Final = 5.0


class _AnotherLog(Exception):
    """The log is not the one that the history is of. Its text says how that is known."""


class Historian:
    """One historian. `link` is started and closed by its owner.

    path   of the file; a second historian on the same file waits until the first has ended
    keep   how long each resolution is kept
    """

    def __init__(self, link: Link, path: Path, *, keep: Keep | None = None) -> None:
        self.link = link
        self.path = path
        self.keep = keep or Keep()
        self.position = Position()
        """Up to where the log is in the file."""
        self.lag = 0
        """Events in the log that are not read yet, as last heard."""
        self.rebuilds = 0
        self.last_error = ""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sickbay-history")
        self._lock = FileLock(path.with_name(path.name + ".lock"))
        self._locked = False
        self._book: Book | None = None
        self._fleet = Fleet()
        self._history = History()
        self._intake = Intake()
        self._gaps: list[tuple[int, int, str]] = []
        self._time_ns = 0
        self._log = StreamAt("", 0, 0)
        self._writing: asyncio.Future[None] | None = None
        self._commit_at_s = 0.0
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """End `run` soon: what was read is written."""
        self._stop.set()

    async def run(self) -> None:
        """Keep the history until `stop`. Raises nothing that a server or a disk can cause."""
        stopping = asyncio.create_task(self._stop.wait(), name="sickbay-historian-stop")
        retry_s = RETRY_MIN_S
        try:
            while not self._stop.is_set():
                before_seq = self.position.seq
                await self._round(stopping)
                retry_s = RETRY_MIN_S if self.position.seq > before_seq else min(2 * retry_s, RETRY_MAX_S)
                await asyncio.wait([stopping], timeout=retry_s)
        finally:
            stopping.cancel()
            await self._close()
            self._thread.shutdown()
            self._lock.release()

    async def _round(self, stopping: asyncio.Task[bool]) -> None:
        """Follow the log for as long as nothing goes wrong."""
        following = asyncio.create_task(self._follow(stopping), name="sickbay-historian")
        await asyncio.wait([following, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not following.done() and self._history.seq <= self.position.seq and not self._gaps:
            following.cancel()  # it waits for a server or a file
        try:
            await asyncio.wait([following])
            if not following.cancelled():
                following.result()
        except (_AnotherLog, HistoryUnusable) as error:
            await self._set_aside(str(error))
        except (HistoryRefused, *TRANSIENT_ERRORS) as error:
            self._say(error)  # the file is opened again later, at the position where it is then
        finally:
            await self._close()

    def _say(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self.last_error:
            _log.warning("the history waits: %s", text)
        self.last_error = text

    # -- the file, in its own thread -------------------------------------------------------------------

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _open(self) -> Book:
        def work() -> Book:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._locked = self._locked or self._lock.take()
            if not self._locked:
                raise OSError(f"{self.path}: another historian writes it")
            self._book = Book.open(self.path, self.keep)
            return self._book

        try:
            return await self._in_thread(work)
        except HistoryUnusable as error:
            await self._set_aside(error.why)
            return await self._in_thread(work)

    async def _set_aside(self, why: str) -> None:
        await self._close()
        await self._in_thread(lambda: set_aside(self.path, why))
        self.rebuilds += 1

    async def _close(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            # Its exception does not matter here: the next reader of the file finds how far it came.
            await asyncio.gather(writing, return_exceptions=True)
        book, self._book = self._book, None
        if book is not None:
            await self._in_thread(book.close)

    async def _commit(self, *, whole: bool = False) -> None:
        """Begin to write what has gathered; `whole`: and wait until it is written."""
        if self._writing is not None and (whole or self._writing.done() or self._history.events >= WAITING_MAX):
            await self._writing
            self._writing = None
        if self._writing is not None or self._book is None:
            return
        gaps, self._gaps = self._gaps, []
        seq, pages = self._history.seq, self._history.take()
        position = msgspec.structs.replace(
            self.position,
            log_created=self._log.created_at,
            seq=seq,
            time_ms=self._history.time_ms,
            time_ns=self._time_ns,
            rolled_ms=self._history.rolled_ms,
            fold_version=FOLD_VERSION,
        )
        book, self.position = self._book, position
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(self._thread, book.write, pages, position, gaps)
        self._commit_at_s = time.monotonic() + COMMIT_S
        if whole:
            await self._writing
            self._writing = None

    # -- following the log -----------------------------------------------------------------------------

    async def _follow(self, stopping: asyncio.Task[bool]) -> None:
        client = await self.link.wait_connected()
        self._log = await JetStreamApi(client, timeout_s=REQUEST_S).stream_at(LOG)
        position = (await self._open()).position
        await _check_log(client, self._log, position)
        self.position, self._time_ns, self._gaps = position, position.time_ns, []
        self._history = History(seq=position.seq, time_ms=position.time_ms, rolled_ms=position.rolled_ms)
        self._fleet, time_ns = await _state_before(client, self._log, position.seq)
        reader = LogReader(
            self.link,
            LOG,
            after_seq=self._fleet.seq,
            created_at=self._log.created_at,
            time_ns=time_ns,
            name="historian",
        )
        try:
            await self._read(reader, stopping)
        finally:
            await reader.close()

    async def _read(self, reader: LogReader, stopping: asyncio.Task[bool]) -> None:
        coming = asyncio.create_task(reader.__anext__())
        try:
            while not stopping.done():
                waits = self._history.events > 0 or bool(self._gaps)
                waits = waits and self._writing is None  # else the end of that write wakes this
                left_s = max(0.0, self._commit_at_s - time.monotonic()) if waits else None
                either: set[asyncio.Future[Any]] = {coming, stopping}
                if self._writing is not None:
                    either.add(self._writing)
                await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if self._writing is not None and self._writing.done():
                    writing, self._writing = self._writing, None
                    writing.result()  # its failure is known now, not only with the next event
                if coming.done():
                    item, coming = coming.result(), asyncio.create_task(reader.__anext__())
                    await self._take(item)
                is_due = self._history.events >= COMMIT_EVENTS or time.monotonic() >= self._commit_at_s
                if is_due and (self._history.events or self._gaps):
                    await self._commit()
            if self._history.events or self._gaps:
                await self._commit(whole=True)
        finally:
            coming.cancel()
            await asyncio.wait([coming])

    async def _take(self, item: ReaderEvent) -> None:
        match item:
            case Chunk():
                self._fold(item)
            case Gap():
                await self._pass(item)
            case Interrupted():
                self._say(ConnectionResetError(f"reading the log is interrupted: {item.reason}"))
            case Resumed():
                self._log = item.stream
            case LogChanged():
                raise _AnotherLog(f"the log was {item.reason}")
            case _:
                self.lag = 0
                self.last_error = ""

    def _fold(self, chunk: Chunk) -> None:
        fleet, history = self._fleet, self._history
        batch = self._intake.batch(chunk)
        done = bisect_right(batch.seqs, history.seq)
        if done:  # this part is in the history already
            fleet.apply_many(*batch.cut(0, done))
        if done < len(batch.seqs):
            if not self.position.first_seq:
                self.position = msgspec.structs.replace(self.position, first_seq=batch.seqs[done])
            new = batch.cut(done, len(batch.seqs)) if done else batch
            derived = fleet.apply_many(*new)
            history.add(*new, derived=derived, passed_over=fleet.passed_over)
            self._time_ns = chunk.times_ns[-1]
        self.lag = chunk.pending

    async def _pass(self, gap: Gap) -> None:
        fleet, history = self._fleet, self._history
        if gap.reason == "trimmed":
            if fleet.seq:
                fleet = self._fleet = Fleet()
            client = await self.link.wait_connected()
            derived = await fold_lost_control_events(client, fleet, gap.last + 1)
            history.add([], [], [], [], derived=[one for one in derived if one.cause_seq > history.seq], passed_over={})
        else:
            for seq in range(gap.first, gap.last + 1):
                fleet.passed(seq, fleet.time_ms, "gap")
        if gap.last > history.seq:
            if history.seq:
                self._gaps.append((max(gap.first, history.seq + 1), gap.last, gap.reason))
                _log.warning("the history lacks events %d to %d, which the log has lost", *self._gaps[-1][:2])
            history.passed(gap.last)
            self._time_ns = 0


async def _check_log(client: Client, log: StreamAt, position: Position) -> None:
    """Raise `_AnotherLog` if the history is not of this log (Rule 7)."""
    if position.log_created and position.log_created != log.created_at:
        raise _AnotherLog(f"it is of the log created {position.log_created}, this one was created {log.created_at}")
    if position.seq > log.last_seq:
        raise _AnotherLog(
            f"it goes to {position.seq} and the log ends at {log.last_seq}: an older store was put in place"
        )
    if position.time_ns and position.seq >= log.first_seq:
        there = await JetStreamApi(client, timeout_s=REQUEST_S).message_at(LOG, position.seq)
        if there is not None and there.seq == position.seq and there.time_ns != position.time_ns:
            raise _AnotherLog(f"the log has another event at {position.seq}")


async def _state_before(client: Client, log: StreamAt, seq: int) -> tuple[Fleet, int]:
    """The newest stored state at or before a sequence, with the server's time of its last event; else an empty one."""
    for found in await list_snapshots(client) if seq else ():
        if found.info.seq <= seq and not await unfit(client, found.info, log):
            try:
                return await load(client, found), found.info.time_ns
            except (ValueError, msgspec.MsgspecError) as error:
                _log.info("snapshot at %d is not used: %s", found.info.seq, error)
    return Fleet(), 0
