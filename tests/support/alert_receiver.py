"""A real HTTP receiver of alerts on loopback, which answers as it is told: a status, a hang, a cut connection."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from waiting import patience

SECRET = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="
HANG, CLOSE = 0, -1
"""Answers that are none: the request is read and never answered; the connection is cut."""


class Got(NamedTuple):
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    answer: int

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """Answers 200, or the next of `answers` (a status, HANG or CLOSE) with `headers`."""

    def __init__(self) -> None:
        self.answers: deque[int] = deque()
        self.always = 200
        self.headers: dict[str, str] = {}
        self.says = b"ok"
        self.got: queue.Queue[Got] = queue.Queue()
        self._over = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                answer = owner.answers.popleft() if owner.answers else owner.always
                headers = {key.lower(): value for key, value in self.headers.items()}
                owner.got.put(Got(self.path, headers, body, answer))
                if answer == HANG:
                    owner._over.wait(patience(60))
                if answer <= 0:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response_only(answer)
                for name, value in owner.headers.items() if answer >= 300 else ():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(owner.says)))
                self.end_headers()
                self.wfile.write(owner.says)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def next(self, timeout_s: float = 20.0) -> Got:
        """The next request; fails when none comes."""
        return self.got.get(timeout=patience(timeout_s))

    def taken(self, timeout_s: float = 20.0) -> Got:
        """The next request that was answered with 200."""
        while (got := self.next(timeout_s)).answer != 200:
            pass
        return got

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
