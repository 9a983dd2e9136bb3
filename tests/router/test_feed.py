"""Bytes of an answer shown as they pass: judged at the end, at a cut, at an early leave; their first content."""

from __future__ import annotations

import asyncio
import base64
import gc
import gzip
import json
import tracemalloc
import zlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest

import sickbay.testing
from sickbay import CallOutcome, Target
from sickbay.router.answer_bytes import AnswerBytes
from sickbay_events import Decision
from sickbay_events.classify.first_content import holds_content
from sickbay_events.outcome import Lease

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
JSON = {"content-type": "application/json"}
SSE = {"Content-Type": "text/event-stream; charset=utf-8"}
CHAT = b'{"choices": [{"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}'
EMPTY = CHAT.replace(b"Hello", b"")
DEAD = json.dumps({"error": {"message": "No endpoints found for z-ai/glm-5.3.", "code": 404}}).encode()
LIMIT = json.dumps({"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}).encode()


def events(*documents: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in documents)


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


ROLE = delta(role="assistant", content="")
STREAM = events(ROLE, delta(content="Hel"), delta(content="lo"), delta("stop"))
DONE = b"data: [DONE]\n\n"


def fed(
    pieces: Iterable[bytes],
    status: int = 200,
    headers: dict[str, str] = JSON,
    *,
    end: bool = True,
    error: BaseException | None = None,
) -> CallOutcome:
    router = sickbay.testing.standalone()
    with suppress(type(error) if error is not None else OSError), router.attempt(TARGET) as attempt:
        attempt.feed(status=status, headers=headers)
        for piece in pieces:
            attempt.feed(piece)
        attempt.feed(end=end)
        if error is not None:
            raise error
    outcome = router.recorded[-1][1]
    assert isinstance(outcome, CallOutcome)
    return outcome


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("answer", range(16))
def test_bytes_tell_what_came_whatever_their_pieces(answer: int, size: int) -> None:
    body, status, headers, kind = ANSWERS[answer]
    outcome = fed([body[at : at + size] for at in range(0, len(body), size)], status, headers)
    assert (outcome.kind, outcome.status) == (kind, status)
    if "Retry-After" in headers:
        assert outcome.retry_after_s == 7


ANSWERS = [
    (CHAT, 200, JSON, "ok"),
    (EMPTY, 200, JSON, "empty_output"),
    (b"", 200, JSON, "empty_output"),
    (DEAD, 404, JSON, "model_unavailable"),
    (LIMIT, 429, JSON | {"Retry-After": "7"}, "rate_limited"),
    (STREAM + DONE, 200, SSE, "ok"),
    (STREAM, 200, SSE, "ok"),
    (events(ROLE, delta("stop")) + DONE, 200, SSE, "empty_output"),
    (events(ROLE, delta(content="Hel")), 200, SSE, "truncated"),
    (events(ROLE, delta(content="Hel"), json.loads(LIMIT)), 200, SSE, "rate_limited"),
    (gzip.compress(CHAT), 200, JSON | {"content-encoding": "gzip"}, "ok"),
    (gzip.compress(EMPTY), 200, JSON | {"content-encoding": "gzip"}, "empty_output"),
    (zlib.compress(EMPTY), 200, JSON | {"content-encoding": "deflate"}, "empty_output"),
    (zlib.compress(EMPTY)[2:-4], 200, JSON | {"content-encoding": "deflate"}, "empty_output"),
    (EMPTY, 200, JSON | {"content-encoding": "br"}, "empty_output"),  # the client opened it already
    (b"\x8b\x02\x80" + EMPTY, 200, JSON | {"content-encoding": "br"}, "ok"),  # nobody here can read it
]


@pytest.mark.parametrize(
    ("body", "error", "kind"),
    [
        (events(ROLE, delta(content="Hel")), ConnectionResetError(), "truncated"),
        (events(ROLE), ConnectionResetError(), "truncated"),
        (events(ROLE, delta(content="Hel")), TimeoutError(), "timeout"),
        (events(ROLE, delta(content="Hel")), asyncio.CancelledError(), "cancelled"),
        (events(ROLE, delta(content="Hel")), GeneratorExit(), "cancelled"),
        (events(ROLE, delta(content="Hel")), None, "cancelled"),
        (b"", None, "cancelled"),
        (b"", ConnectionResetError(), "truncated"),
        (CHAT[:30], None, "cancelled"),
        (STREAM, None, "ok"),
        (events(json.loads(LIMIT)), RuntimeError("what an SDK makes of it"), "rate_limited"),
        (events(ROLE, delta("stop")), None, "empty_output"),
    ],
)
def test_without_an_end_it_counts_how_the_attempt_was_left(body: bytes, error: BaseException | None, kind: str) -> None:
    assert fed([body], headers=SSE if body[:1] == b"d" else JSON, end=False, error=error).kind == kind


def test_what_the_caller_says_himself_counts_before_the_bytes() -> None:
    router = sickbay.testing.standalone()
    with router.attempt(TARGET) as attempt:
        attempt.feed(EMPTY, status=200, headers=JSON, end=True)
        attempt.ok()
    assert [event.kind for _, event in router.recorded if isinstance(event, CallOutcome)] == ["ok"]


def test_a_later_answer_takes_the_place_of_an_earlier_one() -> None:
    """As after a retry of the client's own."""
    router = sickbay.testing.standalone()
    with router.attempt(TARGET) as attempt:
        attempt.feed(DEAD, status=404, headers=JSON, end=True)
        attempt.feed(CHAT, status=200, headers=JSON, end=True)
    assert [event.kind for _, event in router.recorded if isinstance(event, CallOutcome)] == ["ok"]


def bedrock(payload: bytes) -> bytes:
    return b"\x00\x00\x01\x0b:event-type\x07\x00\x05chunk" + payload + b"\x9a\xfe"


FIRST = [
    events(delta(content="H")),
    events(delta(reasoning_content="H")),
    events(delta(reasoning="H")),
    events(delta(refusal="No")),
    events(delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}])),
    events({"choices": [{"text": "H"}]}),
    events({"type": "response.output_text.delta", "delta": "H"}),
    events({"type": "response.output_item.added", "item": {"type": "function_call", "name": "f", "arguments": ""}}),
    events({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "H"}}),
    events({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "H"}}),
    events({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "f"}}),
    events({"candidates": [{"content": {"parts": [{"text": "H"}], "role": "model"}}]}),
    events({"candidates": [{"content": {"parts": [{"functionCall": {"name": "f"}}], "role": "model"}}]}),
    b'{"model": "m", "message": {"role": "assistant", "content": "H"}, "done": false}\n',
    b'{"model": "m", "response": "H", "done": false}\n',
    events({"type": "content-delta", "delta": {"message": {"content": {"text": "H"}}}}),
    events({"output": {"text": "H", "finish_reason": "null"}}),
    events({"response": "H"}),
    events({"token": {"id": 1, "text": "H"}}),
    events({"content": "H", "stop": False}),
    bedrock(b'{"contentBlockIndex":0,"delta":{"text":"H"},"p":"abc"}'),
    bedrock(b'{"bytes":"' + base64.b64encode(b'{"type":"content_block_delta","delta":{"text":"H"}}') + b'"}'),
    bedrock(b'{"bytes":"' + base64.b64encode(b'{"generation":"H","stop_reason":null}') + b'"}'),
]
NOT_YET = [
    events(ROLE),
    events(delta(role="assistant", content=None, refusal=None)),
    events({"type": "response.created", "response": {"instructions": "Be kind", "text": {"format": {"type": "text"}}}}),
    events({"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {"output_tokens": 1}}}),
    events({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    b'{"model": "m", "message": {"role": "assistant", "content": ""}, "done": false}\n',
    b": keep-alive\n\n",
    events({"error": {"message": "Rate limit reached"}}),
    bedrock(b'{"role":"assistant","p":"abc"}'),
    bedrock(b'{"bytes":"' + base64.b64encode(b'{"type":"message_start","message":{"content":[]}}') + b'"}'),
]


@pytest.mark.parametrize("piece", FIRST)
def test_the_first_content_of_every_known_stream_is_found(piece: bytes) -> None:
    """Also if it comes byte by byte, after what is no content."""
    assert holds_content(piece)
    seen = AnswerBytes(200, {}, is_stream=True)
    found = [seen.add(bytes([byte])) for byte in b"".join(NOT_YET) + piece]
    assert found.count(True) == 1 and found.index(True) >= len(b"".join(NOT_YET))


@pytest.mark.parametrize("piece", NOT_YET)
def test_what_only_opens_a_stream_is_no_content(piece: bytes) -> None:
    assert not holds_content(piece)


def test_the_first_content_proves_a_trial_while_the_stream_goes_on() -> None:
    router = sickbay.testing.standalone()
    router.hold(TARGET, for_s=1)
    router.advance(2)
    with router.attempt(TARGET, stream=True) as attempt:
        attempt.feed(events(ROLE), status=200, headers=SSE)
        assert router.recorded == [] and attempt.trial == [Lease("quarantine", 1)]
        attempt.feed(events(delta(content="H")))
        assert len(router.recorded) == 1 and router.recorded[0][1].trial == [Lease("quarantine", 1)]  # type: ignore[union-attr]
        attempt.feed(events(delta("stop")), end=True)
    assert isinstance(router.recorded[1][1], CallOutcome) and router.recorded[1][1].ttft_ms is not None


def test_ten_thousand_open_streams_keep_at_most_their_bound_each() -> None:
    """Each keeps 64 KiB and a little, however long it is; here a hundred of 2 MB, also compressed ones."""
    piece = events(*[delta(content="x" * 900)] * 16)
    packed = gzip.compress(b"".join([piece] * 128))
    tracemalloc.start()
    try:
        open_ones = [AnswerBytes(200, SSE, is_stream=True) for _ in range(50)]
        for seen in open_ones:
            for _ in range(128):
                seen.add(piece)
        zipped = [AnswerBytes(200, SSE | {"content-encoding": "gzip"}, is_stream=True) for _ in range(50)]
        for seen in zipped:
            seen.add(packed)
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / 100 < 120 * 1024, "head, tail, and what an opened gzip stream needs"
    assert peak < held + 1_000_000
    assert open_ones[0].body == zipped[0].body and len(open_ones[0].body) == 48 * 1024 + 4 + 16 * 1024


def test_a_client_that_forgets_its_stream_gives_the_lease_back() -> None:
    """`forget` is what a finalizer calls: it was no slow call, however late the collector comes."""
    router = sickbay.testing.standalone()
    router.hold(TARGET, for_s=1)
    router.advance(2)
    attempt = router.attempt(TARGET, stream=True).__enter__()
    attempt.feed(status=200, headers=SSE)
    assert router.decide(TARGET) == Decision(allowed=True, reason="ok", trial=True) or router.decide(TARGET).trial
    attempt.forget()
    assert attempt.outcome is not None and attempt.outcome.kind == "cancelled"
    with router.attempt(TARGET) as after:
        assert after.trial == [Lease("quarantine", 1)]
        after.ok()
