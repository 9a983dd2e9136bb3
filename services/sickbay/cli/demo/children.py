"""The demonstration's child processes: started, spoken to, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ..base import SaysNo

END_S: Final = 8.0
"""How long a child may take to end by itself once its input is closed; the services hand over and stop NATS."""
ANSWER_S: Final = 20.0

Heard = Callable[["Child", dict[str, Any]], None]


class Child:
    """One process. Its JSON lines go to `heard`; lines that are none are kept in `said`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, heard: Heard) -> None:
        self.name, self.process, self.said = name, process, list[str]()
        self._heard = heard
        self._news = asyncio.Condition()
        self._facts: list[dict[str, Any]] = []
        self._reading = asyncio.create_task(self._read(), name=f"read {name}")

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            async with self._news:
                try:
                    fact = json.loads(line)
                except ValueError:
                    self.said.append(line.decode("utf-8", "replace").rstrip())
                else:
                    self._facts.append(fact)
                    self._heard(self, fact)
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    async def fact(self, key: str) -> Any:
        """The first fact of this key, as soon as it is said. Raises `SaysNo` if the child ends or is silent."""
        return await self._wait(lambda: next((fact[key] for fact in self._facts if key in fact), None), key)

    async def words(self, text: str) -> str:
        """The first line that holds this text."""
        found: str = await self._wait(lambda: next((line for line in self.said if text in line), None), text)
        return found

    async def _wait(self, find: Callable[[], Any], what: str) -> Any:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S), self._news:
                while (found := find()) is None and not self._reading.done():
                    await self._news.wait()
                if found is not None:
                    return found
        raise SaysNo(f"the demonstration's process {self.name} did not say {what!r}: {' '.join(self.said[-3:])}")

    async def tell(self, line: str) -> None:
        """Send one line and wait until it is done."""
        assert self.process.stdin is not None
        before = len(self._facts)
        self.process.stdin.write(line.encode() + b"\n")

        def done() -> dict[str, Any] | None:
            return next((fact for fact in self._facts[before:] if line in (fact.get("done"), fact.get("line"))), None)

        await self._wait(done, line)

    def let_go(self) -> None:
        """Close its input: it ends by itself."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    async def gone(self) -> None:
        """Wait for its end; past the limit it is killed."""
        try:
            await asyncio.wait_for(self.process.wait(), END_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        self._reading.cancel()


class Children:
    """All children of one demonstration, as a context: whatever ends it, they are gone after it.

    Should this process be killed, the kernel closes their inputs, and they end by themselves.
    """

    def __init__(self, folder: Path, heard: Heard) -> None:
        self._folder, self._heard = folder, heard
        self._all: list[Child] = []

    async def start(self, name: str, *arguments: str, **environment: str) -> Child:
        """Start a Python module as a child; what it writes to its standard error goes to a file."""
        with (self._folder / f"{name}.err").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C at the terminal is for the demonstration, which ends them in order
            )
        child = Child(name, process, self._heard)
        self._all.append(child)
        return child

    async def __aenter__(self) -> Children:
        return self

    async def __aexit__(self, *_: object) -> None:
        # The services are first in the list and go last, so that the others can still hand over what they have.
        for child in reversed(self._all[1:]):
            child.let_go()
        await asyncio.gather(*(child.gone() for child in self._all[1:]))
        for child in self._all[:1]:
            child.let_go()
            await child.gone()
