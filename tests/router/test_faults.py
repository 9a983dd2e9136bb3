"""The one door for exceptions: what an error says of this attempt, by its shape, and of no other attempt."""

# ruff: noqa: E501, TRY301, TRY201, B904 - one case, one line; errors are raised to be read
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import sickbay.testing
from sickbay import Attempt, CallOutcome, Target
from sickbay.router.attempt_host import AttemptOptions
from sickbay.router.faults import answer_of, fault_of

A, B = Target("first.test", "m-1"), Target("second.test#team", "m-2")
REFUSED = b'{"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}'


class Answer:
    def __init__(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.status_code, self.content, self.headers = status, body, headers or {}


class SdkError(Exception):
    """An error whose attributes are the test's."""

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        for name, value in facts.items():
            setattr(self, name, value)


def kinds(router: sickbay.testing.Standalone) -> list[str]:
    return [outcome.kind for _, outcome in router.recorded if isinstance(outcome, CallOutcome)]


def last(router: sickbay.testing.Standalone) -> str:
    return kinds(router)[-1]


def kind_of(error: BaseException, *, content: bool = False) -> str:
    router = sickbay.testing.standalone()
    with pytest.raises(type(error)), router.attempt(B, stream=content) as attempt:
        if content:
            attempt.first_content()
        raise error
    return last(router)


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"response": {"Error": {"Code": "ThrottlingException", "Message": "slow"}}}, "rate_limited"),
        ({"response": {"Error": {"Code": "modelStreamErrorException", "Message": "x"}}}, "server_error"),
        ({"response": {"error": {"message": "overloaded"}}}, "overloaded"),
        ({"code": 404, "details": {"error": {"status": "NOT_FOUND", "message": "model m-2 not found"}}}, "model_unavailable"),
        ({"code": 429, "body": '{"error": {"message": "Insufficient balance"}}'}, "quota"),
        ({"body": {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}}, "overloaded"),
        ({"body": '{"message": "Rate limit reached", "code": "rate_limit_exceeded"}'}, "rate_limited"),
        ({"details": [{"message": "invalid api key"}]}, "auth"),
        ({"response": Answer(200), "body": {"error": {"message": "input is too long"}}}, "context_length"),
        ({"response": Answer(401, REFUSED)}, "auth"),
        ({"code": 404}, "unknown"),
        ({"status": 503, "headers": None}, "overloaded"),
    ],
)  # fmt: skip
def test_an_error_is_read_by_its_shape(facts: dict[str, Any], kind: str) -> None:
    assert kind_of(SdkError("it failed", **facts)) == kind


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Error code: 429 - {'error': {'message': 'slow down', 'code': 'rate_limit_exceeded'}}", "rate_limited"),
        ('HTTP 400: {"error": {"message": "prompt is too long: 9 > 8"}}', "context_length"),
        ("request failed with status code 503", "overloaded"),
        ("HTTP/1.1 502 Bad Gateway", "server_error"),
        ("404 rows found", "unknown"),
        ("429", "unknown"),
    ],
)
def test_a_status_inside_a_message_is_read(message: str, kind: str) -> None:
    assert kind_of(SdkError(message)) == kind


def test_a_frame_that_says_nothing_is_the_servers_once_the_answer_had_begun() -> None:
    assert kind_of(SdkError(body={"message": "??"})) == "unknown"
    assert kind_of(SdkError(body={"message": "??"}), content=True) == "server_error"


def test_the_callers_own_servers_errors_say_nothing() -> None:
    own = type(
        "HTTPException", (Exception,), {"__module__": "starlette.exceptions", "status_code": 401, "headers": None}
    )
    assert kind_of(own()) == "unknown"


@pytest.mark.parametrize("own", [KeyError("template"), ValueError("not the JSON that we wanted"), TypeError("x")])
@pytest.mark.parametrize("is_answered", [True, False])
def test_a_fallback_in_an_except_block_does_not_inherit_the_first_targets_error(
    own: Exception, is_answered: bool
) -> None:
    router = sickbay.testing.standalone()
    with pytest.raises(type(own)):
        try:
            with router.attempt(A):
                raise SdkError(response=Answer(401, REFUSED))
        except SdkError:
            with router.attempt(B) as attempt:
                if is_answered:
                    attempt.ok(status=200)
                raise own
    assert kinds(router) == ["auth", "ok" if is_answered else "unknown"]


async def test_the_same_holds_awaited_and_for_the_same_error_raised_again() -> None:
    router = sickbay.testing.standalone()

    async def fall_back(first: Exception) -> None:
        async with router.attempt(B):
            raise RuntimeError("nothing worked") from first

    with pytest.raises(RuntimeError):
        try:
            async with router.attempt(A):
                raise SdkError(response=Answer(401, REFUSED))
        except SdkError as first:
            await fall_back(first)
    with pytest.raises(SdkError):
        try:
            raise SdkError(response=Answer(401, REFUSED))
        except SdkError as first:
            with router.attempt(Target("third.test", "m")):
                raise first
    assert kinds(router) == ["auth", "unknown", "unknown"]


def test_what_was_raised_inside_still_speaks_through_what_wraps_it() -> None:
    router = sickbay.testing.standalone()
    with pytest.raises(RuntimeError):
        try:
            raise SdkError(response=Answer(401, REFUSED))
        except SdkError:
            with router.attempt(B):
                try:
                    raise ConnectionRefusedError
                except OSError as error:
                    raise RuntimeError("wrapped") from error
    assert last(router) == "network"


def test_all_members_of_a_group_are_looked_at() -> None:
    group = ExceptionGroup("two", [KeyError("x"), SdkError(response=Answer(429, b"{}"))])
    found = answer_of(group)
    assert found is not None
    assert found.status == 429
    assert fault_of(ExceptionGroup("two", [KeyError("x"), ConnectionResetError()])) == "reset"


@pytest.mark.parametrize(
    ("finish", "complete", "kind"),
    [(None, None, "truncated"), ("", None, "truncated"), ("stop", None, "ok"), (None, True, "ok"), (None, False, "truncated")],
)  # fmt: skip
async def test_a_stream_without_an_end_is_truncated_unless_it_was_complete(
    finish: str | None, complete: bool | None, kind: str
) -> None:
    router = sickbay.testing.standalone()

    async def pieces(_: Target, attempt: Attempt) -> AsyncIterator[str]:
        for piece in ("The answer is ", "that the"):
            yield piece
            await asyncio.sleep(0)
        attempt.output("The answer is that the", finish_reason=finish, complete=complete)

    async with router.stream([B], pieces) as answer:
        assert len([piece async for piece in answer]) == 2
    assert last(router) == kind


def test_an_answer_that_is_no_stream_needs_no_finish_reason() -> None:
    router = sickbay.testing.standalone()
    with router.attempt(B) as attempt:
        assert attempt.output("A whole answer").kind == "ok"


@pytest.mark.parametrize(("took_s", "kind"), [(2.0, "timeout"), (1.0, "cancelled")])
async def test_an_abort_at_the_calls_own_limit_is_too_slow(took_s: float, kind: str) -> None:
    now = [0.0]
    router = sickbay.testing.standalone()
    attempt = Attempt(router, B, AttemptOptions(limit_s=2.0), monotonic=lambda: now[0])
    with pytest.raises(asyncio.CancelledError):
        async with attempt:
            now[0] += took_s
            raise asyncio.CancelledError
    assert kinds(router) == [kind]
