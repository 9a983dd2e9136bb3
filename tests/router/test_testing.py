"""The gate without NATS that users test with: holds, allows, clock and what was recorded."""

from __future__ import annotations

import pytest

import sickbay.testing
from sickbay import CallOutcome, Held, Policy, Target

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")


async def test_hold_allow_release_and_recorded() -> None:
    """The public helpers do what their names say, through the real gate."""
    async with sickbay.testing.standalone() as sb:
        sb.hold(TARGET, for_s=60)
        with pytest.raises(Held):
            async with sb.attempt(TARGET):
                pass
        sb.allow(TARGET)
        assert sb.decide(TARGET).reason == "allowed_by_operator"
        sb.release(TARGET)
        assert sb.decide(TARGET).reason == "ok"
        sb.hold("openrouter.ai", rule="operator")
        assert sb.decide(TARGET).reason == "held_by_operator"
        sb.release("openrouter.ai")
        async with sb.attempt(TARGET) as attempt:
            attempt.ok(status=200)
        assert [(target, event.kind) for target, event in sb.recorded if isinstance(event, CallOutcome)] == [
            (TARGET, "ok")
        ]


async def test_time_passes_only_when_told() -> None:
    """A hold of a minute ends after a minute of the test's clock."""
    sb = sickbay.testing.standalone()
    sb.hold(TARGET, for_s=60)
    sb.advance(59.999)
    assert not sb.decide(TARGET).allowed
    sb.advance(0.001)
    assert sb.decide(TARGET).allowed


def test_the_real_folds_hold_after_two_rejections_under_the_given_policy() -> None:
    """The code under test meets what production would do, at its own threshold."""
    sb = sickbay.testing.standalone(policy=Policy.from_data({"rejections": {"threshold": 1}}))
    sb.record(TARGET, CallOutcome(kind="model_unavailable"))
    assert sb.decide(TARGET).reason == "quarantined"


def test_bad_input_is_told_by_field() -> None:
    """What a reporter would reject is listed with the field and the accepted form."""
    sb = sickbay.testing.standalone()
    sb.record(TARGET, CallOutcome(kind="nonsense"))  # type: ignore[arg-type]
    sb.record(Target("", "m"), CallOutcome(kind="ok"))
    assert sb.recorded == []
    assert len(sb.rejected) == 2 and sb.rejected[0].startswith("kind") and "target.provider" in sb.rejected[1]
