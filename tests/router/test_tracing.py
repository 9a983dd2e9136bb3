"""Traces: spans of decisions, attempts and folds where they are asked for, nothing where not, and no secret in them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import sickbay
import sickbay.sync
from nats_servers import NatsServer, free_port
from sickbay import Held, Sickbay, Target, tracing
from sickbay.bus.connect import connect_client
from sickbay.config import Settings
from sickbay.control.acts import publish_outcome
from sickbay.router.attempt import Attempt
from sickbay.service.services import Services
from sickbay_events import CallOutcome

TARGET = Target("api.openai.com#batch", "gpt-5.2")
SPARE = Target("openrouter.ai", "z-ai/glm-5.3")
PROMPT, KEY = "a prompt nobody may see", "sk-live-0123456789abcdef"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """A process has one tracer provider; spans of all tests go through this one."""
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)
    return found


@pytest.fixture(autouse=True)
def clean(exporter: InMemorySpanExporter) -> Iterator[None]:
    exporter.clear()
    yield
    assert not trace.get_current_span().is_recording(), "a span is left current"


def unconnected() -> Sickbay:
    return sickbay.connect(f"nats://127.0.0.1:{free_port()}", "r1")


def spans(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def facts(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_an_attempt_is_the_parent_of_what_the_caller_does_in_it(exporter: InMemorySpanExporter) -> None:
    """The decision and the caller's own HTTP span are children of the attempt, which says what came of the call."""
    sb = unconnected()
    tracing.enable(sb)
    async with sb.attempt(TARGET, 30, route="brief", rank=1) as attempt:
        with trace.get_tracer("http").start_as_current_span("POST") as http:
            assert isinstance(http, ReadableSpan)
        body = json.dumps({"error": {"message": f"overloaded, {PROMPT}, {KEY}"}})
        attempt.response(503, {"authorization": KEY}, body)
    (span,) = spans(exporter, "sickbay.attempt")
    (decide,) = spans(exporter, "sickbay.decide")
    assert http.parent is not None and decide.parent is not None and span.context is not None
    assert http.parent.span_id == decide.parent.span_id == span.context.span_id
    assert span.parent is None and span.status.status_code is StatusCode.ERROR
    found = facts(span)
    assert found["gen_ai.provider.name"] == "api.openai.com" and found["sickbay.provider"] == TARGET.provider
    assert found["gen_ai.request.model"] == TARGET.model and found["http.response.status_code"] == 503
    assert found["sickbay.outcome.kind"] == found["error.type"] == "overloaded"
    assert (found["sickbay.route"], found["sickbay.rank"]) == ("brief", 1)
    assert found["sickbay.seq"] == 0 and found["sickbay.decision.source"] == "stale"
    assert facts(decide)["sickbay.decision.allowed"] is True


async def test_nothing_of_a_prompt_or_a_key_is_in_a_span(exporter: InMemorySpanExporter) -> None:
    """Whatever provider, library and caller say, none of it is in any attribute, event or status."""
    sb = sickbay.connect(f"nats://127.0.0.1:{free_port()}", "r1", keep_detail=True)
    tracing.enable(sb)
    with pytest.raises(ValueError, match="prompt"):
        async with sb.attempt(TARGET) as attempt:
            raise ValueError(f"{PROMPT} {KEY}")
    assert attempt.outcome is not None and attempt.outcome.kind == "unknown"
    with sb.attempt(TARGET) as attempt:
        attempt.output(PROMPT + "�" * 40)
    with sb.attempt(TARGET) as attempt:
        attempt.response(401, {"x-api-key": KEY}, json.dumps({"error": {"message": f"bad key {KEY}: {PROMPT}"}}))
    written = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert written.count('"sickbay.attempt"') == 3
    assert "prompt" not in written and KEY not in written and "exception" not in written


async def test_a_held_target_ends_its_span_without_a_call(exporter: InMemorySpanExporter) -> None:
    """The span of an attempt that was not made says why, and is nobody's parent any more."""
    sb = unconnected()
    tracing.enable(sb)
    for _ in range(2):
        with sb.attempt(SPARE) as attempt:
            attempt.response(404, {}, '{"error": {"message": "No endpoints found for z-ai/glm-5.3.", "code": 404}}')
    with pytest.raises(Held):
        sb.attempt(SPARE).__enter__()
    with pytest.raises(Held):
        await sb.attempt(SPARE).__aenter__()
    assert not trace.get_current_span().is_recording()
    for span in spans(exporter, "sickbay.attempt")[-2:]:
        found = facts(span)
        assert (found["error.type"], found["sickbay.decision.reason"]) == ("held", "quarantined")
        assert float(str(found["sickbay.decision.retry_in_s"])) > 0 and "sickbay.outcome.kind" not in found


async def test_calls_along_a_chain_and_streams_have_their_spans_too(exporter: InMemorySpanExporter) -> None:
    """Each attempt of a call is one span, whichever way it is made; the caller's own span is the parent of all."""
    sb = unconnected()
    tracing.enable(sb)

    async def call(target: Target, attempt: Attempt) -> str:
        await asyncio.sleep(0)
        if target == TARGET:
            raise httpx.ConnectError("refused")
        return "answer"

    async def chunks(_target: Target, _attempt: Attempt):  # type: ignore[no-untyped-def]
        yield "a"
        yield "b"

    with trace.get_tracer("router").start_as_current_span("request") as outer:
        assert (await sb.call([TARGET, SPARE], call)).value == "answer"
        async with sb.stream([SPARE], chunks) as answer:
            assert [chunk async for chunk in answer] == ["a", "b"]
    found = spans(exporter, "sickbay.attempt")
    assert [facts(span)["sickbay.outcome.kind"] for span in found] == ["network", "ok", "ok"]
    assert isinstance(outer, ReadableSpan) and outer.context is not None
    assert {span.parent.span_id for span in found if span.parent} == {outer.context.span_id}
    assert [event.name for event in found[2].events] == ["sickbay.first_content"]


async def test_off_is_no_span_and_a_second_enable_adds_nothing(exporter: InMemorySpanExporter) -> None:
    """Only a traced connection has spans, and each of its decisions has one."""
    plain, traced = unconnected(), unconnected()
    tracing.enable(traced)
    tracing.enable(traced)
    assert plain.decide(TARGET).allowed and not exporter.get_finished_spans()
    assert traced.decide(TARGET).allowed and traced.usable([TARGET, SPARE])
    assert len(spans(exporter, "sickbay.decide")) == 3
    assert traced.decide(None).allowed  # type: ignore[arg-type]


async def test_a_sampler_or_processor_that_fails_harms_no_call(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing on a router's request path raises, whatever runs behind the tracer; it is said once."""

    class Broken(SpanProcessor):
        def on_start(self, span: Span, parent_context: Context | None = None) -> None:
            if span.name == "sickbay.decide":
                raise RuntimeError("start")

        def on_end(self, span: ReadableSpan) -> None:
            raise RuntimeError("end")

    provider = TracerProvider()
    provider.add_span_processor(Broken())
    sb = unconnected()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "get_tracer", lambda *_: provider.get_tracer("broken"))
        tracing.enable(sb)
    for _ in range(3):
        async with sb.attempt(TARGET) as attempt:
            attempt.ok()
        assert attempt.outcome is not None and attempt.outcome.kind == "ok" and sb.decide(TARGET).allowed
    assert sorted(record.getMessage().rpartition(": ")[2] for record in caplog.records) == ["end", "start"]


def test_the_setting_switches_it_on(exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """SICKBAY_TRACES=1 is enough, for a router with threads as well."""
    monkeypatch.setenv("SICKBAY_TRACES", "1")
    with sickbay.sync.connect(f"nats://127.0.0.1:{free_port()}", "r1", exit_limit_s=0) as sb:
        with sb.attempt(TARGET) as attempt:
            attempt.ok()
        sb.close(0)
    assert [facts(span)["sickbay.outcome.kind"] for span in spans(exporter, "sickbay.attempt")] == ["ok"]


async def test_a_projector_has_a_span_for_each_chunk(exporter: InMemorySpanExporter, nats_server: NatsServer) -> None:
    """What was folded is told by chunks; chunks cover the log without gap."""
    client = await connect_client(nats_server.url)
    services = Services(Settings(nats=nats_server.url, traces=True))
    await services.start()
    try:
        await services.ready()
        acks = [await publish_outcome(client, TARGET, CallOutcome(kind="ok"), replica="r") for _ in range(3)]
        assert services.projector is not None and await services.projector.folded_to(acks[-1].seq, 10)
    finally:
        await services.stop()
        await client.close()
    found = [facts(span) for span in spans(exporter, "sickbay.fold")]
    assert sum(int(str(one["sickbay.fold.events"])) for one in found) == 3
    assert (found[0]["sickbay.fold.first_seq"], found[-1]["sickbay.fold.last_seq"]) == (1, 3)
