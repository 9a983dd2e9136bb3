"""What commands share that run until they are told to end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Final

from ..loggers import LOG_FORM, harmless_record
from .demo.pipes import lines_of_stdin

COLLECT_AFTER: Final = 100_000
"""New objects that can be in a cycle, for a look at the youngest; the default of 700 is reached with every chunk."""


def log_to_stderr(level: str) -> None:
    """The services' own log: every line of it is harmless, also those of the libraries beneath."""
    logging.basicConfig(level=level, format=LOG_FORM, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(harmless_record)


def collect_seldom() -> None:
    """From here on the collector leaves alone what is there, and looks at what is new more rarely.

    A fold keeps several objects for each target and makes no cycles of them; a look at all of those of 10,000
    targets stops the process for about 60 ms, in which no hold gets out.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


@contextlib.contextmanager
def loop_runner() -> Iterator[asyncio.Runner]:
    """A runner on the fastest loop there is."""
    factory = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


def ended_by_signal() -> asyncio.Event:
    """Set by SIGTERM or SIGINT; a second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def on_signal(number: int) -> None:
        if ended.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return ended


async def stdin_closes(ended: asyncio.Event) -> None:
    """Set it when standard input ends: the parent is gone."""
    async for _ in lines_of_stdin():
        pass
    ended.set()
