"""The configuration of NATS servers for Sickbay, with users that may do no more than they must, over TLS.

    plan = Plan(folder=Path("/etc/sickbay/nats"), hosts=("nats.internal",))
    made = write(plan)                     # made.files, made.roles; passwords stand in the files alone

The server's files hold passwords as bcrypt only. In clear they stand in one file of environment variables and one
NATS CLI context for each role, which nobody but their owner can read. For docker-compose.yml each server has a folder
of its own as its container mounts it, and `compose` adds what the other services need.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import secrets
import shlex
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from ..control.acts import ActRefused
from .accounts import accounts
from .certificates import Authority, Pair
from .roles import Role, roles

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
        """Raise `ActRefused` naming the option that is not accepted."""
        for host in self.hosts:
            if not _is_host(host):
                raise ActRefused("--host", host, "a host's name or an IP address, without a port")
        if self.cluster not in (1, 3, 5):
            raise ActRefused("--cluster", self.cluster, "1, 3 or 5 servers")
        if self.compose and (self.cluster != COMPOSE_SERVERS or self.store is not None):
            raise ActRefused(
                "--compose", f"--cluster {self.cluster}, --store {self.store}", "three servers, no --store"
            )
        if not self.hosts or (self.cluster > 1 and len(self.hosts) not in (1, self.cluster) and not self.compose):
            raise ActRefused("--host", ", ".join(self.hosts), "one for each server of the cluster, or one for all")
        if not 1 <= self.port <= 65_535 - MONITOR_APART - self.cluster:
            raise ActRefused("--port", self.port, f"1 to {65_535 - MONITOR_APART - self.cluster}")
        for name in self.routers:
            if not _NAME.fullmatch(name) or self.routers.count(name) > 1:
                raise ActRefused("--router", name, "letters, digits, dots, - and _, up to 63 of them, each name once")
        if not _SYNC.fullmatch(self.sync):
            raise ActRefused("--sync-interval", self.sync, "always, or a duration such as 500ms, 10s or 2m")
        if self.store_gib <= 0:
            raise ActRefused("--store-gib", self.store_gib, "a number above 0")


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


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What was written: files in order, the servers' configurations among them, and when the certificates end."""

    files: tuple[Path, ...]
    servers: tuple[Path, ...]
    roles: tuple[Role, ...]
    valid_until: datetime


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


Existing: TypeAlias = Literal["refuse", "update", "overwrite"]
"""What to do where the files are there already: nothing; keep authority and passwords; make everything anew."""


def write(plan: Plan, existing: Existing = "refuse") -> Made:
    """Write the files of a plan. With "update" whoever has a user keeps the password, and the authority stays.

    Raises `ActRefused` for a plan that cannot be, or a file that is there already; `ViewRefused`, `OSError`.
    """
    plan.check()
    found = roles(plan.routers, plan.views)
    kept = _kept_passwords(plan.folder) if existing == "update" else {}
    passwords = {role.name: kept.get(role.name) or secrets.token_urlsafe(32) for role in found}
    authority = _kept_authority(plan.folder) if existing == "update" else Authority.make()
    files = list(_files(plan, found, passwords, authority))
    if plan.compose:
        from .compose import compose_files

        files += compose_files(plan, found, passwords, keep=existing == "update")
    for name, _, _ in files:
        if existing == "refuse" and (plan.folder / name).exists():
            accepted = (
                "a folder without it; --update, which keeps passwords and authority; "
                "or --force, which makes new ones for everybody"
            )
            raise ActRefused("DIR", str(plan.folder / name), accepted)
    plan.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if plan.compose:
        plan.folder.chmod(0o700)  # also one that was there: what containers read stands open within
    for name, data, mode in files:
        _write(plan.folder / name, data, mode)
    return Made(
        files=tuple(plan.folder / name for name, _, _ in files),
        servers=tuple(plan.folder / node.file for node in nodes(plan)),
        roles=found,
        valid_until=authority.valid_until,
    )


def _kept_passwords(folder: Path) -> dict[str, str]:
    """The passwords that stand in a folder, by role."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(f"{CONTEXTS}*.json")]
    return {context["user"]: context["password"] for context in found}


def _kept_authority(folder: Path) -> Authority:
    try:
        return Authority.read(Pair((folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes()))
    except (FileNotFoundError, ValueError) as error:
        raise ActRefused("DIR", str(folder), f"for --update a folder that nats-config wrote ({error})") from error


def _files(
    plan: Plan, found: tuple[Role, ...], passwords: dict[str, str], authority: Authority
) -> Iterator[tuple[str, bytes, int]]:
    """Each file by its name in the folder, with its content and mode."""
    users = accounts(found, passwords).encode()
    yield "ca.pem", authority.pair.certificate, PUBLIC
    yield "ca.key", authority.pair.key, SECRET
    for folder in dict.fromkeys(node.folder for node in nodes(plan)):
        yield f"{folder}accounts.conf", users, SECRET
        if folder:
            yield f"{folder}ca.pem", authority.pair.certificate, PUBLIC
    for node in nodes(plan):
        pair = authority.server(node.name, node.hosts)
        yield f"{node.folder}{node.pair}.pem", pair.certificate, PUBLIC
        yield f"{node.folder}{node.pair}.key", pair.key, SECRET
        yield node.file, server(plan, node).encode(), PUBLIC
    for role in found:
        yield f"{role.name}.env", role_environment(plan, inside(plan), role, passwords[role.name]).encode(), SECRET
        yield f"{CONTEXTS}{role.name}.json", context(outside(plan), role, passwords[role.name]).encode(), SECRET


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


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file that nobody can read before its mode is set, in the place of one that may be there.

    Folders within are open, so that a container's user can read what is public in the one it mounts; the folder around
    them is its owner's alone.
    """
    if not path.parent.exists():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET), "wb") as file:
        file.write(data)
    part.chmod(mode)  # whatever the umask takes away
    part.replace(path)
