"""The processes of a topology: started in the file's order, healthy by the file's own checks, always ended."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from cli_runs import CLEAN
from nats_servers import nats_server_binary
from paths import ROOT
from waiting import patience

from .composed import FILE, Service, containers, env_file, loaded, services
from .places import Places

START_S = 60.0
END_S = 20.0
POLL_S = 0.05
BIN = Path(sys.executable).parent
PROMETHEUS = shutil.which("prometheus")
# What busybox's wget does in the containers: exit code 0 only if the address answers with a success.
WGET = [sys.executable, "-c", "import sys, urllib.request as r; r.urlopen(sys.argv[-1], timeout=2)"]
PROGRAMS = {"python": [sys.executable], "sickbay": [str(BIN / "sickbay")], "wget": WGET}
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def program(service: Service) -> list[str] | None:
    """The command of a service here; None for an image that has none here."""
    image = service.image.partition(":")[0]
    if image == "nats":
        return [nats_server_binary(), *service.command]
    if image == "prom/prometheus":
        return [PROMETHEUS, *service.command] if PROMETHEUS else None
    if image == "sickbay":
        first, *rest = service.entrypoint or re.findall(r'^ENTRYPOINT \["(\w+)"\]', DOCKERFILE, re.MULTILINE)
        return [*PROGRAMS[first], *rest, *service.command]
    return None


class Running:
    """One service as a process. `restart` starts it again as it was."""

    def __init__(self, service: Service, command: list[str], places: Places) -> None:
        self.service, self.places = service, places
        self.command = [places.here(word, service) for word in command]
        self.is_healthy = False
        self._process: subprocess.Popen[bytes] | None = None
        self._check: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """Of the service, with the replica's number where there are several."""
        return self.service.name

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.places.addresses[self.name]

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """It, running or ended."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def environment(self) -> dict[str, str]:
        """As its container's, with paths and addresses of this machine."""
        folder = self.places.folder(self.name)
        (folder / "tmp").mkdir(exist_ok=True)
        given = {key: self.places.here(value, self.service) for key, value in self.service.environment.items()}
        host = {"SICKBAY_REPLICA": self.name, "SICKBAY_MACHINE": self.name}  # each container is a host of its own name
        return {**CLEAN, "TMPDIR": str(folder / "tmp"), "SICKBAY_DATA": str(folder / "data"), **host, **given}

    def start(self) -> None:
        """Begin; healthy it is later."""
        self.is_healthy = False
        self.places.lay_out(self.service)
        with self.places.log(self.name).open("ab") as said:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE if self.service.has_stdin else subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self.environment(),
                cwd=self.places.folder(self.name),
            )

    def look(self) -> bool:
        """Whether its health check has passed; begins one where none runs."""
        if self.is_healthy:
            return True
        if not self.is_running:
            self.stop()
            self.start()  # as the file's `restart` has it: services end where the servers have no leader yet
        if self._check is None:
            kind, first, *rest = self.service.health
            assert kind == "CMD", "the checks are programs, no shell's lines"
            words = [self.places.here(word, self.service) for word in rest]
            self._check = subprocess.Popen(
                [*PROGRAMS[first], *words],
                env=self.environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        elif self._check.poll() is not None:
            self.is_healthy = self._check.returncode == 0
            self._check = None
        return self.is_healthy

    def tell(self, line: str) -> None:
        """A line for its standard input, as `docker compose attach` sends it."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def said(self) -> str:
        """All it said, over all of its lives."""
        return self.places.log(self.name).read_text(encoding="utf-8", errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal. Returns when a SIGSTOP has taken effect."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitpid(self.process.pid, os.WUNTRACED)

    def kill9(self) -> None:
        """End it now."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start it again, after it has ended."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """End it in order."""
        if self._check is not None:
            self._check.kill()
            self._check.wait()
            self._check = None
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(patience(END_S))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Topology:
    """All of it, as a context. `secrets` is the folder that `nats-config --compose` made."""

    def __init__(self, root: Path, *, without: Iterable[str] = ()) -> None:
        self.secrets = root / "secrets"
        text = FILE.read_text(encoding="utf-8")
        names = [name for _, name in containers(yaml.safe_load(text))]
        self.places = Places(root, names)
        hosts = [self.places.addresses[name] for name in names if name.startswith("nats-")]
        self._make_credentials(hosts)
        composed = loaded(text, env_file(self.secrets / "compose.env"))
        made = [(service, program(service)) for service in services(composed) if service.name not in without]
        self.all = {service.name: Running(service, command, self.places) for service, command in made if command}

    def _make_credentials(self, hosts: list[str]) -> None:
        """As an operator does it; the addresses that the servers have here are on their certificates."""
        named = [word for host in hosts for word in ("--host", host)]
        subprocess.run(
            [BIN / "sickbay", "nats-config", self.secrets, "--compose", *named], check=True, capture_output=True
        )

    def __getitem__(self, name: str) -> Running:
        return self.all[name]

    def of(self, prefix: str) -> list[Running]:
        """Those of one kind, such as `nats-`."""
        return [one for name, one in self.all.items() if name.startswith(prefix)]

    def env(self, role: str) -> dict[str, str]:
        """A role's environment as a container has it, for this machine."""
        found = env_file(self.secrets / f"{role}.env")
        found["SICKBAY_TLS_CA"] = str(self.secrets / "ca.pem")
        return {key: self.places.named(value) for key, value in found.items()}

    def up(self) -> None:
        """Start whatever does not run, each once what it needs is healthy, and wait until all are."""
        deadline = time.monotonic() + patience(START_S)
        waiting, started = [one for one in self.all.values() if not one.is_running], list[Running]()
        while time.monotonic() < deadline:
            for one in waiting:
                needed = [self.all[name] for name in one.service.needs if name in self.all]
                if one not in started and all(other.is_healthy for other in needed):
                    one.start()
                    started.append(one)
            looked = [one.look() for one in started]
            if len(looked) == len(waiting) and all(looked):
                return
            time.sleep(POLL_S)
        late = [f"{one.name}: {one.said()[-800:]}" for one in started if not one.is_healthy]
        raise AssertionError("\n".join([f"not healthy in time, {len(started)} of {len(waiting)} started:", *late]))

    def down(self) -> None:
        """End all, those that need others first."""
        for one in reversed(self.all.values()):
            one.stop()

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.down()
