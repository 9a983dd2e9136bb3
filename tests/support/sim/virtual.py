"""Virtual time: an event loop whose clock moves only by what is scheduled, nodes with clocks of their own, and the
product's modules bound to both.

A node is one machine or process. Everything that runs for it carries it in its context, so a node can be paused (what
should run waits) and killed (it never runs) between any two of its steps; a step is what runs between two awaits.
Within a node the order of steps is asyncio's; between nodes it comes from the network's delays,
which come from the seed.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import heapq
import inspect
import os
import random
import secrets
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, TypeVar

T = TypeVar("T")
BEGAN_S = 1_796_000_000.0
"""Wall time at which every history begins, seconds since the epoch."""
STEPS_MAX = 5_000_000
"""More steps than any history takes: one that goes on without time passing is stopped."""

NODE: contextvars.ContextVar[Node | None] = contextvars.ContextVar("node", default=None)


class Stuck(AssertionError):
    """Nothing is scheduled any more, or nothing but what is scheduled for this moment."""


class Node:
    """One machine or process. `wall_s` and `monotonic_s` are what its clocks are ahead of the loop's."""

    def __init__(self, name: str, loop: VirtualLoop, *, wall_s: float = 0.0, monotonic_s: float = 0.0) -> None:
        self.name, self.loop = name, loop
        self.wall_s, self.monotonic_s = wall_s, monotonic_s
        self.is_paused = self.is_dead = False
        self.steps = 0
        self.die_at: int | None = None
        """The node is killed before this step."""
        self.die_if: Callable[[], bool] | None = None
        """The node is killed before the first step at which this holds."""
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.on_death: Callable[[], None] = lambda: None
        self._stalled: deque[asyncio.Handle] = deque()
        self._corpses: list[object] = []
        loop.nodes.append(self)
        self.context = contextvars.Context()
        self.context.run(NODE.set, self)

    def start(self, work: Any, name: str = "") -> asyncio.Task[Any]:
        """Begin a task on this node."""
        return self.loop.create_task(work, name=f"{self.name} {name}", context=self.context)

    def ask(self, function: Callable[[], T]) -> T:
        """What something on this node says, by the node's own clocks."""
        return self.context.run(function)

    def kill(self) -> None:
        """Nothing of this node runs from here on, no `finally` either: SIGKILL."""
        if not self.is_dead:
            # Nobody refers to its tasks any more; they are ended in order when the history is over.
            self._corpses = list(asyncio.all_tasks(self.loop))
            self.is_dead = True
            self.on_death()

    def pause(self) -> None:
        """Nothing runs until `resume`: SIGSTOP."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on with all that should have run meanwhile."""
        self.is_paused = False
        self.loop.revive(self._stalled)

    def stall(self, handle: asyncio.Handle) -> None:
        """Keep what would run now."""
        self._stalled.append(handle)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without files, threads and real time."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ending = False
        self.nodes: list[Node] = []
        self._now_s = 0.0
        self._steps = self.lived_steps = 0
        self.unexpected: list[str] = []
        self.set_exception_handler(self._unexpected)

    def time(self) -> float:
        return self._now_s

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """A task that its node knows, so that one sees where each stood when the node died."""
        context = options.get("context")
        node = context.get(NODE) if context is not None else NODE.get()
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        if node is not None:
            node.tasks.add(task)
        return task

    def revive(self, handles: deque[asyncio.Handle]) -> None:
        """Let what a paused node has kept run next."""
        self._ready.extend(handles)  # type: ignore[attr-defined]
        handles.clear()

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Without threads: at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _unexpected(self, loop: Any, context: dict[str, Any]) -> None:
        if not self.is_ending:
            self.unexpected.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if not ready:
            while scheduled and scheduled[0]._cancelled:
                heapq.heappop(scheduled)
            if not scheduled:
                raise Stuck("nothing is scheduled any more")
            self._now_s = max(self._now_s, scheduled[0].when())
        while scheduled and scheduled[0].when() <= self._now_s:
            ready.append(heapq.heappop(scheduled))
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            self._steps += 1
            node = handle._context.get(NODE)  # type: ignore[attr-defined]
            if node is not None and not self.is_ending and not self._may_run(node, handle):
                continue
            handle._run()
        if self._steps > STEPS_MAX:
            raise Stuck(f"{STEPS_MAX} steps and no end, at {self._now_s} s")

    def _may_run(self, node: Node, handle: asyncio.Handle) -> bool:
        if node.is_dead or node.is_paused:
            node.stall(handle)
            return False
        node.steps += 1
        if (node.die_at is not None and node.steps >= node.die_at) or (node.die_if is not None and node.die_if()):
            node.kill()
            node.stall(handle)
            return False
        return True

    def end(self) -> None:
        """End all tasks, those of dead nodes too, and close."""
        self.is_ending = True
        self.lived_steps = self._steps  # tasks are ended in no order
        for node in self.nodes:
            node.resume()
        for _ in range(20):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.run_until_complete(asyncio.wait(tasks, timeout=10))
        self.close()


# The product's modules, bound to the virtual clocks and to the seed.


class _Bound:
    """What the modules' `time`, `random`, `os` and `secrets` are during a history."""

    loop: VirtualLoop | None = None
    random = random.Random()


def monotonic() -> float:
    """The monotonic clock of the node that asks."""
    assert _Bound.loop is not None
    node = NODE.get()
    return _Bound.loop.time() + (node.monotonic_s if node is not None else 0.0)


def wall() -> float:
    """The wall clock of the node that asks."""
    assert _Bound.loop is not None
    node = NODE.get()
    return BEGAN_S + _Bound.loop.time() + (node.wall_s if node is not None else 0.0)


def _token_hex(count: int) -> str:
    return _Bound.random.randbytes(count).hex()


def _urandom(count: int) -> bytes:
    return _Bound.random.randbytes(count)


def _uniform(low: float, high: float) -> float:
    return _Bound.random.uniform(low, high)


_SHIMS: dict[str, Any] = {
    "time": SimpleNamespace(monotonic=monotonic, time=wall),
    "secrets": SimpleNamespace(token_hex=_token_hex),
    "random": SimpleNamespace(uniform=_uniform),
    "os": SimpleNamespace(urandom=_urandom),
}
_OS_BOUND = ("sickbay.router.reporter", "sickbay.router.trials")
_CLOCKS: dict[Any, Any] = {time.monotonic: monotonic, time.time: wall}
PRODUCT = ("sickbay", "sickbay_events", "sickbay_projections", "nats")
"""Packages whose code may ask no real clock and no real source of chance during a history."""
_REAL: tuple[tuple[ModuleType, str], ...] = (
    *(
        (time, f"{name}{unit}")
        for name in ("time", "monotonic", "perf_counter", "process_time")
        for unit in ("", "_ns")
    ),
    *(
        (random, name)
        for name in ("random", "uniform", "randint", "randrange", "choice", "choices", "sample", "shuffle")
    ),
    *((random, name) for name in ("getrandbits", "randbytes", "expovariate", "gauss", "triangular")),
    *((secrets, name) for name in ("token_hex", "token_bytes", "token_urlsafe", "randbelow", "randbits", "choice")),
    (os, "urandom"),
)
"""What a module that is not bound would ask. A clock it took as a default is found by `test_histories`."""


def _is_bound(name: str) -> bool:
    return name.startswith("sickbay.") and not f"{name}.".startswith("sickbay.cli.")


@functools.cache
def _places() -> list[tuple[ModuleType, str]]:
    """Where the product's modules name a clock or a source of chance."""
    return [
        (module, word)
        for name, module in sorted(sys.modules.items())
        if _is_bound(name)
        for word in _SHIMS
        if isinstance(getattr(module, word, None), ModuleType) and (word != "os" or name in _OS_BOUND)
    ]


def _functions(name: str, module: ModuleType) -> Iterator[FunctionType]:
    """Functions and methods that a module defines."""
    owners = [module, *[c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == name]]
    for owner in owners:
        for found in vars(owner).values():
            if inspect.isfunction(found) and found.__module__ == name:
                yield found


@functools.cache
def _with_clocks() -> list[FunctionType]:
    """The product's functions that have a clock among their defaults."""
    return [
        function
        for name, module in sorted(sys.modules.items())
        if _is_bound(name)
        for function in _functions(name, module)
        if any(value in _CLOCKS for value in _defaults_of(function))
    ]


def _defaults_of(function: FunctionType) -> list[Any]:
    found = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [value for value in found if callable(value)]


def _guarded(name: str, real: Callable[..., Any], says: list[str]) -> Callable[..., Any]:
    """The real function; that the product asked it goes into `says`."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        module = str(caller.f_globals.get("__name__"))
        if module.partition(".")[0] in PRODUCT:
            says.append(f"{module}, line {caller.f_lineno}, asks the real {name}")
        return real(*args, **kwargs)

    return guarded


@contextmanager
def bound(loop: VirtualLoop, seed: int) -> Iterator[None]:
    """The product's modules see this loop's time and this seed's chance, and nothing else: where one asks the real
    world all the same, the loop's `unexpected` says so, and the history does not hold."""
    before: list[tuple[Any, str, Any]] = [(module, word, getattr(module, word)) for module, word in _places()]
    for function in _with_clocks():
        before += [(function, name, getattr(function, name)) for name in ("__defaults__", "__kwdefaults__")]
    before += [(module, name, getattr(module, name)) for module, name in _REAL]
    _Bound.loop, _Bound.random = loop, random.Random(seed)
    for module, word in _places():
        setattr(module, word, _SHIMS[word])
    for function in _with_clocks():
        function.__defaults__ = tuple(map(_virtual, function.__defaults__)) if function.__defaults__ else None
        named = function.__kwdefaults__
        function.__kwdefaults__ = {key: _virtual(value) for key, value in named.items()} if named else None
    for module, name in _REAL:
        setattr(module, name, _guarded(f"{module.__name__}.{name}", getattr(module, name), loop.unexpected))
    try:
        yield
    finally:
        for place, word, value in before:
            setattr(place, word, value)
        _Bound.loop = None


def _virtual(value: Any) -> Any:
    """The virtual clock in the place of a real one; anything else as it is."""
    return _CLOCKS.get(value, value) if callable(value) else value
