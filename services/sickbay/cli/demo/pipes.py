"""How the demonstration talks with its children: lines to their standard input, JSON lines from their output.

A child reads its standard input to the end and then ends itself. The kernel closes that pipe when the parent is
gone, even by SIGKILL, so no child outlives the demonstration on any system.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import AsyncIterator


def say(**facts: object) -> None:
    """One line for the parent; without a parent there is nothing left to do."""
    try:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)


async def lines_of_stdin() -> AsyncIterator[str]:
    """The parent's lines, until it closes the pipe or is gone."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        # A thread of its own: it may block, and as a daemon it keeps no process alive. It reads the bare file,
        # since Python's buffered one cannot be closed at the end while a thread waits in it.
        rest = b""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            while block := os.read(0, 65_536):
                *whole, rest = (rest + block).split(b"\n")
                for line in whole:
                    loop.call_soon_threadsafe(queue.put_nowait, line.decode().strip())
            loop.call_soon_threadsafe(queue.put_nowait, None)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while (line := await queue.get()) is not None:
        yield line
