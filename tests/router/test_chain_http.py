"""Chains over real local HTTP servers with real clients: what a router's own code would do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import httpx
import pytest
from aiohttp import web

import sickbay
from sickbay import Attempt, CallOutcome, Exhausted, Target
from sickbay.testing import Standalone, standalone
from waiting import patience

CHAT = {"choices": [{"message": {"role": "assistant", "content": "Hello there"}, "finish_reason": "stop"}]}


class Provider:
    """One provider on a port of its own, that answers as it is told to."""

    def __init__(self, name: str) -> None:
        self.target = Target("", name)
        self.requests = self.dropped = 0
        self.status, self.body, self.takes_s = 200, json.dumps(CHAT).encode(), 0.0
        self.events: list[bytes] = []
        self.cuts = False
        self.dropping = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Provider:
        app = web.Application()
        app.router.add_post("/chat", self._chat)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = site.name
        self.target = Target(sickbay.provider_of(self.url), self.target.model)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        await request.read()
        try:
            await asyncio.sleep(self.takes_s)
        except asyncio.CancelledError:
            self.dropped += 1
            self.dropping.set()
            raise
        if not self.events:
            return web.Response(status=self.status, body=self.body, content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in self.events:
            await response.write(b"data: " + event + b"\n\n")
        if self.cuts:
            assert request.transport is not None
            request.transport.abort()
        return response


@pytest.fixture
async def providers() -> AsyncIterator[list[Provider]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Provider(f"m-{name}")) for name in "abc"]


def urls(providers: list[Provider]) -> dict[Target, str]:
    return {provider.target: provider.url + "/chat" for provider in providers}


def outcomes(sb: Standalone) -> list[CallOutcome]:
    return [event for _, event in sb.recorded if isinstance(event, CallOutcome)]


async def test_with_httpx_the_third_answers_after_a_dead_and_a_slow_one(providers: list[Provider]) -> None:
    """The slow one's connection is really closed when its time is over."""
    dead, slow, fine = providers
    dead.status, dead.body = 404, b'{"error":{"message":"The model `m-a` does not exist","code":"model_not_found"}}'
    slow.takes_s = 60
    sb, at = standalone(), urls(providers)
    async with httpx.AsyncClient(trust_env=False) as client:

        async def attempt_fn(target: Target, attempt: Attempt) -> str:
            response = await client.post(at[target], json={}, timeout=None)
            attempt.response(response.status_code, response.headers, response.content)
            return str(response.json()["choices"][0]["message"]["content"]) if response.is_success else ""

        answer = await sb.call([p.target for p in providers], attempt_fn, budget_s=6, attempt_s=0.3)
        assert (answer.value, answer.target, answer.rank) == ("Hello there", fine.target, 2)
        await asyncio.wait_for(slow.dropping.wait(), patience(5))
    assert [(o.kind, o.status) for o in outcomes(sb)] == [("model_unavailable", 404), ("timeout", None), ("ok", 200)]
    assert [p.requests for p in providers] == [1, 1, 1]


async def test_with_aiohttp_whose_status_comes_as_an_exception(providers: list[Provider]) -> None:
    first, second, _third = providers
    first.status, first.body = 503, b'{"error":"overloaded"}'
    sb, at = standalone(), urls(providers)
    async with aiohttp.ClientSession() as session:

        async def attempt_fn(target: Target, attempt: Attempt) -> str:
            limit = aiohttp.ClientTimeout(total=attempt.limit_s)
            async with session.post(at[target], json={}, timeout=limit) as response:
                response.raise_for_status()
                body = await response.read()
                attempt.response(response.status, response.headers, body)
                return str(json.loads(body)["choices"][0]["message"]["content"])

        answer = await sb.call([first.target, second.target], attempt_fn)
    assert (answer.value, answer.failed_over) == ("Hello there", True)
    assert [o.status for o in outcomes(sb)] == [503, 200]


class ApiStatusError(Exception):
    """As client libraries of providers raise it: with the response on it."""

    def __init__(self, response: httpx.Response) -> None:
        self.response, self.status_code = response, response.status_code
        super().__init__(f"Error code: {response.status_code}")


async def test_with_a_client_library_that_raises_and_everything_dead(providers: list[Provider]) -> None:
    for provider in providers:
        provider.status, provider.body = 401, b'{"error":{"message":"Bad credentials","code":"invalid_api_key"}}'
    sb, at = standalone(), urls(providers)
    async with httpx.AsyncClient(trust_env=False) as client:

        async def attempt_fn(target: Target, attempt: Attempt) -> str:
            response = await client.post(at[target], json={})
            if not response.is_success:
                raise ApiStatusError(response)
            return response.text

        with pytest.raises(Exhausted) as caught:
            await sb.call([p.target for p in providers], attempt_fn)
    assert [(tried.status, tried.kind) for tried in caught.value.attempts] == [(401, "auth")] * 3
    assert isinstance(caught.value.__cause__, ApiStatusError)
    assert "Bad credentials" in str(caught.value)


def event(text: str) -> bytes:
    return json.dumps({"choices": [{"delta": {"content": text}}]}).encode()


async def test_a_stream_over_http_fails_over_and_a_cut_is_truncated(providers: list[Provider]) -> None:
    first, second, third = providers
    first.status, first.body = 500, b"{}"
    second.events, second.cuts = [event(""), event("Hel"), event("lo")], False
    third.events, third.cuts = [event("Hel")], True
    sb, at = standalone(), urls(providers)
    async with httpx.AsyncClient(trust_env=False) as client:

        async def stream_fn(target: Target, attempt: Attempt) -> AsyncIterator[str]:
            async with client.stream("POST", at[target], json={}) as response:
                if not response.is_success:
                    attempt.response(response.status_code, response.headers, await response.aread())
                    return
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line[6:])["choices"][0]["delta"]["content"]

        async with sb.stream([first.target, second.target], stream_fn) as answer:
            assert (answer.model, answer.failed_over) == ("m-b", True)
            assert "".join([chunk async for chunk in answer]) == "Hello"
        got: list[str] = []
        with pytest.raises(httpx.RemoteProtocolError):
            async with sb.stream([third.target, second.target], stream_fn) as answer:
                async for chunk in answer:
                    got.append(chunk)  # noqa: PERF401 - what came before the cut counts
    assert got == ["Hel"]
    assert [o.kind for o in outcomes(sb)] == ["server_error", "ok", "truncated"]
    assert second.requests == 1


async def test_a_stage_of_twenty_sections_at_300_ms_under_a_small_budget(providers: list[Provider]) -> None:
    """Against a real server: 1.35 s are enough for four answers at most, and nothing is sent afterwards."""
    provider = providers[0]
    provider.takes_s = 0.3
    sb = standalone()
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(trust_env=False) as client:

        async def section(_target: Target, attempt: Attempt) -> str:
            response = await client.post(provider.url + "/chat", json={}, timeout=attempt.limit_s)
            attempt.response(response.status_code, response.headers, response.content)
            return response.text

        began_s = loop.time()
        with sickbay.budget(1.35, feature="summaries") as b:
            answers = [await sb.call([provider.target], section, fallback="", route="summary") for _ in range(20)]
        took_s = loop.time() - began_s
    answered = sum(not answer.degraded for answer in answers)
    assert 1 <= answered <= 4
    assert provider.requests == b.calls <= 5
    assert b.skipped == 20 - b.calls
    assert 1.35 <= took_s < 1.35 + 2.0
    assert sb.degradations == {("summaries", "budget_spent"): 1}
