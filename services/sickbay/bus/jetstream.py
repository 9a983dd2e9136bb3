"""The few JetStream requests that reader and pager need, with errors that carry the server's code."""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client

from .bulk import header_value
from .connect import BusError, request

NO_MESSAGE_FOUND = 10037


class ApiError(BusError):
    """The JetStream API refused a request. `code` is the server's error code."""

    def __init__(self, what: str, code: int, description: str) -> None:
        self.what = what
        self.code = code
        super().__init__(f"{what}: {description} (error {code})")


class StreamAt(msgspec.Struct, frozen=True):
    """What a stream looked like: `created_at` (RFC 3339, the server's own text), first and last sequence."""

    created_at: str
    first_seq: int
    last_seq: int


class StoredMessage(msgspec.Struct, frozen=True):
    """One message of a stream; `headers` is the raw block or None."""

    seq: int
    time_ns: int
    subject: str
    payload: bytes
    headers: bytes | None

    @property
    def source_seq(self) -> int:
        """Its sequence in the stream that it was sourced from; 0 if it was not."""
        source = header_value(self.headers, b"Nats-Stream-Source")
        # "SICKBAY_CONTROL 12 > > sickbay.policy": the stream, the sequence there, filters, subject.
        return int(source.split()[1]) if source else 0


class JetStreamApi:
    """Requests to the JetStream API over `client`. Each raises `ApiError`, `nats.errors.NoRespondersError`
    (no JetStream at this moment), `PermissionDenied`, or `TimeoutError` after `timeout_s`."""

    def __init__(self, client: Client, *, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def request(self, api: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request to `$JS.API.<api>`; its answer as a dict."""
        payload = b"" if body is None else json.dumps(body).encode()
        reply = await request(self._client, f"$JS.API.{api}", payload, timeout_s=self._timeout_s)
        answer: dict[str, Any] = json.loads(reply.data)
        if error := answer.get("error"):
            raise ApiError(api, int(error.get("err_code") or error.get("code", 0)), error.get("description", ""))
        return answer

    async def stream_at(self, stream: str) -> StreamAt:
        """Identity and bounds of a stream."""
        info = await self.request(f"STREAM.INFO.{stream}")
        return StreamAt(info["created"], info["state"]["first_seq"], info["state"]["last_seq"])

    async def create_consumer(self, stream: str, config: dict[str, Any]) -> int:
        """Make a consumer under `config["name"]`; how many messages wait for it."""
        body = {"stream_name": stream, "config": config, "action": "create"}
        info = await self.request(f"CONSUMER.CREATE.{stream}.{config['name']}", body)
        return int(info.get("num_pending", 0))

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Drop a consumer; quiet if that fails, since the server drops unused ones by itself."""
        with suppress(BusError, nats.errors.Error, OSError):
            await self.request(f"CONSUMER.DELETE.{stream}.{consumer}")

    async def message_at(
        self, stream: str, seq: int, *, or_next: bool = False, subject: str = ">"
    ) -> StoredMessage | None:
        """The message at `seq` (or the first one from there on, of `subject` if that is given), read from the
        stream's leader; None if there is none."""
        return await self._message(stream, {"seq": seq, "next_by_subj": subject} if or_next else {"seq": seq})

    async def last_message(self, stream: str, subject: str) -> StoredMessage | None:
        """The newest message on a subject, read from the stream's leader; None if there is none."""
        return await self._message(stream, {"last_by_subj": subject})

    async def _message(self, stream: str, body: dict[str, Any]) -> StoredMessage | None:
        try:
            answer = await self.request(f"STREAM.MSG.GET.{stream}", body)
        except ApiError as error:
            if error.code == NO_MESSAGE_FOUND:
                return None
            raise
        message = answer["message"]
        headers = message.get("hdrs")
        return StoredMessage(
            message["seq"],
            parse_rfc3339_ns(message["time"]),
            message["subject"],
            b64decode(message.get("data", "")),
            b64decode(headers) if headers else None,
        )


def parse_rfc3339_ns(text: str) -> int:
    """Nanoseconds since the epoch of an RFC 3339 time as NATS writes it, nanoseconds kept.

    Raises `ValueError` for anything else.
    """
    whole, dot, rest = text.partition(".")
    zone = "Z" if rest.endswith("Z") or (not dot and whole.endswith("Z")) else ""
    if dot:
        digits = rest.rstrip("Z")
        zone = zone or digits[len(digits) - 6 :]
        digits = digits if zone == "Z" else digits[:-6]
        fraction = int(digits.ljust(9, "0")[:9])
        seconds = datetime.fromisoformat(whole + zone.replace("Z", "+00:00"))
    else:
        fraction = 0
        seconds = datetime.fromisoformat(whole.replace("Z", "+00:00"))
    if seconds.tzinfo is None:
        raise ValueError(f"time without a zone: {text!r}")
    return int(seconds.timestamp()) * 1_000_000_000 + fraction
