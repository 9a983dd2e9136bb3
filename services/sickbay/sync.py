"""Sickbay for code without an event loop: threaded routers, seeders, cron jobs.

    import sickbay.sync

    sb = sickbay.sync.connect("nats://...", replica="router-1")
    with sb.attempt(target, limit_s=60) as attempt:        # raises Held if the target may not be called
        attempt.response(status, headers, body)
    left = sb.close()                                      # or at the interpreter's exit, by itself

The connection lives in one background thread. `decide`, `attempt` and `record` do not wait for that thread.
A forked child (gunicorn, multiprocessing) makes its own connection and its own boot when it is first used.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, overload

from sickbay_events import Decision, Target

from .loggers import logger
from .router import sync_calls
from .router.attempt import Attempt
from .router.calls import ChainCall
from .router.chain import NO_FALLBACK, CallOptions, CallResult, Usable
from .router.client import Sickbay
from .router.client import connect as connect_async
from .router.hooks import Hook
from .router.outbox import Reportable
from .router.reporter import CLOSE_LIMIT_S, Counts, Left, Reporter
from .router.sdk_shapes import holds_output
from .router.sync_calls import SyncStreamingAnswer

__all__ = ["SyncSickbay", "connect"]

_log = logger("sickbay.sync")

T = TypeVar("T")
F = TypeVar("F")

STOP_S: Final = 3.0
"""For closing the connection and ending the thread, beyond the limit for handing over."""


class _Side:
    """One process's own connection, with the thread and the loop it lives in."""

    def __init__(self, made: Sickbay) -> None:
        self.pid = os.getpid()
        self.sickbay = made
        self.loop: asyncio.AbstractEventLoop | None = asyncio.new_event_loop()
        # The loop resolves host names in a thread. It is started here, since none can be once the
        # interpreter ends, which a short script does before its connection stands.
        resolver = ThreadPoolExecutor(1, "sickbay-resolver")
        resolver.submit(bool)
        self.loop.set_default_executor(resolver)
        self._stop = asyncio.Event()
        self._begun = threading.Event()
        self._limit_s = 0.0
        self._left: Left | None = None
        # A daemon: the interpreter waits for other threads before it runs the hook at its exit.
        self._thread = threading.Thread(target=self._run, args=(self.loop,), name="sickbay", daemon=True)
        self._thread.start()
        self._begun.wait()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._live())
            for task in (tasks := asyncio.all_tasks(loop)):
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        except Exception:  # noqa: BLE001 - a router goes on without its connection
            _log.exception("the connection's thread ended")
        finally:
            self._begun.set()
            self.loop = None
            loop.close()

    async def _live(self) -> None:
        await self.sickbay.__aenter__()
        self._begun.set()
        await self._stop.wait()
        self._left = await self.sickbay.close(self._limit_s)

    def ready(self, timeout_s: float | None) -> bool:
        """Wait in the loop; False if the loop has ended or the time is over."""
        work = self.sickbay.ready(timeout_s)
        if (loop := self.loop) is None:
            work.close()
            return False
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(None if timeout_s is None else timeout_s + STOP_S)
        except (TimeoutError, CancelledError):
            future.cancel()
            return False

    def close(self, limit_s: float) -> Left:
        """Hand over what is there and end the thread; what is left."""
        self._limit_s = limit_s
        if (loop := self.loop) is not None:
            with suppress(RuntimeError):  # it ended by itself at this moment
                loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(limit_s + STOP_S)
        reporter = self.sickbay.reporter
        if self._left is None and isinstance(reporter, Reporter):
            return reporter.left()
        return self._left or Left({})


class SyncSickbay:
    """Made by `connect`. Everything may be used from any thread, and in a forked child."""

    def __init__(self, make: Callable[[], Sickbay], exit_limit_s: float) -> None:
        self._make, self._exit_limit_s = make, exit_limit_s
        self._lock = threading.Lock()
        self._closed = False
        self._side = _Side(make())
        _open.add(self)

    def decide(self, target: Target) -> Decision:
        """May the target be called now? No I/O, never raises."""
        return self._own().sickbay.decide(target)

    def attempt(self, target: Target, limit_s: float | None = 60.0, **options: Any) -> Attempt:
        """One attempt, to be entered with `with`; raises `Held` there if the target may not be called.

        The options are those of `Sickbay.attempt`.
        """
        return self._own().sickbay.attempt(target, limit_s, **options)

    def usable(self, targets: Sequence[Target]) -> Usable:
        """Those of the targets that may be called now, in their order; `.skipped` says why not the others."""
        return self._own().sickbay.usable(targets)

    @overload
    def call(
        self, targets: Sequence[Target], attempt_fn: Callable[[Target, Attempt], T], **options: Unpack[CallOptions]
    ) -> CallResult[T]: ...

    @overload
    def call(
        self,
        targets: Sequence[Target],
        attempt_fn: Callable[[Target, Attempt], T],
        *,
        fallback: F,
        **options: Unpack[CallOptions],
    ) -> CallResult[T | F]: ...

    def call(
        self,
        targets: Sequence[Target],
        attempt_fn: Callable[[Target, Attempt], T],
        *,
        fallback: Any = NO_FALLBACK,
        **options: Unpack[CallOptions],
    ) -> CallResult[Any]:
        """Call along the chain, as `Sickbay.call` does, in this thread.

        A thread cannot be cancelled, so `attempt_fn` has to give `attempt.limit_s` to its client as the timeout.
        """
        return sync_calls.call(self._own().sickbay.calls, targets, attempt_fn, fallback, **options)

    def stream(
        self,
        targets: Sequence[Target],
        stream_fn: Callable[[Target, Attempt], Iterable[T]],
        *,
        fallback: Any = NO_FALLBACK,
        is_content: Callable[[T], object] = holds_output,
        **options: Unpack[CallOptions],
    ) -> SyncStreamingAnswer[T]:
        """The chunks of the first candidate that begins to answer, as `Sickbay.stream` gives them; to be used with
        `with`. `stream_fn` is a generator."""
        call = ChainCall(self._own().sickbay.calls, targets, fallback, options)
        return SyncStreamingAnswer(call, stream_fn, is_content)

    def record(self, target: Target, event: Reportable) -> None:
        """Report what the caller judged itself. Never blocks, never raises; bad input is counted and logged."""
        self._own().sickbay.record(target, event)

    def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the cluster's holds are known; False if that took longer than `timeout_s` seconds."""
        return self._own().ready(timeout_s)

    @property
    def counts(self) -> Counts:
        """What became of all that was recorded by this process."""
        return self._own().sickbay.reporter.counts

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks of the connection of this process; those of `connect` come along into a forked child."""
        return self._own().sickbay.hooks

    @hooks.setter
    def hooks(self, hooks: tuple[Hook, ...]) -> None:
        self._own().sickbay.hooks = hooks

    @property
    def sickbay(self) -> Sickbay:
        """The connection of this process. Only what `Sickbay` allows in any thread may be used."""
        return self._own().sickbay

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> Left:
        """Hand over what was recorded within `limit_s` seconds and close; what is left. Never raises.

        Afterwards `decide` answers from what it knew, as `stale`, and `record` rejects.
        """
        _open.discard(self)
        with self._lock:
            closed, self._closed = self._closed, True
            side = self._side
        if closed or side.pid != os.getpid():
            return Left({})  # a child that never used it has nothing of its own to hand over
        return side.close(limit_s)

    def __enter__(self) -> Self:
        """The connection stands in the background already, or will."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, as `close()` does."""
        self.close()

    def _own(self) -> _Side:
        side = self._side
        return side if side.pid == os.getpid() else self._anew()

    def _anew(self) -> _Side:
        """In a forked child: make a connection of its own at the first use. The parent's is not touched: closing it
        here would take its socket from the parent's loop."""
        with self._lock:
            side = self._side
            if side.pid == os.getpid() or self._closed:
                return side
            _inherited.append(side)  # kept for ever, so that nothing of it is collected and closed
            try:
                self._side = _Side(self._make())
            except Exception:  # noqa: BLE001 - nothing on a router's request path raises
                _log.exception("no connection of its own for this child process; its outcomes are not recorded")
                self._closed = True
                _open.discard(self)
            return self._side

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may hold the old one for ever

    def _at_exit(self) -> None:
        if self._side.pid == os.getpid():
            self.close(self._exit_limit_s)


def connect(
    url: str | None = None, replica: str | None = None, *, exit_limit_s: float = CLOSE_LIMIT_S, **options: Any
) -> SyncSickbay:
    """A connection for code without an event loop; begins in the background and returns at once.

    exit_limit_s   how long the interpreter's exit may take to hand over what is left, if `close` was not called

    `url`, `replica`, the options and the exceptions are those of `sickbay.connect`. A server that is not there raises
    nothing.
    """
    return SyncSickbay(lambda: connect_async(url, replica, **options), exit_limit_s)


_open: Final[set[SyncSickbay]] = set()
_inherited: Final[list[_Side]] = []


def _close_all() -> None:
    for sickbay in list(_open):
        sickbay._at_exit()


def _after_fork_in_child() -> None:
    for sickbay in list(_open):
        sickbay._after_fork()


# atexit comes too late: by then the threads that resolve host names have been stopped, and a multiprocessing
# child does not run it at all. The hook that concurrent.futures itself uses (it is imported above, so that ours
# is called first) comes in time; it is private, hence the default.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
