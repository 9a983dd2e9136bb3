"""What stands where on this machine: an address of its own for each service, a folder for each mount.

A container has its own 127.0.0.1, its own ports and its own paths. Here each service has an address in 127.0.0.0/8,
all of which is loopback on Linux, so that every service keeps the ports that the file gives it.
"""

from __future__ import annotations

import random
import re
import socket
from contextlib import suppress
from pathlib import Path

from paths import ROOT

from .composed import Mount, Service

PORTS = (4222, 6222, 8222, 8480, 9090, 8000)


class Places:
    """Addresses and folders of one topology, under `root`."""

    def __init__(self, root: Path, names: list[str]) -> None:
        self.root = root
        self.network = _free_network(len(names))
        self.addresses = {name: f"{self.network}.{number}" for number, name in enumerate(names, 1)}
        names = sorted(self.addresses, key=len, reverse=True)
        # A name before a port; a user's name stands before a password, which may begin with digits.
        self._named = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, names))})(?=:\d{{4,5}}(?![\w-]))")

    def folder(self, service: str) -> Path:
        """What only this service has."""
        made = self.root / "services" / service
        made.mkdir(parents=True, exist_ok=True)
        return made

    def log(self, service: str) -> Path:
        """What it says."""
        return self.folder(service) / "said.log"

    def named(self, text: str) -> str:
        """With addresses in the place of the services' names."""
        return self._named.sub(lambda found: self.addresses[found[1]], text)

    def here(self, text: str, service: Service) -> str:
        """A text of the service, with addresses and paths as they are here."""
        own = self.addresses[service.name]
        text = self.named(text)
        text = re.sub(r"(?<![\d.])(0\.0\.0\.0|127\.0\.0\.1)(?![\d.])", own, text)
        for mount in sorted(service.mounts, key=lambda one: len(one.target), reverse=True):
            text = re.sub(rf"(?<![\w/]){re.escape(mount.target)}(?=[/\s\"',]|$)", str(self._of(mount, service)), text)
        return text

    def _of(self, mount: Mount, service: Service) -> Path:
        if mount.is_volume:
            return self.root / "volumes" / mount.source
        if mount.is_read_only:
            return self.folder(service.name) / mount.target.lstrip("/")
        return _source(mount)

    def lay_out(self, service: Service) -> None:
        """Put what it mounts where it will look: what it only reads as a copy, true for this machine."""
        for mount in service.mounts:
            place = self._of(mount, service)
            if not mount.is_read_only or mount.is_volume:
                place.mkdir(parents=True, exist_ok=True)
                continue
            source = _source(mount)
            assert source.exists(), f"{service.name} mounts {source}, which is not there"
            for path in [source] if source.is_file() else [one for one in source.rglob("*") if one.is_file()]:
                copy = place if source.is_file() else place / path.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(self.here(path.read_text(encoding="utf-8"), service), encoding="utf-8")
                copy.chmod(path.stat().st_mode)


def _source(mount: Mount) -> Path:
    return ROOT / mount.source


def _free_network(size: int) -> str:
    """The first three numbers of addresses whose ports nobody has."""
    for _ in range(100):
        network = f"127.{random.randint(10, 250)}.{random.randint(1, 250)}"
        if all(_is_free(f"{network}.{number}", port) for number in range(1, size + 1) for port in PORTS):
            return network
    raise RuntimeError("no free loopback network found")


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind((host, port))
        return True
    return False
