"""Hooks: how OpenTelemetry, metrics and tests follow what a connection does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from sickbay_events import Decision, Target

from ..loggers import logger
from .attempt import Attempt

_log = logger("sickbay.hooks")


class Hook:
    """Follows a connection: `sickbay.connect(hooks=[...])`. Override what you need; each method here does nothing.

    Methods are called on the request path, in the caller's thread or task, so they must not block. What they raise is
    logged once and changes nothing.
    """

    def decided(self, target: Target, decision: Decision, took_s: float) -> None:
        """`decide` answered: the caller's own question, one of `usable`, or the one that entering an attempt asks."""

    def entering(self, attempt: Attempt) -> None:
        """An attempt is about to be entered; its decision follows."""

    def not_entered(self, attempt: Attempt, error: BaseException) -> None:
        """The attempt was not entered: `error` is `Held`, or what ended the wait for a trial's lease."""

    def first_content(self, attempt: Attempt) -> None:
        """The first content of a stream came."""

    def left(self, attempt: Attempt) -> None:
        """The attempt is over: `attempt.outcome` says what came of it, `attempt.decision` what was decided before."""


class Hooked(Protocol):
    """A connection whose hooks may be changed while it runs."""

    hooks: tuple[Hook, ...]


def notify(hooks: Sequence[Hook], event: str, *arguments: object) -> None:
    """Call the method `event` of every hook. Never raises an `Exception`."""
    for hook in hooks:
        try:
            getattr(hook, event)(*arguments)
        except Exception as error:  # noqa: BLE001 - nothing on a router's request path raises
            _log_once(type(hook).__name__, f"{type(error).__name__}: {error}")


@lru_cache(maxsize=32)
def _log_once(hook: str, what: str) -> None:
    _log.warning("a hook failed (logged once), %s: %s", hook, what)
