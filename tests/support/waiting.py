"""Waiting in tests for what another task or process brings about.

A bound in a test only keeps it from hanging: how quick the product is, bench/ measures. So each bound is widened by
how slow this machine is found to be, and a test that passes on an idle machine passes on a busy one.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, overload

import nats.errors

from sickbay.bus.connect import BusError

T = TypeVar("T")
LIMIT_S: Final = 20.0
"""How long a test waits on an idle machine before it fails."""
STEP_S: Final = 0.005
LOOP_TURNS: Final = 200_000
LOOP_S: Final = 0.02
"""What the loop below takes on an idle machine of the usual speed, generously."""
NOT_YET: Final = (BusError, nats.errors.Error, OSError)
"""A server that is away has not answered yet."""


@functools.cache
def _slower_than_usual() -> float:
    """How many times as long as usual this machine takes for a plain loop; measured once per process."""
    began_s = time.perf_counter()
    for _ in range(LOOP_TURNS):
        pass
    return max(1.0, (time.perf_counter() - began_s) / LOOP_S)


def patience(seconds: float) -> float:
    """That many seconds of an idle machine, in seconds of this one: widened by its speed and its load of now.
    The environment variable TEST_PATIENCE, a number, replaces the measured factor."""
    if given := os.environ.get("TEST_PATIENCE"):
        return seconds * float(given)
    return seconds * _slower_than_usual() * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@overload
async def until(condition: Callable[[], Awaitable[T | None]], what: str = "", within_s: float = LIMIT_S) -> T: ...
@overload
async def until(condition: Callable[[], T | None], what: str = "", within_s: float = LIMIT_S) -> T: ...
async def until(condition: Callable[[], Any], what: str = "", within_s: float = LIMIT_S) -> Any:
    """The first truthy answer of `condition`, which may be a coroutine function; fails with `what` at the limit."""
    began_s, last = time.monotonic(), None
    while True:
        try:
            last = condition()
            if inspect.isawaitable(last):
                last = await last
        except NOT_YET as error:
            last = error
        else:
            if last:
                return last
        _check(began_s, within_s, what or condition, last)
        await asyncio.sleep(STEP_S)


def until_sync(condition: Callable[[], T | None], what: str = "", within_s: float = LIMIT_S) -> T:
    """As `until`, outside an event loop."""
    began_s: float = time.monotonic()
    last: object = None
    while True:
        try:
            if last := condition():
                return last
        except NOT_YET as error:
            last = error
        _check(began_s, within_s, what or condition, last)
        time.sleep(STEP_S)


def _check(began_s: float, within_s: float, what: object, last: object) -> None:
    assert time.monotonic() - began_s < patience(within_s), f"not within {within_s} s: {what}; last: {last!r}"
