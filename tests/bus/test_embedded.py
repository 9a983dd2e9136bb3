"""The embedded server is private to its folder and its machine, and neither doubles nor outlives its owner."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fcntl", reason="the embedded server needs POSIX locks")

from nats_servers import free_port
from sickbay.bus.connect import AccessRefused, connect_client
from sickbay.bus.embedded import EmbeddedError, EmbeddedServer, StoreInUse, saved_url
from waiting import patience, until, until_sync

# An owner in a process of its own: prints the server's pid and URL, then waits to be ended.
OWNER = """
import asyncio, sys
from pathlib import Path
from sickbay.bus.embedded import EmbeddedServer
async def main():
    async with EmbeddedServer(Path(sys.argv[1])) as server:
        print(server.pid, server.url, flush=True)
        await asyncio.Event().wait()
try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""

# The same without the kernel's help: as on an OS that does not end a process with its parent.
OWNER_WITHOUT_DEATH_SIGNAL = OWNER.replace(
    "async def main",
    "import sickbay.bus.embedded as module\nmodule._WITH_PARENT = "
    "'import os, sys; os.execv(sys.argv[2], sys.argv[2:])'\nasync def main",
)


def alive(pid: int) -> bool:
    """Process `pid` runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return not Path("/proc/self").exists()


def until_dead(pid: int) -> None:
    until_sync(lambda: not alive(pid), f"process {pid} ends")


class Owner:
    def __init__(self, folder: Path, code: str = OWNER) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words, self.process.stderr.read() if self.process.stderr else ""
        self.server_pid, self.url = int(words[0]), words[1]

    def end(self) -> None:
        if alive(self.server_pid):
            os.kill(self.server_pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def owners() -> Iterator[list[Owner]]:
    """Put owners in here; whatever happens, no process of theirs is left."""
    made: list[Owner] = []
    yield made
    for owner in made:
        owner.end()


async def store_one(url: str) -> int:
    client = await connect_client(url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="KEPT", subjects=["kept"])
    seq = (await jetstream.publish("kept", b"x")).seq
    await client.close()
    return seq


async def test_it_starts_with_jetstream_keeps_its_store_and_leaves_nothing_running(tmp_path: Path) -> None:
    began = time.monotonic()
    async with EmbeddedServer(tmp_path / "data") as server:
        assert time.monotonic() - began < patience(3)
        assert server.running
        assert await store_one(server.url) == 1
        pid = server.pid
        assert pid is not None
        first_url = server.url
    assert not alive(pid)
    assert not server.running
    async with EmbeddedServer(tmp_path / "data") as server:
        assert server.url == first_url, "clients that know the old address find it again"
        assert saved_url(tmp_path / "data") == server.url
        assert await store_one(server.url) == 2
    await server.stop()


async def test_only_this_machine_and_only_with_the_folders_credentials(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path) as server:
        password = server.url.split(":")[2].split("@")[0]
        assert len(password) >= 32
        for name in ("nats.url", "nats.conf", "owner.lock", "server.lock"):
            assert (tmp_path / name).stat().st_mode & 0o077 == 0, name
        with pytest.raises(AccessRefused):
            await connect_client(f"nats://127.0.0.1:{server.port}")
        assert server.pid is not None
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if Path("/proc/net/tcp").exists() else []:
            address, port = line.split()[1].split(":")
            if int(port, 16) == server.port:
                assert address == "0100007F", "127.0.0.1 and nothing else"
        command = Path(f"/proc/{server.pid}/cmdline")
        if command.exists():
            assert password.encode() not in command.read_bytes()


async def test_another_folder_has_other_credentials(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path / "a") as one, EmbeddedServer(tmp_path / "b") as other:
        assert one.url.split("@")[0] != other.url.split("@")[0]
        assert one.port != other.port


async def test_a_second_owner_is_refused_with_the_pid_of_the_first(tmp_path: Path, owners: list[Owner]) -> None:
    owners.append(Owner(tmp_path))
    with pytest.raises(StoreInUse, match=f"process {owners[0].process.pid}") as caught:
        await EmbeddedServer(tmp_path).start()
    assert caught.value.pid == owners[0].process.pid
    assert alive(owners[0].server_pid)
    assert await store_one(owners[0].url) == 1


async def test_two_in_one_process_are_refused_too(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path):
        with pytest.raises(StoreInUse):
            await EmbeddedServer(tmp_path).start()
    async with EmbeddedServer(tmp_path):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_sigkill_of_the_owner_ends_the_server(tmp_path: Path, owners: list[Owner]) -> None:
    owners.append(Owner(tmp_path))
    owners[0].process.kill()
    until_dead(owners[0].server_pid)


async def test_after_sigkill_of_the_owner_the_folder_can_be_taken_over(tmp_path: Path, owners: list[Owner]) -> None:
    owners.append(Owner(tmp_path))
    assert await store_one(owners[0].url) == 1
    owners[0].process.kill()
    owners[0].process.wait()
    async with EmbeddedServer(tmp_path) as server:  # at once, whether or not the old server has ended yet
        assert server.pid != owners[0].server_pid
        assert not alive(owners[0].server_pid)
        assert await store_one(server.url) == 2


async def test_an_orphaned_server_is_noticed_and_ended_before_another_starts(
    tmp_path: Path, owners: list[Owner]
) -> None:
    """Without the kernel's help the server outlives its owner; two on one store would destroy it."""
    owners.append(Owner(tmp_path, OWNER_WITHOUT_DEATH_SIGNAL))
    assert await store_one(owners[0].url) == 1
    owners[0].process.kill()
    owners[0].process.wait()
    assert alive(owners[0].server_pid)
    async with EmbeddedServer(tmp_path) as server:
        assert not alive(owners[0].server_pid)
        assert await store_one(server.url) == 2


async def test_a_lock_held_by_what_is_no_server_of_ours_is_refused_and_nothing_is_ended(
    tmp_path: Path, owners: list[Owner]
) -> None:
    """A process id in a file proves nothing: it may belong to somebody else by now."""
    import fcntl

    with (tmp_path / "server.lock").open("w") as lock, subprocess.Popen(["sleep", "60"]) as bystander:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(f"{bystander.pid}\n")
            lock.flush()
            with pytest.raises(StoreInUse, match=f"process {bystander.pid}"):
                await EmbeddedServer(tmp_path).start()
            assert alive(bystander.pid)
        finally:
            bystander.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_terminate_leave_no_process_behind(
    tmp_path: Path, owners: list[Owner], number: signal.Signals
) -> None:
    owners.append(Owner(tmp_path))
    owners[0].process.send_signal(number)
    owners[0].process.wait(patience(10))
    until_dead(owners[0].server_pid)


async def test_a_port_taken_by_another_program_is_said_or_passed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as other:
        port = other.getsockname()[1]
        with pytest.raises(EmbeddedError, match=f"port {port} is taken"):
            await EmbeddedServer(tmp_path, port=port).start()
        # Without a wish the remembered port is passed over when somebody has taken it meanwhile.
        (tmp_path / "nats.url").write_text(f"nats://sickbay:pw@127.0.0.1:{port}\n")
        async with EmbeddedServer(tmp_path) as server:
            assert server.port != port
            assert await store_one(server.url) == 1


async def test_a_given_port_is_used(tmp_path: Path) -> None:
    port = free_port()
    async with EmbeddedServer(tmp_path, port=port) as server:
        assert server.port == port
        assert f"127.0.0.1:{port}" in server.url


async def test_a_server_that_cannot_start_says_why_and_gives_the_folder_back(tmp_path: Path) -> None:
    (tmp_path / "jetstream").write_text("a file where the store should be")
    with pytest.raises(EmbeddedError, match="did not start"):
        await EmbeddedServer(tmp_path).start()
    (tmp_path / "jetstream").unlink()
    async with EmbeddedServer(tmp_path, sync_always=True) as server:
        assert await store_one(server.url) == 1


async def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    for delay_s in (0.0, 0.005, 0.02):
        task = asyncio.create_task(EmbeddedServer(tmp_path).start())
        await asyncio.sleep(delay_s)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().stop()
    async with EmbeddedServer(tmp_path) as server:
        assert await store_one(server.url) == 1


async def test_a_server_that_is_killed_is_said_and_started_again_under_its_url(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sickbay.bus")
    async with EmbeddedServer(tmp_path) as server:
        kept = asyncio.create_task(server.keep())
        url, gone = server.url, server.pid
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM):
            before, pid = await store_one(url), server.pid
            assert pid is not None
            os.kill(pid, number)
            await until(lambda: server.pid not in (None, pid) and "runs again" in caplog.text)  # noqa: B023
            assert await until(lambda: store_one(url)) == before + 1
            caplog.clear()
        assert server.url == url and server.pid != gone
        kept.cancel()
        await asyncio.wait([kept])


@pytest.mark.parametrize("ends", [1, 3])
async def test_one_that_ends_again_and_again_is_given_up_with_its_exit_status(
    tmp_path: Path, ends: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedServer(tmp_path) as server:
        kept = asyncio.create_task(server.keep([0.01] * ends))
        await store_one(server.url)
        await asyncio.to_thread(shutil.rmtree, tmp_path / "jetstream")
        (tmp_path / "jetstream").write_text("a file where the store should be")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(EmbeddedError, match=rf"exit status \d+\), {ends + 1} times in a row"):
            await asyncio.wait_for(kept, patience(20))
        assert "killed by SIGKILL" in caplog.text
        assert caplog.text.count("is started again in") == ends


async def test_one_whose_port_is_taken_meanwhile_goes_to_no_other(tmp_path: Path) -> None:
    """Clients know the port: a server on another one would be found by nobody."""
    async with EmbeddedServer(tmp_path) as server:
        kept = asyncio.create_task(server.keep([0.3, 0.3, 0.3]))
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: not server.running)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await until(lambda: bound(other, server.port))
            other.listen()
            with pytest.raises(EmbeddedError, match="in a row"):
                await asyncio.wait_for(kept, patience(20))


def bound(one: socket.socket, port: int) -> bool:
    """It has that port now."""
    with contextlib.suppress(OSError):
        one.bind(("127.0.0.1", port))
        return True
    return False
