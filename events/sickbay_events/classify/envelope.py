"""One reader for every known shape of error envelope: bytes and headers in, codes and sentences out.

It decides nothing. Rules look at what it found (Rule 3: structured fields before sentences, JSON before text).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

HEAD_BYTES: Final = 48 * 1024
TAIL_BYTES: Final = 16 * 1024
"""A longer body is read as its first 48 KiB and its last 16 KiB: an error stands at the head, while a stream
says at its tail how it ended. Together they are the 64 KiB of Rule 3."""
SENTENCE_CHARS: Final = 4096
"""Sentences are looked for in this much text; provider messages are shorter, quoted documents are not."""
FIELD_CHARS: Final = 2048
DEPTH_MAX: Final = 10
NODES_MAX: Final = 64

Json: TypeAlias = Any

_CODE_KEYS: Final = (
    "code", "error_code", "errorcode", "err_code", "errcode", "type", "error_type", "__type", "status", "reason",
    "quotaid", "limit_source", "status_code", "statuscode", "http_code", "http_status_code", "slug", "errortype",
)  # fmt: skip
_TEXT_KEYS: Final = (
    "message", "msg", "error_msg", "error_message", "errormessage", "errmsg", "error_description", "detail", "title",
    "status_msg", "status_message", "description", "explanation", "user_message", "generated_error", "err_msg", "step",
)  # fmt: skip
_CHILD_KEYS: Final = (
    "error", "errors", "detail", "details", "message", "fault", "base_resp", "response", "metadata", "data", "body",
    "cause", "output", "innererror", "inner_error", "violations", "error_model", "upstream_error", "exception",
    "routing_funnel", "status",
    "responsemetadata",
)  # fmt: skip
_SPOKEN_KEYS: Final = frozenset(("error", "errors", "fault", "upstream_error", "exception"))
"""Fields that hold an object, or the whole message as a string."""
_NESTED_KEYS: Final = ("raw", "message", "body", "msg", "detail", "error", "upstream_error", "raw_error")
"""Fields in which relays put the upstream's body as a string of JSON."""

_NO_CODES: Final = frozenset(("", "error", "none", "null", "about:blank", "fail", "failure", "failed"))
"""Words in the place of a code that say nothing."""
_CODE_RANK: Final = {key: rank for rank, key in enumerate(_CODE_KEYS)}
# The id of a quota says over which window and for whom it counts (Google): it is read as a sentence too.
_TEXT_RANK: Final = {key: rank for rank, key in enumerate((*_TEXT_KEYS, "raw", "quotaid"))}
_CHILD_RANK: Final = {key: rank for rank, key in enumerate(_CHILD_KEYS)}
_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9_.:\-]{1,40})")
_TAG: Final = re.compile(r"<[^<>]*>")
_HTML_BLOCK: Final = re.compile(r"<(script|style)\b[^<>]*>[^<]*", re.I)
_SALVAGE: Final = re.compile(
    r"[\"']([A-Za-z_@]{2,20})[\"']\s*:\s*(?:\"((?:[^\"\\]|\\.){0,2048})|'([^'\n]{0,2048})|(-?\d{1,9})\b)"
)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.S)
_TEXT_CODECS: Final = (
    "utf", "iso", "latin", "cp", "windows", "gb", "big5", "euc", "shift", "koi8", "mac", "ascii", "hz", "johab", "tis",
)  # fmt: skip


class Body(NamedTuple):
    """A body as text, at most 64 KiB of it."""

    text: str
    data: bytes
    """UTF-8 of `text`, or the bytes as received where they are UTF-8."""
    cut: bool
    """Whether the middle was left out, so the end of the head is no sign of a broken answer."""
    charset: str
    """The declared charset in lower case, or `absent`."""


class Envelope(NamedTuple):
    """What an answer said, laid flat."""

    status: int | None
    headers: Mapping[str, str]
    doc: Json
    """The decoded JSON, in a list with what JSON its strings hold; or None."""
    shape: str
    codes: tuple[str, ...]
    """Machine codes as the provider spelled them, the most specific first."""
    text: str
    """Every sentence, in lower case, straight quotes, lines joined by a newline."""
    relayed: bool
    """Whether an upstream's own envelope was found inside this one."""
    body_status: int | None
    """An HTTP status that the body names (a relay's upstream, an error inside a 200)."""


def plain_headers(headers: object) -> dict[str, str]:
    """Header names in lower case and values as text, whatever a client library calls a header."""
    pairs: Iterable[object]
    if isinstance(headers, Mapping):
        pairs = headers.items()
    elif isinstance(headers, (list, tuple)):
        pairs = headers
    else:
        return {}
    plain: dict[str, str] = {}
    for pair in pairs:
        if isinstance(pair, tuple | list) and len(pair) == 2:
            name, value = _as_text(pair[0]).strip().lower(), pair[1]
            if isinstance(value, tuple | list):
                value = value[0] if value else ""
            plain.setdefault(name, _as_text(value).strip()[:1024])
    return plain


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value[:1024]).decode("latin-1")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return ""


@lru_cache(maxsize=256)
def charset_of(content_type: str) -> str:
    """The charset a content type declares, in lower case; `absent` where it says nothing."""
    found = _CHARSET.search(content_type)
    return found[1].lower() if found else "absent"


def text_codec(charset: str) -> str:
    """The name of a codec that turns bytes into text for this charset; UTF-8 where it says nothing usable."""
    if charset == "absent":
        return "utf-8"
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        return "utf-8"
    return name if name.startswith(_TEXT_CODECS) else "utf-8"


def parse_body(body: object, content_type: str) -> Body:
    """Decode at most 64 KiB of a body by its byte-order mark, else its declared charset, else UTF-8."""
    charset = charset_of(content_type)
    if isinstance(body, str):
        cut = len(body) > HEAD_BYTES + TAIL_BYTES
        text = body[:HEAD_BYTES] + "\n" + body[-TAIL_BYTES:] if cut else body
        return Body(text.lstrip("\ufeff"), text.encode("utf-8", "surrogatepass"), cut, charset)
    if not isinstance(body, bytes | bytearray | memoryview):
        return Body("", b"", False, charset)
    cut = len(body) > HEAD_BYTES + TAIL_BYTES
    # Both seams fall on multiples of four, so UTF-16 and UTF-32 are not read half a character off.
    tail_from = (len(body) - TAIL_BYTES) // 4 * 4
    codec = text_codec(charset)
    head = bytes(body[:HEAD_BYTES] if cut else body)
    if head.startswith(codecs.BOM_UTF8):
        codec, head = "utf-8", head[3:]
    elif head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        codec = "utf-32"
    elif head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        codec = "utf-16-le" if head[0] == 0xFF else "utf-16-be"
        head = head[2:]
    elif codec == "utf-8" and len(head) > 3 and 0 in head[:4]:
        codec = "utf-16-le" if head[1] == 0 else "utf-16-be"
    text = head.decode(codec, "ignore" if cut else "replace")
    if cut:
        text += "\n" + bytes(body[tail_from:]).decode(codec if codec != "utf-32" else "utf-8", "replace").lstrip(
            "\ufffd"
        )
    if codec == "utf-8" and not cut:
        return Body(text, head, False, charset)
    return Body(text, text.encode("utf-8", "surrogatepass"), cut, charset)


def read_json(data: bytes | str) -> Json:
    """The JSON in it, or None; never raises."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return None


def read_envelope(status: int | None, headers: Mapping[str, str], body: Body) -> Envelope:
    """Lay an error answer flat, whatever its shape."""
    text = body.text
    start = text.lstrip()[:64]
    if not start:
        return Envelope(status, headers, None, "empty", (), "", False, None)
    if start[0] == "<":
        return _from_text(status, headers, "html", _TAG.sub(" ", _HTML_BLOCK.sub(" ", text[:SENTENCE_CHARS])))
    if start[0] in '{["':
        doc = read_json(body.data)
        if doc is not None:
            return from_doc(status, headers, doc)
        return _salvaged(status, headers, text)
    if start.startswith(("data:", "event:", "error:")):
        for line in text.splitlines()[:16]:
            if line.startswith(("data:", "error:")) and (doc := read_json(line.partition(":")[2].strip())) is not None:
                return from_doc(status, headers, doc)
    return _from_text(status, headers, "text", text[:SENTENCE_CHARS])


def _from_text(status: int | None, headers: Mapping[str, str], shape: str, text: str) -> Envelope:
    doc = _embedded(text)
    if doc is not None:
        found = from_doc(status, headers, doc)
        return found._replace(shape=shape, text=plain_sentence(text) + "\n" + found.text)
    return Envelope(status, headers, None, shape, (), plain_sentence(text), False, None)


def from_doc(status: int | None, headers: Mapping[str, str], doc: Json) -> Envelope:
    """Lay decoded JSON flat."""
    found = _Found()
    found.walk(doc, 0)
    text = plain_sentence("\n".join(found.texts))
    seen = [doc, *found.inner] if found.inner else doc
    return Envelope(status, headers, seen, shape_of(doc), tuple(found.codes), text, found.relayed, found.status)


def plain_sentence(text: str) -> str:
    """Text as the rules compare it: lower case, straight quotes, bounded."""
    text = text[:SENTENCE_CHARS].lower()
    return text if text.isascii() else text.translate(_STRAIGHT)


_STRAIGHT: Final = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " "})


def shape_of(doc: Json) -> str:
    """A name for the outline of an envelope, by which a provider's habit is told from a stranger's."""
    if isinstance(doc, list):
        return "array"
    if not isinstance(doc, dict):
        return "bare_string"
    error = doc.get("error")
    if isinstance(error, dict):
        return "error_object"
    if isinstance(error, str):
        return "error_string"
    if isinstance(error, list) or isinstance(doc.get("errors"), list):
        return "errors_list"
    if "detail" in doc:
        return "problem" if "title" in doc or "status" in doc else "detail"
    if "base_resp" in doc:
        return "base_resp"
    if not doc.keys().isdisjoint(("message", "msg", "Message", "code", "Code", "error_msg")):
        return "flat"
    return "other"


def _rank(entry: tuple[Json, ...]) -> int:
    rank: int = entry[0]
    return rank


class _Found:
    """What a walk through an envelope has gathered."""

    __slots__ = ("codes", "inner", "nodes", "relayed", "status", "texts")

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.texts: list[str] = []
        self.inner: list[Json] = []
        self.status: int | None = None
        self.nodes = 0
        self.relayed = False

    def walk(self, node: Json, depth: int) -> None:
        self.nodes += 1
        if depth > DEPTH_MAX or self.nodes > NODES_MAX:
            return
        if isinstance(node, dict):
            self._object(node, depth)
        elif isinstance(node, list):
            for item in node[:8]:
                self.walk(item, depth + 1)
        elif isinstance(node, str):
            self._text(node, depth, nested=True)

    def _object(self, node: dict[str, Json], depth: int) -> None:
        codes: list[tuple[int, Json]] = []
        texts: list[tuple[int, str, bool]] = []
        children: list[tuple[int, Json]] = []
        for looked_at, (key, value) in enumerate(node.items()):
            if looked_at >= NODES_MAX:
                break
            name = key if key.islower() else key.lower()
            if name in _CODE_RANK and not isinstance(value, dict | list):
                codes.append((_CODE_RANK[name], value))
            if isinstance(value, str):
                if name in _TEXT_RANK:
                    texts.append((_TEXT_RANK[name], value, name in _NESTED_KEYS))
                elif name in _SPOKEN_KEYS:
                    children.append((_CHILD_RANK[name], value))
            elif name in _CHILD_RANK:
                children.append((_CHILD_RANK[name], value))
        for _, value in sorted(codes, key=_rank):
            self._code(value)
        for _, text, nested in sorted(texts, key=_rank):
            self._text(text, depth, nested=nested)
        for _, value in sorted(children, key=_rank):
            if isinstance(value, str):
                if " " not in value[:64]:
                    self._code(value)
                self._text(value, depth, nested=True)
            else:
                self.walk(value, depth + 1)

    def _code(self, value: Json) -> None:
        if isinstance(value, bool):
            return
        if isinstance(value, int):
            value = str(value)
        if not isinstance(value, str) or value.lower() in _NO_CODES or len(self.codes) > 24:
            return
        if value.isascii() and value.isdigit():
            if len(value) == 3 and self.status is None and 400 <= int(value) <= 599:
                self.status = int(value)
        elif " " in value or len(value) > 96:
            # A sentence in the place of a code (gRPC status texts) is read as a sentence.
            self.texts.append(value[:FIELD_CHARS])
            return
        value = value.rpartition("#")[2] if value.startswith("com.amazon") else value
        if value not in self.codes:
            self.codes.append(value)

    def _text(self, value: str, depth: int, *, nested: bool) -> None:
        value = value[: FIELD_CHARS * 4]
        if nested and "{" in value and (inner := _embedded(value)) is not None:
            # The upstream's own words are the most specific, so its codes come first.
            own_codes, self.codes = self.codes, []
            own_status, self.status = self.status, None
            self.relayed = True
            self.inner.append(inner)
            self.walk(inner, depth + 1)
            self.codes += [code for code in own_codes if code not in self.codes]
            self.status = own_status or self.status
            # What stands around it is the relay's: how long to wait, and the name that we asked for.
            value = value[: value.find("{")] + " " + value[value.rfind("}") + 1 :]
        if value and not value.isspace():
            self.texts.append(value[:FIELD_CHARS])


def _embedded(text: str) -> Json:
    """A JSON object inside a string: the whole of it, or what lies between its outer braces."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end <= start or text[start + 1 : start + 8].lstrip()[:1] not in ('"', "}"):
        return None
    doc = read_json(text[start : end + 1])
    return doc if isinstance(doc, dict) else None


def _salvaged(status: int | None, headers: Mapping[str, str], text: str) -> Envelope:
    """What a cut or broken JSON body still shows: its known fields, read one by one."""
    found = _Found()
    for index, match in enumerate(_SALVAGE.finditer(text[: SENTENCE_CHARS * 2])):
        if index >= 48:
            break
        key = match[1].lower()
        value = match[4] or _unescape(match[2] or match[3] or "")
        if key in _CODE_KEYS:
            found._code(int(value) if match[4] and len(value) < 10 else value)
        if not match[4] and (key in _TEXT_KEYS or key in ("error", "raw", "retrydelay")):
            if "{" in value:
                found.texts.append(value)
                for inner in _SALVAGE.finditer(value[:FIELD_CHARS]):
                    if inner[1].lower() in _CODE_KEYS:
                        found._code(inner[4] or inner[2] or inner[3] or "")
            else:
                found.texts.append(value)
    start = text.lstrip()[:64]
    if not found.texts and not found.codes:
        found.texts.append(text[:SENTENCE_CHARS])
    shape = "array" if start[0] == "[" else "error_object" if '"error"' in text[:256] else "flat"
    if start[0] == '"':
        shape = "bare_string"
    text = plain_sentence("\n".join(found.texts))
    return Envelope(status, headers, None, shape, tuple(found.codes), text, found.relayed, found.status)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def one(match: re.Match[str]) -> str:
        mark = match[1]
        if len(mark) == 5:
            return chr(int(mark[1:], 16))
        return {"n": "\n", "t": "\t", "r": "\r"}.get(mark, mark)

    return _ESCAPE.sub(one, text)
