"""Running the `sickbay` command in tests: in this process, which is quick, or as a process of its own."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, Self
from unittest import mock

import pytest

from paths import ROOT
from sickbay.cli import main
from waiting import patience

# pytest-xdist gives its workers a COLUMNS of 80, which no pipe has.
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("SICKBAY_", "COLUMNS"))}
END_S = 20.0
NOWHERE = "/nonexistent/sickbay"
Done = subprocess.CompletedProcess[str]


def nats_cli() -> str | None:
    """The nats command line that .ci/run builds, or the one on the PATH."""
    beside = ROOT / ".tools" / "bin" / "nats"
    return str(beside) if beside.exists() else shutil.which("nats")


NATS_CLI = nats_cli()
needs_nats_cli = pytest.mark.skipif(
    NATS_CLI is None and "NATS_CLI_REQUIRED" not in os.environ, reason="the nats command line is not installed"
)


def sickbay(
    *arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command here, with pipes for a terminal. Within an event loop by `asyncio.to_thread`, since it makes its
    own, and one at a time, since what it replaces is the whole process's. `serve` and what else waits for signals needs
    a process of its own."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code: object = 0
    with (
        mock.patch.dict(os.environ, {**CLEAN, "SICKBAY_DATA": NOWHERE, **(environment or {})}, clear=True),
        mock.patch.object(sys, "argv", ["sickbay", *arguments]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    assert isinstance(code, int)
    said, complained = (stream.buffer.getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(["sickbay", *arguments], code, said, complained)


def sickbay_process(*arguments: str, stdin: bytes = b"", **environment: str) -> Done:
    """Run the command as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "sickbay", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        env={**CLEAN, "SICKBAY_DATA": NOWHERE, **environment},
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Serve:
    """`sickbay serve` as a process of its own; as a context it is ready, and ended behind."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._log, self._logged = tempfile.TemporaryFile(), b""  # noqa: SIM115 - closed by `end`
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sickbay", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**CLEAN, "SICKBAY_HTTP": "127.0.0.1:0", **environment},
        )
        self.said = ""

    def ready(self) -> Self:
        """Wait until it says that it is ready and all it says then."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if "sickbay status" in line:
                return self
        raise AssertionError(f"it ended before it was ready: {self.end()[1]}")

    def log(self) -> str:
        """What it has logged so far."""
        if not self._log.closed:
            self._logged = os.pread(self._log.fileno(), 1 << 24, 0)
        return self._logged.decode()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it by a signal: exit code and what it logged."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.communicate(timeout=patience(END_S))
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.log()
        self._log.close()
        return self.process.returncode, self.log()

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def health_url(self) -> str:
        return next(word for word in self.said.split() if word.endswith("/healthz"))

    def get(self, path: str) -> bytes:
        """What it answers to a GET of that path, such as `metrics`."""
        with urllib.request.urlopen(self.health_url.replace("healthz", path), timeout=patience(5)) as reply:
            return bytes(reply.read())

    def health(self) -> Any:
        """What /healthz says while all is well; raises `HTTPError` when it is not."""
        return json.loads(self.get("healthz"))


@pytest.fixture(name="serve")
def serve_fixture() -> Iterator[Callable[..., Serve]]:
    """Starts services; all are ended after the test, whatever came of it."""
    made: list[Serve] = []

    def start(*arguments: str, **environment: str) -> Serve:
        made.append(Serve(*arguments, **environment))
        return made[-1]

    yield start
    for served in made:
        served.end(signal.SIGKILL)
