"""What to make, where it goes, and the texts of a server and of a role; written by `write`."""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ..invalid import InvalidValue
from .roles import Role

PORT: Final = 4222
ROUTES_APART: Final = 2_000
"""A server's port for the others of its cluster lies this much above its clients'."""
MONITOR_APART: Final = 4_000
STORE_GIB: Final = 20
SYNC: Final = "10s"
CONTEXTS: Final = "nats/context/sickbay-"
"""Where the NATS CLI looks for contexts, in a folder that XDG_CONFIG_HOME names; + role.json"""
PUBLIC: Final = 0o644
SECRET: Final = 0o600
COMPOSE_SERVERS: Final = 3
IN_NATS: Final = Path("/etc/nats")
"""Where a server's container mounts that server's folder."""
IN_SERVICES: Final = Path("/etc/sickbay")
"""Where the containers of the services mount what they need of the others."""
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_SYNC: Final = re.compile(r"always|[1-9]\d*(ms|s|m)")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to make.

    folder   where the files go; the servers and clients read them there
    hosts    names and addresses by which clients reach the servers; in a cluster one for each server, or one for all
    port     of the first server; servers that share a host take the next ones
    cluster  how many servers: 1, 3 or 5
    routers  names of routers that get a user each; none: one role for all routers
    views    names of views beside the one without a name, for all who use that
    store    folder of the streams; None: `store` in `folder`
    sync     how often a server syncs its files to the disk: `always`, or a duration as NATS writes it
    compose  for docker-compose.yml: three servers `nats-1` to `nats-3`; `hosts` are then names of the machine, by which
             clients outside of the containers reach the first server at `port` and the others at the next ones
    """

    folder: Path
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1")
    port: int = PORT
    cluster: int = 1
    routers: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    store: Path | None = None
    store_gib: float = STORE_GIB
    sync: str = SYNC
    compose: bool = False

    def check(self) -> None:
        """Raise `InvalidValue` naming the option that is not accepted."""
        for host in self.hosts:
            if not _is_host(host):
                raise InvalidValue("--host", host, "a host's name or an IP address, without a port")
        if self.cluster not in (1, 3, 5):
            raise InvalidValue("--cluster", self.cluster, "1, 3 or 5 servers")
        if self.compose and (self.cluster != COMPOSE_SERVERS or self.store is not None):
            raise InvalidValue(
                "--compose", f"--cluster {self.cluster}, --store {self.store}", "three servers, no --store"
            )
        if not self.hosts or (self.cluster > 1 and len(self.hosts) not in (1, self.cluster) and not self.compose):
            raise InvalidValue("--host", ", ".join(self.hosts), "one for each server of the cluster, or one for all")
        if not 1 <= self.port <= 65_535 - MONITOR_APART - self.cluster:
            raise InvalidValue("--port", self.port, f"1 to {65_535 - MONITOR_APART - self.cluster}")
        for name in self.routers:
            if not _NAME.fullmatch(name) or self.routers.count(name) > 1:
                raise InvalidValue("--router", name, "letters, digits, dots, - and _, up to 63 of them, each name once")
        if not _SYNC.fullmatch(self.sync):
            raise InvalidValue("--sync-interval", self.sync, "always, or a duration such as 500ms, 10s or 2m")
        if self.store_gib <= 0:
            raise InvalidValue("--store-gib", self.store_gib, "a number above 0")


class ServerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a plan.

    hosts        names and addresses on its certificate, the first one that by which clients and other servers reach it
    folder       its files in the plan's folder: "", or a name and a slash
    seen         that folder as the server sees it
    pair         first part of the names of its certificate and key
    store        where its streams are, as it sees it
    """

    name: str
    hosts: tuple[str, ...]
    port: int
    folder: str
    file: str
    seen: Path
    pair: str
    store: Path

    @property
    def route(self) -> str:
        """Where the other servers reach it."""
        return f"nats-route://{_bracketed(self.hosts[0])}:{self.port + ROUTES_APART}"


def nodes(plan: Plan) -> tuple[ServerPlan, ...]:
    """The servers of a plan."""
    folder = plan.folder.absolute()
    if plan.compose:
        return tuple(
            ServerPlan(
                name=name,
                hosts=(name, *(host for host in plan.hosts if host != name)),
                port=plan.port,
                folder=f"{name}/",
                file=f"{name}/nats.conf",
                seen=IN_NATS,
                pair="server",
                store=Path("/data"),
            )
            for name in (f"nats-{number + 1}" for number in range(plan.cluster))
        )
    alone, shared = plan.cluster == 1, len(plan.hosts) == 1
    store = (plan.store or folder / "store").absolute()
    names = ["sickbay" if alone else f"sickbay-{number + 1}" for number in range(plan.cluster)]
    return tuple(
        ServerPlan(
            name=name,
            hosts=plan.hosts if alone or shared else (plan.hosts[number],),
            port=plan.port + number if shared else plan.port,
            folder="",
            file="nats.conf" if alone else f"nats-{number + 1}.conf",
            seen=folder,
            pair=name,
            store=store if alone else store / name,
        )
        for number, name in enumerate(names)
    )


class Reach(msgspec.Struct, frozen=True):
    """How clients reach the servers: addresses with ports, and the file of the authority."""

    addresses: tuple[str, ...]
    authority: Path

    def url(self, role: Role | None = None, password: str = "") -> str:
        """Every server in one URL, with a role's credential if one is given."""
        user = "" if role is None else f"{quote(role.name, safe='')}:{quote(password, safe='')}@"
        return ",".join(f"tls://{user}{address}" for address in self.addresses)


def inside(plan: Plan) -> Reach:
    """How the services reach them; with compose, from their containers."""
    addresses = tuple(f"{_bracketed(node.hosts[0])}:{node.port}" for node in nodes(plan))
    return Reach(addresses, (IN_SERVICES if plan.compose else plan.folder.absolute()) / "ca.pem")


def outside(plan: Plan) -> Reach:
    """How people and processes on the machine reach them, and on others."""
    if not plan.compose:
        return inside(plan)
    ports = range(plan.port, plan.port + plan.cluster)
    return Reach(tuple(f"{_bracketed(plan.hosts[0])}:{port}" for port in ports), plan.folder.absolute() / "ca.pem")


def server(plan: Plan, node: ServerPlan) -> str:
    """The configuration of one server."""
    tls = (
        f"cert_file: {_text(node.seen / f'{node.pair}.pem')}, key_file: {_text(node.seen / f'{node.pair}.key')}, "
        f"ca_file: {_text(node.seen / 'ca.pem')}"
    )
    lines = [
        "# Made by `sickbay nats-config`. Check it with `nats-server -t -c`, start it with `nats-server -c`.",
        f"server_name: {_text(node.name)}",
        f"listen: {_text(f'{_listen(node)}:{node.port}')}",
        f'http: "127.0.0.1:{node.port + MONITOR_APART}"  # monitoring, for this machine alone',
        f"tls {{ {tls} }}",
        "jetstream {",
        f"  store_dir: {_text(node.store)}",
        "  max_memory_store: 256MB",
        f"  max_file_store: {round(plan.store_gib * 1024)}MB",
        "  # NATS acknowledges before it syncs. A killed server loses nothing; a power cut loses at most this much of",
        "  # what was acknowledged, on one node. `always` loses nothing and slows single publishes down 3 to 20 times.",
        f"  sync_interval: {_text(plan.sync)}",
        "}",
    ]
    if plan.cluster > 1:
        routes = ", ".join(_text(other.route) for other in nodes(plan))
        lines += [
            "cluster {",
            '  name: "sickbay"',
            f"  listen: {_text(f'{_listen(node)}:{node.port + ROUTES_APART}')}",
            f"  routes: [{routes}]",
            "  # Clients have every address; those that a server would tell them are on no certificate.",
            "  no_advertise: true",
            "  # Only servers with a certificate of this authority come in.",
            f"  tls {{ {tls}, verify: true }}",
            "}",
        ]
    return "\n".join([*lines, 'include "accounts.conf"', ""])


def role_environment(plan: Plan, reach: Reach, role: Role, password: str) -> str:
    """The environment of a process of that role."""
    found = {
        "SICKBAY_NATS": reach.url(role, password),
        "SICKBAY_TLS_CA": str(reach.authority),
        "SICKBAY_INBOX_PREFIX": role.inbox_prefix,
    }
    if role.replica is not None:
        found["SICKBAY_REPLICA"] = role.replica
    if plan.cluster > 1:
        found["SICKBAY_STREAM_REPLICAS"] = str(min(plan.cluster, 3))
    return f"# {role.says}\n" + "".join(f"{name}={shlex.quote(value)}\n" for name, value in found.items())


def context(reach: Reach, role: Role, password: str) -> str:
    """A context of the NATS CLI: `nats --context sickbay-ROLE ...`."""
    found: dict[str, Any] = {
        "description": f"Sickbay, {role.says}",
        "url": reach.url(),
        "user": role.name,
        "password": password,
        "ca": str(reach.authority),
        "inbox_prefix": role.inbox_prefix,
    }
    return json.dumps(found, indent=2) + "\n"


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _NAME.fullmatch(text) is not None
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(node: ServerPlan) -> str:
    """Loopback where no other machine was named, else every address."""
    return "127.0.0.1" if all(host in ("localhost", "127.0.0.1") for host in node.hosts) else "0.0.0.0"  # noqa: S104


def _text(value: object) -> str:
    return json.dumps(str(value), ensure_ascii=False)
