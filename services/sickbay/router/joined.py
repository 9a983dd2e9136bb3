"""Attempts that are open around the running code: a call to the same target inside one of them is that attempt.

A context variable says which ones they are. So it holds in awaited code, in tasks that are made inside, and in threads
of `asyncio.to_thread`; a thread of the caller's own joins with `contextvars.copy_context().run`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol

from sickbay_events import Target
from sickbay_events.names import at_machine


class Joinable(Protocol):
    """What an `Attempt` is here."""

    target: Target
    is_open: bool

    def is_open_at(self, host: Any) -> bool:
        """Whether it is open, of that connection, and not itself part of another."""
        ...


_around: Final[ContextVar[tuple[Joinable, ...]]] = ContextVar("sickbay_attempts", default=())


def open_attempt(host: object, target: Target) -> Any:
    """The innermost open attempt of the same target at the same connection; None if there is none.

    A target without an alias is that of any alias: who makes the request seldom knows which credential it carries.
    """
    for attempt in reversed(_around.get()):
        if attempt.is_open_at(host) and _is_same(attempt.target, target):
            return attempt
    return None


def bind(attempt: Joinable) -> None:
    """Calls from here on, in this context, are inside the attempt."""
    _around.set((*(one for one in _around.get() if one.is_open and one is not attempt), attempt))


def unbind(attempt: Joinable) -> None:
    """Calls from here on, in this context, are not inside the attempt."""
    around = _around.get()
    if attempt in around:
        _around.set(tuple(one for one in around if one is not attempt))


@contextmanager
def bound(attempt: Joinable) -> Iterator[None]:
    """Only what runs inside is inside the attempt."""
    bind(attempt)
    try:
        yield
    finally:
        unbind(attempt)


def _is_same(outer: Target, inner: Target) -> bool:
    if outer == inner:
        return True
    try:
        if outer.model != inner.model:
            return False
        one, other = at_machine(outer.provider, ""), at_machine(inner.provider, "")
    except (AttributeError, TypeError):  # not a target
        return False
    return one == other or ("#" not in other and one.partition("#")[0] == other)
