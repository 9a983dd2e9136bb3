"""Publishing to a stream: a message's bytes and what is answered.

They are written by `bus.write`, past nats-py's own buffer: what that holds when a connection breaks, it sends after the
reconnect, and an outbox that encodes anew and sends again by itself must not have older copies sent behind its back.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

Blocked: TypeAlias = Literal["", "no_answer", "no_stream", "stream_full", "server_error"]
"""Why a stream takes nothing at present, though it may again."""
_STREAM_FULL: Final = (10023, 10047, 10077)
_NO_STREAM: Final = (10059, 10039, 10076)


class AckError(msgspec.Struct):
    """What a server says of a message that it did not store."""

    code: int = 500
    err_code: int = 0
    description: str = ""

    @property
    def blocked(self) -> Blocked:
        """Why it stores nothing at present; empty if it refuses this one message."""
        if self.err_code in _STREAM_FULL:
            return "stream_full"
        if self.err_code in _NO_STREAM:
            return "no_stream"
        return "server_error" if self.code >= 500 or self.code in (408, 429) else ""

    def __str__(self) -> str:
        return f"{self.description} ({self.code}, {self.err_code})"


class Ack(msgspec.Struct):
    """A server's answer to a published message. `seq` is its sequence in the stream, 0 if there is an error."""

    seq: int = 0
    duplicate: bool = False
    error: AckError | None = None


decode_ack: Final = msgspec.json.Decoder(Ack).decode
"""Raises `msgspec.DecodeError` (a ValueError)."""


def message(subject: str, reply: bytes, msg_id: str, data: bytes) -> bytes:
    """The protocol bytes of one message with a Nats-Msg-Id."""
    header = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % msg_id.encode()
    sizes = (len(header), len(header) + len(data))
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject.encode(), reply, *sizes, header, data)
