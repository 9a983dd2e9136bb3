"""The configuration of NATS servers for Sickbay, with users that may do no more than they must, over TLS.

    plan = Plan(folder=Path("/etc/sickbay/nats"), hosts=("nats.internal",))
    made = write(plan)                     # made.files, made.roles; passwords stand in the files alone

The server's files hold passwords as bcrypt only. In clear they stand in one file of environment variables and one
NATS CLI context for each role, which nobody but their owner can read.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import secrets
import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

import bcrypt
import msgspec

from .certificates import Authority, Pair
from .operate import ActRefused
from .roles import SICKBAY, SYSTEM, Role, has_many_answers, roles

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
BCRYPT_ROUNDS: Final = 5
"""Passwords are 256 random bits, so that nobody tries them all however fast a trial is; 11 rounds would cost the
server 0.1 s of its processor for each router that reconnects."""
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

    def check(self) -> None:
        """Raise `ActRefused` naming the option that is not accepted."""
        for host in self.hosts:
            if not _is_host(host):
                raise ActRefused("--host", host, "a host's name or an IP address, without a port")
        if self.cluster not in (1, 3, 5):
            raise ActRefused("--cluster", self.cluster, "1, 3 or 5 servers")
        if not self.hosts or (self.cluster > 1 and len(self.hosts) not in (1, self.cluster)):
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


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a plan."""

    name: str
    hosts: tuple[str, ...]
    port: int
    file: str

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


def nodes(plan: Plan) -> tuple[Node, ...]:
    """The servers of a plan."""
    if plan.cluster == 1:
        return (Node(name="sickbay", hosts=plan.hosts, port=plan.port, file="nats.conf"),)
    shared = len(plan.hosts) == 1
    return tuple(
        Node(
            name=f"sickbay-{number + 1}",
            hosts=plan.hosts if shared else (plan.hosts[number],),
            port=plan.port + number if shared else plan.port,
            file=f"nats-{number + 1}.conf",
        )
        for number in range(plan.cluster)
    )


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
    for name, _, _ in files:
        if existing == "refuse" and (plan.folder / name).exists():
            accepted = (
                "a folder without it; --update, which keeps passwords and authority; "
                "or --force, which makes new ones for everybody"
            )
            raise ActRefused("DIR", str(plan.folder / name), accepted)
    plan.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    yield "ca.pem", authority.pair.certificate, PUBLIC
    yield "ca.key", authority.pair.key, SECRET
    yield "accounts.conf", accounts(found, passwords).encode(), SECRET
    for node in nodes(plan):
        pair = authority.server(node.name, node.hosts)
        yield f"{node.name}.pem", pair.certificate, PUBLIC
        yield f"{node.name}.key", pair.key, SECRET
        yield node.file, server(plan, node).encode(), PUBLIC
    for role in found:
        yield f"{role.name}.env", environment(plan, role, passwords[role.name]).encode(), SECRET
        yield f"{CONTEXTS}{role.name}.json", context(plan, role, passwords[role.name]).encode(), SECRET


def server(plan: Plan, node: Node) -> str:
    """The configuration of one server."""
    folder = plan.folder.absolute()
    store = (plan.store or folder / "store").absolute()
    store = store / node.name if plan.cluster > 1 else store
    tls = (
        f"cert_file: {_text(folder / f'{node.name}.pem')}, key_file: {_text(folder / f'{node.name}.key')}, "
        f"ca_file: {_text(folder / 'ca.pem')}"
    )
    lines = [
        "# Made by `sickbay nats-config`. Check it with `nats-server -t -c`, start it with `nats-server -c`.",
        f"server_name: {_text(node.name)}",
        f"listen: {_text(f'{_listen(node)}:{node.port}')}",
        f'http: "127.0.0.1:{node.port + MONITOR_APART}"  # monitoring, for this machine alone',
        f"tls {{ {tls} }}",
        "jetstream {",
        f"  store_dir: {_text(store)}",
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
            "  # Only servers with a certificate of this authority come in.",
            f"  tls {{ {tls}, verify: true }}",
            "}",
        ]
    return "\n".join([*lines, 'include "accounts.conf"', ""])


def accounts(found: Iterable[Role], passwords: dict[str, str]) -> str:
    """The accounts, their users, and what of SICKBAY the others may use. The same for each server of a cluster."""
    by_account: dict[str, list[Role]] = {}
    for role in found:
        by_account.setdefault(role.account, []).append(role)
    outside = {name: members for name, members in by_account.items() if name not in (SYSTEM, SICKBAY)}
    lines = [f"system_account: {SYSTEM}", "accounts {"]
    for name, members in by_account.items():
        lines.append(f"  {name} {{")
        if name == SICKBAY:
            lines += ["    jetstream: enabled", *_section("exports", _exports(outside))]
        elif name in outside:
            lines += _section("imports", _imports(members))
        lines += _section("users", (_user(role, passwords[role.name]) for role in members))
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _exports(outside: dict[str, list[Role]]) -> Iterator[str]:
    """What other accounts may use of the streams' one, each subject for the accounts that need it."""
    services: dict[str, list[str]] = {}
    streams: dict[str, list[str]] = {}
    for name, members in outside.items():
        asked, heard = _used(members)
        for subject in asked:
            services.setdefault(subject, []).append(name)
        for subject in heard:
            streams.setdefault(subject, []).append(name)
    for subject, names in streams.items():
        yield f"{{ stream: {_text(subject)}, accounts: [{', '.join(names)}] }}"
    for subject, names in services.items():
        many = ', response_type: "Stream"' if has_many_answers(subject) else ""
        yield f"{{ service: {_text(subject)}{many}, accounts: [{', '.join(names)}] }}"


def _imports(members: list[Role]) -> Iterator[str]:
    asked, heard = _used(members)
    for kind, subjects in (("stream", heard), ("service", asked)):
        for subject in subjects:
            yield f"{{ {kind}: {{ account: {SICKBAY}, subject: {_text(subject)} }} }}"


def _used(members: list[Role]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Subjects that an account asks and hears."""
    asked = [subject for role in members for subject in role.publish]
    heard = [subject for role in members for subject in role.subscribe]
    return tuple(dict.fromkeys(asked)), tuple(dict.fromkeys(heard))


def _user(role: Role, password: str) -> str:
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(BCRYPT_ROUNDS, prefix=b"2a")).decode()
    who = f"{{ user: {_text(role.name)}, password: {_text(hashed)}"
    if role.account == SYSTEM:
        return f"{who} }}"
    rights = {"publish": {"allow": role.publish}, "subscribe": {"allow": (*role.subscribe, f"{role.inbox_prefix}.>")}}
    answers = ', allow_responses: { max: 1, expires: "1m" }' if role.answers else ""
    written = ", ".join(f"{action}: {json.dumps(subjects)}" for action, subjects in rights.items())
    return f"{who}, permissions: {{ {written}{answers} }} }}  # {role.says}"


def _section(name: str, rows: Iterable[str]) -> list[str]:
    return [f"    {name}: [", *(f"      {row}" for row in rows), "    ]"]


def environment(plan: Plan, role: Role, password: str) -> str:
    """The environment of a process of that role."""
    found = {
        "SICKBAY_NATS": _url(plan, f"{quote(role.name, safe='')}:{quote(password, safe='')}@"),
        "SICKBAY_TLS_CA": str(plan.folder.absolute() / "ca.pem"),
        "SICKBAY_INBOX_PREFIX": role.inbox_prefix,
    }
    if role.replica is not None:
        found["SICKBAY_REPLICA"] = role.replica
    if plan.cluster > 1:
        found["SICKBAY_STREAM_REPLICAS"] = str(min(plan.cluster, 3))
    return f"# {role.says}\n" + "".join(f"{name}={shlex.quote(value)}\n" for name, value in found.items())


def context(plan: Plan, role: Role, password: str) -> str:
    """A context of the NATS CLI: `nats --context sickbay-ROLE ...`."""
    found: dict[str, Any] = {
        "description": f"Sickbay, {role.says}",
        "url": _url(plan, ""),
        "user": role.name,
        "password": password,
        "ca": str(plan.folder.absolute() / "ca.pem"),
        "inbox_prefix": role.inbox_prefix,
    }
    return json.dumps(found, indent=2) + "\n"


def _url(plan: Plan, user: str) -> str:
    hosts = [(node.hosts[0], node.port) for node in nodes(plan)]
    return ",".join(f"tls://{user}{_bracketed(host)}:{port}" for host, port in hosts)


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _NAME.fullmatch(text) is not None
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(node: Node) -> str:
    """Loopback where no other machine was named, else every address."""
    return "127.0.0.1" if all(host in ("localhost", "127.0.0.1") for host in node.hosts) else "0.0.0.0"  # noqa: S104


def _text(value: object) -> str:
    return json.dumps(str(value), ensure_ascii=False)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file that nobody can read before its mode is set, in the place of one that may be there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    part.replace(path)
