"""One message to one receiver, once: a webhook, a chat room, a command. Nothing here is tried again.

A URL can be a secret, so no text that leaves here has more of it than the host.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import os
import signal
import time
from contextlib import suppress
from email.utils import formatdate
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

import httpx
import msgspec

from sickbay_events.classify.retry_after import retry_after
from sickbay_events.redact import MARK, redact

from .message import AlertMessage, slack_body
from .settings import Receiver, Way

ANSWER_BYTES_MAX: Final = 1_000
"""What is read of a receiver's answer, or of a command's complaints."""
SAID_MAX: Final = 120
PATH_CHARS_MIN: Final = 8
"""A shorter path is no secret."""
FINAL: Final = frozenset((400, 405, 411, 413, 414, 415, 422))
"""Answers that will not be others for the same message."""
KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")
"""What a command gets of the services' environment, which has their credentials."""
END_S: Final = 1.0
HTTP_S_MAX: Final = 90.0
"""httpx's own limit; each receiver's is shorter."""


class Failed(Exception):
    """A message was not taken.

    Attributes: `why`; `retry_after_s`, where the receiver named a time; `final`, if it will never be taken.
    """

    def __init__(self, why: str, retry_after_s: float | None = None, *, final: bool = False) -> None:
        self.why, self.retry_after_s, self.final = why, retry_after_s, final
        super().__init__(why)


def alert_client() -> httpx.AsyncClient:
    """The client that all receivers of a process share."""
    for name in ("httpx", "httpcore"):  # they log each request with its whole URL
        logging.getLogger(name).setLevel(logging.WARNING)
    return httpx.AsyncClient(follow_redirects=False, timeout=HTTP_S_MAX)


async def send(http: httpx.AsyncClient, receiver: Receiver, way: Way, message: AlertMessage) -> str:
    """Send it, and what was answered. Raises `Failed`, and nothing else that a receiver can cause."""
    try:
        async with asyncio.timeout(receiver.limit_s):
            if receiver.kind == "command":
                return await _run(receiver, msgspec.json.encode(message))
            if receiver.kind == "slack":
                return await _post(http, way, msgspec.json.encode(slack_body(message)), {})
            body = msgspec.json.encode(message)
            return await _post(http, way, body, signed(way.key, message.id, round(time.time()), body))
    except TimeoutError:
        raise Failed(f"no answer in {receiver.limit_s:g} s") from None


def signed(key: bytes, name: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers of a signed message: HMAC-SHA256 over `<id>.<unix time>.<body>`, as Standard Webhooks has it."""
    digest = hmac.new(key, f"{name}.{at_s}.".encode() + body, sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": name, "webhook-timestamp": str(at_s), "webhook-signature": signature}


async def _post(http: httpx.AsyncClient, way: Way, body: bytes, headers: dict[str, str]) -> str:
    headers = {"content-type": "application/json", "user-agent": "sickbay-alerts", **headers}
    answer = bytearray()
    try:
        async with http.stream("POST", way.url, content=body, headers=headers) as reply:
            async for piece in reply.aiter_bytes(ANSWER_BYTES_MAX):
                answer += piece
                if len(answer) >= ANSWER_BYTES_MAX:
                    break
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise Failed(f"{type(error).__name__}: {shown(str(error), way)}") from None
    told = f"HTTP {reply.status_code} {shown(answer[:ANSWER_BYTES_MAX].decode(errors='replace'), way)}".rstrip()
    if reply.is_success:
        return told
    named = {"retry-after": reply.headers.get("retry-after", ""), "date": reply.headers.get("date") or formatdate()}
    raise Failed(told, retry_after(named, None, "")[0], final=reply.status_code in FINAL)


def shown(text: str, way: Way) -> str:
    """The beginning of what was answered, without secrets. Many servers repeat the path that they do not know."""
    parts = urlsplit(way.url)
    for secret in (way.url, f"{parts.path}?{parts.query}", parts.path):
        text = text.replace(secret, MARK) if len(secret) >= PATH_CHARS_MIN else text
    return redact(text, SAID_MAX)


async def _run(receiver: Receiver, body: bytes) -> str:
    """Run the command with the message on its standard input, in a process group of its own."""
    environment = {name: os.environ[name] for name in (*KEPT, *receiver.environment) if name in os.environ}
    try:
        process = await asyncio.create_subprocess_exec(
            *receiver.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Failed(f"cannot be run: {getattr(error, 'strerror', None) or error}") from None
    said = bytearray()
    hearing = asyncio.create_task(_hear(process, said))
    try:
        await _feed(process, body)
        code = await process.wait()
        await asyncio.wait([hearing], timeout=0.1)  # what it started may keep the pipe open
    finally:
        hearing.cancel()
        # Its group, since what it started is to end with it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(process.wait()), END_S)
        # What left the group keeps its end of the pipe as long as it likes; ours is closed.
        process._transport.close()  # type: ignore[attr-defined]
    if code:
        raise Failed(f"ended with code {code} {redact(bytes(said), SAID_MAX)}".rstrip())
    return "ended with code 0"


async def _feed(process: asyncio.subprocess.Process, body: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it need not read it
        process.stdin.write(body + b"\n")
        await process.stdin.drain()
        process.stdin.close()
        await process.stdin.wait_closed()


async def _hear(process: asyncio.subprocess.Process, said: bytearray) -> None:
    """Keep the beginning of its complaints and read the rest, so that it is never kept waiting."""
    assert process.stderr is not None
    while piece := await process.stderr.read(4_096):
        said += piece[: max(0, ANSWER_BYTES_MAX - len(said))]
