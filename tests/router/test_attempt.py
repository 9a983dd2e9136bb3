"""Attempts: what a call's end is recorded as, with real clients of two libraries against real local servers."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import pytest

import sickbay
from sickbay import Held, Target, read_error_body
from sickbay.router.faults import fault_of
from sickbay.testing import Standalone, standalone
from sickbay_events import CallOutcome
from waiting import patience

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
DEAD = json.dumps({"error": {"message": "No endpoints found for z-ai/glm-5.3.", "code": 404}}).encode()
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    """A local HTTP server that does what the handler does after the request's head was read."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await handler(reader, writer)
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"
    finally:
        running.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await running.wait_closed()


def head(status: int, *, length: int | None, content_type: str = "application/json") -> bytes:
    size = f"content-length: {length}\r\n" if length is not None else ""
    return f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n{size}connection: close\r\n\r\n".encode()


def last(sb: Standalone) -> CallOutcome:
    event = sb.recorded[-1][1]
    assert isinstance(event, CallOutcome)
    return event


async def get_httpx(url: str, timeout_s: float) -> None:
    async with httpx.AsyncClient(timeout=timeout_s, trust_env=False) as client:
        (await client.get(url)).raise_for_status()


async def get_aiohttp(url: str, timeout_s: float) -> None:
    limit = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=limit) as session, session.get(url) as response:
        response.raise_for_status()
        await response.read()


CLIENTS = pytest.mark.parametrize("get", [get_httpx, get_aiohttp])


def refused_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


async def attempted(sb: Standalone, call: Awaitable[None], limit_s: float = 60) -> CallOutcome:
    with pytest.raises(Exception):  # noqa: B017 - whichever the library raises; that it goes on is the claim
        async with sb.attempt(TARGET, limit_s=limit_s):
            await call
    return last(sb)


@CLIENTS
async def test_a_refused_connection_is_a_network_fault(get: Callable[[str, float], Awaitable[None]]) -> None:
    """Nobody listens: `network`, signature `connect`, and the exception goes on."""
    outcome = await attempted(standalone(), get(refused_url(), 5))
    assert (outcome.kind, outcome.signature, outcome.status) == ("network", "connect", None)


@CLIENTS
async def test_a_name_that_does_not_resolve_is_a_network_fault(get: Callable[[str, float], Awaitable[None]]) -> None:
    """No such host: `network`, signature `dns`."""
    outcome = await attempted(standalone(), get("http://nobody.invalid/", 5))
    assert (outcome.kind, outcome.signature) == ("network", "dns")


@CLIENTS
async def test_a_tls_failure_is_a_network_fault(get: Callable[[str, float], Awaitable[None]]) -> None:
    """A server that speaks no TLS under https: `network`, signature `tls`."""

    running = await asyncio.start_server(_answer_plain, "127.0.0.1", 0)
    async with running:
        url = f"https://127.0.0.1:{running.sockets[0].getsockname()[1]}"
        outcome = await attempted(standalone(), get(url, 5))
    assert (outcome.kind, outcome.signature) == ("network", "tls")


async def _answer_plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(16)
    writer.write(b"HTTP/1.1 400 X\r\n\r\n")
    await writer.drain()
    writer.close()


@CLIENTS
async def test_a_silent_server_is_a_timeout(get: Callable[[str, float], Awaitable[None]]) -> None:
    """The client's own time limit ran out: `timeout`, with the limit the caller gave."""

    async def silent(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with server(silent) as url:
        outcome = await attempted(standalone(), get(url, 0.2), limit_s=30)
    assert (outcome.kind, outcome.limit_ms) == ("timeout", 30_000)
    assert outcome.took_ms is not None and 150 <= outcome.took_ms < 5_000


@CLIENTS
async def test_a_connection_closed_without_an_answer_is_a_network_fault(
    get: Callable[[str, float], Awaitable[None]],
) -> None:
    """The server hangs up: `network`, signature `reset`."""

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with server(hang_up) as url:
        outcome = await attempted(standalone(), get(url, 5))
    assert (outcome.kind, outcome.signature) == ("network", "reset")


@CLIENTS
@pytest.mark.parametrize(("begun", "kind"), [(False, "network"), (True, "truncated")])
async def test_a_body_cut_short_is_truncated_once_content_has_come(
    get: Callable[[str, float], Awaitable[None]], begun: bool, kind: str
) -> None:
    """Cut off in mid-stream is `truncated`; before any content it is the network."""

    async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, length=1000) + b'{"choices"')
        await writer.drain()
        writer.close()

    sb = standalone()
    async with server(cut) as url:
        with pytest.raises(Exception):  # noqa: B017
            async with sb.attempt(TARGET) as attempt:
                if begun:
                    attempt.first_content()
                await get(url, 5)
    assert last(sb).kind == kind


@CLIENTS
async def test_bytes_that_are_no_http_are_a_network_fault(get: Callable[[str, float], Awaitable[None]]) -> None:
    """aiohttp raises them as a status 400 that nobody sent: it must not count as the caller's bad request."""

    async def noise(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\r\n\r\n")
        await writer.drain()

    async with server(noise) as url:
        outcome = await attempted(standalone(), get(url, 5))
    assert (outcome.kind, outcome.status) == ("network", None)


@CLIENTS
async def test_raise_for_status_is_classified_as_the_answer_it_is(get: Callable[[str, float], Awaitable[None]]) -> None:
    """An exception that carries an HTTP answer counts as that answer, with its status."""

    async def busy(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b'{"error":{"message":"slow down","type":"rate_limit_error"}}'
        writer.write(head(429, length=len(body)) + body)
        await writer.drain()

    async with server(busy) as url:
        outcome = await attempted(standalone(), get(url, 5))
    assert (outcome.kind, outcome.status) == ("rate_limited", 429)


async def test_two_dead_answers_hold_the_target_and_the_third_attempt_is_refused() -> None:
    """`response` classifies bytes as received; the overlay holds at the second rejection; `Held` says why."""
    sb = standalone()
    for _ in range(2):
        async with sb.attempt(TARGET) as attempt:
            verdict = attempt.response(404, {"Content-Type": "application/json"}, DEAD)
            assert verdict.kind == "model_unavailable"
    with pytest.raises(Held) as refused:
        async with sb.attempt(TARGET):
            pytest.fail("a held target was called")
    assert refused.value.decision.reason == "quarantined"
    assert refused.value.decision.source == "local"
    assert 0 < refused.value.retry_in_s <= 1, "until its first trial (Rule 4.1)"
    assert "z-ai/glm-5.3" in str(refused.value)
    assert [event.kind for _, event in sb.recorded if isinstance(event, CallOutcome)] == ["model_unavailable"] * 2


async def test_a_clean_exit_without_a_verdict_is_ok_and_not_checkable() -> None:
    """Nobody looked at the text, so it proves an answer but not a usable one."""
    sb = standalone()
    async with sb.attempt(TARGET, route="brief", rank=2):
        pass
    outcome = last(sb)
    assert (outcome.kind, outcome.checkable, outcome.route, outcome.rank) == ("ok", False, "brief", 2)
    assert outcome.took_ms is not None and outcome.seen_seq == 0


async def test_an_error_of_the_callers_own_code_says_nothing() -> None:
    """A bug of the router's after a good answer takes nothing back, and before any it is `unknown`."""
    sb = standalone()
    with pytest.raises(KeyError):
        async with sb.attempt(TARGET) as attempt:
            attempt.ok(status=200)
            raise KeyError("choices")
    assert (last(sb).kind, last(sb).status) == ("ok", 200)
    with pytest.raises(KeyError):
        async with sb.attempt(TARGET):
            raise KeyError("choices")
    assert last(sb).kind == "unknown"


async def test_a_cancelled_call_is_cancelled_and_after_a_long_wait_for_nothing_a_timeout() -> None:
    """Given up early is the caller's; after more than the impatience limit without content it was too slow."""
    for waited_s, content, kind in ((1, False, "cancelled"), (11, False, "timeout"), (11, True, "cancelled")):
        clock = standalone()

        async def call(sb: Standalone = clock, waited_s: float = waited_s, content: bool = content) -> None:
            async with sb.attempt(TARGET) as attempt:
                attempt._monotonic = lambda: sb._now_s
                attempt._began_s = sb._now_s
                if content:
                    attempt.first_content()
                sb.advance(waited_s)
                await asyncio.sleep(60)

        task = asyncio.create_task(call())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert last(clock).kind == kind


async def test_asyncio_timeout_around_a_call_is_a_timeout() -> None:
    """`asyncio.timeout` outside of the block cancels it: the caller's limit, `cancelled`; inside it is `timeout`."""
    sb = standalone()
    with pytest.raises(TimeoutError):
        async with sb.attempt(TARGET, limit_s=0.05):
            async with asyncio.timeout(0.05):
                await asyncio.sleep(60)
    assert (last(sb).kind, last(sb).limit_ms) == ("timeout", 50)


async def test_output_judges_a_stream_that_the_caller_put_together() -> None:
    """Empty text is `empty_output`; the time to the first content is measured."""
    sb = standalone()
    async with sb.attempt(TARGET, stream=True, prompt_ascii=True) as attempt:
        attempt.first_content()
        assert attempt.output("", finish_reason="stop", status=200).kind == "empty_output"
    outcome = last(sb)
    assert outcome.stream and outcome.ttft_ms is not None and outcome.status == 200
    async with sb.attempt(TARGET) as attempt:
        attempt.output(
            "", finish_reason="tool_calls", has_tool_calls=True, content_type="text/event-stream; charset=UTF-8"
        )
    assert (last(sb).kind, last(sb).checkable, last(sb).charset) == ("ok", False, "utf-8")


@pytest.mark.parametrize(("prompt_ascii", "attributable"), [(True, True), (False, False), (None, False)])
async def test_a_clean_answer_to_an_ascii_prompt_counts_among_what_is_attributable(
    prompt_ascii: bool | None, attributable: bool
) -> None:
    """Without these the share of damaged answers among attributable ones would always be all of them (Rule 4.4)."""
    sb = standalone()
    async with sb.attempt(TARGET, prompt_ascii=prompt_ascii) as attempt:
        attempt.output("Fine.", finish_reason="stop")
    assert (last(sb).kind, last(sb).attributable) == ("ok", attributable)
    async with sb.attempt(TARGET, prompt_ascii=prompt_ascii) as attempt:
        attempt.output("", finish_reason="tool_calls", has_tool_calls=True)
    assert (last(sb).kind, last(sb).attributable) == ("ok", False)


async def test_no_text_is_kept_and_detail_is_off_unless_switched_on() -> None:
    """Neither prompt nor completion nor key enters an event; the error text does only on request, redacted."""
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    body = json.dumps(
        {"error": {"message": f"Incorrect API key provided: {secret}", "code": "invalid_api_key"}}
    ).encode()
    sb = standalone()
    async with sb.attempt(TARGET) as attempt:
        attempt.response(401, {}, body)
    assert last(sb).kind == "auth" and last(sb).detail is None
    sb._keep_detail = True
    async with sb.attempt(TARGET) as attempt:
        attempt.response(401, {}, body)
    detail = last(sb).detail
    assert (
        detail is not None
        and "Incorrect" in detail
        and "[redacted]" in detail
        and secret not in detail
        and len(detail) <= 200
    )
    answer = json.dumps({"choices": [{"message": {"content": "the text"}, "finish_reason": "stop"}]}).encode()
    async with sb.attempt(TARGET) as attempt:
        assert attempt.response(200, {"content-type": "application/json"}, answer).kind == "ok"
    assert "the text" not in repr(sb.recorded)


async def test_no_target_is_called_but_nothing_is_recorded() -> None:
    """An empty model, or a name that is too long, is allowed, reason `no_target`, and stored nowhere."""
    sb = standalone()
    for target in (Target("openrouter.ai", ""), Target("", "m"), Target("openrouter.ai", "m" * 257)):
        async with sb.attempt(target) as attempt:
            assert attempt.decision is not None and attempt.decision.reason == "no_target"
            attempt.ok()
    assert sb.recorded == [] and sb.rejected == []


async def test_a_loopback_provider_is_recorded_with_the_machines_name() -> None:
    """localhost is another machine on every box (Rule 1)."""
    sb = standalone(machine="box-7")
    async with sb.attempt(Target("localhost:11434", "llama3")) as attempt:
        attempt.ok()
    assert sb.recorded[0][0] == Target("localhost:11434@box-7", "llama3")


def test_faults_are_found_behind_wrappers_cycles_and_groups() -> None:
    """Whatever wraps it, the transport's fault is found; a cycle of causes ends."""
    refused = ConnectionRefusedError(111, "refused")
    wrapped = RuntimeError("sdk")
    wrapped.__cause__ = refused
    assert fault_of(wrapped) == "connect"
    refused.__cause__ = wrapped
    assert fault_of(wrapped) == "connect"
    assert fault_of(ExceptionGroup("g", [socket.gaierror("x"), ValueError()])) == "dns"
    assert fault_of(ssl.SSLError("x")) == "tls"
    assert fault_of(OSError(113, "no route")) == "connect"
    assert fault_of(OSError(24, "too many open files")) is None, "the router's own shortage"
    assert fault_of(httpx.PoolTimeout("x")) is None, "the router's own pool"
    assert fault_of(httpx.ReadTimeout("x")) == "timeout"
    assert fault_of(httpx.ConnectTimeout("x")) == "connect"
    assert fault_of(aiohttp.ServerDisconnectedError()) == "reset"
    assert fault_of(asyncio.CancelledError()) == "aborted"
    assert fault_of(ValueError()) is None


@asynccontextmanager
async def opened(library: str, url: str) -> AsyncIterator[object]:
    if library == "httpx":
        async with (
            httpx.AsyncClient(timeout=60, trust_env=False) as client,
            client.stream("GET", url) as response,
        ):
            yield response
    else:
        async with aiohttp.ClientSession() as session, session.get(url) as other:
            yield other


LIBRARIES = pytest.mark.parametrize("library", ["httpx", "aiohttp"])


@LIBRARIES
async def test_an_error_body_that_never_ends_is_left_after_the_time_limit(library: str) -> None:
    """What came until then is returned, and the server sees the connection closed."""
    gone = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(500, length=None) + b"beginning ")
        await writer.drain()
        await reader.read()  # returns when the client closes
        gone.set()

    async with server(endless) as url, opened(library, url) as response:
        began_s = time.monotonic()
        body = await read_error_body(response, max_s=0.3)
        assert body == b"beginning "
        assert 0.25 < time.monotonic() - began_s < patience(2)
        await asyncio.wait_for(gone.wait(), patience(5))


@LIBRARIES
async def test_an_error_body_without_bound_is_cut_at_the_byte_limit(library: str) -> None:
    """A body that pours on is cut at the limit and cancelled."""

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(500, length=None))
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    async with server(flood) as url, opened(library, url) as response:
        body = await asyncio.wait_for(read_error_body(response, max_bytes=100_000, max_s=10), patience(5))
        assert body == b"x" * 100_000


@LIBRARIES
async def test_a_whole_or_broken_error_body_is_returned_as_it_is(library: str) -> None:
    """A short body comes whole, also twice; of one that breaks, what came."""

    async def whole(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(404, length=len(DEAD)) + DEAD)
        await writer.drain()

    async def broken(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(404, length=1000) + DEAD)
        await writer.drain()

    async with server(whole) as url, opened(library, url) as response:
        assert await read_error_body(response) == DEAD
    async with server(broken) as url, opened(library, url) as response:
        assert await read_error_body(response) == DEAD
    async with server(whole) as url, httpx.AsyncClient(trust_env=False) as client:
        read = await client.get(url)
        assert await read_error_body(read) == DEAD


async def test_any_other_response_is_refused_with_a_clear_error() -> None:
    """The message names what is accepted."""
    with pytest.raises(TypeError, match="async response of httpx or aiohttp, got str"):
        await read_error_body("body")


def test_a_plain_with_block_works_in_synchronous_code() -> None:
    """The same attempt serves threads and scripts."""
    sb = standalone()
    with sb.attempt(TARGET) as attempt:
        attempt.ok()
    assert last(sb).kind == "ok"
    assert sickbay.Held.__mro__[1] is sickbay.SickbayError


@pytest.mark.parametrize(
    "options",
    [
        {"limit_s": float("nan")},
        {"limit_s": float("inf")},
        {"limit_s": -1},
        {"limit_s": "soon"},
        {"rank": "first"},
        {"route": 5},
    ],
)
async def test_bad_options_of_an_attempt_never_raise_on_the_request_path(options: dict[str, Any]) -> None:
    """The call goes on; what cannot be reported is rejected with its field named, or left out."""
    sb = standalone()
    async with sb.attempt(TARGET, **options) as attempt:
        attempt.response(200, [("content-type", "text/plain")], b"x")  # type: ignore[arg-type]
    if "limit_s" in options and isinstance(options["limit_s"], float):
        assert last(sb).limit_ms is None
