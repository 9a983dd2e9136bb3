"""Who calls an SDK himself inside `call`, `stream` or `attempt` gets it judged: by the shape of what the SDK gives.

OpenAI and Anthropic with their real SDKs against a provider on loopback, google-genai where it is installed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import sickbay.sync
import sickbay.testing
from fake_provider import FakeProvider, fake_provider
from sickbay import Attempt, CallOutcome, Target
from sickbay.router import retries
from sickbay.router.sdk_shapes import holds_output
from sickbay.testing import Standalone
from waiting import until

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
# google-genai's own, where aiohttp is newer than it knows
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
MESSAGES = [{"role": "user", "content": "hi"}]
SDKS = ["openai", "anthropic", "google"]


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    with fake_provider() as running:
        yield running


class Sdk:
    """One SDK, asked for a completion or a stream; `raw` gives its raw response."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        if name == "google":
            genai = pytest.importorskip("google.genai")
            self.client: Any = genai.Client(api_key="k", http_options={"base_url": url})
        elif name == "openai":
            self.client = openai.AsyncOpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0)
        else:
            self.client = anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0)

    async def ask(self, model: str, *, stream: bool = False, raw: bool = False) -> Any:
        if self.name == "google":
            models = self.client.aio.models
            ask = models.generate_content_stream if stream else models.generate_content
            return await ask(model=model, contents="hi")
        made = self.client.chat.completions if self.name == "openai" else self.client.messages
        made = made.with_raw_response if raw else made
        more = {} if self.name == "openai" else {"max_tokens": 9}
        return await made.create(model=model, messages=MESSAGES, stream=stream, **more)


@pytest.fixture(params=SDKS)
async def sdk(request: pytest.FixtureRequest, provider: FakeProvider) -> AsyncIterator[Sdk]:
    made = Sdk(request.param, provider.url)
    yield made
    await (made.client.aio.aclose() if made.name == "google" else made.client.close())


def kinds(router: Standalone) -> list[str]:
    return [event.kind for _, event in router.recorded if isinstance(event, CallOutcome)]


@pytest.mark.parametrize("raw", [False, True])
async def test_a_call_judges_what_the_sdk_returned(sdk: Sdk, raw: bool) -> None:
    """An empty 200 is no answer, so the next candidate is asked."""
    router = sickbay.testing.standalone()
    chain = [Target("a.test", "empty"), Target("b.test", "good")]

    async def fn(target: Target, _: Attempt) -> Any:
        return await sdk.ask(target.model, raw=raw)

    answer = await router.call(chain, fn)
    assert (answer.model, kinds(router)) == ("good", ["empty_output", "ok"])
    outcome = router.recorded[1][1]
    assert isinstance(outcome, CallOutcome) and outcome.checkable and outcome.status == 200


async def test_an_attempt_judges_what_it_is_shown(sdk: Sdk) -> None:
    router = sickbay.testing.standalone()
    for model in ("empty", "good"):
        async with router.attempt(Target("a.test", model)) as attempt:
            assert attempt.returned(await sdk.ask(model)) is not None
    assert kinds(router) == ["empty_output", "ok"]


@pytest.mark.parametrize("value", ["text", b"bytes", None, 5, {"name": "x"}, ["a"], object(), type("T", (), {})])
async def test_a_value_of_ones_own_says_nothing(value: object) -> None:
    router = sickbay.testing.standalone()

    async def fn(_: Target, attempt: Attempt) -> object:
        assert attempt.returned(value) is None
        return value

    assert (await router.call([Target("a.test", "m")], fn)).value is value
    assert kinds(router) == ["ok"]


async def test_a_plain_dict_is_known_by_its_shape() -> None:
    router = sickbay.testing.standalone()

    async def fn(_: Target, __: Attempt) -> dict[str, Any]:
        return {"choices": [{"message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]}

    await router.call([Target("a.test", "m")], fn, fallback=None)
    assert kinds(router) == ["empty_output"]


@pytest.mark.parametrize(
    ("model", "wanted"),
    [("good", ["ok"]), ("empty", ["empty_output", "ok"]), ("polite-cut", ["truncated"])],
)
async def test_a_stream_of_chunks_needs_no_word(sdk: Sdk, model: str, wanted: list[str]) -> None:
    """The chunk that names the role is no content, so an empty stream goes on to the next candidate; a stream without a
    finish reason was cut off."""
    router = sickbay.testing.standalone()

    async def pieces(target: Target, _: Attempt) -> AsyncIterator[Any]:
        async for chunk in await sdk.ask(target.model, stream=True):
            yield chunk

    async with router.stream([Target("a.test", model), Target("b.test", "good")], pieces) as answer:
        chunks = [chunk async for chunk in answer]
    if sdk.name != "google":
        assert not holds_output(chunks[0]), "the chunk that names the role comes first all the same"
    assert any(map(holds_output, chunks)) and kinds(router) == wanted
    if wanted == ["ok"]:
        outcome = router.recorded[0][1]
        assert isinstance(outcome, CallOutcome) and outcome.checkable and outcome.ttft_ms is not None


async def test_the_helper_says_what_the_chunks_make(sdk: Sdk) -> None:
    router = sickbay.testing.standalone()
    for model in ("good", "empty", "polite-cut"):
        async with router.attempt(Target("a.test", model)) as attempt:
            assert [chunk async for chunk in attempt.chunks(await sdk.ask(model, stream=True))]
    assert kinds(router) == ["ok", "empty_output", "truncated"]


async def test_a_stream_gathered_in_a_call_may_fail_over(sdk: Sdk) -> None:
    router = sickbay.testing.standalone()

    async def fn(target: Target, attempt: Attempt) -> list[Any]:
        return [chunk async for chunk in attempt.chunks(await sdk.ask(target.model, stream=True))]

    answer = await router.call([Target("a.test", "polite-cut"), Target("b.test", "good")], fn)
    assert (answer.model, kinds(router)) == ("good", ["truncated", "ok"])


async def test_who_leaves_the_helper_early_cancels(sdk: Sdk) -> None:
    router = sickbay.testing.standalone()
    async with router.attempt(Target("a.test", "good")) as attempt:
        chunks = attempt.chunks(await sdk.ask("good", stream=True))
        await anext(chunks)
        await chunks.aclose()
    assert kinds(router) == ["cancelled"]


def test_threads_have_the_same(provider: FakeProvider) -> None:
    made = sickbay.testing.standalone()
    with (
        sickbay.sync.SyncSickbay(lambda: made, 1.0) as router,
        openai.OpenAI(api_key="k", base_url=f"{provider.url}/v1", max_retries=0) as client,
    ):

        def fn(target: Target, _: Attempt) -> Any:
            return client.chat.completions.create(model=target.model, messages=MESSAGES)

        def pieces(target: Target, _: Attempt) -> Iterator[Any]:
            yield from client.chat.completions.create(model=target.model, messages=MESSAGES, stream=True)

        chain = [Target("a.test", "empty"), Target("b.test", "good")]
        assert router.call(chain, fn).model == "good"
        with router.stream(chain, pieces) as answer:
            assert len(list(answer)) > 1 and answer.model == "good"
        with router.attempt(Target("a.test", "polite-cut")) as attempt:
            stream = client.chat.completions.create(model="polite-cut", messages=MESSAGES, stream=True)
            assert list(attempt.chunks(stream))
    assert kinds(made) == ["empty_output", "ok", "empty_output", "ok", "truncated"]


def choice(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


@pytest.mark.parametrize(
    ("piece", "is_content"),
    [
        ("text", True),
        ("", False),
        (b"data: " + b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}', False),
        (b'data: {"choices": [{"delta": {"content": "x"}}]}', True),
        (b"plain bytes", True),
        (choice(role="assistant", content=""), False),
        (choice(content="x"), True),
        (choice(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]), True),
        ({"choices": [], "usage": {"total_tokens": 3}}, False),
        ({"type": "message_start", "message": {"content": []}}, False),
        ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}, True),
        ({"type": "response.created", "response": {"output": []}}, False),
        ({"type": "response.output_text.delta", "delta": "x"}, True),
        ({"candidates": [{"content": {"parts": [{"text": "x"}]}}]}, True),
        ({"my": "own"}, True),
        ({}, False),
    ],
)
def test_which_pieces_are_content_by_default(piece: object, is_content: bool) -> None:
    assert holds_output(piece) == is_content


async def test_a_stream_may_outlive_the_block_that_began_it() -> None:
    """As a web framework's streaming response does: the handler returns before the first chunk is read."""
    router = sickbay.testing.standalone()

    async def pieces(_: Target, __: Attempt) -> AsyncIterator[str]:
        yield "Hel"
        yield "lo"

    async def handler() -> AsyncIterator[str]:
        async with router.stream([Target("a.test", "m")], pieces) as answer:
            return answer

    body = await handler()
    assert router.recorded == []
    assert [piece async for piece in body] == ["Hel", "lo"] and kinds(router) == ["ok"]
    body = await handler()
    del body  # the client went away before the body was begun
    await until(lambda: gc.collect() >= 0 and len(kinds(router)) == 2)
    assert kinds(router) == ["ok", "cancelled"]


async def test_a_block_that_was_read_from_closes_its_stream() -> None:
    router = sickbay.testing.standalone()

    async def pieces(_: Target, __: Attempt) -> AsyncIterator[str]:
        yield "Hel"
        await asyncio.Event().wait()

    async with router.stream([Target("a.test", "m")], pieces) as answer:
        assert await anext(answer) == "Hel"
    assert kinds(router) == ["cancelled"]


def test_a_sync_stream_may_outlive_its_block_too() -> None:
    made = sickbay.testing.standalone()

    def pieces(_: Target, __: Attempt) -> Iterator[str]:
        yield from ("Hel", "lo")

    with sickbay.sync.SyncSickbay(lambda: made, 1.0) as router:
        with router.stream([Target("a.test", "m")], pieces) as answer:
            pass
        assert list(answer) == ["Hel", "lo"] and kinds(made) == ["ok"]
        with router.stream([Target("a.test", "m")], pieces) as answer:
            pass
        del answer
        gc.collect()
    assert kinds(made) == ["ok", "cancelled"]


def test_a_client_that_retries_inside_an_attempt_is_named_once(
    provider: FakeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    retries._warn_once.cache_clear()
    router = sickbay.testing.standalone()
    with openai.OpenAI(api_key="k", base_url=f"{provider.url}/v1", max_retries=1) as client:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError), router.attempt(Target("a.test", "err500")):
                client.chat.completions.create(model="err500", messages=MESSAGES)
    said = [record for record in caplog.records if getattr(record, "event", "") == "client_retries"]
    assert [(one.levelno, one.library) for one in said] == [(logging.WARNING, "OpenAI")]  # type: ignore[attr-defined]
    assert "max_retries=0" in said[0].getMessage()


async def test_the_default_limits_fit_completions() -> None:
    """Three candidates: each has time for a long completion, and its timeout says something for the fleet."""
    router = sickbay.testing.standalone()
    limits: list[float | None] = []

    async def fn(_: Target, attempt: Attempt) -> str:
        limits.append(attempt.limit_s)
        raise ConnectionResetError

    await router.call([Target("a.test", str(n)) for n in range(3)], fn, fallback="")
    assert len(limits) == 3 and all(limit is not None and 39 < limit <= 60 for limit in limits)
