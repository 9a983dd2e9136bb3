"""Open a 2xx body: find the error in it, or gather the answer and have it judged (Rule 3).

Known shapes: chat completions, responses, messages, Gemini, Ollama, Cohere, Bedrock Converse, DashScope, Workers
AI, TGI, llama.cpp; each whole, as server-sent events or as lines of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from ..kinds import KINDS, Kind
from ..verdict import Verdict
from .envelope import Body, Envelope, from_doc, read_envelope, read_json
from .match import match
from .output import CAPPED, judge_output
from .response_reader import ResponseReader

Json: TypeAlias = Any

_STREAM_START: Final = ("data:", "event:", "error:", "id:", "retry:", ":")
_NOT_TEXT: Final = (
    "audio/",
    "image/",
    "video/",
    "application/octet-stream",
    "application/vnd.amazon.eventstream",
    "multipart/",
)
_ERROR_MARKS: Final = (
    '"error"',
    '"errors"',
    '"error_code"',
    '"base_resp"',
    '"Error"',
    '"success":false',
    '"success": false',
)
"""How a body that was cut short shows near its beginning that it is no answer."""
LINES_MAX: Final = 1600
"""So many lines of a stream are read, three quarters of them at its beginning: enough to judge, and a bound on time."""
_JOINED_LINES_MAX: Final = 32
"""One event's JSON may be spread over this many lines; more is a broken stream."""
_CONTENT: Final = re.compile(r"\"(?:content|text|response|generated_text)\"\s*:\s*\"((?:[^\"\\]|\\.){1,49152})")


_DONE: Final = object()
_PASSED_ANYWAY: Final = 246
"""A gateway's own status for an answer that failed a check and was let through."""


class CallFacts(NamedTuple):
    """What is known of the call, beside its answer."""

    requested_model: str
    family: str = ""
    stream: bool = False
    """Whether the caller asked for a stream."""
    prompt_ascii: bool | None = None
    client_capped: bool | None = None


def judge_answer(status: int, headers: Mapping[str, str], body: Body, question: CallFacts) -> Verdict:
    """The verdict on a 2xx answer."""
    content_type = headers.get("content-type", "").lower()
    start = body.text.lstrip()[:16]
    if content_type.startswith(_NOT_TEXT):
        return _says("ok", checkable=False)
    if not start:
        if status in (202, 204, 205):
            return _says("ok", checkable=False)
        return _says("empty_output", signature="empty_body")
    if start[0] == "<":
        # A page where an answer should be: a wrong base address or a login wall, never the model.
        return _says("wrong_endpoint", signature="html")
    documents: Iterable[Json] | None
    if content_type.startswith("text/event-stream") or start.startswith(_STREAM_START):
        documents, is_stream = _events(body.text), True
    else:
        documents, is_stream = _documents(body, stream=question.stream)
    if documents is None:
        return _broken(status, headers, body, question)
    answer = ResponseReader()
    for document in documents:
        if document is _DONE:
            answer.done = True
            continue
        answer.events += 1
        error = answer.absorb(document)
        if error is not None:
            begun = answer.events > 1 and bool(answer.text or answer.reasoning or answer.tools)
            return _error(status, headers, error, question, begun=begun)
    if answer.is_denied and status != _PASSED_ANYWAY:
        return _says("content_filter", signature="guardrail")
    if is_stream and (early := _unfinished(answer, body)) is not None:
        # Damage that was read outranks an end that is missing.
        return _damage(answer, body, question) or early
    if answer.cut_arguments and answer.finish and answer.finish.lower() in CAPPED and question.client_capped is False:
        return _says("malformed_output", signature="cut_arguments")
    if not answer.known or (answer.opaque and not answer.text.strip()):
        return _says("ok", checkable=False)
    return judge_output(
        answer.text,
        finish_reason=answer.finish,
        has_tool_calls=answer.tools,
        reasoning_text=answer.reasoning,
        refusal=answer.refusal,
        prompt_ascii=question.prompt_ascii,
        client_capped=question.client_capped,
    )


def _events(text: str) -> Iterator[Json]:
    """The JSON of each server-sent event, `_DONE` for the closing mark, an error object for an `error` event that
    holds no JSON. A line whose field is `error:` counts as data (llama.cpp).
    """
    waiting: list[str] = []
    name = ""
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX * 3 // 4], "", *lines[-LINES_MAX // 4 :]]
    for line in lines:
        if not line:
            if waiting or name:
                waiting, name = [], ""
            continue
        if line[:7] == "data: {" and not waiting and not name and (document := read_json(line[6:])) is not None:
            # By far the most frequent line, read without more ado.
            yield document
            continue
        field, colon, value = line.partition(":")
        if field in ("data", "error") and colon:
            value = value.strip()
            if value in ("[DONE]", "[done]"):
                yield _DONE
                continue
            whole = "".join([*waiting, value]) if waiting else value
            document = read_json(whole) if whole[:1] in '{["' and value[-1:] in '}]"' else None
            if document is None:
                waiting = [*waiting, value] if whole[:1] == "{" and len(waiting) < _JOINED_LINES_MAX else []
                if (name == "error" or field == "error") and not waiting and value:
                    yield {"type": "error", "error": {"message": value}}
                continue
            waiting = []
            yield _as_error(document) if field == "error" or name == "error" else document
        elif field == "event":
            name = value.strip()


def _as_error(document: Json) -> Json:
    """An object that came as an `error` event is an error, with or without a field that says so."""
    if isinstance(document, dict) and not document.get("error") and "base_resp" not in document:
        return {"error": document}
    return document


def _documents(body: Body, *, stream: bool) -> tuple[list[Json] | None, bool]:
    """The JSON values of a body and whether they are parts of a stream; None where it is no whole JSON. An array is
    a stream where one was asked for (Gemini without `alt=sse`).
    """
    whole = read_json(body.data) if not body.cut else None
    if isinstance(whole, list):
        return whole, stream
    if whole is not None:
        return [whole], False
    lines = body.text.splitlines()
    documents = [document for line in lines if line[:1] == "{" and (document := read_json(line)) is not None]
    # One line that ends and another begun make a stream; a single cut object does not.
    if documents and sum(1 for line in lines if line.strip()) > 1:
        return documents, True
    return None, False


def _damage(answer: ResponseReader, body: Body, question: CallFacts) -> Verdict | None:
    """The verdict on damaged text in a stream that did not end as it should; None if it is whole."""
    text = answer.text if answer.events else body.text.removesuffix("\ufffd")
    verdict = judge_output(text, finish_reason=None, prompt_ascii=question.prompt_ascii)
    return verdict if verdict.kind == "mangled_output" else None


def _unfinished(answer: ResponseReader, body: Body) -> Verdict | None:
    """A stream that never said that it was at its end."""
    if answer.done or answer.finish:
        if not answer.known:
            return _says("empty_output", signature="empty_stream")
        return None
    if answer.events == 0 and all(not line or line[0] == ":" for line in body.text.splitlines()):
        # It waited with us and then closed in order, without a word.
        return _says("empty_output", signature="keep_alive_only")
    if not answer.known and answer.events:
        return None
    return _says("truncated", signature="no_end_of_stream")


def _broken(status: int, headers: Mapping[str, str], body: Body, question: CallFacts) -> Verdict:
    """A body that is no whole JSON: an error cut short, an answer cut short or by our own bound, or plain text."""
    start = body.text.lstrip()
    if start[0] not in "{[":
        return _says("unknown", checkable=False, low=True, signature="not_json")
    if any(mark in start[:200] for mark in _ERROR_MARKS):
        return match(
            read_envelope(status, headers, body)._replace(shape="inside"), question.requested_model, question.family
        )
    if not body.cut:
        cut_off = start.count("{") > start.count("}") or start.count("[") > start.count("]")
        return _says("truncated", signature="cut_json") if cut_off else _says("malformed_output", signature="not_json")
    found = _CONTENT.search(body.text)
    if found is None:
        return _says("ok", checkable=False)
    # Our own bound cut it: what was read is judged, how it ended is not known.
    text = read_json('"' + found[1] + '"')
    if not isinstance(text, str):
        return _says("ok", checkable=False)
    return judge_output(
        text, finish_reason=None, prompt_ascii=question.prompt_ascii, client_capped=question.client_capped
    )


def _error(
    status: int, headers: Mapping[str, str], error: Json, question: CallFacts, *, begun: bool = False
) -> Verdict:
    """An error object inside a 2xx is judged as if it had come with its own status. One that says nothing, after
    the answer had begun, is the server's: a request that is at fault is told so before.
    """
    found: Envelope = from_doc(status, headers, error)
    found = found._replace(status=found.body_status or status, shape="inside")
    verdict = match(found, question.requested_model, question.family)
    if begun and verdict.kind == "unknown" and verdict.signature is None:
        return msgspec.structs.replace(verdict, kind="server_error", scope="model")
    return verdict


def _says(kind: Kind, *, checkable: bool = True, signature: str | None = None, low: bool = False) -> Verdict:
    return Verdict(
        kind=kind,
        scope=KINDS[kind].scope,
        checkable=checkable,
        signature=signature,
        confidence="low" if low else "high",
    )
