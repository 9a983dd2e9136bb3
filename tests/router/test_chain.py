"""Calls along a chain (Rule 5.4): whom they go to, for how long, and what they say of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

import sickbay.router.calls
from sickbay import Attempt, CallOutcome, CallResult, Exhausted, Held, Target
from sickbay.router.failover import share_s
from sickbay.router.forced import ForcedCallLimiter
from sickbay.testing import Standalone, standalone
from virtual_loop import virtual
from waiting import patience

A, B, C = Target("a.example", "m-a"), Target("b.example", "m-b"), Target("c.example", "m-c")
CHAIN = [A, B, C]
CHAT = b'{"choices":[{"message":{"role":"assistant","content":"Hello there"},"finish_reason":"stop"}]}'
EMPTY = b'{"choices":[{"message":{"role":"assistant","content":""},"finish_reason":"stop"}]}'
TOOLS = (
    b'{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",'
    b'"function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}'
)
Clock = Callable[[], float]
Says = Callable[[Attempt], Any]


def outcomes(sb: Standalone) -> list[CallOutcome]:
    return [event for _, event in sb.recorded if isinstance(event, CallOutcome)]


def replies(**by_model: Says) -> Callable[[Target, Attempt], Awaitable[str]]:
    """An attempt function that does what is said for each model (`m_a`), and is fine where nothing is said."""

    async def attempt_fn(target: Target, attempt: Attempt) -> str:
        says = by_model.get(target.model.replace("-", "_"))
        if says is not None:
            says(attempt)
        return f"from {target.model}"

    return attempt_fn


def answers(status: int, body: bytes) -> Says:
    return lambda attempt: attempt.response(status, {"content-type": "application/json"}, body)


def raises(error: BaseException) -> Says:
    def say(_attempt: Attempt) -> None:
        raise error

    return say


# Whom it goes to.


def test_usable_keeps_the_order_and_names_each_skip() -> None:
    sb = standalone()
    sb.hold(A, for_s=60)
    sb.hold("c.example", for_s=30, rule="operator")
    usable = sb.usable([C, B, A])
    assert usable == [B]
    assert [(one.provider, one.model, one.reason) for one in usable.skipped] == [
        ("c.example", "m-c", "held_by_operator"),
        ("a.example", "m-a", "quarantined"),
    ]
    assert usable.retry_in_s == pytest.approx(30)
    assert sb.usable([B]).retry_in_s is None


async def test_the_first_choice_answers_and_the_answer_says_so() -> None:
    sb = standalone()
    answer = await sb.call(CHAIN, replies(m_a=answers(200, CHAT)), route="brief")
    assert (answer.value, answer.provider, answer.model) == ("from m-a", "a.example", "m-a")
    assert (answer.failed_over, answer.degraded, answer.reason, answer.skipped) == (False, False, "", ())
    assert [(tried.rank, tried.kind) for tried in answer.attempts] == [(0, "ok")]
    (outcome,) = outcomes(sb)
    assert (outcome.kind, outcome.route, outcome.rank, outcome.skipped) == ("ok", "brief", 0, None)


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        (answers(404, b'{"error":{"message":"No endpoints found for m-a."}}'), "model_unavailable"),
        (answers(400, b'{"error":{"message":"Invalid value for temperature","type":"invalid_request_error"}}'), None),
        (answers(429, b'{"error":"slow down"}'), "rate_limited"),
        (answers(500, b"oops"), "server_error"),
        (answers(302, b""), None),
        (answers(200, EMPTY), "empty_output"),
        (answers(200, b'{"choices":[{"message":{"role":"assi'), None),
        (answers(200, b'{"error":{"message":"Overloaded","code":503}}'), None),
        (lambda attempt: attempt.output(""), "empty_output"),
        (raises(ConnectionRefusedError()), "network"),
        (raises(ConnectionResetError()), "network"),
        (raises(TimeoutError()), "timeout"),
        (raises(KeyError("choices")), "unknown"),
        (raises(asyncio.CancelledError()), "cancelled"),
    ],
)  # fmt: skip
async def test_whatever_is_no_answer_leads_to_the_next_candidate(says: Says, kind: str | None) -> None:
    """Any non-2xx, any fault of the transport, an empty or malformed answer (Rule 5.4)."""
    sb = standalone()
    answer = await sb.call(CHAIN, replies(m_a=says))
    assert (answer.value, answer.failed_over, answer.rank) == ("from m-b", True, 1)
    first, second = outcomes(sb)
    assert first.kind != "ok"
    assert kind is None or first.kind == kind
    assert (second.kind, second.rank) == ("ok", 1)
    assert [tried.kind for tried in answer.attempts] == [first.kind, "ok"]


@pytest.mark.parametrize(
    "says",
    [
        answers(200, TOOLS),
        lambda attempt: attempt.output("", has_tool_calls=True),
        lambda attempt: attempt.ok(checkable=False),
        lambda attempt: attempt.output("", refusal="I cannot help with that."),
        lambda attempt: None,
    ],
)
async def test_a_turn_with_tool_calls_a_refusal_and_silence_are_answers(says: Says) -> None:
    sb = standalone()
    assert (await sb.call(CHAIN, replies(m_a=says))).rank == 0


async def test_held_candidates_are_passed_over_without_a_request() -> None:
    sb = standalone()
    sb.hold(A, for_s=60)
    answer = await sb.call(CHAIN, replies(m_b=answers(503, b"")), route="brief")
    assert answer.model == "m-c"
    assert [(one.model, one.reason) for one in answer.skipped] == [("m-a", "quarantined")]
    assert [(target.model, event.rank) for target, event in sb.recorded if isinstance(event, CallOutcome)] == [
        ("m-b", 1),
        ("m-c", 2),
    ]
    for outcome in outcomes(sb):
        assert outcome.skipped is not None
        assert [one.model for one in outcome.skipped] == ["m-a"]


async def test_a_held_error_of_a_call_within_is_a_failed_attempt() -> None:
    """Only the gate's own word on this attempt makes a skip; what the function raises is its attempt's end."""
    sb = standalone()
    sb.hold(C)

    async def attempt_fn(target: Target, attempt: Attempt) -> str:
        if target == A:
            async with sb.attempt(C):
                return "never"
        return "b"

    answer = await sb.call([A, B], attempt_fn)
    assert (answer.value, [tried.kind for tried in answer.attempts], answer.skipped) == ("b", ["unknown", "ok"], ())


async def test_a_trial_that_another_call_makes_passes_the_candidate_over() -> None:
    """On probation one call at a time: the second one goes to the next candidate (Rule 5.2)."""
    sb = standalone()
    sb.hold(A, for_s=10)
    sb.advance(11)
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slow(target: Target, attempt: Attempt) -> str:
        inside.set()
        await go_on.wait()
        return target.model

    first = asyncio.create_task(sb.call([A, B], slow))
    await inside.wait()
    second = await sb.call([A, B], replies())
    assert (second.model, [one.reason for one in second.skipped]) == ("m-b", ["trial_taken"])
    go_on.set()
    assert (await first).model == "m-a"


# For how long.


@pytest.mark.parametrize(
    ("rest_s", "attempt_s", "candidates", "expected_s"),
    [(20, 10, 1, 10), (20, 10, 2, 10), (20, 10, 3, 20 / 3), (12, 10, 2, 6), (5, 10, 1, 5), (1, 10, 4, 0.25)],
)
def test_an_attempt_takes_an_equal_share_at_most(
    rest_s: float, attempt_s: float, candidates: int, expected_s: float
) -> None:
    """What is left, shared equally among those that may still be called, and at most the attempt's own limit."""
    limit_s = share_s(rest_s, attempt_s, candidates)
    assert limit_s == pytest.approx(expected_s)
    # The rule as Rule 5.4 has it: each successor is left at least what this attempt may take.
    assert candidates == 1 or (rest_s - limit_s) / (candidates - 1) >= limit_s - 1e-9


def test_one_budget_bounds_the_chain_and_what_is_unused_goes_to_the_next() -> None:
    """Three candidates in 120 s: 40 s, then half of what the first left, then 60 s at most."""

    async def test(sb: Standalone, clock: Clock) -> None:
        limits: list[float] = []
        began_s = clock()

        async def attempt_fn(target: Target, attempt: Attempt) -> str:
            assert attempt.limit_s is not None
            limits.append(attempt.limit_s)
            await asyncio.sleep(1 if target == A else 3600)
            raise ConnectionResetError

        with pytest.raises(Exhausted) as caught:
            await sb.call(CHAIN, attempt_fn)
        assert limits == pytest.approx([40, 59.5, 59.5])
        assert clock() - began_s == pytest.approx(120)
        assert [tried.kind for tried in caught.value.attempts] == ["network", "timeout", "timeout"]
        assert [outcome.limit_ms for outcome in outcomes(sb)] == [40_000, 59_500, 59_500]
        assert caught.value.reason == "failed"

    virtual(test)


def test_a_held_successor_takes_no_share() -> None:
    async def test(sb: Standalone, _clock: Clock) -> None:
        sb.hold(B)
        sb.hold(C, for_s=5, rule="breaker")
        seen: list[float | None] = []

        async def attempt_fn(_target: Target, attempt: Attempt) -> str:
            seen.append(attempt.limit_s)
            return "x"

        await sb.call(CHAIN, attempt_fn)
        assert seen == [60]

    virtual(test)


def test_an_attempt_that_got_less_than_its_share_is_not_called_slow() -> None:
    """A call that waited 119 of 120 s for a release has 1 s left: when that is over its caller gave up, the model is
    not too slow. No healthy model is taken on evidence that its caller made."""

    async def test(sb: Standalone, clock: Clock) -> None:
        sb.hold(A, for_s=3600)
        asyncio.get_running_loop().call_later(119, lambda: sb.release(A))
        with pytest.raises(Exhausted):
            await sb.call([A], lambda _target, _attempt: asyncio.sleep(3600), wait_s=120)
        (outcome,) = outcomes(sb)
        assert outcome.kind == "cancelled"
        assert outcome.limit_ms == pytest.approx(1000, abs=2)

    virtual(test)


@pytest.mark.parametrize("options", [{"budget_s": 0}, {"budget_s": float("nan")}, {"attempt_s": "x"}, {"wait_s": -1},
                                     {"forced": "two"}])  # fmt: skip
async def test_an_option_that_is_not_accepted_is_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"^{name}: .* accepted is"):
        await standalone().call(CHAIN, replies(), **options)


async def test_a_function_that_cannot_be_awaited_is_named() -> None:
    sb = standalone()
    with pytest.raises(TypeError, match=r"attempt_fn: it gave a str; accepted is an async function"):
        await sb.call(CHAIN, lambda _target, _attempt: "x")  # type: ignore[arg-type, return-value]
    assert [outcome.kind for outcome in outcomes(sb)] == ["unknown"], "no other candidate is troubled with it"


@pytest.mark.parametrize(
    ("says", "kind"), [(answers(429, b""), "rate_limited"), (answers(200, CHAT), "timeout"), (None, "timeout")]
)
def test_what_an_attempt_said_before_its_time_was_over_stands(says: Says | None, kind: str) -> None:
    """But for `ok`: an answer that is never handed over is none."""

    async def test(sb: Standalone, _clock: Clock) -> None:
        async def attempt_fn(target: Target, attempt: Attempt) -> str:
            if says is not None:
                says(attempt)
            await asyncio.sleep(3600)
            return "never"

        answer = await sb.call([A], attempt_fn, fallback="")
        assert [tried.kind for tried in answer.attempts] == [kind]

    virtual(test)


# Cancellation.


def test_an_attempt_at_its_limit_is_cancelled_and_awaited_before_the_next_begins() -> None:
    async def test(sb: Standalone, _clock: Clock) -> None:
        said: list[str] = []

        async def attempt_fn(target: Target, attempt: Attempt) -> str:
            said.append(f"begin {target.model}")
            try:
                await asyncio.sleep(3600 if target == A else 0)
            finally:
                await asyncio.sleep(0.01)  # an orderly client closes its connection
                said.append(f"end {target.model}")
            return target.model

        assert (await sb.call([A, B], attempt_fn, attempt_s=2)).model == "m-b"
        assert said == ["begin m-a", "end m-a", "begin m-b", "end m-b"]
        assert [o.kind for o in outcomes(sb)] == ["timeout", "ok"]

    virtual(test)


def test_an_attempt_that_swallows_its_cancellation_does_not_hold_the_chain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(sb: Standalone, clock: Clock) -> None:
        release = asyncio.Event()

        async def attempt_fn(target: Target, attempt: Attempt) -> str:
            while target == A and not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            return target.model

        began_s = clock()
        assert (await sb.call([A, B], attempt_fn, attempt_s=2)).model == "m-b"
        assert clock() - began_s == pytest.approx(2 + sickbay.router.calls.GRACE_S)
        assert "left behind" in caplog.text
        assert len(sickbay.router.calls._left_behind) == 1
        release.set()
        await asyncio.wait(list(sickbay.router.calls._left_behind))
        await asyncio.sleep(0)
        assert not sickbay.router.calls._left_behind

    virtual(test)


async def test_cancelling_the_call_cancels_its_attempt_and_no_other_candidate_is_called() -> None:
    """The caller's own, recorded as `cancelled`; a fallback does not swallow it."""
    sb = standalone()
    inside, closed = asyncio.Event(), asyncio.Event()

    async def attempt_fn(_target: Target, _attempt: Attempt) -> str:
        try:
            inside.set()
            await asyncio.Event().wait()
        finally:
            closed.set()
        return "never"

    task = asyncio.create_task(sb.call(CHAIN, attempt_fn, fallback="x"))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()
    assert [(o.kind, o.rank) for o in outcomes(sb)] == [("cancelled", 0)]


# Nothing is allowed.


async def test_without_waiting_a_chain_whose_candidates_are_all_held_ends_at_once() -> None:
    sb = standalone()
    sb.hold(A, for_s=60)
    sb.hold(B, for_s=20, rule="breaker")
    with pytest.raises(Exhausted) as caught:
        await sb.call([A, B], replies())
    error = caught.value
    assert (error.reason, error.attempts, error.last) == ("nothing_allowed", (), None)
    assert error.retry_in_s == pytest.approx(20, abs=1)
    assert [(one.model, one.reason) for one in error.skipped] == [("m-a", "quarantined"), ("m-b", "breaker_open")]
    assert "a.example / m-a: quarantined" in str(error) and "soonest release is in" in str(error)
    assert sb.recorded == []


async def test_a_release_in_the_view_wakes_who_waits() -> None:
    sb = standalone()
    sb.hold(A, for_s=600)
    task = asyncio.create_task(sb.call([A], replies(), wait_s=15))
    await asyncio.sleep(0)
    assert not task.done()
    sb.release("a.example")
    assert (await asyncio.wait_for(task, patience(5))).model == "m-a"


async def test_the_end_of_a_hold_wakes_who_waits() -> None:
    sb = standalone()
    sb.hold(A, for_s=600)
    task = asyncio.create_task(sb.call([A], replies(), wait_s=15))
    await asyncio.sleep(0)
    sb.advance(599)
    await asyncio.sleep(0.01)
    assert not task.done()
    sb.advance(2)
    assert (await asyncio.wait_for(task, patience(5))).model == "m-a"


async def test_a_success_in_the_overlay_wakes_who_waits() -> None:
    """A local hold ends with a success of this replica after it (Rule 5.3): another call's early trial, say."""
    sb = standalone()
    async with sb:
        seen = 0
        for _ in range(5):
            sb.record(A, CallOutcome(kind="server_error"))
        assert sb.decide(A).reason == "breaker_open"
        seen = sb.overlay.seq
        task = asyncio.create_task(sb.call([A], replies(), wait_s=15))
        await asyncio.sleep(0)
        assert not task.done()
        sb.overlay.observe(A, CallOutcome(kind="ok"), seen=seen)
        assert (await asyncio.wait_for(task, patience(5))).model == "m-a"


def test_waiting_looks_at_ends_and_changes_and_does_not_poll() -> None:
    """For a hold of 12 s the gate is asked at the beginning and at the end, and not every few milliseconds."""

    async def test(sb: Standalone, clock: Clock) -> None:
        sb.hold(A, for_s=12)
        looks = 0
        look, began_s = sb.gate.look, clock()

        def counted(target: Target) -> Any:
            nonlocal looks
            looks += 1
            return look(target)

        sb.gate.look = counted  # type: ignore[method-assign]
        # The gate's own clock stands in tests, so it is moved when the loop's reaches the hold's end.
        asyncio.get_running_loop().call_later(12, lambda: sb.advance(12))
        answer = await sb.call([A], replies(), wait_s=15)
        assert answer.model == "m-a"
        assert clock() - began_s == pytest.approx(12, abs=0.1)
        assert looks < 10
        assert sb.gate.counts["denied"] <= 2, "nor is each look counted as a call that was kept away"

    virtual(test)


def test_waiting_ends_with_its_own_limit() -> None:
    async def test(sb: Standalone, clock: Clock) -> None:
        sb.hold(A, for_s=600)
        began_s = clock()
        with pytest.raises(Exhausted) as caught:
            await sb.call([A], replies(), wait_s=3)
        assert clock() - began_s == pytest.approx(3)
        assert caught.value.reason == "nothing_allowed"

    virtual(test)


def test_waiting_for_another_call_s_trial_does_not_spin() -> None:
    """A lease taken elsewhere has no end that a decision tells; it is asked for again when it said to."""

    async def test(sb: Standalone, _clock: Clock) -> None:
        sb.hold(A, for_s=10)
        sb.advance(11)
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def slow(target: Target, attempt: Attempt) -> str:
            inside.set()
            await go_on.wait()
            return attempt.ok().kind

        first = asyncio.create_task(sb.call([A], slow, budget_s=60, attempt_s=60))
        await inside.wait()
        decides = 0
        decide = sb.gate.decide

        def counted(target: Target) -> Any:
            nonlocal decides
            decides += 1
            return decide(target)

        sb.gate.decide = counted  # type: ignore[method-assign]
        second = asyncio.create_task(sb.call([A], replies(), wait_s=15))
        asyncio.get_running_loop().call_later(5, go_on.set)
        asyncio.get_running_loop().call_later(6, lambda: sb.release(A))  # the cluster has folded the success
        assert (await first).value == "ok"
        assert (await second).model == "m-a"
        assert decides < 100

    virtual(test)


# Forced.


async def test_forced_calls_the_least_bad_and_says_so() -> None:
    """Degraded output is less bad than an open breaker; the outcome carries `forced`."""
    sb = standalone()
    sb.hold(A, rule="breaker", for_s=5)
    sb.hold(B, rule="degraded", for_s=500)
    answer = await sb.call([A, B], replies(), forced="one")
    assert (answer.model, answer.forced, [one.model for one in answer.skipped]) == ("m-b", True, ["m-a"])
    assert [(o.forced, o.rank) for o in outcomes(sb)] == [(True, 1)]
    assert sb.gate.take_denials() == [(A, "breaker", 1, 0)], "what was called is not counted as kept away"


@pytest.mark.parametrize(
    ("rule", "kind"), [("quarantine", None), ("operator", None), ("throttle", "quota"), ("of_tomorrow", None)]
)
async def test_what_is_never_forced(rule: str, kind: str | None) -> None:
    """Never a quarantined or operator-held target, nor a throttle with a stated reset (Rule 5.4)."""
    sb = standalone()
    if rule == "of_tomorrow":
        sb.hold(A)
        entry = sb.mirror.entries[A.key]
        hold = entry.holds[0]
        sb.mirror.put(A.key, msgspec.structs.replace(entry, holds=[msgspec.structs.replace(hold, rule=rule)]))
    else:
        sb.hold(A, rule=rule, kind=kind)
    with pytest.raises(Exhausted):
        await sb.call([A], replies(), forced="one")
    assert sb.recorded == []


async def test_a_shorter_quarantine_behind_a_longer_breaker_forbids_too() -> None:
    """All holds of all scopes count, not the one that the decision names."""
    sb = standalone()
    sb.hold(A, rule="quarantine", for_s=60)
    sb.hold("a.example", rule="breaker", for_s=600)
    assert sb.decide(A).rule == "breaker"
    with pytest.raises(Exhausted):
        await sb.call([A], replies(), forced="one")


async def test_a_throttle_without_a_stated_reset_may_be_forced() -> None:
    sb = standalone()
    sb.hold(A, rule="throttle", kind="rate_limited")
    assert (await sb.call([A], replies(), forced="one")).forced


async def test_one_forced_call_at_a_time() -> None:
    sb = standalone()
    sb.hold(A, rule="breaker")
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slow(target: Target, attempt: Attempt) -> str:
        inside.set()
        await go_on.wait()
        return "x"

    first = asyncio.create_task(sb.call([A], slow, forced="one"))
    await inside.wait()
    with pytest.raises(Exhausted):
        await sb.call([A], replies(), forced="one")
    go_on.set()
    assert (await first).forced


def test_one_forced_call_in_five_seconds() -> None:
    now_s = 100.0
    limiter = ForcedCallLimiter(lambda: now_s)
    assert limiter.acquire()
    now_s = 120.0
    assert not limiter.acquire(), "one at a time"
    limiter.release()
    assert limiter.acquire()
    limiter.release()
    now_s = 124.9
    assert not limiter.acquire(), "and one in 5 s"
    now_s = 125.0
    assert limiter.acquire()


async def test_nothing_is_forced_unless_it_is_asked_for_or_while_anything_is_allowed() -> None:
    sb = standalone()
    sb.hold(A, rule="breaker")
    with pytest.raises(Exhausted):
        await sb.call([A], replies())
    with pytest.raises(Exhausted):
        await sb.call([A, B], replies(m_b=answers(500, b"")), forced="one")
    assert [o.forced for o in outcomes(sb)] == [False]


# Exhaustion.


async def test_exhaustion_lists_every_attempt_with_status_and_text_and_names_the_last() -> None:
    sb = standalone()
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
    body = b'{"error":{"message":"You may not do this with %s"}}' % secret.encode()
    with pytest.raises(Exhausted) as caught:
        await sb.call(
            CHAIN,
            replies(m_a=answers(401, body), m_b=answers(500, b"x" * 100_000), m_c=raises(ValueError(f"no {secret}"))),
        )
    error = caught.value
    assert [(tried.status, tried.kind) for tried in error.attempts] == [
        (401, "auth"),
        (500, "server_error"),
        (None, "unknown"),
    ]
    assert error.last == error.attempts[-1] and error.last is not None
    assert "You may not do this" in error.attempts[0].text
    assert error.attempts[2].text.startswith("ValueError: no")
    assert isinstance(error.__cause__, ValueError)
    text = str(error)
    assert "1. a.example / m-a 401 auth" in text and "2. b.example / m-b 500" in text and "last was c.example" in text
    assert secret not in text and len(text) < 2000
    assert all(len(tried.text) <= 200 for tried in error.attempts)


async def test_the_text_of_an_answer_is_not_in_the_list_of_attempts() -> None:
    """No completion text outlives its judging, in whichever way the answer was bad."""
    sb = standalone()
    with pytest.raises(Exhausted) as caught:
        await sb.call([A], replies(m_a=lambda attempt: attempt.output("secret text <|im_end|><|im_start|>")))
    assert "secret" not in str(caught.value)


async def test_an_empty_required_chain_says_so() -> None:
    with pytest.raises(Exhausted, match="no_chain"):
        await standalone().call([], replies())


async def test_after_the_first_content_no_other_candidate_takes_over() -> None:
    """In a stream only before the first content: what was passed on cannot be taken back."""
    sb = standalone()

    async def attempt_fn(target: Target, attempt: Attempt) -> str:
        attempt.first_content()
        raise ConnectionResetError("cut")

    with pytest.raises(ConnectionResetError):
        await sb.call(CHAIN, attempt_fn)
    assert [(o.kind, o.rank) for o in outcomes(sb)] == [("truncated", 0)]


# Optional work.


@pytest.mark.parametrize(
    ("says", "options", "reason"),
    [
        (raises(ConnectionRefusedError()), {}, "failed"),
        (raises(ZeroDivisionError()), {}, "failed"),
        (None, {"budget_s": "much"}, "error"),
        (None, {"nonsense": 1}, "error"),
    ],
)
async def test_optional_work_cannot_raise_and_says_why(says: Says | None, options: Any, reason: str) -> None:
    sb = standalone()
    answer: CallResult[str] = await sb.call(
        [A], replies(m_a=says) if says else replies(), fallback="fallback", route="brief", **options
    )
    assert (answer.value, answer.degraded, answer.reason, answer.target) == ("fallback", True, reason, None)
    assert (answer.provider, answer.model, answer.failed_over) == ("", "", False)
    assert sb.degradations == {("brief", reason): 1}


async def test_a_fallback_may_be_none() -> None:
    answer = await standalone().call([A], replies(m_a=answers(500, b"")), fallback=None)
    assert (answer.value, answer.degraded) == (None, True)


async def test_held_candidates_degrade_with_their_reasons() -> None:
    sb = standalone()
    sb.hold(A)
    answer = await sb.call([A], replies(), fallback="")
    assert (answer.reason, [one.reason for one in answer.skipped]) == ("nothing_allowed", ["quarantined"])


async def test_degradation_is_logged_once_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    sb = standalone()
    sb.hold(A)
    now_s = 1000.0
    sb._call_log._lines._monotonic = lambda: now_s
    with caplog.at_level(logging.WARNING, "sickbay"):
        for _ in range(5):
            await sb.call([A], replies(), fallback="", route="brief")
        now_s += 61
        await sb.call([A], replies(), fallback="", route="brief")
    said = [record for record in caplog.records if getattr(record, "event", "") == "degraded"]
    assert [getattr(record, "count", 0) for record in said] == [1, 5]
    assert "brief" in said[0].getMessage() and "quarantined" in said[0].getMessage()
    assert sb.degradations == {("brief", "nothing_allowed"): 6}


async def test_no_chain_configured_is_no_degradation(caplog: pytest.LogCaptureFixture) -> None:
    sb = standalone()
    answer = await sb.call([], replies(), fallback="plain")
    assert (answer.value, answer.degraded, answer.reason) == ("plain", False, "no_chain")
    assert sb.degradations == {} and not caplog.records


async def test_a_value_at_hand_is_the_answer_without_a_call() -> None:
    sb = standalone()
    sb.hold(A)
    answer = await sb.call([A], replies(), at_hand="from the cache", fallback="")
    assert (answer.value, answer.degraded, answer.reason) == ("from the cache", False, "at_hand")
    assert sb.recorded == []


# A look at the gate.


def test_a_look_counts_no_call_and_shows_all_holds() -> None:
    sb = standalone()
    assert sb.gate.look(A).decision.allowed
    sb.hold(A, rule="quarantine", for_s=60)
    sb.hold("a.example", rule="breaker", for_s=600)
    look = sb.gate.look(A)
    assert not look.decision.allowed
    assert [hold.rule for hold in look.holds] == ["breaker", "quarantine"]
    assert look.stands_s == pytest.approx(60)
    assert sb.gate.counts["denied"] == 0
    assert sb.gate.look(Target("", "")).decision.allowed
    with pytest.raises(Held):
        sb.attempt(A).__enter__()
