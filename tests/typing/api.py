"""How the public face types; checked by mypy and basedpyright, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator
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


async def chains(sb: sickbay.Sickbay, targets: list[sickbay.Target]) -> None:
    async def attempt_fn(target: sickbay.Target, attempt: sickbay.Attempt) -> str:
        assert_type(attempt.limit_s, float | None)
        return target.model

    async def stream_fn(target: sickbay.Target, attempt: sickbay.Attempt) -> AsyncIterator[bytes]:
        yield b""

    usable = sb.usable(targets)
    assert_type(usable[0], sickbay.Target)
    assert_type(usable.retry_in_s, float | None)
    answer = await sb.call(targets, attempt_fn, budget_s=20, attempt_s=10, wait_s=1, forced="one", route="brief")
    assert_type(answer, sickbay.CallResult[str])
    assert_type(answer.value, str)
    assert_type((answer.provider, answer.failed_over, answer.degraded), tuple[str, bool, bool])
    optional = await sb.call(targets, attempt_fn, fallback=None)
    assert_type(optional.value, str | None)
    async with sb.stream(targets, stream_fn, fallback=b"") as stream:
        async for chunk in stream:
            assert_type(chunk, bytes)
    with sickbay.budget(30, feature="summaries") as b:
        assert_type(b, sickbay.Budget)
        assert_type(b.rest_s, float)


def chains_in_threads(sb: sickbay.sync.SyncSickbay, targets: list[sickbay.Target]) -> None:
    def attempt_fn(target: sickbay.Target, attempt: sickbay.Attempt) -> int:
        return len(target.model)

    assert_type(sb.call(targets, attempt_fn).value, int)
    assert_type(sb.call(targets, attempt_fn, fallback="").value, int | str)
    with sb.stream(targets, lambda target, _attempt: [target.model]) as stream:
        assert_type(list(stream), list[str])


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
