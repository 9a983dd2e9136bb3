"""The accounts of a NATS server, their users, and what of the streams' account the others may use, as configuration.

The same text for each server of a cluster. Passwords stand in it as bcrypt only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

import bcrypt

from .roles import SICKBAY, SYSTEM, Role, has_many_answers

BCRYPT_ROUNDS: Final = 5
"""Passwords are 256 random bits, so that nobody tries them all however fast a trial is; 11 rounds would cost the
server 0.1 s of its processor for each router that reconnects."""


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


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
