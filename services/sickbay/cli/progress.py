"""A bar with rate and time left for what takes a while: on a terminal only, and on stderr."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from .base import error_console
from .running import COLLECT_AFTER

Advanced: TypeAlias = Callable[..., None]
"""Called with what is done so far, and with how far that is of the total where these are counted otherwise."""


class _Rate(ProgressColumn):
    """Events a second since the beginning."""

    def render(self, task: Task) -> Text:
        """The cell."""
        elapsed_s = task.elapsed or 0.0
        return Text(f"{task.fields['events'] / elapsed_s:,.0f} events/s" if elapsed_s > 0 else "")


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """What a fold makes has no cycles: looking for them all the time costs a replay some percent, and finds nothing."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Advanced | None]:
    """Yields what is to be told how far it is: `(events)`, or `(events, position)` where `total` counts otherwise.

    None where nobody looks. Without a total there is a rate and no time left.
    """
    console = error_console()
    if not console.is_terminal:
        with _seldom_collected():
            yield None
        return
    columns: list[ProgressColumn] = [TextColumn("{task.description}")]
    columns += [SpinnerColumn()] if total is None else [BarColumn()]
    columns += [_Rate(), TimeElapsedColumn() if total is None else TimeRemainingColumn()]
    with _seldom_collected(), Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(what, total=total, events=0)

        def advanced(events: int, position: int | None = None) -> None:
            shown.update(task, completed=events if position is None else position, events=events)

        yield advanced
