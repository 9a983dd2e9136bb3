"""Gather one answer from its parts, whatever the API: text, reasoning, tool calls, how it stopped, or its error."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from .envelope import HEAD_BYTES, TAIL_BYTES, read_json

Json: TypeAlias = Any

_ANSWER_KEYS: Final = frozenset(
    ("choices", "candidates", "output", "content", "message", "response", "result", "generated_text", "results",
     "generation", "generations", "text", "completion", "data", "embedding", "embeddings", "delta", "object")
)  # fmt: skip
_SUCCESS_CODES: Final = frozenset((0, 200, "0", "200", "success", "Success", "ok", "OK", "", None))
_FAILED: Final = frozenset(("failure", "failed", "error", "fail"))
_TERMINAL: Final = frozenset(("message_stop", "response.completed", "response.incomplete", "message-end", "stream-end",
                              "response.done", "done"))  # fmt: skip
_PARTS_MAX: Final = 4096
_TOOL_WORDS: Final = ("tool", "function_call", "_call", "code_interpreter", "computer")


class ResponseReader:
    """What has been read of one answer so far."""

    __slots__ = (
        "_arguments", "_reasoning", "_texts", "done", "events", "finish", "is_denied", "known", "opaque", "refusal",
        "tools",
    )  # fmt: skip

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._arguments: dict[Json, str] = {}
        """What each tool call is given, as JSON in text; by its place."""
        self.is_denied = False
        """A gateway's own check refused the call: the text is the gateway's."""
        self.refusal = ""
        self.finish: str | None = None
        self.tools = False
        self.opaque = False
        """It holds audio, pictures or a job still running: nothing that a reader of text could judge."""
        self.known = False
        self.done = False
        self.events = 0

    @property
    def text(self) -> str:
        """All that a reader is shown."""
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        """What the model thought aloud."""
        return "".join(self._reasoning)

    @property
    def cut_arguments(self) -> bool:
        """Whether the arguments of a tool call are no whole JSON."""
        return any(text.strip() and read_json(text) is None for text in self._arguments.values())

    @property
    def has_content(self) -> bool:
        """Whether it holds anything for a reader: text, reasoning, a refusal, a tool call, a picture."""
        return self.tools or self.opaque or bool(self.refusal) or any(self._texts) or any(self._reasoning)

    def trim(self) -> None:
        """Keep of a long text and of long reasoning only as much as is judged."""
        for parts in (self._texts, self._reasoning):
            if len(parts) > _PARTS_MAX:
                whole = "".join(parts)
                parts[:] = [whole[:HEAD_BYTES], whole[HEAD_BYTES:][-TAIL_BYTES:]]

    def absorb(self, document: Json) -> Json:
        """Take in one JSON value, whole body or stream event. Gives the error in it, or None."""
        if not isinstance(document, dict):
            return None
        if "hook_results" in document and _is_denied(document["hook_results"]):
            self.is_denied = True
        choices = document.get("choices")
        if choices and isinstance(choices, list) and not document.get("error") and "base_resp" not in document:
            # By far the most frequent: one chunk of a chat completion.
            self.known = True
            return self._choices(choices)
        error = error_in(document)
        if error is not None:
            return error
        if isinstance(choices, list):
            self.known = True
            return self._choices(choices)
        kind = document.get("type")
        if isinstance(kind, str):
            return self._typed(kind, document)
        if "choices" in document:
            self.known = True
            return None
        return self._untyped(document)

    def _choices(self, choices: list[Json]) -> Json:
        for choice in choices[:16]:
            if not isinstance(choice, dict):
                continue
            if choice.get("error"):
                return {"error": choice["error"]}
            self._stop(choice.get("finish_reason"))
            part = choice.get("message") or choice.get("delta")
            if isinstance(part, dict):
                self._message(part)
            if isinstance(choice.get("text"), str):
                self._texts.append(choice["text"])
        return None

    def _message(self, message: dict[str, Json]) -> None:
        content = message.get("content")
        if len(message) == 1 and isinstance(content, str):
            # A chunk of text and nothing else: most of every stream.
            self._texts.append(content)
            return
        self._content(content)
        for key in ("reasoning_content", "reasoning", "thinking"):
            value = message.get(key)
            if isinstance(value, str) and value:
                self._reasoning.append(value)
                break
        refusal = message.get("refusal")
        if isinstance(refusal, str):
            self.refusal += refusal
        if message.get("tool_calls") or message.get("function_call"):
            self.tools = True
            self._calls(message.get("tool_calls") or [{"function": message.get("function_call")}])
        if message.get("audio") or message.get("images"):
            self.opaque = True

    def _calls(self, calls: Json) -> None:
        for place, call in enumerate(calls[:16] if isinstance(calls, list) else ()):
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                self._argument(call.get("index", place), function.get("arguments"))

    def _argument(self, place: Json, piece: Json) -> None:
        if isinstance(piece, str) and isinstance(place, int | str):
            self._arguments[place] = self._arguments.get(place, "") + piece

    def _content(self, content: Json) -> None:
        if isinstance(content, str):
            self._texts.append(content)
        elif isinstance(content, list):
            for block in content:
                if isinstance(block, str):
                    self._texts.append(block)
                elif isinstance(block, dict):
                    self._block(block)
        elif isinstance(content, dict):
            self._block(content)

    def _block(self, block: dict[str, Json]) -> None:
        """One part of a content list: Anthropic, responses, Mistral, Bedrock Converse and Gemini parts."""
        kind = block.get("type")
        kind = kind if isinstance(kind, str) else ""
        if kind == "refusal" or isinstance(block.get("refusal"), str):
            self.refusal += str(block.get("refusal") or "")
        elif "thinking" in kind or "reasoning" in kind or block.get("thought") is True:
            for key in ("thinking", "text", "reasoning", "summary"):
                value = block.get(key)
                self._reasoning.append(value if isinstance(value, str) else "." if value else "")
        elif isinstance(block.get("text"), str):
            self._texts.append(block["text"])
        elif isinstance(block.get("reasoningContent"), dict):
            self._reasoning.append(".")
        elif any(word in kind for word in _TOOL_WORDS) or "toolUse" in block or "functionCall" in block:
            self.tools = True
        elif "inlineData" in block or "executableCode" in block or "image" in kind or "audio" in kind:
            self.opaque = True

    def _stop(self, reason: Json) -> None:
        if (
            isinstance(reason, str)
            and reason
            and reason not in ("null", "FINISH_REASON_UNSPECIFIED", "stop_reason_null")
        ):
            self.finish = reason

    def _typed(self, kind: str, document: dict[str, Json]) -> Json:
        """Objects that say what they are: messages and responses, whole or as events."""
        if kind in _TERMINAL:
            self.done = True
        if kind == "message":
            self.known = True
            self._content(document.get("content"))
            self._stop(document.get("stop_reason"))
        elif kind.startswith(("content_block", "message", "content-", "tool-", "text-", "stream-", "citation")):
            self._message_event(kind, document)
        elif kind.startswith("response."):
            return self._response_event(kind, document)
        elif kind != "ping":
            return self._untyped(document)
        return None

    def _message_event(self, kind: str, document: dict[str, Json]) -> None:
        self.known = True
        delta = document.get("delta")
        if isinstance(delta, dict):
            self._stop(delta.get("stop_reason") or delta.get("finish_reason"))
            self._argument(document.get("index"), delta.get("partial_json"))
            for key, parts in (("text", self._texts), ("thinking", self._reasoning)):
                if isinstance(delta.get(key), str):
                    parts.append(delta[key])
            if isinstance(delta.get("message"), dict):
                self._message(delta["message"])
        block = document.get("content_block")
        if isinstance(block, dict):
            self._block(block)
        if isinstance(document.get("text"), str):
            self._texts.append(document["text"])
        self._stop(document.get("finish_reason"))
        if kind.startswith("tool-"):
            self.tools = True

    def _response_event(self, kind: str, document: dict[str, Json]) -> Json:
        self.known = True
        delta = document.get("delta")
        if isinstance(delta, str):
            if kind == "response.output_text.delta":
                self._texts.append(delta)
            elif kind == "response.refusal.delta":
                self.refusal += delta
            elif kind.startswith("response.reasoning"):
                self._reasoning.append(delta)
            elif "_call" in kind:
                self.tools = True
                self._argument(document.get("output_index"), delta)
        item = document.get("item")
        if isinstance(item, dict) and str(item.get("type", "")).endswith("_call"):
            self.tools = True
        response = document.get("response")
        if isinstance(response, dict) and kind in _TERMINAL:
            self._response(response, with_text=not self._texts)
        return None

    def _response(self, response: dict[str, Json], *, with_text: bool = True) -> None:
        """A whole response object of the responses API."""
        self.known = True
        details = response.get("incomplete_details")
        if isinstance(details, dict):
            self._stop(details.get("reason"))
        if response.get("status") in ("in_progress", "queued"):
            self.opaque = True
        output = response.get("output")
        for item in output if isinstance(output, list) else ():
            kind = str(item.get("type", "")) if isinstance(item, dict) else ""
            if kind.endswith("_call"):
                self.tools = True
                if with_text:
                    self._argument(len(self._arguments), item.get("arguments"))
            elif kind == "reasoning":
                self._reasoning.append("." if item.get("summary") or item.get("content") else "")
            elif kind == "message" and with_text:
                self._content(item.get("content"))

    def _untyped(self, document: dict[str, Json]) -> Json:
        candidates = document.get("candidates")
        if isinstance(candidates, list) or "promptFeedback" in document:
            self._gemini(document, candidates)
        elif isinstance(document.get("message"), dict):
            self._chat_message(document, document["message"])
        elif document.get("object") == "response" and "output" in document:
            self._response(document)
        elif "output" in document:
            self._output(document, document["output"])
        elif isinstance(document.get("result"), dict):
            self._result(document["result"])
        else:
            self._bare_text(document)
        return None

    def _gemini(self, document: dict[str, Json], candidates: Json) -> None:
        self.known = True
        feedback = document.get("promptFeedback")
        if isinstance(feedback, dict) and feedback.get("blockReason"):
            self.finish = "content_filter"
        for candidate in candidates if isinstance(candidates, list) else ():
            if isinstance(candidate, dict):
                self._stop(candidate.get("finishReason"))
                content = candidate.get("content")
                self._content(content.get("parts") if isinstance(content, dict) else None)

    def _chat_message(self, document: dict[str, Json], message: dict[str, Json]) -> None:
        """Ollama and Cohere: one message beside its own end mark."""
        self.known = True
        self._message(message)
        self._stop(document.get("done_reason") or document.get("finish_reason"))
        self.done = self.done or document.get("done") is True

    def _output(self, document: dict[str, Json], output: Json) -> None:
        """DashScope, Bedrock Converse, Replicate, and whole responses without their mark."""
        self.known = True
        self._stop(document.get("stopReason"))
        if isinstance(output, dict):
            if isinstance(output.get("message"), dict):
                self._content(output["message"].get("content"))
            elif isinstance(output.get("choices"), list):
                self._choices(output["choices"])
            elif isinstance(output.get("text"), str):
                self._texts.append(output["text"])
                self._stop(output.get("finish_reason"))
            else:
                self.opaque = True
        elif isinstance(output, list) and output and all(isinstance(item, dict) for item in output):
            self._response(document)
        elif output is None and document.get("status") in ("starting", "processing", "queued"):
            self.opaque = True
        else:
            self._content(output)

    def _result(self, result: dict[str, Json]) -> None:
        """Workers AI: the answer stands under `result`."""
        if isinstance(result.get("choices"), list):
            self.known = True
            self._choices(result["choices"])
        elif "response" in result:
            self.known = True
            response = result["response"]
            self._content(response if not isinstance(response, dict) else repr(response))
            self.tools = self.tools or bool(result.get("tool_calls"))

    def _bare_text(self, document: dict[str, Json]) -> None:
        """Completion APIs that answer with one field of text, and Ollama's generate."""
        for key in ("response", "generated_text", "generation", "completion", "content", "text", "outputText"):
            value = document.get(key)
            if isinstance(value, str):
                self.known = True
                self._texts.append(value)
                if isinstance(document.get("thinking"), str):
                    self._reasoning.append(document["thinking"])
                break
            if key == "content" and isinstance(value, list) and "stop_reason" in document:
                self.known = True
                self._content(value)
                break
        for key in ("done_reason", "finish_reason", "stop_reason"):
            self._stop(document.get(key))
        self.done = self.done or document.get("done") is True or document.get("stop") is True
        results = document.get("results")
        if isinstance(results, list):
            for item in results:
                if isinstance(item, dict) and isinstance(item.get("outputText") or item.get("generated_text"), str):
                    self.known = True
                    self._texts.append(item.get("outputText") or item["generated_text"])


def _is_denied(hooks: Json) -> bool:
    """Whether one of a gateway's hooks refused the call, unless it says that it let it pass."""
    if isinstance(hooks, dict):
        return any(_is_denied(group) for group in hooks.values())
    return isinstance(hooks, list) and any(
        isinstance(hook, dict) and hook.get("verdict") is False and hook.get("deny") is not False for hook in hooks[:16]
    )


def error_in(document: dict[str, Json]) -> Json:
    """The error that a JSON object of a 2xx answer holds or is; None for an answer, and for JSON of no known shape."""
    error = document.get("error")
    if error and not isinstance(error, bool | int):
        return document
    kind = document.get("type")
    if kind == "error" or document.get("object") == "error":
        return document
    if kind == "response.failed" or (document.get("object") == "response" and document.get("status") == "failed"):
        inner = document.get("response")
        return {"error": inner.get("error") or inner} if isinstance(inner, dict) else document
    base = document.get("base_resp")
    if isinstance(base, dict) and not _is_one_of(base.get("status_code"), _SUCCESS_CODES):
        return {"base_resp": base}
    if len(document) == 1:
        # Bedrock's event streams name an error by its type: `{"throttlingException": {...}}`.
        name, value = next(iter(document.items()))
        if name.endswith("Exception") and isinstance(value, dict):
            return {"error": {"code": name, **value}}
    nested = document.get("Response") or document.get("ResponseMetadata")
    if isinstance(nested, dict) and nested.get("Error"):
        return {"error": nested["Error"]}
    if document.get("errors") and isinstance(document["errors"], list) and not document.get("result"):
        return document
    if document.get("success") is False or _is_one_of(document.get("status"), _FAILED):
        return document
    if document.get("choices") or document.get("candidates"):
        return None
    says = document.get("message") or document.get("msg") or document.get("error_msg")
    code = document.get("code", document.get("error_code", document.get("errorCode", 0)))
    if isinstance(says, str) and not isinstance(code, list | dict | bool) and not _is_one_of(code, _SUCCESS_CODES):
        return document
    if "detail" in document and document.keys() <= {"detail", "status", "title", "type", "instance"}:
        return document
    if (
        isinstance(document.get("status"), int)
        and document["status"] >= 400
        and document.keys().isdisjoint(_ANSWER_KEYS - {"message"})
    ):
        return document
    return None


def _is_one_of(value: Json, values: frozenset[Json]) -> bool:
    return not isinstance(value, list | dict) and value in values
