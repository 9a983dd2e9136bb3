"""A call inside an open attempt of the same target is that attempt. Our own refusal is known, and nobody records it."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

import sickbay.sync
import sickbay.testing
from sickbay import Attempt, CallOutcome, Exhausted, Held, Target, classify
from sickbay.testing import Standalone
from sickbay_events.classify.held_answer import held_message

TARGET, OTHER = Target("openrouter.ai", "z-ai/glm-5.3"), Target("api.x.ai", "grok-4")
JSON = {"content-type": "application/json"}
CHAT = b'{"choices": [{"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}'
DEAD = b'{"error": {"message": "No endpoints found for z-ai/glm-5.3.", "code": 404}}'


def kinds(router: Standalone) -> list[str]:
    return [event.kind for _, event in router.recorded if isinstance(event, CallOutcome)]


@pytest.mark.parametrize("inner", [TARGET, Target("OpenRouter.ai", "z-ai/glm-5.3")])
def test_an_attempt_inside_one_of_the_same_target_is_that_one(inner: Target) -> None:
    router = sickbay.testing.standalone()
    with router.attempt(TARGET) as outer:
        with router.attempt(inner) as attempt:
            assert attempt.response(404, {}, DEAD).kind == "model_unavailable"
        assert router.recorded == [] and attempt.outcome is None
        assert outer.verdict is not None and outer.verdict.kind == "model_unavailable"
    assert kinds(router) == ["model_unavailable"] and outer.outcome is not None and outer.outcome.status == 404


def test_a_request_without_an_alias_is_that_of_the_credential_around_it() -> None:
    router = sickbay.testing.standalone()
    with router.attempt(Target("openrouter.ai#team-a", TARGET.model)), router.attempt(TARGET) as attempt:
        attempt.ok()
    ((target, _),) = router.recorded
    assert target.provider == "openrouter.ai#team-a"
    with router.attempt(TARGET), router.attempt(Target("openrouter.ai#team-a", TARGET.model)):
        pass
    assert len(router.recorded) == 3, "an outer one without an alias may be of any credential"


def test_another_target_or_another_connection_is_another_attempt() -> None:
    router, second = sickbay.testing.standalone(), sickbay.testing.standalone()
    with router.attempt(TARGET), router.attempt(OTHER), second.attempt(TARGET):
        pass
    with router.attempt(TARGET):
        pass
    assert (len(router.recorded), len(second.recorded)) == (3, 1)


async def test_tasks_and_threads_that_are_made_inside_are_inside() -> None:
    router = sickbay.testing.standalone()

    async def ask() -> None:
        async with router.attempt(TARGET) as attempt:
            attempt.response(200, JSON, CHAT)

    def ask_in_thread() -> None:
        with router.attempt(TARGET) as attempt:
            attempt.response(200, JSON, CHAT)

    async with router.attempt(TARGET):
        await asyncio.create_task(ask())
        await asyncio.to_thread(ask_in_thread)
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(ask_in_thread,))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert router.recorded == []
        await asyncio.create_task(ask(), context=contextvars.Context())
        assert kinds(router) == ["ok"], "a call from elsewhere is its own"
    assert kinds(router) == ["ok", "ok"]


async def test_a_call_whose_function_attempts_the_target_reports_once() -> None:
    router = sickbay.testing.standalone()

    async def fn(target: Target, outer: Attempt) -> str:
        async with router.attempt(target) as attempt:
            attempt.response(404 if target == TARGET else 200, JSON, DEAD if target == TARGET else CHAT)
        return "text"

    answer = await router.call([TARGET, OTHER], fn)
    assert (answer.target, [tried.kind for tried in answer.attempts]) == (OTHER, ["model_unavailable", "ok"])
    assert kinds(router) == ["model_unavailable", "ok"]


async def test_what_the_inner_call_raised_is_the_outers_even_if_it_is_caught() -> None:
    router = sickbay.testing.standalone()
    async with router.attempt(TARGET):
        with pytest.raises(ConnectionResetError):
            async with router.attempt(TARGET):
                raise ConnectionResetError
    assert kinds(router) == ["network"]


async def test_the_reader_of_a_stream_is_not_inside_its_attempt() -> None:
    """Who calls the same model for each chunk makes calls of his own; the candidate's own code is inside."""
    router = sickbay.testing.standalone()

    async def pieces(target: Target, outer: Attempt) -> AsyncIterator[str]:
        async with router.attempt(target) as attempt:
            assert not attempt.is_open, "it is part of the stream's own"
            yield "Hel"
            yield "lo"

    async with router.stream([TARGET], pieces) as answer:
        async for _ in answer:
            async with router.attempt(TARGET) as attempt:
                attempt.ok()
    assert kinds(router) == ["ok"] * 3


def test_the_reader_of_a_stream_in_a_thread_is_not_inside_either() -> None:
    router = sickbay.testing.standalone()
    sync = sickbay.sync.SyncSickbay(lambda: router, 1.0)

    def pieces(target: Target, outer: Attempt) -> Iterator[str]:
        for piece in ("Hel", "lo"):
            with sync.attempt(target) as attempt:
                assert not attempt.is_open
            yield piece

    with sync, sync.stream([TARGET], pieces) as answer:
        for _ in answer:
            with sync.attempt(TARGET) as attempt:
                attempt.ok()
    assert kinds(router) == ["ok"] * 3


def test_an_attempt_that_was_left_takes_nobody_in() -> None:
    router = sickbay.testing.standalone()
    attempt = router.attempt(TARGET).__enter__()
    contextvars.copy_context().run(attempt.__exit__, None, None, None)
    with router.attempt(TARGET):
        pass
    assert len(router.recorded) == 2


# Our own refusal.

SAID = held_message("openrouter.ai", "z-ai/glm-5.3 (new)", "quarantined", 12.34)
REFUSALS = [
    (503, {"X-Sickbay": "held", "retry-after": "13"}, b"", None, 13.0),
    (503, {}, json.dumps({"error": {"message": SAID, "type": "sickbay_held"}}).encode(), "quarantined", 12.3),
    (500, {}, f"litellm.ServiceUnavailableError: OpenAIException - {SAID}".encode(), "quarantined", 12.3),
    (503, {}, b'{"type": "error", "error": {"type": "sickbay_held", "message": "gone"}}', None, None),
    (200, JSON, json.dumps({"error": {"message": SAID}}).encode(), "quarantined", 12.3),
]


@pytest.mark.parametrize(("status", "headers", "body", "reason", "wait_s"), REFUSALS)
def test_our_own_refusal_is_recorded_by_nobody(
    status: int, headers: dict[str, str], body: bytes, reason: str | None, wait_s: float | None
) -> None:
    router = sickbay.testing.standalone()
    router.hold(TARGET, for_s=1)
    router.advance(2)
    for _ in range(2):
        with router.attempt(TARGET) as attempt:
            verdict = attempt.response(status, headers, body)
            assert attempt.trial, "and the lease is free again"
        assert (verdict.kind, verdict.code, verdict.retry_after_s) == ("cancelled", reason, wait_s)
    assert router.recorded == [] and attempt.outcome is None


def test_an_answer_that_talks_about_it_is_an_answer() -> None:
    text = b'{"choices": [{"message": {"content": "sickbay_held (quarantined), 9 s left"}, "finish_reason": "stop"}]}'
    assert classify(status=200, headers=JSON, body=text, requested_model="m").kind == "ok"


async def test_a_chain_takes_a_refusal_on_the_way_as_a_hold() -> None:
    router = sickbay.testing.standalone()

    async def fn(target: Target, attempt: Attempt) -> bytes:
        refused = REFUSALS[1]
        attempt.response(*(refused[:3] if target == TARGET else (200, JSON, CHAT)))
        return b"x"

    answer = await router.call([TARGET, OTHER], fn)
    assert answer.target == OTHER and answer.skipped[0].reason == "quarantined"
    with pytest.raises(Exhausted) as exhausted:
        await router.call([TARGET], fn)
    assert exhausted.value.reason == "nothing_allowed" and exhausted.value.retry_in_s == pytest.approx(12.3, abs=0.5)
    assert kinds(router) == ["ok"]


def test_held_itself_is_not_changed() -> None:
    router = sickbay.testing.standalone()
    router.hold(TARGET)
    with pytest.raises(Held), router.attempt(TARGET):
        pass
