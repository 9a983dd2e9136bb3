"""One set of names and stories for the tests of the rules: a target, its neighbours, one rule alone, a crowd."""

from __future__ import annotations

from typing import Any, Final

from sickbay_events import CallsRefused, Kind, Policy, Scope, Target
from sickbay_events.derived import RULES
from sickbay_projections import Recorded
from sickbay_projections.testing import Log, Story, given

TARGET: Final = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
OTHER: Final = Target("openrouter.ai#team-a", "other/model")
CREDENTIAL: Final = Scope("openrouter.ai", "team-a")
LIMITED: Final[Kind] = "rate_limited"
HOUR_S: Final = 3600.0
MS: Final = 0.001


def alone(*rules: str) -> dict[str, Any]:
    """Policy data in which these rules act; the others are folded and told, and change no decision."""
    assert set(rules) <= set(RULES), rules
    return {"shadow": {"rules": [rule for rule in RULES if rule not in (*rules, "operator")]}}


def crowd(log: Log, count: int, *, at_s: float = -30.0) -> list[Recorded]:
    """So many replicas are heard of, and nothing else."""
    return [
        log.event(CallsRefused(count=1, rule="operator"), at_s=at_s, replica=f"crowd-{n}", target=OTHER)
        for n in range(count)
    ]


def limited(log: Log, count: int, at_s: float = 0, **fields: Any) -> list[Recorded]:
    """So many throttles; who got each knew all that was before it."""
    return [log.outcome(LIMITED, at_s=at_s, **{"seen_seq": log.seq, **fields}) for _ in range(count)]


def throttled(log: Log, hint_s: float | None = None, *, target: Target | None = None, **policy: Any) -> Story:
    """Two throttles of two replicas at 1 and 2 s, the last with the hint: held by sequence 2 from 2 s."""
    found = limited(log, 1, 1, replica="r1", target=target)
    found += limited(log, 1, 2, replica="r2", retry_after_s=hint_s, status=429, target=target)
    return given(*found, policy=Policy.from_data(policy))


def only(story: Story, rule: str) -> Story:
    """Look at what one rule told, whatever others said of the same outcome."""
    story.derived = [event for event in story.derived if event.rule == rule]
    return story
