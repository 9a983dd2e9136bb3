"""Calls that wait for a held target are woken by its changes; they do not poll (Rule 5.4)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from sickbay_events import NameRefused, Target


class HoldWaiters:
    """The waiting calls, by the scope keys that they wait for. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[frozenset[str], Callable[[], None]]] = {}
        self._next = 0

    def changed(self, key: str) -> None:
        """Something of this scope changed."""
        if self._waiting:
            self._wake(key)

    def wake_all(self) -> None:
        """Time itself moved (`sickbay.testing`)."""
        self._wake(None)

    def _wake(self, key: str | None) -> None:
        with self._lock:
            wakes = [wake for keys, wake in self._waiting.values() if key is None or key in keys]
        for wake in wakes:
            with suppress(RuntimeError):  # the loop of a waiting call is closed
                wake()

    @contextmanager
    def waiting(self, targets: Iterable[Target], wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake`, in whichever thread, at each change of the targets' scopes."""
        keys: set[str] = set()
        for target in targets:
            with suppress(NameRefused):  # nothing can be held under such a name
                keys.update(() if target.is_empty else target.keys)
        with self._lock:
            self._next += 1
            me = self._next
            self._waiting[me] = frozenset(keys), wake
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[me]


class Wakeup:
    """An event of one event loop that any thread may set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def ring(self) -> None:
        """End the present `wait`, or the next one."""
        self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, limit_s: float) -> None:
        """Wait at most `limit_s` seconds for a ring; one since the last wait counts too."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._event.wait()
        self._event.clear()
