"""The nats-server under the services ends, is full or is away: they say so, begin it again, or end themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_runs import Serve, serve_fixture, sickbay  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsServer
from sickbay.bus.connect import connect_client
from waiting import patience, until_sync

Start = Callable[..., Serve]


def server_of(data: Path) -> int:
    """Process id of the nats-server in a data folder; 0 while it is being written."""
    return int([*(data / "server.lock").read_text().split(), "0"][0])


def is_well(served: Serve) -> bool:
    with contextlib.suppress(urllib.error.URLError, OSError):
        return bool(served.health()["ok"])
    return False


def report(data: Path) -> None:
    done = sickbay("report", "a.example", "m", "--kind", "ok", "--data", str(data))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_the_embedded_server_dies_and_comes_back_under_its_port(
    serve: Start, tmp_path: Path, number: signal.Signals
) -> None:
    served = serve("--data", str(tmp_path)).ready()
    url, pid = (tmp_path / "nats.url").read_text(), server_of(tmp_path)
    report(tmp_path)
    os.kill(pid, number)
    until_sync(lambda: server_of(tmp_path) not in (0, pid) and is_well(served), "the services are well again")
    assert (tmp_path / "nats.url").read_text() == url
    until_sync(lambda: sickbay("report", "a.example", "m", "--kind", "ok", "--data", str(tmp_path)).returncode == 0)
    assert "the embedded NATS server ended by itself (" in served.log()
    assert not Path(f"/proc/{pid}").exists(), "it is no zombie"
    assert served.end()[0] == 0


def test_one_that_cannot_come_back_ends_serve_with_an_error(serve: Start, tmp_path: Path) -> None:
    """So that whoever keeps `serve` running does something about it."""
    served = serve("--data", str(tmp_path)).ready()
    store = tmp_path / "jetstream"
    store.rename(tmp_path / "aside")
    store.write_text("a file where the store should be")
    os.kill(server_of(tmp_path), signal.SIGKILL)
    until_sync(lambda: served.process.poll() is not None, "serve ends", 60)
    code, said = served.end()
    assert code == 1
    assert "killed by SIGKILL" in said and "times in a row" in said.splitlines()[-1]
    store.unlink()
    (tmp_path / "aside").rename(store)
    assert is_well(serve("--data", str(tmp_path)).ready())


@pytest.mark.parametrize("embedded", [False, True])
def test_told_to_end_while_nats_is_away_it_ends_well(
    serve: Start, tmp_path: Path, nats_server: NatsServer, embedded: bool
) -> None:
    served = serve(*(("--data", str(tmp_path)) if embedded else ("--nats", nats_server.url))).ready()
    if embedded:
        os.kill(server_of(tmp_path), signal.SIGKILL)  # and it is not back yet
    else:
        nats_server.kill9()
        until_sync(lambda: not is_well(served), "the loss is noticed")
    code, said = served.end()
    assert code == 0, said
    assert "unexpected" not in said


def in_own_mounts(folder: Path, size: str, *arguments: str) -> list[str]:
    """A command that runs with a small disk of its own under a folder."""
    script = f"mount -t tmpfs -o size={size} none {folder} && exec {sys.executable} -m sickbay {' '.join(arguments)}"
    return ["unshare", "-rm", "sh", "-c", script]


def has_own_mounts() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_own_mounts(), reason="needs a file system of its own")
def test_a_full_disk_that_is_freed_is_recovered_from_without_hands(tmp_path: Path) -> None:
    """A nats-server that met a full disk stores nothing until it is started anew."""
    data, log = tmp_path / "data", tmp_path / "log"
    data.mkdir()
    command = in_own_mounts(data, "80m", "serve", "--data", str(data), "--http", "off", "--history", "off")
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            until_sync(lambda: "sickbay status" in log.read_text(), "it is ready", 60)
            inside = Path(f"/proc/{process.pid}/root{data}")
            url = (inside / "nats.url").read_text().strip()
            stored(url)
            with contextlib.suppress(OSError), (inside / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(1 << 16))
            until_sync(lambda: not takes(url), "nothing is stored any more", 60)
            (inside / "filler").unlink()
            until_sync(lambda: takes(url), "what is freed is used again", 40)
            assert "found its disk full, and there is room again" in log.read_text()
            process.send_signal(signal.SIGTERM)
            assert process.wait(patience(20)) == 0, log.read_text()
        finally:
            process.kill()


def stored(url: str, size: int = 100_000) -> None:
    async def publish() -> None:
        client = await connect_client(url)
        try:
            body = b'{"kind":"ok","signature":"x","detail":"' + bytes(os.urandom(size // 2).hex(), "ascii") + b'"}'
            await client.jetstream().publish("sickbay.outcome.r1.a=2Eexample.=.m", body, timeout=patience(2))
        finally:
            await client.close()

    asyncio.run(publish())


def takes(url: str) -> bool:
    with contextlib.suppress(Exception):
        stored(url)
        return True
    return False
