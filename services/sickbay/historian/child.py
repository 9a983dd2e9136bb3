"""The historian as a process beside the services: what it reads and writes never keeps the fold waiting.

The child ends when its standard input does, which the kernel sees to when its parent is gone. What it needs to know
stands in its environment, where no other user reads it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from typing import Any, Final

import msgspec

from ..config import PREFIX, Settings
from ..loggers import logger

_log = logger("sickbay.services")

RETRY_MIN_S: Final = 0.5
RETRY_MAX_S: Final = 60.0
CALM_S: Final = 60.0
"""A child that lived so long is started again at once."""
END_S: Final = 5.0


class HistorianChild:
    """Keeps one historian running. `url` is where NATS is."""

    def __init__(self, settings: Settings, url: str) -> None:
        self._environment = child_environment(settings, url)
        self._path = settings.history_path
        self._process: asyncio.subprocess.Process | None = None
        self._restarts = 0

    async def run(self) -> None:
        """Start it, and start it again whenever it ends, until cancelled."""
        retry_s = RETRY_MIN_S
        try:
            while True:
                began_s = asyncio.get_running_loop().time()
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "sickbay", "historian", "--until-stdin-closes"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    env=self._environment,
                )
                code = await self._process.wait()
                if asyncio.get_running_loop().time() - began_s >= CALM_S:
                    retry_s = RETRY_MIN_S
                _log.warning("the historian ended with code %d; it is started again in %.1f s", code, retry_s)
                await asyncio.sleep(retry_s)
                self._restarts += 1
                retry_s = min(2 * retry_s, RETRY_MAX_S)
        finally:
            await self._end()

    def facts(self) -> dict[str, Any]:
        """How it is doing, for /healthz."""
        process = self._process
        running = process is not None and process.returncode is None
        return {"file": str(self._path), "running": running, "restarts": self._restarts}

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def child_environment(settings: Settings, url: str) -> dict[str, str]:
    """The settings as a child's environment."""
    found = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    for field in msgspec.structs.fields(Settings):
        value = getattr(settings, field.name)
        if value != field.default:
            found[PREFIX + field.name.upper()] = str(int(value)) if isinstance(value, bool) else str(value)
    return found | {f"{PREFIX}NATS": url, f"{PREFIX}HISTORY": str(settings.history_path or "off")}
