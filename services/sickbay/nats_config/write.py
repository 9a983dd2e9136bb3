"""The configuration of NATS servers for Sickbay, with users that may do no more than they must, over TLS.

    plan = Plan(folder=Path("/etc/sickbay/nats"), hosts=("nats.internal",))
    made = write(plan)                     # made.files, made.roles; passwords stand in the files alone

The server's files hold passwords as bcrypt only. In clear they stand in one file of environment variables and one
NATS CLI context for each role, which nobody but their owner can read. For docker-compose.yml each server has a folder
of its own as its container mounts it, and `compose` adds what the other services need.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from ..invalid import InvalidValue
from .accounts import accounts
from .certificates import Authority, Pair
from .compose import compose_files
from .plan import CONTEXTS, PUBLIC, SECRET, Plan, context, inside, nodes, outside, role_environment, server
from .roles import Role, roles


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What was written: files in order, the servers' configurations among them, and when the certificates end."""

    files: tuple[Path, ...]
    servers: tuple[Path, ...]
    roles: tuple[Role, ...]
    valid_until: datetime


Existing: TypeAlias = Literal["refuse", "update", "overwrite"]
"""What to do where the files are there already: nothing; keep authority and passwords; make everything anew."""


def write(plan: Plan, existing: Existing = "refuse") -> Made:
    """Write the files of a plan. With "update" users keep their passwords, and the authority stays.

    Raises `InvalidValue` for a plan that cannot be, a view's name or a file that is there already; `OSError`.
    """
    plan.check()
    found = roles(plan.routers, plan.views)
    kept = _kept_passwords(plan.folder) if existing == "update" else {}
    passwords = {role.name: kept.get(role.name) or secrets.token_urlsafe(32) for role in found}
    authority = _kept_authority(plan.folder) if existing == "update" else Authority.make()
    files = list(_files(plan, found, passwords, authority))
    if plan.compose:
        files += compose_files(plan, found, passwords, keep=existing == "update")
    for name, _, _ in files:
        if existing == "refuse" and (plan.folder / name).exists():
            accepted = (
                "a folder without it; --update, which keeps passwords and authority; "
                "or --force, which makes new ones for everybody"
            )
            raise InvalidValue("DIR", str(plan.folder / name), accepted)
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
        raise InvalidValue("DIR", str(folder), f"for --update a folder that nats-config wrote ({error})") from error


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
