"""2xx answers in the wire forms of the known APIs, and what each must be judged to be."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec

import paths


class Case(NamedTuple):
    """One answer: bytes as received, and the kind, checkable and signature expected."""

    says: str
    body: bytes
    kind: str
    checkable: bool = True
    signature: str | None = None
    provider: str = ""
    content_type: str = "application/json"


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def chat(message: dict[str, Any] | None, finish: str | None = "stop", **more: Any) -> bytes:
    """A whole chat completion."""
    return _json(
        {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}
    )


def sse(*events: Any, done: bool = True) -> bytes:
    """Server-sent events; a string is sent as it is."""
    lines = [event if isinstance(event, str) else "data: " + msgspec.json.encode(event).decode() for event in events]
    return ("\n\n".join([*lines, *(["data: [DONE]"] if done else [])]) + "\n\n").encode()


def delta(text: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of a chat completion."""
    content = {} if text is None else {"content": text}
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {**content, **more}, "finish_reason": finish}],
    }


STREAM = "text/event-stream"
NDJSON = "application/x-ndjson"

CASES = [
    # Chat completions, whole.
    Case("a plain answer", chat({"role": "assistant", "content": "Lisbon."}), "ok"),
    Case("content in parts", chat({"content": [{"type": "text", "text": "Lisbon."}]}), "ok"),
    Case("a tool call without text", chat({"content": None, "tool_calls": [{"id": "1"}]}, "tool_calls"), "ok", False, "tool_calls"),
    Case("an old function call", chat({"content": None, "function_call": {"name": "f"}}), "ok", False, "tool_calls"),
    Case("no text", chat({"content": ""}), "empty_output"),
    Case("blank text", chat({"content": " \n\t\u200b"}), "empty_output"),
    Case("no choice", _json({"object": "chat.completion", "choices": []}), "empty_output"),
    Case("only reasoning", chat({"content": "", "reasoning_content": "Let me see"}), "empty_output", True, "reasoning_only"),
    Case("only reasoning tags", chat({"content": "<think>Let me see</think>\n"}), "empty_output", True, "reasoning_only"),
    Case("reasoning tags that never close", chat({"content": "<think>Let me see"}), "empty_output", True, "reasoning_only"),
    Case("an empty fence", chat({"content": "```json\n```"}), "empty_output"),
    Case("stopped by a cap with nothing said", chat({"content": ""}, "length"), "ok", False, "capped"),
    Case("stopped by a cap", chat({"content": "Once upon"}, "length"), "ok", False, "capped"),
    Case("a refusal", chat({"content": None, "refusal": "I cannot."}), "content_filter", True, "refusal"),
    Case("a filtered answer", chat({"content": ""}, "content_filter"), "content_filter"),
    Case("an error on the choice", _json({"choices": [{"message": {"content": ""}, "error": {"code": 502, "message": "Bad gateway"}}]}), "server_error"),
    Case("a stop for an error", chat({"content": "par"}, "error"), "server_error"),
    Case("out of resources", chat({"content": ""}, "insufficient_system_resource"), "overloaded", provider="deepseek"),
    Case("an old completion", _json({"object": "text_completion", "choices": [{"text": "Lisbon", "finish_reason": "stop"}]}), "ok"),
    Case("audio is not for us to judge", chat({"content": None, "audio": {"id": "a", "data": "AAAA"}}), "ok", False),
    Case("the answer quotes an error body", chat({"content": '{"error":{"message":"The model `x` does not exist","code":"model_not_found"}}'}), "ok"),
    Case("success marked by a code", chat({"content": "Hi"}, base_resp={"status_code": 0, "status_msg": ""}), "ok", provider="minimax"),
    # Errors inside a 200.
    Case("an error object", _json({"error": {"code": "model_not_found", "message": "The model `m` does not exist"}}), "model_unavailable"),
    Case("an error string", _json({"error": "rate limit exceeded"}), "rate_limited"),
    Case("an error that nobody knows", _json({"error": {"message": "hm"}}), "unknown"),
    Case("a failed success flag", _json({"success": False, "errors": [{"code": 5007, "message": "No such model m"}]}), "model_unavailable", provider="cloudflare"),
    Case("a number for the balance", _json({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}), "quota", provider="minimax"),
    Case("an upstream's status in the body", _json({"error": {"code": 502, "message": "Upstream failed"}}), "server_error"),
    Case("an error with null choices", _json({"choices": None, "error": {"message": "The model is overloaded"}}), "overloaded"),
    # Messages.
    Case("messages: text", _json({"type": "message", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}), "ok"),
    Case("messages: tool use", _json({"type": "message", "content": [{"type": "tool_use", "name": "f"}], "stop_reason": "tool_use"}), "ok", False, "tool_calls"),
    Case("messages: nothing", _json({"type": "message", "content": [], "stop_reason": "end_turn"}), "empty_output"),
    Case("messages: thinking alone", _json({"type": "message", "content": [{"type": "thinking", "thinking": "So"}], "stop_reason": "end_turn"}), "empty_output", True, "reasoning_only"),
    Case("messages: refusal", _json({"type": "message", "content": [], "stop_reason": "refusal"}), "content_filter"),
    Case("messages: full window", _json({"type": "message", "content": [], "stop_reason": "model_context_window_exceeded"}), "context_length"),
    Case(
        "messages: a stream",
        sse(
            'event: message_start\ndata: {"type":"message_start","message":{"content":[]}}',
            'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}',
            'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}',
            'event: message_stop\ndata: {"type":"message_stop"}',
            done=False,
        ),
        "ok",
        content_type=STREAM,
    ),
    Case("messages: an error event", sse('event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', done=False), "overloaded", content_type=STREAM),
    Case(
        "messages: cut off",
        sse('event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"Once"}}', done=False),
        "truncated",
        content_type=STREAM,
    ),
    # Responses.
    Case("responses: text", _json({"object": "response", "status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]}), "ok"),
    Case("responses: a call", _json({"object": "response", "status": "completed", "output": [{"type": "function_call", "name": "f"}]}), "ok", False, "tool_calls"),
    Case("responses: reasoning alone", _json({"object": "response", "status": "completed", "output": [{"type": "reasoning", "summary": [{"text": "x"}]}]}), "empty_output", True, "reasoning_only"),
    Case("responses: at the cap", _json({"object": "response", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}), "ok", False, "capped"),
    Case("responses: failed", _json({"object": "response", "status": "failed", "error": {"code": "server_error", "message": "oops"}, "output": []}), "server_error"),
    Case("responses: in the background", _json({"object": "response", "status": "queued", "output": []}), "ok", False),
    Case(
        "responses: a stream",
        sse({"type": "response.created", "response": {}}, {"type": "response.output_text.delta", "delta": "Hi"}, {"type": "response.completed", "response": {"status": "completed", "output": []}}, done=False),
        "ok",
        content_type=STREAM,
    ),
    Case(
        "responses: a stream that fails",
        sse({"type": "response.created", "response": {}}, {"type": "response.failed", "response": {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow"}}}, done=False),
        "rate_limited",
        content_type=STREAM,
    ),
    # Gemini.
    Case("gemini: text", _json({"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}), "ok"),
    Case("gemini: a call", _json({"candidates": [{"content": {"parts": [{"functionCall": {"name": "f"}}]}, "finishReason": "STOP"}]}), "ok", False, "tool_calls"),
    Case("gemini: a blocked prompt", _json({"promptFeedback": {"blockReason": "SAFETY"}}), "content_filter"),
    Case("gemini: recitation", _json({"candidates": [{"finishReason": "RECITATION"}]}), "content_filter"),
    Case("gemini: at the cap", _json({"candidates": [{"content": {"role": "model"}, "finishReason": "MAX_TOKENS"}]}), "ok", False, "capped"),
    Case("gemini: a broken call", _json({"candidates": [{"content": {}, "finishReason": "MALFORMED_FUNCTION_CALL"}]}), "malformed_output"),
    Case("gemini: nothing", _json({"candidates": [{"content": {"parts": [{"text": ""}]}, "finishReason": "STOP"}]}), "empty_output"),
    Case("gemini: thoughts alone", _json({"candidates": [{"content": {"parts": [{"text": "Hm", "thought": True}]}, "finishReason": "STOP"}]}), "empty_output", True, "reasoning_only"),
    Case("gemini: an array as stream", _json([{"candidates": [{"content": {"parts": [{"text": "Hi"}]}}]}, {"candidates": [{"finishReason": "STOP"}]}]), "ok"),
    Case("gemini: an array with an error", _json([{"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}]), "overloaded", provider="gemini"),
    # Ollama.
    Case("ollama: chat", _json({"model": "m", "message": {"content": "Hi"}, "done": True, "done_reason": "stop"}), "ok"),
    Case("ollama: generate", _json({"model": "m", "response": "Hi", "done": True}), "ok"),
    Case("ollama: generate nothing", _json({"model": "m", "response": "", "done": True, "done_reason": "stop"}), "empty_output"),
    Case("ollama: lines", b'{"message":{"content":"Hi"},"done":false}\n{"message":{"content":""},"done":true,"done_reason":"stop"}\n', "ok", content_type=NDJSON),
    Case("ollama: lines cut off", b'{"message":{"content":"Hi"},"done":false}\n{"message":{"content":" the', "truncated", content_type=NDJSON),
    Case("ollama: an error line", b'{"message":{"content":"Hi"},"done":false}\n{"error":"model runner has unexpectedly stopped"}\n', "server_error", provider="ollama", content_type=NDJSON),
    # Others.
    Case("cohere", _json({"id": "1", "message": {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}, "finish_reason": "COMPLETE"}), "ok"),
    Case("bedrock converse", _json({"output": {"message": {"content": [{"text": "Hi"}]}}, "stopReason": "end_turn"}), "ok"),
    Case("bedrock guardrail", _json({"output": {"message": {"content": [{"text": "Sorry"}]}}, "stopReason": "guardrail_intervened"}), "content_filter"),
    Case("dashscope native", _json({"output": {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}, "request_id": "0"}), "ok"),
    Case("workers ai", _json({"success": True, "errors": [], "result": {"response": "Hi"}}), "ok"),
    Case("tgi", _json([{"generated_text": "Hi"}]), "ok"),
    Case("embeddings are of no known shape", _json({"object": "list", "data": [{"embedding": [0.1]}]}), "ok", False),
    Case("JSON of no known shape", _json({"hello": "world"}), "ok", False),
    Case("a picture", b"\x89PNG\r\n", "ok", False, content_type="image/png"),
    # Streams.
    Case("a stream of chunks", sse(delta(role="assistant"), delta("Lis"), delta("bon"), delta(finish="stop")), "ok", content_type=STREAM),
    Case("a stream without its closing mark but with a stop", sse(delta("Lisbon"), delta(finish="stop"), done=False), "ok", content_type=STREAM),
    Case("a stream cut off", sse(delta("Lis"), done=False), "truncated", True, "no_end_of_stream", content_type=STREAM),
    Case("a stream of tool calls", sse(delta(tool_calls=[{"index": 0}]), delta(finish="tool_calls")), "ok", False, "tool_calls", content_type=STREAM),
    Case("only its closing mark", sse(), "empty_output", content_type=STREAM),
    Case("only comments", b": keep-alive\n\n: keep-alive\n\n", "empty_output", True, "keep_alive_only", content_type=STREAM),
    Case("nothing but a role", sse(delta(role="assistant"), delta(finish="stop")), "empty_output", content_type=STREAM),
    Case("an error in mid-stream", sse(delta("Lis"), {"error": {"message": "Internal server error", "code": 500}}, done=False), "server_error", content_type=STREAM),
    Case("an error under a field of its own", b'error: {"code":400,"message":"the request exceeds the available context size","type":"invalid_request_error"}\n\n', "context_length", content_type=STREAM),
    Case("an error event without JSON", b"event: error\ndata: upstream request timeout\n\n", "timeout", content_type=STREAM),
    Case("text that speaks of error events", sse(delta("An error event looks like: event: error"), delta(finish="stop")), "ok", content_type=STREAM),
    Case("an event in two lines", b'data: {"choices":[{"delta":{"content":"Hi"},\ndata: "finish_reason":"stop"}]}\n\ndata: [DONE]\n\n', "ok", content_type=STREAM),
    Case("CR LF", sse(delta("Hi"), delta(finish="stop")).replace(b"\n", b"\r\n"), "ok", content_type=STREAM),
    # No answer at all.
    Case("an empty body", b"", "empty_output", True, "empty_body"),
    Case("a page", b"<!doctype html><html><title>Sign in</title></html>", "wrong_endpoint", True, "html", content_type="text/html"),
    Case("JSON cut off", b'{"choices":[{"message":{"content":"Once upon a ti', "truncated", True, "cut_json"),
    Case("an error cut off", b'{"error":{"message":"The model `m` does not exist or you do not', "model_unavailable"),
    # An error that says nothing, after the answer had begun, is the server's; before, nobody can tell.
    Case("an unknown error after a beginning", sse(delta("Lis"), {"error": {"message": "Channel closed"}}, done=False), "server_error", content_type=STREAM),
    Case("an unknown error at once", sse({"error": {"message": "Channel closed"}}, done=False), "unknown", content_type=STREAM),
    Case("a line of error after a beginning", b'{"message":{"role":"assistant","content":"Lis"},"done":false}\n{"error":"went away"}\n', "server_error", provider="ollama", content_type=NDJSON),
    Case("a caller's error after a beginning stays his", sse(delta("Lis"), {"error": {"message": "prompt is too long"}}, done=False), "context_length", content_type=STREAM),
]  # fmt: skip

ERROR_CASES: list[dict[str, Any]] = json.loads((paths.CASES / "classify_errors.json").read_text("utf-8"))
HABIT_CASES: list[dict[str, Any]] = json.loads((paths.CASES / "classify_habits.json").read_text("utf-8"))
HOSTILE = {
    "brackets": b"[" * 65536,
    "objects": b'{"a":' * 13000,
    "tags": b"<" * 65536,
    "quotes": b'{"error":"' + b'\\"' * 32000,
    "keys": b'{"code":"' * 7000,
    "models": b'{"error":{"message":"' + b"model not model 'x " * 3000,
    "waits": b'{"error":{"message":"' + b"try again in 1 " * 4000,
    "ticks": b'{"error":{"message":"' + b"model `" * 9000,
    "mojibake": ('{"choices":[{"message":{"content":"' + "Ã©" * 16000 + '"}}]}').encode(),
    "loop": b'{"choices":[{"message":{"content":"' + b"ab " * 21000 + b'"}}]}',
    "marks": b'{"choices":[{"message":{"content":"' + b"<|im_" * 12000 + b'"}}]}',
    "fences": b'{"choices":[{"message":{"content":"' + b"``` <|im_end|> " * 4000 + b'"}}]}',
    "events": b'data: {"choices":[{"delta":{"content":"word "}}]}\n\n' * 1300,
    "broken events": b'data: {"choices":[{"delta":\n' * 2300,
    "spaces": b" " * 65536,
    "digits": b'{"error":{"message":"wait ' + b"1" * 65000,
    "nested": b'{"error":{"message":"' + b"{" * 60000,
    "thinking": b'{"choices":[{"message":{"content":"' + b"<think>" * 9000 + b'"}}]}',
}
