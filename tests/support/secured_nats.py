"""NATS servers as `sickbay nats-config` sets them up, and each role's way to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from nats.aio.client import Client

import past_rig
from nats_servers import free_port, nats_server_binary
from sickbay.bus.connect import NatsOptions, PermissionDenied, connect_client
from sickbay.config import Settings
from sickbay.nats_config.plan import MONITOR_APART, ROUTES_APART, Plan
from sickbay.nats_config.write import Made, write
from sickbay.service.services import Services
from waiting import patience

START_S = 20.0


def free_base(count: int = 1) -> int:
    """A first port such that everything a plan of so many servers listens on is free."""
    for _ in range(100):
        base = free_port()
        apart = (0, ROUTES_APART, MONITOR_APART)
        if all(_free(base + offset + number) for offset in apart for number in range(count)):
            return base
    raise RuntimeError("no free ports found")


def _free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def read_env(path: Path) -> dict[str, str]:
    """A role's environment file as a shell reads it."""
    words = shlex.split(path.read_text(encoding="utf-8"), comments=True)
    return dict(word.split("=", 1) for word in words)


class SecuredNats:
    """The servers of one plan, on loopback."""

    def __init__(
        self, folder: Path, *, cluster: int = 1, routers: tuple[str, ...] = (), views: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder
        self.plan = Plan(
            folder=folder,
            hosts=("localhost",),
            port=free_base(cluster),
            cluster=cluster,
            routers=routers,
            views=views,
        )
        self.made: Made = write(self.plan)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> Self:
        """Start every server and wait until each takes connections."""
        self.processes = [
            subprocess.Popen(
                [nats_server_binary(), "-c", str(path), "-l", str(self.folder / f"{path.stem}.log")],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for path in self.made.servers
        ]
        deadline = time.monotonic() + patience(START_S)
        for number in range(self.plan.cluster):
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.plan.port + number), 1):
                    break
                time.sleep(0.01)
            else:
                self.stop()
                raise RuntimeError(f"a server did not start: {self.log()}")
        return self

    def log(self) -> str:
        """What the servers said."""
        return "".join(path.read_text(errors="replace") for path in self.folder.glob("nats*.log"))

    def stop(self) -> None:
        """End every server."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(patience(15))
        self.processes = []

    def reload(self) -> None:
        """Have every server read its configuration anew."""
        for process in self.processes:
            process.send_signal(signal.SIGHUP)

    def env(self, role: str) -> dict[str, str]:
        """The environment of a process of that role."""
        return read_env(self.folder / f"{role}.env")

    def options(self, role: str) -> NatsOptions:
        """The connection of a process of that role."""
        found = self.env(role)
        return NatsOptions.from_url(
            found["SICKBAY_NATS"], tls_ca=found["SICKBAY_TLS_CA"], inbox_prefix=found["SICKBAY_INBOX_PREFIX"]
        )

    def nats_env(self) -> dict[str, str]:
        """The environment in which the NATS CLI finds the contexts."""
        return {**os.environ, "XDG_CONFIG_HOME": str(self.folder)}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


AT_ONCE_S = 2.0
"""Well under the 5 s after which an acknowledgement is given up."""


def settings_of(env: dict[str, str], **more: str) -> Settings:
    return Settings.from_environment({**env, **{f"SICKBAY_{name.upper()}": value for name, value in more.items()}})


def serving(nats: SecuredNats, replica: str = "box-1", **more: str) -> AbstractAsyncContextManager[Services]:
    """The services in this process, on their own credential."""
    return past_rig.serving(settings_of(nats.env("services"), replica=replica, **more))


class As:
    """A client of one role, and what the server forbade it."""

    def __init__(self, client: Client, denied: list[PermissionDenied]) -> None:
        self.client, self.denied = client, denied

    async def is_denied(self, action: str, subject: str) -> bool:
        """Publish or subscribe; whether the server said at once that this may not be."""
        self.denied.clear()
        if action == "publish":
            await self.client.publish(subject, b"{}")
        else:
            await self.client.subscribe(subject)
        deadline = time.monotonic() + patience(AT_ONCE_S)
        while time.monotonic() < deadline:
            if any(error.subject == subject for error in self.denied):
                return True
            await asyncio.sleep(0.005)
        return False


@asynccontextmanager
async def acting(nats: SecuredNats, role: str) -> AsyncIterator[As]:
    denied: list[PermissionDenied] = []

    def note(error: Exception) -> None:
        if isinstance(error, PermissionDenied):
            denied.append(error)

    client = await connect_client(nats.options(role), on_error=note)
    try:
        yield As(client, denied)
    finally:
        await client.close()
