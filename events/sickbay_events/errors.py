"""What can be wrong with data on its way in. One base; each class carries its facts as attributes."""

from __future__ import annotations

from typing import Literal, TypeAlias

PoisonReason: TypeAlias = Literal["type", "kind", "version", "body", "subject", "duration", "override", "policy"]


class EventError(ValueError):
    """Base of every error this package raises."""


class NameRefused(EventError):
    """A provider, model, alias or replica name that cannot be used.

    Attributes: `field` (which name), `value`, `accepted` (the accepted form in words).
    """

    def __init__(self, field: str, value: str, accepted: str) -> None:
        self.field, self.value, self.accepted = field, value, accepted
        super().__init__(f"{field} {value[:80]!r} is not usable: {accepted}")


class TokenRefused(EventError):
    """A subject token or key part that no name has as its canonical spelling.

    Attributes: `token`, `why`.
    """

    def __init__(self, token: str, why: str) -> None:
        self.token, self.why = token, why
        super().__init__(f"token {token[:80]!r} is not a name's token: {why}")


class Poison(EventError):
    """A message in the log that is no event this version can read; it is noted and passed (Rule 2).

    Attributes: `reason` (a short code, the last token of the dead letter's subject), `why`.
    """

    def __init__(self, reason: PoisonReason, why: str) -> None:
        self.reason: PoisonReason = reason
        self.why = why
        super().__init__(f"{reason}: {why}")


class PolicyRefused(EventError):
    """A policy value that is not accepted; the whole policy is refused with it.

    Attributes: `key` (dotted path in the file), `value`, `accepted` (the accepted form in words).
    """

    def __init__(self, key: str, value: object, accepted: str) -> None:
        self.key, self.value, self.accepted = key, value, accepted
        super().__init__(f"policy key {key}: {value!r} is not accepted; accepted is {accepted}")
