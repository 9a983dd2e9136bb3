"""The transport by itself: which requests it looks at, what it reads of them, what a client of one's own gets."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import sickbay.httpx
import sickbay.sync
import sickbay.testing
from fake_provider import FakeProvider, fake_provider
from sickbay import CallOutcome, Target, provider_of
from sickbay.integrations.asked import read_request
from sickbay.integrations.refusal import refusal_of
from sickbay_events import Decision, NameRefused, classify

ORIGIN = "https://api.example.test"
HOST = "api.example.test"


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": []} | fields).encode()


@pytest.mark.parametrize(
    ("path", "content", "model", "is_stream", "is_capped"),
    [
        ("/v1/chat/completions", body(model="m"), "m", False, False),
        ("/v1/chat/completions", body(model="m", stream=True, max_tokens=5), "m", True, True),
        ("/v1/chat/completions", body(model="m", max_completion_tokens=5), "m", False, True),
        ("/v1/responses", body(model="m", max_output_tokens=5, stream=False), "m", False, True),
        ("/openai/deployments/my%2Dgpt/chat/completions", body(model="gpt-4o"), "my-gpt", False, False),
        ("/v1beta/models/gemini-3-pro:generateContent", body(), "gemini-3-pro", False, False),
        (
            "/v1/projects/p/locations/l/publishers/google/models/g:streamGenerateContent",
            body(generationConfig={"maxOutputTokens": 9}),
            "g",
            True,
            True,
        ),
        ("/model/anthropic.claude-v9%3A0/converse", body(), "anthropic.claude-v9:0", False, False),
        ("/model/a/converse-stream", body(inferenceConfig={"maxTokens": 4}), "a", True, True),
        ("/model/a/invoke-with-response-stream", body(), "a", True, False),
    ],
)
def test_model_stream_and_cap_are_read(path: str, content: bytes, model: str, is_stream: bool, is_capped: bool) -> None:
    asked = read_request(ORIGIN, "", path, content)
    assert asked is not None
    assert (asked.target, asked.is_stream, asked.client_capped) == (Target(HOST, model), is_stream, is_capped)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/chat/completions", b"no json"),
        ("/v1/chat/completions", b"[]"),
        ("/v1/chat/completions", body()),
        ("/v1/chat/completions", body(model=5)),
        ("/v1/chat/completions", body(model="")),
        ("/v1/chat/completions", b"[" * 100_000),
        ("/v1/messages/count_tokens", body(model="m")),
        ("/v1beta/models/g:countTokens", body()),
        ("/v1/unknown", b""),
    ],
)
def test_what_calls_no_model_is_let_pass(path: str, content: bytes) -> None:
    assert read_request(ORIGIN, "", path, content) is None


@pytest.mark.parametrize(("text", "is_ascii"), [("hello", True), ("grüße", False), ("gr\\u00fc\\u00dfe", False)])
def test_whether_the_prompt_is_ascii_is_read_from_its_bytes(text: str, is_ascii: bool) -> None:
    asked = read_request(ORIGIN, "", "/v1/chat/completions", f'{{"model": "m", "input": "{text}"}}'.encode())
    assert asked is not None and asked.prompt_ascii == is_ascii


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "google", "bedrock"])
def test_a_refusal_is_known_again_in_every_dialect(dialect: Any) -> None:
    """By its body alone, as through a proxy or an SDK that shows no headers."""
    decision = Decision(allowed=False, reason="throttled", retry_in_s=12.34)
    status, headers, said = refusal_of(sickbay.Held(Target(HOST, "m"), decision), dialect)
    assert (status, headers["retry-after"], headers["x-should-retry"]) == (503, "13", "false")
    verdict = classify(status=status, headers={}, body=said, requested_model="m")
    assert (verdict.kind, verdict.signature, verdict.code) == ("cancelled", "held", "throttled")
    assert verdict.retry_after_s == 12.3


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    with fake_provider() as running:
        yield running


@pytest.fixture(params=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    found: ModuleType = pytest.importorskip(request.param)
    return found


def chat(url: str) -> dict[str, Any]:
    return {"url": f"{url}/v1/chat/completions", "json": {"model": "good"}}


def test_a_client_of_ones_own_is_guarded_with_all_it_has(provider: FakeProvider, library: ModuleType) -> None:
    router = sickbay.testing.standalone()
    with library.Client(mounts={"all://other.test": None}, timeout=3) as client:
        assert sickbay.httpx.guard(sickbay.httpx.guard(client, router), router) is client
        assert client.post(**chat(provider.url)).status_code == 200
    ((_, outcome),) = router.recorded
    assert isinstance(outcome, CallOutcome) and (outcome.kind, outcome.limit_ms) == ("ok", 3000), "guarded once"


async def test_a_transport_of_ones_own_takes_an_alias(provider: FakeProvider, library: ModuleType) -> None:
    router = sickbay.testing.standalone(machine="box")
    inner = library.AsyncHTTPTransport()
    transport = sickbay.httpx.transport(router, inner, alias="team-a")
    async with (
        library.AsyncClient(transport=transport) as client,
        client.stream("POST", **chat(provider.url)) as response,
    ):
        assert b"".join([piece async for piece in response.aiter_bytes()])
    assert router.recorded[0][0].provider == f"{provider_of(provider.url)}@box#team-a"
    with pytest.raises(NameRefused):
        sickbay.httpx.transport(router, inner, alias="sk-proj-" + "a1B2c3D4" * 4)


def test_other_requests_pass_untouched(provider: FakeProvider, library: ModuleType) -> None:
    router = sickbay.testing.standalone()
    with sickbay.httpx.client(router, library=library.__name__) as client:
        client.post(f"{provider.url}/v1/audio", files={"file": b"x" * 100}, data={"model": "whisper"})
        client.post(f"{provider.url}/v1/chat/completions", content=iter([b'{"model": "streamed"}']))
    assert router.recorded == []


def test_an_error_answer_is_whole_for_the_client(provider: FakeProvider, library: ModuleType) -> None:
    router = sickbay.testing.standalone()
    with sickbay.httpx.client(router, library=library.__name__) as client:
        answer = client.post(f"{provider.url}/v1/chat/completions", json={"model": "dead"})
    assert answer.json()["error"]["code"] == "model_not_found" and len(router.recorded) == 1


async def test_a_connection_in_another_thread_serves_an_async_client(
    provider: FakeProvider, library: ModuleType
) -> None:
    """`sickbay.sync` under an async SDK: its leases live in the other loop."""
    made = sickbay.testing.standalone()
    target = Target(provider_of(provider.url), "good")
    with sickbay.sync.SyncSickbay(lambda: made, 1.0) as router:
        made.hold(target, for_s=1)
        made.advance(2)
        async with sickbay.httpx.async_client(router, library=library.__name__) as client:
            assert (await client.post(**chat(provider.url))).status_code == 200
        await asyncio.sleep(0)
    outcomes = [event for _, event in made.recorded if isinstance(event, CallOutcome)]
    assert [(one.kind, bool(one.trial)) for one in outcomes] == [("ok", True)]


def test_what_cannot_be_guarded_is_refused_with_what_can() -> None:
    router = sickbay.testing.standalone()
    with pytest.raises(TypeError, match="a client of httpx or httpx2"):
        sickbay.httpx.guard(object(), router)
    with pytest.raises(TypeError, match=r"sickbay\.connect"):
        sickbay.httpx.client(object())


def test_neither_library_is_imported_before_it_is_used() -> None:
    import subprocess

    code = "import sys, sickbay.httpx; print([name for name in ('httpx', 'httpx2') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
