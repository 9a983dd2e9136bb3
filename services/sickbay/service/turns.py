"""Whose question is next: each asker in turn, and nobody's that has waited longer than anybody waits for an answer.

Without this a router that asks a thousand times in a second, and goes away, keeps all others waiting for minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, NamedTuple, TypeVar

from ..loggers import logger
from ..throttled import Throttled

_log = logger("sickbay.rpc")
T = TypeVar("T")

ASKER_MAX: Final = 64
"""Questions of one asker that wait at a time."""
ASKERS_MAX: Final = 1_000
SAY_EVERY_S: Final = 30.0
STALE_S: Final = 5.0
"""A question that waited longer is dropped: whoever asked has given up."""


class _Waiting(NamedTuple, Generic[T]):
    question: T
    since_s: float


def asker_of(reply: str) -> str:
    """Who waits at a reply subject: a client's inboxes have all but their last token in common."""
    asker, _, _ = reply.rpartition(".")
    return asker if "." in asker else reply


class Turns(Generic[T]):
    """One worker and the questions that wait for it. `dropped` counts those that got no answer."""

    def __init__(self, answer: Callable[[T], Awaitable[None]], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.dropped = 0
        self._answer, self._clock = answer, clock
        self._by_asker: dict[str, deque[_Waiting[T]]] = {}
        self._comes = asyncio.Event()
        self._lines = Throttled(SAY_EVERY_S)

    def add(self, asker: str, question: T) -> None:
        """Take a question, or drop it where its asker has too many that wait."""
        waiting = self._by_asker.get(asker)
        if waiting is None:
            if len(self._by_asker) >= ASKERS_MAX:
                self._drop("too many askers")
                return
            waiting = self._by_asker[asker] = deque()
        if len(waiting) >= ASKER_MAX:
            self._drop(f"{ASKER_MAX} of {asker!r} wait already")
            return
        waiting.append(_Waiting(question, self._clock()))
        self._comes.set()

    async def run(self) -> None:
        """Answer until cancelled."""
        while True:
            await self._comes.wait()
            self._comes.clear()
            while (question := self._next()) is not None:
                await self._answer(question)
                await asyncio.sleep(0)  # what else comes in meanwhile has its turn

    def _next(self) -> T | None:
        while self._by_asker:
            asker = next(iter(self._by_asker))
            waiting = self._by_asker.pop(asker)
            found = waiting.popleft()
            if waiting:
                self._by_asker[asker] = waiting  # behind all others
            if self._clock() - found.since_s < STALE_S:
                return found.question
            self._drop(f"{asker!r} waited {STALE_S:.0f} s")
        return None

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if count := self._lines.due():
            _log.warning("questions get no answer: %s (%d since the last line)", why, count)
