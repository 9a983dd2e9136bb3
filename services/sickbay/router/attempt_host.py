"""Where an attempt asks and reports, and what is known of it beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from sickbay_events import CallAnswered, CallOutcome, Decision, Skipped, Target

from .trials import Trial


class AttemptHost(Protocol):
    """Where an attempt asks and reports: a `Sickbay`."""

    def decide(self, target: Target) -> Decision:
        """May the target be called now?"""
        ...

    def seen(self) -> tuple[int, int]:
        """The largest log sequence known, and the overlay's own counter, when a call starts."""
        ...

    async def acquire(self, target: Target, decision: Decision, limit_s: float | None) -> Trial | None:
        """The leases of the trial that the decision asks for; None if none is needed by now. Raises `Held`."""
        ...

    def acquire_blocking(self, target: Target, decision: Decision, limit_s: float | None) -> Trial | None:
        """The same without awaiting. Raises `Held`."""
        ...

    def answered(self, target: Target, event: CallAnswered, own_seen: int, trial: Trial) -> None:
        """The first content of a streaming trial came."""
        ...

    def finish(self, target: Target, outcome: CallOutcome, own_seen: int, trial: Trial | None) -> None:
        """Report a finished attempt."""
        ...

    def drop(self, trial: Trial) -> None:
        """The attempt called nobody, so nothing is reported: give back its leases."""
        ...

    def later(self, function: Callable[[], None]) -> None:
        """Call it soon, where no lock of a connection is held. Never raises."""
        ...

    def tell_hooks(self, event: str, *arguments: object) -> None:
        """Call the method `event` of every `Hook`. Never raises an `Exception`."""
        ...

    @property
    def impatience_s(self) -> float:
        """A call cancelled without first content after this long was too slow (Rule 3)."""
        ...

    @property
    def keeps_detail(self) -> bool:
        """Whether the provider's error text may be kept, redacted."""
        ...


class AttemptOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an attempt beforehand; `Sickbay.attempt` says what each field means."""

    limit_s: float | None = 60.0
    route: str | None = None
    rank: int = 0
    prompt_ascii: bool | None = None
    client_capped: bool | None = None
    stream: bool = False
    request_hash: str | None = None
    skipped: list[Skipped] | None = None
    forced: bool = False
    """The call is made although its target is held."""
    keep_text: bool = False
    """`error_text` is wanted, whether or not it may be reported."""
