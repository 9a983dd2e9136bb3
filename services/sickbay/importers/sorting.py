"""Sorting more lines than memory holds: runs of up to 200,000 lines on the disk, merged at the end."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO, Final, NamedTuple

RUN_LINES: Final = 200_000
"""Lines held in memory; about 100 MB of ordinary events."""


class Line(NamedTuple):
    """What is sorted: by time, then by the order in which lines were added."""

    time_ms: int
    number: int
    subject: bytes
    payload: bytes


class Sorter:
    """Takes lines in any order and gives them by time. A context: its files are gone at its end."""

    def __init__(self, run_lines: int = RUN_LINES) -> None:
        self._run: list[Line] = []
        self._runs: list[IO[bytes]] = []
        self._run_lines, self._added = run_lines, 0
        self._files = ExitStack()

    def __enter__(self) -> Sorter:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def add(self, time_ms: int, subject: str, payload: bytes) -> None:
        """One line; neither subject nor payload holds a tab or a line break. Raises OSError."""
        self._added += 1
        self._run.append(Line(time_ms, self._added, subject.encode(), payload))
        if len(self._run) >= self._run_lines:
            self._spill()

    def sorted(self) -> Iterator[Line]:
        """All lines, in order."""
        self._run.sort()
        return heapq.merge(*[_read(run) for run in self._runs], self._run)

    def _spill(self) -> None:
        self._run.sort()
        # Closed, and with that gone, at the end of the context.
        file = self._files.enter_context(tempfile.TemporaryFile(prefix="sickbay-import-"))  # noqa: SIM115
        for line in self._run:
            file.write(b"%d\t%d\t%s\t%s\n" % line)
        file.seek(0)
        self._runs.append(file)
        self._run = []


def _read(run: IO[bytes]) -> Iterator[Line]:
    for text in run:
        time_ms, number, subject, payload = text.rstrip(b"\n").split(b"\t", 3)
        yield Line(int(time_ms), int(number), subject, payload)
