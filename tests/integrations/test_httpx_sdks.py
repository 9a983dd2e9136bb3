"""The transport under the real OpenAI and Anthropic SDKs, sync and async, on httpx2 and on httpx, against a provider on
loopback: every fault gives its kind, and a held target is refused with one try.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

import sickbay.httpx
import sickbay.testing
from fake_provider import FakeProvider, fake_provider
from sickbay import CallOutcome, Target, provider_of
from sickbay.testing import Standalone
from waiting import until

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
httpx = pytest.importorskip("httpx")
httpx2 = pytest.importorskip("httpx2")

OWN = "httpx2" if issubclass(openai.DefaultHttpxClient, httpx2.Client) else "httpx"
"""What the SDKs stand on: httpx2 from openai 3 and anthropic 2 on."""
SDKS = ["openai", "openai on httpx", "anthropic"]
MESSAGES = [{"role": "user", "content": "hi"}]
CASES = [
    # model, streamed, (kind, status, stated wait) of every outcome
    ("good", False, [("ok", 200, None)]),
    ("gzip", False, [("ok", 200, None)]),
    ("deflate", False, [("ok", 200, None)]),
    ("empty", False, [("empty_output", 200, None)]),
    ("dead-1", False, [("model_unavailable", 404, None)]),
    ("rate", False, [("rate_limited", 429, 30)]),
    ("err500", False, [("server_error", 500, None)] * 2),
    ("good", True, [("ok", 200, None)]),
    ("empty", True, [("empty_output", 200, None)]),
    ("cut", True, [("truncated", 200, None)]),
    ("polite-cut", True, [("truncated", 200, None)]),
    ("dead-1", True, [("model_unavailable", 404, None)]),
    ("rate", True, [("rate_limited", 429, 30)]),
]


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    with fake_provider() as running:
        yield running


def sdk_client(sdk: str, router: Any, url: str, *, is_async: bool, **options: Any) -> Any:
    library = "httpx" if sdk == "openai on httpx" else OWN
    make = sickbay.httpx.async_client if is_async else sickbay.httpx.client
    http_client = make(router, library=library)
    options = {"api_key": "k", "max_retries": 1, "http_client": http_client} | options
    if sdk == "anthropic":
        return (anthropic.AsyncAnthropic if is_async else anthropic.Anthropic)(base_url=url, **options)
    return (openai.AsyncOpenAI if is_async else openai.OpenAI)(base_url=f"{url}/v1", **options)


def create(client: Any, model: str, **more: Any) -> Any:
    if hasattr(client, "chat"):
        return client.chat.completions.create(model=model, messages=MESSAGES, **more)
    return client.messages.create(model=model, messages=MESSAGES, max_tokens=20, **more)


def outcomes(router: Standalone) -> list[CallOutcome]:
    return [event for _, event in router.recorded if isinstance(event, CallOutcome)]


def told(router: Standalone) -> list[tuple[str, int | None, float | None]]:
    return [(one.kind, one.status, one.retry_after_s) for one in outcomes(router)]


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize(("model", "streamed", "wanted"), CASES)
def test_a_sync_client_reports_what_came(
    provider: FakeProvider, sdk: str, model: str, streamed: bool, wanted: list[Any]
) -> None:
    router = sickbay.testing.standalone(machine="")
    with sdk_client(sdk, router, provider.url, is_async=False) as client:
        try:
            answer = create(client, model, stream=streamed)
            if streamed:
                list(answer)
        except (openai.APIError, anthropic.APIError, httpx2.HTTPError, httpx.HTTPError):
            assert wanted[0][0] not in ("ok", "empty_output")
    assert told(router) == wanted
    target, outcome = router.recorded[0]
    assert target == Target(provider_of(provider.url), model)
    assert isinstance(outcome, CallOutcome) and outcome.stream == streamed and outcome.limit_ms == 600_000
    assert (outcome.ttft_ms is not None) == (streamed and model in ("good", "cut", "polite-cut"))


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize(("model", "streamed", "wanted"), CASES)
async def test_an_async_client_reports_what_came(
    provider: FakeProvider, sdk: str, model: str, streamed: bool, wanted: list[Any]
) -> None:
    router = sickbay.testing.standalone()
    async with sdk_client(sdk, router, provider.url, is_async=True) as client:
        try:
            answer = await create(client, model, stream=streamed)
            if streamed:
                assert [chunk async for chunk in answer]
        except (openai.APIError, anthropic.APIError, httpx2.HTTPError, httpx.HTTPError):
            assert wanted[0][0] not in ("ok", "empty_output")
    assert told(router) == wanted


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("sdk", SDKS)
async def test_a_held_target_is_refused_with_one_try_and_the_true_wait(
    provider: FakeProvider, sdk: str, streamed: bool
) -> None:
    router = sickbay.testing.standalone()
    model = f"held-{sdk}-{streamed}"
    router.hold(Target(provider_of(provider.url), model), for_s=300)
    async with sdk_client(sdk, router, provider.url, is_async=True, max_retries=5) as client:
        with pytest.raises((openai.InternalServerError, anthropic.APIStatusError)) as raised:
            await create(client, model, stream=streamed)
    error: Any = raised.value
    assert (error.status_code, error.response.headers["retry-after"]) == (503, "300")
    assert error.response.headers["x-sickbay"] == "held" and "sickbay_held (quarantined)" in str(error)
    assert error.response.extensions["sickbay"].decision.reason == "quarantined"
    assert told(router) == [] and provider.hits[model] == 0
    assert sum(count for _, _, count, _ in router.gate.take_denials()) == 1, "it did not try again"
    with (
        sdk_client(sdk, router, provider.url, is_async=False, max_retries=5) as client,
        pytest.raises((openai.InternalServerError, anthropic.APIStatusError)),
    ):
        await asyncio.to_thread(create, client, model, stream=streamed)
    if sdk != "anthropic":
        assert error.code == "quarantined" and error.type == "sickbay_held"


@pytest.mark.parametrize("sdk", SDKS)
def test_no_sdk_sleeps_through_a_hold(provider: FakeProvider, sdk: str) -> None:
    """A 429 that holds its target is raised at once: with the provider's `Retry-After: 30` an SDK would sleep so long
    and then be refused."""
    router = sickbay.testing.standalone()
    began_s = time.monotonic()
    with (
        sdk_client(sdk, router, provider.url, is_async=False, max_retries=5) as client,
        pytest.raises((openai.RateLimitError, anthropic.RateLimitError)) as raised,
    ):
        create(client, f"rate-{sdk}")
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert provider.hits[f"rate-{sdk}"] == 1 and time.monotonic() - began_s < 25


@pytest.mark.parametrize("sdk", SDKS)
def test_an_error_that_holds_nothing_is_the_sdks_to_retry(provider: FakeProvider, sdk: str) -> None:
    """The provider's answer is passed on as it is; each try is an attempt."""
    router = sickbay.testing.standalone()
    with (
        sdk_client(sdk, router, provider.url, is_async=False, max_retries=1) as client,
        pytest.raises((openai.InternalServerError, anthropic.InternalServerError)) as raised,
    ):
        create(client, f"err500-{sdk}")
    assert "x-should-retry" not in raised.value.response.headers and "The server had an error" in str(raised.value)
    assert provider.hits[f"err500-{sdk}"] == 2 == len(told(router))


async def raises_what(work: Awaitable[Any], *errors: type[BaseException]) -> None:
    with pytest.raises(errors):
        await work


@pytest.mark.parametrize("sdk", SDKS)
async def test_a_timeout_of_the_client_is_a_timeout(provider: FakeProvider, sdk: str) -> None:
    router = sickbay.testing.standalone()
    async with sdk_client(sdk, router, provider.url, is_async=True, max_retries=0, timeout=0.2) as client:
        await raises_what(create(client, "hang"), openai.APITimeoutError, anthropic.APITimeoutError)
    assert told(router) == [("timeout", None, None)] and outcomes(router)[0].limit_ms == 200


@pytest.mark.parametrize("sdk", SDKS)
async def test_a_call_that_its_caller_cancels_is_cancelled(provider: FakeProvider, sdk: str) -> None:
    router = sickbay.testing.standalone()
    model = f"hang-cancelled-{sdk}"
    async with sdk_client(sdk, router, provider.url, is_async=True) as client:
        task = asyncio.create_task(create(client, model))
        await asyncio.to_thread(provider.wait_for, model)
        task.cancel()
        await raises_what(task, asyncio.CancelledError)
    assert told(router) == [("cancelled", None, None)]


@pytest.mark.parametrize("sdk", SDKS)
async def test_a_refused_connection_is_the_network(sdk: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    router = sickbay.testing.standalone()
    async with sdk_client(sdk, router, url, is_async=True, max_retries=0) as client:
        await raises_what(create(client, "good"), openai.APIConnectionError, anthropic.APIConnectionError)
    assert [(one.kind, one.signature) for one in outcomes(router)] == [("network", "connect")]


def is_found(router: Standalone) -> bool:
    gc.collect()
    return bool(outcomes(router))


@pytest.mark.parametrize("sdk", SDKS)
async def test_a_stream_that_is_left_early_is_cancelled(provider: FakeProvider, sdk: str) -> None:
    """Closed at once, or dropped and found by the collector: then the lease of a trial is free again, too."""
    for is_closed in (True, False):
        router = sickbay.testing.standalone()
        target = Target(provider_of(provider.url), "pause")
        router.hold(target, for_s=1)
        router.advance(2)
        async with sdk_client(sdk, router, provider.url, is_async=True) as client:
            stream: Any = await create(client, "pause", stream=True)
            async for _ in stream:
                break
            if is_closed:
                await stream.close()
            del stream, _
            await until(partial(is_found, router))
        assert told(router) == [("cancelled", 200, None)]
        with router.attempt(target) as attempt:
            assert attempt.decision is not None
            attempt.ok()


def test_a_stream_that_a_sync_client_leaves_is_cancelled(provider: FakeProvider) -> None:
    router = sickbay.testing.standalone()
    with (
        sdk_client("openai", router, provider.url, is_async=False) as client,
        create(client, "pause", stream=True) as stream,
    ):
        next(iter(stream))
    assert told(router) == [("cancelled", 200, None)]


def in_attempt(router: Standalone, url: str, call: Callable[[], Any]) -> None:
    with router.attempt(Target(provider_of(url), "err500-joined"), limit_s=20, route="mine"):
        call()


def test_inside_an_attempt_the_transport_reports_nothing_of_its_own(provider: FakeProvider) -> None:
    """And the SDK does not retry there: the attempt around it is one attempt."""
    router = sickbay.testing.standalone()
    with (
        sdk_client("openai", router, provider.url, is_async=False, max_retries=5) as client,
        pytest.raises(openai.InternalServerError),
    ):
        in_attempt(router, provider.url, lambda: create(client, "err500-joined"))
    assert told(router) == [("server_error", 500, None)] and provider.hits["err500-joined"] == 1
    assert outcomes(router)[0].route == "mine" and outcomes(router)[0].limit_ms == 20_000


async def test_a_chain_fails_over_by_what_the_transport_saw(provider: FakeProvider) -> None:
    """An empty answer is no exception of the SDK's; the bytes tell it. A stream gathered in `call` may fail over."""
    router = sickbay.testing.standalone()
    chain = [Target(provider_of(provider.url), model) for model in ("empty", "cut", "good")]
    async with sdk_client("openai", router, provider.url, is_async=True) as client:

        async def fn(target: Target, _: Any) -> str:
            if target.model != "cut":
                return (await create(client, target.model)).choices[0].message.content or ""
            return "".join([c.choices[0].delta.content async for c in await create(client, "cut", stream=True)])

        answer = await router.call(chain, fn)
    assert (answer.value, [tried.kind for tried in answer.attempts]) == (
        "Hello there",
        ["empty_output", "truncated", "ok"],
    )
    assert [kind for kind, *_ in told(router)] == ["empty_output", "truncated", "ok"]


def test_an_sdks_own_client_is_guarded_by_one_call(provider: FakeProvider) -> None:
    router = sickbay.testing.standalone()
    with sickbay.httpx.guard(openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k"), router) as client:
        create(client.with_options(timeout=5), "good")
    with sickbay.httpx.guard(anthropic.Anthropic(base_url=provider.url, api_key="k"), router) as client:
        create(client, "good")
    assert told(router) == [("ok", 200, None)] * 2


async def test_google_genai_goes_through_the_client_that_it_is_given(provider: FakeProvider) -> None:
    genai = pytest.importorskip("google.genai")
    router = sickbay.testing.standalone()
    clients = {
        "httpx_client": sickbay.httpx.client(router, library="httpx"),
        "httpx_async_client": sickbay.httpx.async_client(router, library="httpx"),
    }
    client = genai.Client(api_key="k", http_options={"base_url": provider.url, **clients})
    assert client.models.generate_content(model="good", contents="hi").text == "Hello there"
    stream = await client.aio.models.generate_content_stream(model="good", contents="hi")
    assert "".join([chunk.text or "" async for chunk in stream]) == "Hello there"
    await client.aio.aclose()
    assert told(router) == [("ok", 200, None)] * 2
    assert [one.ttft_ms is not None for one in outcomes(router)] == [False, True]
    assert {target.model for target, _ in router.recorded} == {"good"}
