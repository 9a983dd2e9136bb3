"""A budget spans calls (SPEC 5.4): one time for a stage, and one notice of what its end cost."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable

import pytest

import sickbay
from sickbay import Attempt, Budget, Exhausted, Target
from sickbay.router.budget import entered
from sickbay.testing import Standalone, standalone
from virtual_loop import virtual

A, B = Target("a.example", "m-a"), Target("b.example", "m-b")
Clock = Callable[[], float]


async def fine(target: Target, _attempt: Attempt) -> str:
    return f"from {target.model}"


def notices(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", "") in ("budget_spent", "degraded")]


def test_a_stage_of_twenty_sections_ends_with_its_budget(caplog: pytest.LogCaptureFixture) -> None:
    """20 sections at 300 ms each under 1 s: three are answered, the fourth is cut at 1.0 s, sixteen are not sent."""

    async def test(sb: Standalone, clock: Clock) -> None:
        requests = 0

        async def section(target: Target, _attempt: Attempt) -> str:
            nonlocal requests
            requests += 1
            await asyncio.sleep(0.3)
            return "summary"

        began_s = clock()
        with sickbay.budget(1.0, feature="summaries", monotonic=clock) as b:
            answers = [await sb.call([A], section, fallback="", route="summary") for _ in range(20)]
            assert not notices(caplog), "the notice comes when the numbers are known"
        assert clock() - began_s == pytest.approx(1.0)
        assert requests == 4
        assert [answer.value for answer in answers] == ["summary"] * 3 + [""] * 17
        assert {answer.reason for answer in answers[3:]} == {"budget_spent"}
        assert [len(answer.attempts) for answer in answers[3:]] == [1] + [0] * 16
        assert (b.calls, b.cut, b.skipped) == (4, 1, 16)
        # What the budget's end cut off says nothing about the model.
        assert [event.kind for _, event in sb.recorded if isinstance(event, sickbay.CallOutcome)] == [
            "ok", "ok", "ok", "cancelled",
        ]  # fmt: skip
        (notice,) = notices(caplog)
        assert notice.getMessage() == (
            "the budget of summaries is spent: 1.0 of 1.0 s, 4 calls made (1 of them cut off), 16 skipped"
        )
        assert sb.degradations == {("summaries", "budget_spent"): 1}, "one degradation for the stage"

    virtual(test)


def test_inside_another_the_smaller_rest_counts() -> None:
    async def test(sb: Standalone, clock: Clock) -> None:
        seen: list[float | None] = []

        async def attempt_fn(target: Target, attempt: Attempt) -> str:
            seen.append(attempt.limit_s)
            return "x"

        with sickbay.budget(3, feature="outer", monotonic=clock) as outer:
            await asyncio.sleep(1)
            with sickbay.budget(30, feature="wide", monotonic=clock) as wide:
                await sb.call([A], attempt_fn)
                assert wide.rest_s == pytest.approx(2)
            with sickbay.budget(0.5, feature="narrow", monotonic=clock) as narrow:
                await sb.call([A], attempt_fn)
                await asyncio.sleep(1)
                assert (narrow.is_spent, outer.is_spent) == (True, False)
                assert (await sb.call([A], attempt_fn, fallback="f")).reason == "budget_spent"
            await sb.call([A], attempt_fn)
        assert seen == pytest.approx([2, 0.5, 1])
        assert (outer.calls, wide.calls, narrow.calls) == (3, 1, 1)
        assert (outer.skipped, narrow.skipped) == (0, 1), "the one that is spent says so, the other does not"

    virtual(test)


def test_a_spent_outer_budget_ends_the_inner_one_and_is_the_one_that_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(sb: Standalone, clock: Clock) -> None:
        with sickbay.budget(1, feature="outer", monotonic=clock) as outer:
            await asyncio.sleep(2)
            with sickbay.budget(30, feature="inner", monotonic=clock) as inner:
                assert inner.is_spent and inner.spent() is outer
                await sb.call([A], fine, fallback="")
        assert (outer.skipped, inner.skipped) == (1, 0)
        assert [getattr(record, "feature", "") for record in notices(caplog)] == ["outer"]

    virtual(test)


async def test_a_required_call_in_a_spent_budget_raises_and_makes_no_request() -> None:
    sb = standalone()
    with sickbay.budget(0, feature="x") as b:
        with pytest.raises(Exhausted) as caught:
            await sb.call([A], fine)
        assert (caught.value.reason, caught.value.attempts, b.skipped) == ("budget_spent", (), 1)
        assert [one.reason for one in caught.value.skipped] == ["budget_spent"]
    assert sb.recorded == []


async def test_a_value_at_hand_is_never_gated_by_a_budget() -> None:
    """Nor counted by it: what is there costs nothing."""
    sb = standalone()
    with sickbay.budget(0) as b:
        answer = await sb.call([A], fine, at_hand="cached", fallback="")
        assert (answer.value, answer.degraded) == ("cached", False)
        assert (b.calls, b.cut, b.skipped) == (0, 0, 0)


def test_a_value_that_came_with_the_last_moment_is_kept() -> None:
    """The budget ends while the answer is handed over: it is at hand, so it counts."""

    async def test(sb: Standalone, clock: Clock) -> None:
        now_s = 0.0

        async def attempt_fn(target: Target, attempt: Attempt) -> str:
            nonlocal now_s
            now_s = 5.0
            return "late"

        with sickbay.budget(1, monotonic=lambda: now_s) as b:
            answer = await sb.call([A], attempt_fn, fallback="")
            assert b.is_spent
        assert (answer.value, answer.degraded, b.cut) == ("late", False, 0)

    virtual(test)


async def test_a_budget_goes_into_tasks_made_inside_and_not_out_of_them() -> None:
    sb = standalone()
    with sickbay.budget(0) as b:
        task = asyncio.create_task(sb.call([A], fine, fallback=""))
    assert entered() == ()
    assert (await task).reason == "budget_spent"
    assert b.skipped == 1
    assert (await sb.call([A], fine)).value == "from m-a"


def test_a_thread_joins_by_entering_and_by_copying_the_context() -> None:
    """A thread inherits nothing by itself; the outer budget holds there too."""
    seen: dict[str, tuple[int, float]] = {}
    now_s = 0.0
    with sickbay.budget(2, monotonic=lambda: now_s), sickbay.budget(30, monotonic=lambda: now_s) as b:

        def joins() -> None:
            with b:
                seen["joins"] = len(entered()), b.rest_s
            seen["after"] = len(entered()), 0

        copied = contextvars.copy_context()
        threads = [
            threading.Thread(target=joins),
            threading.Thread(target=lambda: copied.run(lambda: seen.update(copied=(len(entered()), b.rest_s)))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == {"joins": (2, 2), "after": (0, 0), "copied": (2, 2)}


def test_many_threads_in_one_budget_give_one_notice(caplog: pytest.LogCaptureFixture) -> None:
    b = Budget(0, "seeds")
    with b:

        def work() -> None:
            with b:
                for _ in range(100):
                    b.record_exhausted(cut=False)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert b.skipped == 800
    assert len(notices(caplog)) == 1


async def test_a_budget_with_time_left_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    sb = standalone()
    with sickbay.budget(30, feature="x") as b:
        await sb.call([A], fine)
    assert (b.calls, b.skipped, notices(caplog)) == (1, 0, [])


@pytest.mark.parametrize("limit_s", [-1, float("inf"), float("nan"), "30", True, None])
def test_a_limit_that_is_none_is_refused(limit_s: object) -> None:
    with pytest.raises(ValueError, match=r"^limit_s: .* accepted is a number of seconds, 0 to 86400"):
        sickbay.budget(limit_s)  # type: ignore[arg-type]
