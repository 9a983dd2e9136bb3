"""A provider on loopback that speaks OpenAI, Anthropic and Gemini; the model's name says how it behaves.

dead, rate, err500, empty, cut, polite-cut, hang, gzip, deflate, hold-me; anything else answers. `hits` counts the
requests that truly came, by model.
"""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from waiting import patience

TEXT = ("Hello", " there")
MODEL_IN_PATH = ("/models/", "/deployments/", "/model/")


class FakeProvider:
    """What the provider counts, and how a test lets hanging answers go."""

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self.headers: dict[str, dict[str, str]] = {}
        self.arrived = threading.Condition()
        self.let_go = threading.Event()
        self.url = ""

    def came(self, model: str, headers: dict[str, str]) -> None:
        with self.arrived:
            self.hits[model] += 1
            self.headers[model] = headers
            self.arrived.notify_all()

    def wait_for(self, model: str) -> None:
        """Until a request for the model came."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.hits[model] > 0, patience(20))


@contextmanager
def fake_provider() -> Iterator[FakeProvider]:
    provider = FakeProvider()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"provider": provider}))
    provider.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.let_go.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A caller that left."""


class _Handler(BaseHTTPRequestHandler):
    provider: FakeProvider
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.close_connection = True
        path = urlsplit(self.path).path
        asked = json.loads(body) if "json" in (self.headers.get("content-type") or "") else {}
        model = asked.get("model") or _model_in(path)
        self.provider.came(model, {name.lower(): value for name, value in self.headers.items()})
        is_claude, is_google = path.endswith("/messages"), "enerateContent" in path
        if "hang" in model:
            self.provider.let_go.wait(patience(20))
            return
        if (error := _error(model, is_claude=is_claude)) is not None:
            self._answer(*error)
            return
        texts = () if "empty" in model else TEXT
        if asked.get("stream") or ":stream" in path:
            self._stream(model, _google_stream(texts) if is_google else _claude(texts) if is_claude else _chat(texts))
            return
        whole = _google_whole(texts) if is_google else _whole(model, "".join(texts), is_claude=is_claude)
        data = json.dumps(whole).encode()
        if "gzip" in model:
            self._answer(200, gzip.compress(data), {"content-encoding": "gzip"})
        elif "deflate" in model:
            self._answer(200, zlib.compress(data), {"content-encoding": "deflate"})
        else:
            self._answer(200, data, {})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        sent = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        for name, value in (sent | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, model: str, lines: list[str]) -> None:
        self.send_response(200)
        sent = {"content-type": "text/event-stream", "transfer-encoding": "chunked", "connection": "close"}
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        if "cut" in model:
            lines = lines[: len(lines) // 2]
        for line in lines:
            self.wfile.write(f"{len(line):x}\r\n{line}\r\n".encode())
            self.wfile.flush()
        if "pause" in model:
            self.provider.let_go.wait(patience(20))
        if "cut" not in model or "polite" in model:
            self.wfile.write(b"0\r\n\r\n")


def _model_in(path: str) -> str:
    for mark in MODEL_IN_PATH:
        if mark in path:
            return unquote(path.partition(mark)[2].split("/")[0].split(":")[0])
    return ""


def _error(model: str, *, is_claude: bool) -> tuple[int, bytes, dict[str, str]] | None:
    if "dead" in model:
        message = f"The model `{model}` does not exist or you do not have access to it."
        plain = {"message": message, "type": "invalid_request_error", "param": None, "code": "model_not_found"}
        error: Any = {"type": "not_found_error", "message": f"model: {model}"} if is_claude else plain
        status, headers = 404, {}
    elif "rate" in model:
        error = {"type": "rate_limit_error", "message": "Rate limit reached", "code": "rate_limit_exceeded"}
        status, headers = 429, {"retry-after": "30"}
    elif "err500" in model:
        error = {"type": "api_error", "message": "The server had an error"}
        status, headers = 500, {}
    else:
        return None
    return status, json.dumps({"type": "error", "error": error} if is_claude else {"error": error}).encode(), headers


def _whole(model: str, text: str, *, is_claude: bool) -> dict[str, Any]:
    if is_claude:
        content = [{"type": "text", "text": text}] if text else []
        usage = {"input_tokens": 1, "output_tokens": 2}
        return {"id": "m", "type": "message", "role": "assistant", "model": model, "stop_reason": "end_turn",
                "content": content, "usage": usage}  # fmt: skip
    message = {"role": "assistant", "content": text}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": model,
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}  # fmt: skip


def _chat(texts: tuple[str, ...]) -> list[str]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        whole = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        return f"data: {json.dumps(whole)}\n\n"

    role = chunk({"role": "assistant", "content": ""})
    return [role, *(chunk({"content": text}) for text in texts), chunk({}, "stop"), "data: [DONE]\n\n"]


def _claude(texts: tuple[str, ...]) -> list[str]:
    usage = {"input_tokens": 1, "output_tokens": 0}
    start: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [],
                             "stop_reason": None, "usage": usage}  # fmt: skip
    block = {"type": "text", "text": ""}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}} for t in texts),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def _google_whole(texts: tuple[str, ...]) -> dict[str, Any]:
    parts = [{"text": text} for text in texts]
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}


def _google_stream(texts: tuple[str, ...]) -> list[str]:
    parts: list[dict[str, Any]] = [{"candidates": [{"content": {"parts": [{"text": text}]}}]} for text in texts]
    parts.append({"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]})
    return [f"data: {json.dumps(part)}\r\n\r\n" for part in parts]
