"""The HTTP interface on a real NATS server and a real socket, in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from nats_servers import NatsServer
from sickbay.api.app import Api
from sickbay.bus.connect import NatsOptions, connect_client
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import LOG
from sickbay.cli.http import answering, listening
from sickbay.config import Settings
from sickbay.service.services import Services
from waiting import patience, until_sync

T = TypeVar("T")
TOKENS = {
    "ana": (["operate", "read"], ""),
    "rita": (["read"], ""),
    "edge": (["report", "read"], "edge-1"),
    "rob": (["report"], ""),
}
WAIT_S = 15.0
TARGET = {"provider": "openrouter.ai", "model": "z-ai/glm-5.3"}


def token_of(name: str) -> str:
    return f"sbk_token-of-{name}-in-tests"


def by(name: str) -> dict[str, str]:
    """Headers of whoever has that token."""
    return {"Authorization": f"Bearer {token_of(name)}"}


def write_tokens(path: Path, tokens: dict[str, tuple[list[str], str]]) -> Path:
    lines = []
    for name, (roles, replica) in tokens.items():
        digest = hashlib.sha256(token_of(name).encode()).hexdigest()
        lines += ["[[token]]", f'name = "{name}"', f'sha256 = "{digest}"', f"roles = {json.dumps(roles)}"]
        lines += [f'replica = "{replica}"'] if replica else []
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class House:
    """Services and the HTTP interface over one NATS server. `http` is a client of it without a token."""

    def __init__(self, folder: Path, *, nats: NatsServer | None = None, **settings: Any) -> None:
        self.nats = nats or NatsServer()
        self._owns_nats = nats is None
        self.tokens = write_tokens(folder / "tokens.toml", TOKENS)
        self._given = {"http": "127.0.0.1:0", "http_tokens": str(self.tokens), "history": "off", **settings}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._life()), name="http-rig")
        self._stands = threading.Event()
        self._failed: list[BaseException] = []
        self.port = 0
        self.url = ""

    async def _life(self) -> None:
        self.loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        try:
            settings = Settings(nats=self.nats.url, replica="house", **self._given)
            listener = listening(settings)
            assert listener is not None
            self.port = listener.getsockname()[1]
            self.url = f"http://127.0.0.1:{self.port}"
            self.services = Services(settings)
            await self.services.start()
            await self.services.ready()
            self.api = Api(settings, NatsOptions.from_url(self.nats.url))
            with contextlib.closing(listener):
                async with self.api, answering(self.api.asgi, listener, self.api.end_streams):
                    assert await self.api.desk.mirror.wait_loaded(WAIT_S)
                    self._stands.set()
                    await self._over.wait()
            await self.services.stop()
        except BaseException as error:
            self._failed.append(error)
            self._stands.set()
            raise

    def __enter__(self) -> Self:
        if self._owns_nats:
            self.nats.start()
        self._thread.start()
        assert self._stands.wait(patience(30))
        assert not self._failed, self._failed
        self.http = httpx.Client(base_url=self.url, timeout=patience(WAIT_S))
        until_sync(lambda: self.http.get("/readyz").status_code == 200, "the view is fresh")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.http.close()
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(patience(30))
        if self._owns_nats:
            self.nats.stop()
        assert not self._thread.is_alive(), "the interface did not end"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the interface's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(patience(WAIT_S))

    # What tests ask again and again.

    def report(self, *items: dict[str, Any], who: str = "edge") -> httpx.Response:
        return self.http.post("/v1/outcomes", json=list(items), headers=by(who))

    def act(self, action: str, *, who: str = "ana", **fields: Any) -> httpx.Response:
        return self.http.post(f"/v1/{action}", json={"reason": "tests", **fields}, headers=by(who))

    def decide(self, model: str, **more: str) -> dict[str, Any]:
        found = self.http.get("/v1/decide", params={"provider": "openrouter.ai", "model": model}, **more)  # type: ignore[arg-type]
        assert found.status_code == 200, found.text
        body: dict[str, Any] = found.json()
        return body

    def held(self, model: str, for_s: float = 60.0) -> None:
        """Hold a model and wait until this interface says so."""
        assert self.act("hold", provider="openrouter.ai", model=model, for_s=for_s).status_code == 200
        until_sync(lambda: not self.decide(model)["allowed"], f"{model} is held")

    def log(self) -> list[tuple[str, dict[str, Any]]]:
        """Subject and body of every event in the log."""
        return asyncio.run(_log(self.nats.url))


async def _log(url: str) -> list[tuple[str, dict[str, Any]]]:
    client = await connect_client(url, timeout_s=WAIT_S)
    try:
        api = JetStreamApi(client, timeout_s=patience(WAIT_S))
        found = []
        for seq in range(1, (await api.stream_at(LOG)).last_seq + 1):
            message = await api.message_at(LOG, seq)
            if message is not None:
                found.append((message.subject, json.loads(message.payload)))
        return found
    finally:
        await client.close()


class Reader:
    """One who watches, over a bare socket: reads when it is told to."""

    def __init__(self, port: int, *, last_id: str = "", who: str = "rita", receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect(("127.0.0.1", port))
        self.socket.settimeout(patience(WAIT_S))
        headers = [f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {token_of(who)}"]
        headers += [f"Last-Event-ID: {last_id}"] if last_id else []
        self.socket.sendall("\r\n".join(["GET /v1/watch HTTP/1.1", *headers, "", ""]).encode())
        self._lines = self.socket.makefile("rb")
        self.last_id = ""

    def head(self) -> str:
        """Status line and headers."""
        return "".join(iter(lambda: self._lines.readline().decode(), "\r\n"))

    def events(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Events as they come: (name, id, data), until the stream ends."""
        fields: dict[str, str] = {}
        for line in self._lines:
            text = line.decode().rstrip("\r\n")
            name, colon, value = text.partition(": ")
            if colon:
                fields[name] = value
            elif fields.keys() >= {"event", "id", "data"}:
                self.last_id = fields["id"]
                yield fields["event"], int(fields["id"].partition("-")[0] or 0), json.loads(fields["data"])
                fields = {}

    def until(self, wanted: Callable[[str, dict[str, Any]], bool]) -> list[tuple[str, int, dict[str, Any]]]:
        """All events up to the first that is wanted."""
        seen = []
        deadline = time.monotonic() + patience(WAIT_S)
        for event in self.events():
            seen.append(event)
            if wanted(event[0], event[2]):
                return seen
            assert time.monotonic() < deadline, f"it did not come: {seen[-5:]}"
        raise AssertionError(f"the stream ended: {seen[-5:]}")

    def until_all(self, *wanted: Callable[[str, dict[str, Any]], bool]) -> list[tuple[str, int, dict[str, Any]]]:
        """All events up to where each of these has come, in whatever order."""
        missing = list(wanted)

        def is_last(name: str, data: dict[str, Any]) -> bool:
            missing[:] = [one for one in missing if not one(name, data)]
            return not missing

        return self.until(is_last)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self.socket.close()
