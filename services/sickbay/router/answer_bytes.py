"""The bytes of one answer as they pass: their head and tail are kept, and the first content is found.

What is kept is what `classify` reads of a long body: 48 KiB of the beginning and 16 KiB of the end.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

from sickbay_events.classify.envelope import HEAD_BYTES, TAIL_BYTES, plain_headers
from sickbay_events.classify.first_content import OVERLAP, holds_content

_TAIL_SLACK: Final = 4 * 1024
"""The tail is cut back to its size only when it is so much longer."""
_PIECE_BYTES: Final = 64 * 1024
"""A compressed piece is opened in steps of so many bytes, so that no answer fills the memory."""
_STREAMS: Final = ("text/event-stream", "application/x-ndjson", "application/vnd.amazon.eventstream")
_PLAIN_STARTS: Final = b'{[":<deir \r\n\t'
"""What an answer that is text begins with: JSON, a page, or a field of a stream."""


class AnswerBytes:
    """What one answer has shown so far. `headers` as a client names them.

    has_content   whether the first content of a stream came
    is_whole      whether the end came; the caller sets it
    """

    __slots__ = (
        "_early", "_encoding", "_head", "_is_open", "_overlap", "_tail", "_unzip", "has_content", "headers",
        "is_readable", "is_stream", "is_whole", "size", "status",
    )  # fmt: skip

    def __init__(self, status: int, headers: Any, *, is_stream: bool) -> None:
        self.status = status
        self.headers: Mapping[str, str] = plain_headers(headers if isinstance(headers, Mapping) else _pairs(headers))
        self.is_stream = is_stream or self.headers.get("content-type", "").lower().startswith(_STREAMS)
        self.is_whole = self.has_content = False
        self.is_readable = True
        self.size = 0
        self._encoding = self.headers.get("content-encoding", "").lower()
        self._unzip: Any = None
        self._is_open = False
        """Whether the first two bytes came, and with them how to read the rest."""
        self._early = b""
        self._head, self._tail = bytearray(), bytearray()
        self._overlap = b""

    def add(self, data: bytes) -> bool:
        """Take the next bytes, as received. Returns whether the first content is among them."""
        if not self._is_open:
            data = self._early + data
            if len(data) < 2:  # how it is packed shows in two bytes
                self._early = data
                return False
            self._open(data)
        if self._unzip is None:
            return self._keep(data) if self.is_readable else False
        had_content = self.has_content
        try:
            while data and not self._unzip.eof:
                self._keep(self._unzip.decompress(data, _PIECE_BYTES))
                data = self._unzip.unconsumed_tail
        except zlib.error:
            self.is_readable = False
        return self.has_content and not had_content

    @property
    def body(self) -> bytes:
        """The body, or its head and tail: then it is longer than both together, so that the cut is seen."""
        if self.size <= len(self._head) + len(self._tail):
            return bytes(self._early + self._head + self._tail)
        return bytes(self._head) + b"\n\n\n\n" + bytes(self._tail[-TAIL_BYTES:])

    def _open(self, data: bytes) -> None:
        """By the first bytes: a client may have opened them already, whatever the header says."""
        self._is_open, self._early = True, b""
        if data[:2] == b"\x1f\x8b":
            self._unzip = zlib.decompressobj(31)
        elif self._encoding in ("", "identity") or data[0] in _PLAIN_STARTS:
            return
        elif self._encoding == "deflate":
            is_wrapped = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._unzip = zlib.decompressobj(15 if is_wrapped else -15)
        else:
            self.is_readable = False

    def _keep(self, data: bytes) -> bool:
        self.size += len(data)
        room = HEAD_BYTES - len(self._head)
        if room >= len(data):
            self._head += data
        else:
            if room:
                self._head += data[:room]
            self._tail += data[room:] if room else data
            if len(self._tail) > TAIL_BYTES + _TAIL_SLACK:
                del self._tail[:-TAIL_BYTES]
        if self.has_content or not self.is_stream:
            return False
        window = self._overlap + data
        if holds_content(window):
            self.has_content, self._overlap = True, b""
            return True
        # A frame in base64 can only be read whole.
        at = window.rfind(b'"bytes"')
        self._overlap = window[at:][-HEAD_BYTES:] if at >= 0 else window[-OVERLAP:]
        return False


def _pairs(headers: Any) -> Any:
    """Headers of a form that is no mapping, as pairs."""
    try:
        return list(headers.items()) if hasattr(headers, "items") else list(headers or ())
    except Exception:  # noqa: BLE001 - headers in a form of the caller's own may do anything
        return ()
