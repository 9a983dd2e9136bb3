"""How the public face types; checked by mypy and basedpyright, never run."""

from __future__ import annotations

from typing import assert_type

import sickbay
import sickbay.sync
import sickbay.testing
from sickbay_events import Verdict


async def router(target: sickbay.Target) -> None:
    async with sickbay.connect("nats://127.0.0.1:4222", replica="r1") as sb:
        assert_type(sb, sickbay.Sickbay)
        decision = sb.decide(target)
        assert_type(decision, sickbay.Decision)
        assert_type(decision.allowed, bool)
        assert_type(decision.retry_in_s, float)
        assert_type(await sb.ready(1.0), bool)
        try:
            async with sb.attempt(target, limit_s=60, route="brief", rank=0, prompt_ascii=None) as attempt:
                assert_type(attempt, sickbay.Attempt)
                assert_type(attempt.response(200, {}, b""), Verdict)
                assert_type(attempt.output("text", finish_reason="stop", raw=b""), Verdict)
                assert_type(attempt.ok(), Verdict)
                assert_type(attempt.error(ValueError()), Verdict)
                attempt.first_content()
        except sickbay.Held as held:
            assert_type(held.decision, sickbay.Decision)
            assert_type(held.retry_in_s, float)
        sb.record(target, sickbay.CallOutcome(kind="ok"))
    assert_type(await sickbay.read_error_body(object()), bytes)


def threads(target: sickbay.Target) -> None:
    with sickbay.sync.connect() as sb:
        assert_type(sb.decide(target), sickbay.Decision)
        with sb.attempt(target) as attempt:
            assert_type(attempt, sickbay.Attempt)


def users_tests(target: sickbay.Target) -> None:
    sb = sickbay.testing.standalone(policy=sickbay.Policy())
    sb.hold(target, for_s=60, rule="quarantine")
    sb.hold("openrouter.ai#team-a")
    sb.allow(target)
    sb.release(target)
    sb.advance(60.0)
    assert_type(sb.rejected, list[str])
