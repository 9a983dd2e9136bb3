"""Given, when, then: stories of a log and what follows from it, for tests.

log = Log(Target("api.example", "m"))
given(log.outcome("model_unavailable", at_s=0, replica="r1")).when(
    log.outcome("model_unavailable", at_s=1, replica="r2")
).then(held("quarantine", end_ms=log.ms(601))).then_decision(log.target, log.ms(2), allowed=False)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from sickbay_events.derived import DerivedEvent, HealthChanged, Released, TargetHeld, WarningRaised
from sickbay_events.kinds import Kind
from sickbay_events.names import Scope, Target
from sickbay_events.outcome import CallAnswered, CallOutcome, Event, Override, PolicyChanged, ProbeResult
from sickbay_events.policy import Policy
from sickbay_events.times import rfc3339

from .fold import Fleet
from .state.model import Recorded

START_MS: Final = 1_700_000_000_000


class Log:
    """Numbers events as a log does. Times are seconds since its beginning; sequences count up from 1."""

    def __init__(self, target: Target, *, start_ms: int = START_MS) -> None:
        self.target = target
        self.start_ms = start_ms
        self.seq = 0

    def ms(self, at_s: float) -> int:
        """Log time in milliseconds of a moment in seconds since the beginning."""
        return self.start_ms + round(at_s * 1000)

    def outcome(
        self, kind: Kind, *, at_s: float, replica: str = "r1", target: Target | None = None, **fields: Any
    ) -> Recorded:
        """A finished attempt; `fields` are those of `CallOutcome`."""
        return self.event(CallOutcome(kind=kind, **fields), at_s=at_s, replica=replica, target=target)

    def answered(self, *, at_s: float, replica: str = "r1", target: Target | None = None, **fields: Any) -> Recorded:
        """The first content of a streaming trial."""
        return self.event(CallAnswered(**fields), at_s=at_s, replica=replica, target=target)

    def probe(
        self, level: Literal["liveness", "readiness"], *, ok: bool, at_s: float, replica: str = "r1", **fields: Any
    ) -> Recorded:
        """An active check; `fields` are those of `ProbeResult`."""
        return self.event(ProbeResult(level=level, ok=ok, **fields), at_s=at_s, replica=replica)

    def event(self, event: Event, *, at_s: float, replica: str = "r1", target: Target | None = None) -> Recorded:
        """Any event of a replica about a target."""
        self.seq += 1
        return Recorded(event, target=target or self.target, replica=replica, seq=self.seq, time_ms=self.ms(at_s))

    def override(
        self, action: str, *, at_s: float, scope: Scope | None = None, until_s: float | None = None, **fields: Any
    ) -> Recorded:
        """An operator's act; without `scope` on the log's target."""
        self.seq += 1
        until = None if until_s is None else rfc3339(self.ms(until_s))
        body = {"action": action, "reason": "a test", "actor": "a tester", "until": until, **fields}
        event = msgspec.convert(body, Override)
        return Recorded(event, scope=scope or self.target.scope, seq=self.seq, time_ms=self.ms(at_s))

    def policy(self, policy: Policy | Mapping[str, Any], *, at_s: float) -> Recorded:
        """The whole policy from here on, as a `Policy` or as data."""
        self.seq += 1
        data = policy.to_data() if isinstance(policy, Policy) else dict(policy)
        return Recorded(PolicyChanged(policy=data), seq=self.seq, time_ms=self.ms(at_s))


class Expected(msgspec.Struct, frozen=True):
    """A derived event of which only some fields matter."""

    sort: type[DerivedEvent]
    fields: dict[str, Any]

    def differs(self, event: DerivedEvent) -> str | None:
        """What differs, None if nothing does."""
        if type(event) is not self.sort:
            return f"expected {self.sort.__name__}, got {event!r}"
        for name, value in self.fields.items():
            if getattr(event, name) != value:
                return f"{self.sort.__name__}.{name}: expected {value!r}, got {getattr(event, name)!r}"
        return None


def held(rule: str, **fields: Any) -> Expected:
    """A `TargetHeld` of this rule with at least these fields."""
    return Expected(TargetHeld, {"rule": rule, **fields})


def released(rule: str, **fields: Any) -> Expected:
    """A `Released` of this rule with at least these fields."""
    return Expected(Released, {"rule": rule, **fields})


def warned(rule: str, **fields: Any) -> Expected:
    """A `WarningRaised` of this rule with at least these fields."""
    return Expected(WarningRaised, {"rule": rule, **fields})


def became(word: str, **fields: Any) -> Expected:
    """A `HealthChanged` to this word with at least these fields."""
    return Expected(HealthChanged, {"new": word, **fields})


class Story:
    """A fleet in the middle of a test."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.derived: list[DerivedEvent] = []
        """What followed from the last `when`, without changes of health, which follow from nearly everything."""
        self.all: list[DerivedEvent] = []
        """The same with them."""

    def when(self, *recorded: Recorded) -> Story:
        """Fold these; what follows from them is what `then` looks at."""
        self.all = [event for one in recorded for event in self.fleet.apply(one)]
        self.derived = [event for event in self.all if not isinstance(event, HealthChanged)]
        return self

    def then(self, *expected: Expected) -> Story:
        """Exactly these derived events followed, in this order; changes of health count where one is expected."""
        derived = self.all if any(wanted.sort is HealthChanged for wanted in expected) else self.derived
        assert len(derived) == len(expected), f"expected {len(expected)} derived events, got {derived!r}"
        for event, wanted in zip(derived, expected, strict=True):
            difference = wanted.differs(event)
            assert difference is None, difference
        return self

    def then_decision(self, target: Target, at_ms: int, *, replica: str = "", **fields: Any) -> Story:
        """The decision at this log time has these fields."""
        decision = self.fleet.decide(target, at_ms, replica)
        for name, value in fields.items():
            assert getattr(decision, name) == value, f"{name}: expected {value!r}, got {decision!r}"
        return self


def given(*recorded: Recorded, policy: Policy | None = None, overlay: bool = False) -> Story:
    """A fleet that has folded these."""
    return Story(Fleet(policy, overlay=overlay)).when(*recorded)
