"""What an SDK returns or yields, known by its shape: OpenAI, Anthropic, google-genai, LiteLLM, and plain dicts.

No SDK is imported. An object that can show itself as JSON is read as the provider's own JSON would be.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sickbay_events.classify.first_content import holds_content
from sickbay_events.classify.response_reader import ResponseReader

from .judging import LEFT_EARLY
from .retries import warn_of_retries

if TYPE_CHECKING:
    from collections.abc import Callable

_JSON: Final = {"content-type": "application/json"}
_EVENTS: Final = ("message_", "content_block_", "response.", "content-", "message-", "tool-", "text-", "stream-")
_SNAPSHOTS: Final = ("content_block_stop", "message_stop")
"""Events to which a helper of the SDK adds all that came before."""
_STREAM_STARTS: Final = (b"data:", b"event:", b"{", b"[{")


def holds_output(piece: object) -> bool:
    """Whether a piece of a stream is content: a text that is not empty, or an SDK's chunk with text, reasoning, a
    refusal or a tool call in it. A chunk that only names the role is none.
    """
    if isinstance(piece, bytes | bytearray) and piece.lstrip().startswith(_STREAM_STARTS):
        return holds_content(piece)
    document = chunk_document(piece)
    if document is None:
        return bool(piece)
    reader = ResponseReader()
    reader.absorb(document)
    return reader.has_content


def answer_of_sdk(value: Any) -> tuple[int, Mapping[str, str], bytes] | None:
    """Status, headers and body of what a call returned; None for a value of another kind."""
    try:
        raw = getattr(value, "http_response", value)  # an SDK's `with_raw_response`
        status, headers = getattr(raw, "status_code", None), getattr(raw, "headers", None)
        if isinstance(status, int) and isinstance(headers, Mapping):
            warn_of_retries(raw)
            body = raw.content  # raises if nobody read it
            return (status, headers, body) if isinstance(body, bytes) else None
        document = _document(value)
        if document is None or not _is_answer(document):
            return None
        return 200, _JSON, msgspec.json.encode(document, enc_hook=repr)
    except Exception:  # noqa: BLE001 - foreign classes may do anything when looked at
        return None


def chunk_document(chunk: Any) -> dict[str, Any] | None:
    """The JSON of one chunk of a stream; None if it is of no known SDK."""
    try:
        if getattr(chunk, "type", None) == "chunk" and hasattr(chunk, "chunk"):
            chunk = getattr(chunk, "chunk", None)  # OpenAI's `chat.completions.stream`
        document = _document(chunk)
    except Exception:  # noqa: BLE001 - see above
        return None
    if document is None or "choices" in document or "candidates" in document:
        return document
    kind = document.get("type")
    if not isinstance(kind, str):
        return None
    if kind in _SNAPSHOTS:
        return {"type": kind}
    return document if kind.startswith(_EVENTS) or kind == "error" else {"type": "ping"}


def _document(value: object) -> dict[str, Any] | None:
    if isinstance(value, dict):
        return value if _is_shaped(value.get) else None
    if isinstance(value, str | bytes) or not _is_shaped(lambda name: getattr(value, name, None)):
        return None
    dump = getattr(value, "model_dump", None)
    if dump is None:
        return None
    found = dump(mode="json", by_alias=True, exclude_none=True, warnings=False)
    return found if isinstance(found, dict) else None


def _is_shaped(get: Callable[[str], Any]) -> bool:
    return (
        isinstance(get("choices"), list)
        or isinstance(get("candidates"), list)
        or (isinstance(get("type"), str) and (get("content") is not None or "." in get("type") or "_" in get("type")))
        or get("object") == "response"
    )


def _is_answer(document: dict[str, Any]) -> bool:
    is_message = document.get("type") == "message" and "content" in document
    return "choices" in document or "candidates" in document or is_message or document.get("object") == "response"


class Speaker:
    """What gathers the chunks of one stream and says in the end what they make; `attempt` is an `Attempt`."""

    def __init__(self, attempt: Any) -> None:
        self._attempt = attempt
        self._reader = ResponseReader()
        self._error: Any = None
        self._count = 0
        self.is_known = False

    def add(self, chunk: object) -> None:
        """Take a chunk in. Never raises."""
        if self._error is not None:
            return
        document = chunk_document(chunk)
        if document is None:
            return
        self.is_known = True
        self._error = self._reader.absorb(document)
        self._count += 1
        if self._count % 1024 == 0:
            self._reader.trim()

    @property
    def has_content(self) -> bool:
        """Whether content came."""
        return self._reader.has_content

    def end(self) -> None:
        """The stream is at its end. Says what came, unless the caller or the bytes said it already."""
        attempt, reader = self._attempt, self._reader
        if not self.is_known or attempt.verdict is not None or attempt.is_fed:
            return
        if self._error is not None:
            attempt.response(200, _JSON, msgspec.json.encode(self._error, enc_hook=repr))
        elif reader.opaque and not reader.text.strip():
            attempt.ok(status=200, checkable=False)
        else:
            attempt.output(
                reader.text,
                finish_reason=reader.finish,
                has_tool_calls=reader.tools,
                reasoning_text=reader.reasoning,
                refusal=reader.refusal,
                status=200,
                complete=reader.done,
            )

    def left(self) -> None:
        """The reader left before the end."""
        if self._reader.finish or self._reader.done:
            self.end()
        elif self._attempt.verdict is None and not self._attempt.is_fed:
            self._attempt.verdict = LEFT_EARLY


def gather(attempt: Any, stream: Any) -> Any:
    """The stream's chunks, passed on as they come; see `Attempt.chunks`."""
    warn_of_retries(getattr(stream, "response", None))
    if isinstance(stream, AsyncIterable):
        return _gather_async(attempt, stream)
    return _gather(attempt, stream)


def _gather(attempt: Any, stream: Iterable[Any]) -> Iterator[Any]:
    speaker = Speaker(attempt)
    try:
        for chunk in stream:
            speaker.add(chunk)
            if speaker.has_content:
                attempt.content_came()
            yield chunk
    except GeneratorExit:
        speaker.left()
        if (close := getattr(stream, "close", None)) is not None:
            close()
        raise
    speaker.end()


async def _gather_async(attempt: Any, stream: AsyncIterable[Any]) -> AsyncIterator[Any]:
    speaker = Speaker(attempt)
    try:
        async for chunk in stream:
            speaker.add(chunk)
            if speaker.has_content:
                attempt.content_came()
            yield chunk
    except GeneratorExit:
        speaker.left()
        if (close := getattr(stream, "close", None) or getattr(stream, "aclose", None)) is not None:
            await close()
        raise
    speaker.end()
