"""An event loop whose time jumps to the next timer when nothing else is to do: limits by the number, no waiting."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sickbay.router.calls import Calls
from sickbay.testing import Standalone, standalone

T = TypeVar("T")


class JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("the loop would wait for ever")
        if not ready and timeout:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s


def virtual(test: Callable[[Standalone, Callable[[], float]], Coroutine[Any, Any, T]]) -> T:
    """Run a test with a gate whose chains go by the loop's time; it is given the gate and that clock."""
    loop = VirtualLoop()
    try:
        sb = standalone()
        sb.calls = Calls(sb, sb._call_log, sb._chain_check, monotonic=loop.time)
        return loop.run_until_complete(test(sb, loop.time))
    finally:
        loop.close()
