"""Output events: what the folds concluded. Never input (Rule 2).

Each carries old and new, the numbers that caused it, whether it was enforced, and the sequence of the
event that caused it. The id is made where it is published, of the log's creation time and these facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from .names import Scope

Rule: TypeAlias = Literal["quarantine", "throttle", "breaker", "degraded", "credential", "operator"]
RULES: Final[tuple[Rule, ...]] = ("quarantine", "throttle", "breaker", "degraded", "credential", "operator")


class Derived(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every derived event carries."""

    scope: Scope
    """On the wire the subject says it; here it is a value."""
    rule: str
    """The rule, or for health and warnings the word `health` or the warning's own name."""
    cause_seq: int
    """Log sequence of the event that caused it."""
    time_ms: int
    """Log time of that event."""
    enforced: bool = True
    """False in shadow: what would have been held was let pass."""
    numbers: dict[str, int] = {}
    """The counts that caused it. Of a hold by points (Rule 4.0): `points`, `needed` (failures in a row), `record`,
    `failures`, `answers`, `replicas`, `since_ms` and `n`."""


class TargetHeld(Derived, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="held"):
    """A hold began, began again, or its end moved out. Carries its end: that is also its release."""

    began_seq: int
    end_ms: int
    old_end_ms: int | None = None
    """The end of the one that stood, where a failed trial begins it again; None for a hold that begins now."""
    proof: bool = False
    """Whether it goes on as probation after its end."""
    kind: str | None = None
    """The kind of the outcome that began it."""
    status: int | None = None
    replica: str | None = None
    """Set when it holds for this one replica's overlay only and the fleet was not taken (Rule 4.0, Whose word)."""
    by: str | None = None
    """Set when the fleet's hold rests on the word of this replica alone: the others are on probation."""
    reason: str | None = None
    actor: str | None = None


class Released(Derived, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="released"):
    """A hold ended before its end, or its probation ended by proof."""

    began_seq: int
    end_ms: int
    """The end it had."""
    by: str
    """What ended it: `success`, `clear`, `wide_close`, `evidence_gone`, `uncheckable`, `replaced`."""
    reason: str | None = None
    actor: str | None = None


class HealthChanged(Derived, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="health"):
    """The one word for people changed."""

    old: str
    new: str


class WarningRaised(Derived, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="warning"):
    """Something a person should know that gates nothing (Rule 4.5). `rule` names the warning."""

    signature: str | None = None
    replica: str | None = None
    route: str | None = None


DerivedEvent: TypeAlias = TargetHeld | Released | HealthChanged | WarningRaised


_NO_COUNTS: Final = ("replicas", "n", "since_ms", "points", "record")


def numbers_in_words(numbers: Mapping[str, int]) -> str:
    """The numbers of a derived event for people: "2 failures, 0 answers, 2 in a row needed"; "" for none."""
    if "needed" not in numbers:
        counts = [(name, count) for name, count in numbers.items() if name not in _NO_COUNTS]
        return ", ".join(f"{count} {name.removesuffix('s') if count == 1 else name}" for name, count in counts)
    failures, answers, tried = numbers["failures"], numbers["answers"], numbers["n"] - 1
    found = [f"{failures} failure{'s' * (failures != 1)}, {answers} answer{'s' * (answers != 1)}"]
    found.append(f"{numbers['needed']} in a row needed")
    if numbers["record"]:
        found.append(f"got over {numbers['record']} by itself before")
    if tried:
        found.append(f"trial {tried} failed")
    return ", ".join(found)
