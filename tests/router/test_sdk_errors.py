"""What real SDKs raise, read by shape (Rule 3): each against a provider on loopback, sync and async, before, inside
and after a stream. An SDK that is not installed is passed over.
"""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

import sickbay.testing
from sickbay import CallOutcome, Target

ONE = {"choices": [{"index": 0, "delta": {"content": "The answer"}, "finish_reason": None}]}
LAST = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
CLAUDE_ONE = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "The answer"}}


def openai_error(message: str, code: Any = None, type_: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "code": code, "type": type_, "param": None}}


def claude_error(type_: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": type_, "message": message}, "request_id": "req_0"}


def google_error(code: int, message: str, status: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status}}


class Provider(BaseHTTPRequestHandler):
    """Answers as the test says: (status, headers, frames or body), None for a connection that is closed."""

    answer: ClassVar[tuple[int, dict[str, str], Any] | None] = None
    is_cut: ClassVar[bool] = False
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.close_connection = True
        if Provider.answer is None:
            return
        status, headers, body = Provider.answer
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        sent = {"content-type": "application/json", "content-length": str(len(data) + 100 * Provider.is_cut)}
        for name, value in (sent | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def frames(*documents: Any, names: bool = False) -> bytes:
    return b"".join(
        (f"event: {one['type']}\n".encode() if names else b"") + b"data: " + json.dumps(one).encode() + b"\n\n"
        for one in documents
    )


SSE = {"content-type": "text/event-stream"}


def recorded(call: Callable[[Any], Any], host: str, model: str) -> tuple[str, float | None]:
    """What a sync call leaves behind: kind and wait."""
    router = sickbay.testing.standalone()
    with contextlib.suppress(Exception), router.attempt(Target(host, model)) as attempt:
        call(attempt)
    outcome = router.recorded[-1][1]
    assert isinstance(outcome, CallOutcome)
    return outcome.kind, outcome.retry_after_s


async def recorded_async(call: Callable[[Any], Any], host: str, model: str) -> tuple[str, float | None]:
    router = sickbay.testing.standalone()
    with contextlib.suppress(Exception):
        async with router.attempt(Target(host, model)) as attempt:
            await call(attempt)
    outcome = router.recorded[-1][1]
    assert isinstance(outcome, CallOutcome)
    return outcome.kind, outcome.retry_after_s


NO_WAIT: dict[str, str] = {}
OPENAI = [
    (404, NO_WAIT, openai_error("The model `acme-9` does not exist or you do not have access to it.", "model_not_found"), "model_unavailable", None),
    (401, NO_WAIT, openai_error("Incorrect API key provided: x.", "invalid_api_key"), "auth", None),
    (429, {"retry-after": "7"}, openai_error("Rate limit reached", "rate_limit_exceeded"), "rate_limited", 7),
    (429, NO_WAIT, openai_error("You exceeded your current quota", "insufficient_quota"), "quota", None),
    (400, NO_WAIT, openai_error("This model's maximum context length is 8192 tokens", "context_length_exceeded"), "context_length", None),
    (503, NO_WAIT, openai_error("The server is overloaded"), "overloaded", None),
    (500, NO_WAIT, openai_error("Internal error"), "server_error", None),
    (403, NO_WAIT, b"<html>blocked</html>", "unknown", None),
    (None, NO_WAIT, b"", "network", None),
]  # fmt: skip
OPENAI_STREAM: list[tuple[bytes, bool, str]] = [
    (frames(openai_error("Rate limit reached", "rate_limit_exceeded")), False, "rate_limited"),
    (frames(ONE, openai_error("Upstream went away", 502)), False, "server_error"),
    (frames(ONE, openai_error("Our servers are overloaded", "server_is_overloaded")), False, "overloaded"),
    (frames(openai_error("Your input exceeds the context window", "context_length_exceeded")), False, "context_length"),
    (frames(ONE, openai_error("??")), False, "server_error"),
    (frames(ONE), True, "truncated"),
]
CLAUDE = [
    (404, NO_WAIT, claude_error("not_found_error", "model: acme-9"), "model_unavailable", None),
    (401, NO_WAIT, claude_error("authentication_error", "invalid x-api-key"), "auth", None),
    (429, {"retry-after": "9"}, claude_error("rate_limit_error", "slow down"), "rate_limited", 9),
    (529, NO_WAIT, claude_error("overloaded_error", "Overloaded"), "overloaded", None),
    (400, NO_WAIT, claude_error("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"), "context_length", None),
    (None, NO_WAIT, b"", "network", None),
]  # fmt: skip
CLAUDE_STREAM: list[tuple[bytes, bool, str]] = [
    (frames(claude_error("overloaded_error", "Overloaded"), names=True), False, "overloaded"),
    (frames(CLAUDE_ONE, claude_error("rate_limit_error", "slow down"), names=True), False, "rate_limited"),
    (frames(CLAUDE_ONE, claude_error("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"), names=True), False, "context_length"),
    (frames(CLAUDE_ONE, names=True), True, "truncated"),
]  # fmt: skip
GOOGLE = [
    (404, NO_WAIT, google_error(404, "models/acme-9 is not found for API version v1beta", "NOT_FOUND"), "model_unavailable", None),
    (400, NO_WAIT, google_error(400, "API key not valid. Please pass a valid API key.", "INVALID_ARGUMENT"), "auth", None),
    (429, {"retry-after": "5"}, google_error(429, "Resource exhausted", "RESOURCE_EXHAUSTED"), "rate_limited", 5),
    (503, NO_WAIT, google_error(503, "The model is overloaded", "UNAVAILABLE"), "overloaded", None),
    (None, NO_WAIT, b"", "network", None),
]  # fmt: skip
CLOUD = [
    (429, NO_WAIT, "ThrottlingException", "Too many requests, please wait before trying again.", "rate_limited"),
    (404, NO_WAIT, "ResourceNotFoundException", "This model version has reached the end of its life.", "model_unavailable"),
    (403, NO_WAIT, "ExpiredTokenException", "The security token included in the request is expired", "auth"),
    (400, NO_WAIT, "ValidationException", "Input is too long for requested model.", "context_length"),
    (503, NO_WAIT, "ServiceUnavailableException", "unable to process it now", "overloaded"),
]  # fmt: skip


def play(status: int | None, headers: dict[str, str], body: Any, *, is_cut: bool = False) -> None:
    Provider.answer = None if status is None else (status, headers, body)
    Provider.is_cut = is_cut


@pytest.mark.parametrize(("status", "headers", "body", "kind", "wait"), OPENAI)
async def test_openai(
    url: str, status: int | None, headers: dict[str, str], body: Any, kind: str, wait: float | None
) -> None:
    openai = pytest.importorskip("openai")
    play(status, headers, body)
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:
        said = await asyncio.to_thread(
            recorded, lambda _: client.chat.completions.create(model="acme-9", messages=[]), "api.openai.com", "acme-9"
        )
    assert said == (kind, wait)
    async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as clients:
        said = await recorded_async(
            lambda _: clients.chat.completions.create(model="acme-9", messages=[]), "api.openai.com", "acme-9"
        )
    assert said == (kind, wait)


@pytest.mark.parametrize(("body", "is_cut", "kind"), OPENAI_STREAM)
async def test_openai_in_a_stream(url: str, body: bytes, is_cut: bool, kind: str) -> None:
    openai = pytest.importorskip("openai")
    play(200, SSE, body, is_cut=is_cut)
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:

        def read(attempt: Any) -> None:
            for _ in client.chat.completions.create(model="acme-9", messages=[], stream=True):
                attempt.first_content()

        assert (await asyncio.to_thread(recorded, read, "api.openai.com", "acme-9"))[0] == kind
    async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as clients:

        async def read_on(attempt: Any) -> None:
            async for _ in await clients.chat.completions.create(model="acme-9", messages=[], stream=True):
                attempt.first_content()

        assert (await recorded_async(read_on, "api.openai.com", "acme-9"))[0] == kind


async def test_openai_after_a_stream_that_was_whole(url: str) -> None:
    openai = pytest.importorskip("openai")
    play(200, SSE, frames(ONE, LAST) + b"data: [DONE]\n\n")
    async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as clients:

        async def read_on(attempt: Any) -> None:
            async for _ in await clients.chat.completions.create(model="acme-9", messages=[], stream=True):
                attempt.first_content()
            attempt.output("The answer", finish_reason="stop")
            raise KeyError("our own template")

        assert (await recorded_async(read_on, "api.openai.com", "acme-9"))[0] == "ok"


@pytest.mark.parametrize(("status", "headers", "body", "kind", "wait"), CLAUDE)
async def test_anthropic(
    url: str, status: int | None, headers: dict[str, str], body: Any, kind: str, wait: float | None
) -> None:
    anthropic = pytest.importorskip("anthropic")
    play(status, headers, body)
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client:
        said = await asyncio.to_thread(
            recorded,
            lambda _: client.messages.create(model="acme-9", messages=[], max_tokens=9),
            "api.anthropic.com",
            "acme-9",
        )
    assert said == (kind, wait)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as clients:
        said = await recorded_async(
            lambda _: clients.messages.create(model="acme-9", messages=[], max_tokens=9), "api.anthropic.com", "acme-9"
        )
    assert said == (kind, wait)


@pytest.mark.parametrize(("body", "is_cut", "kind"), CLAUDE_STREAM)
async def test_anthropic_in_a_stream(url: str, body: bytes, is_cut: bool, kind: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    play(200, SSE, body, is_cut=is_cut)
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client:

        def read(attempt: Any) -> None:
            for _ in client.messages.create(model="acme-9", messages=[], max_tokens=9, stream=True):
                attempt.first_content()

        assert (await asyncio.to_thread(recorded, read, "api.anthropic.com", "acme-9"))[0] == kind
    async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as clients:

        async def read_on(attempt: Any) -> None:
            async for _ in await clients.messages.create(model="acme-9", messages=[], max_tokens=9, stream=True):
                attempt.first_content()

        assert (await recorded_async(read_on, "api.anthropic.com", "acme-9"))[0] == kind


@pytest.mark.parametrize(("status", "headers", "body", "kind", "wait"), GOOGLE)
async def test_google_genai(
    url: str, status: int | None, headers: dict[str, str], body: Any, kind: str, wait: float | None
) -> None:
    genai = pytest.importorskip("google.genai")
    play(status, headers, body)
    host = "generativelanguage.googleapis.com"
    client = genai.Client(api_key="x", http_options={"base_url": url})
    said = await asyncio.to_thread(
        recorded, lambda _: client.models.generate_content(model="acme-9", contents="x"), host, "acme-9"
    )
    assert said == (kind, wait)
    assert await recorded_async(
        lambda _: client.aio.models.generate_content(model="acme-9", contents="x"), host, "acme-9"
    ) == (kind, wait)

    async def read_on(_: Any) -> None:
        async for _ in await client.aio.models.generate_content_stream(model="acme-9", contents="x"):
            pass

    assert await recorded_async(read_on, host, "acme-9") == (kind, wait)
    await client.aio.aclose()


@pytest.mark.parametrize(("status", "headers", "code", "text", "kind"), CLOUD)
async def test_botocore(url: str, status: int, headers: dict[str, str], code: str, text: str, kind: str) -> None:
    boto3 = pytest.importorskip("boto3")
    config = pytest.importorskip("botocore.config").Config(retries={"total_max_attempts": 1})
    play(status, headers | {"x-amzn-errortype": code}, {"message": text})
    client = boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        config=config,
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    message = {"role": "user", "content": [{"text": "x"}]}
    said = await asyncio.to_thread(
        recorded,
        lambda _: client.converse(modelId="acme-9", messages=[message]),
        "bedrock-runtime.us-east-1.amazonaws.com",
        "acme-9",
    )
    client.close()
    assert said[0] == kind


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("at", range(6))
async def test_litellm(url: str, provider: str, at: int) -> None:
    litellm = pytest.importorskip("litellm")
    litellm.suppress_debug_info = True
    status, headers, body, kind, wait = (OPENAI if provider == "openai" else CLAUDE)[at]
    play(status, headers, body)
    facts: dict[str, Any] = {
        "model": f"{provider}/acme-9",
        "messages": [{"role": "user", "content": "x"}],
        "api_base": url,
        "api_key": "x",
        "num_retries": 0,
        "max_retries": 0,
    }
    host = f"api.{provider}.com"
    said = await asyncio.to_thread(recorded, lambda _: litellm.completion(**facts), host, "acme-9")
    assert said == (kind, wait), "sync"
    assert await recorded_async(lambda _: litellm.acompletion(**facts), host, "acme-9") == (kind, wait)
