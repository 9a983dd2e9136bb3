"""What docker-compose.yml mounts and reads beside the servers' own files: `sickbay nats-config DIR --compose`.

compose.env            what compose itself asks for: docker compose --env-file DIR/compose.env up
outside/ROLE.env       a role's environment for a process outside of the containers
prober/probes.toml     targets to probe, and prober/keys.env the keys it names: to be filled in, never overwritten
api/tokens.toml        the tokens of the HTTP interface, as digests
tokens/NAME            those tokens in clear, one a file, for their owners
prometheus/token       the token with which Prometheus reads /metrics
grafana.env            Grafana's first password
store/nats-N/          the streams of a server, owned by the user that made the folder, as which the servers run
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from typing import Final

from .plan import PUBLIC, SECRET, Plan, nodes, outside, role_environment
from .roles import Role

TOKENS: Final = {
    "operator": ("report", "read", "operate"),
    "reporter": ("report", "read"),
    "reader": ("read",),
    "prometheus": ("read",),
}
"""Tokens of the HTTP interface, and what each may do there."""
PROBES: Final = """\
# Targets to probe while nobody calls them. Keys stand in keys.env, here only their names:
#
# [[probe.target]]
# model = "z-ai/glm-5.3"
# base_url = "https://openrouter.ai/api/v1"
# headers = { Authorization = "Bearer env:OPENROUTER_API_KEY" }
"""
KEYS: Final = "# OPENROUTER_API_KEY=...\n"
IN_PROMETHEUS: Final = "prometheus/token"


def compose_files(
    plan: Plan, found: tuple[Role, ...], passwords: dict[str, str], *, keep: bool
) -> Iterator[tuple[str, bytes, int]]:
    """Each file by its name in the folder, with its content and mode. With `keep`, what was made before stays."""
    yield "compose.env", _variables(plan).encode(), PUBLIC
    for node in nodes(plan):
        # The empty file holds the folder, which compose would else make as root's.
        yield f"store/{node.name}/.keep", b"", PUBLIC
    for role in found:
        yield (
            f"outside/{role.name}.env",
            role_environment(plan, outside(plan), role, passwords[role.name]).encode(),
            SECRET,
        )
    yield "prober/probes.toml", (_kept(plan, "prober/probes.toml", keep=True) or PROBES).encode(), PUBLIC
    yield "prober/keys.env", (_kept(plan, "prober/keys.env", keep=True) or KEYS).encode(), SECRET
    tokens = {name: _kept(plan, _token_file(name), keep=keep) or secrets.token_urlsafe(32) for name in TOKENS}
    for name, token in tokens.items():
        # Prometheus runs as a user of its own, and within the folder above nobody else comes near.
        yield _token_file(name), token.encode(), PUBLIC if _token_file(name) == IN_PROMETHEUS else SECRET
    yield "api/tokens.toml", _token_table(tokens).encode(), PUBLIC
    grafana = _kept(plan, "grafana.env", keep=keep)
    yield "grafana.env", (grafana or _grafana()).encode(), SECRET


def _variables(plan: Plan) -> str:
    uid, gid = (os.getuid(), os.getgid()) if hasattr(os, "getuid") else (0, 0)
    return (
        "# What docker-compose.yml asks for: the folder, and the user and group that own it, as whom the servers run.\n"
        f"SICKBAY_CONFIG={plan.folder.absolute()}\nSICKBAY_USER={uid}:{gid}\n"
    )


def _token_file(name: str) -> str:
    return IN_PROMETHEUS if name == "prometheus" else f"tokens/{name}"


def _token_table(tokens: dict[str, str]) -> str:
    """The HTTP interface's file: what it compares is a digest, so that the file gives nobody a token."""
    rows = []
    for name, token in tokens.items():
        digest = hashlib.sha256(token.encode()).hexdigest()
        roles = ", ".join(f'"{role}"' for role in TOKENS[name])
        rows.append(f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nroles = [{roles}]\n')
    return "\n".join(rows)


def _grafana() -> str:
    return (
        "# Grafana takes this at its first start only; it is changed within Grafana.\n"
        f"GF_SECURITY_ADMIN_USER=admin\nGF_SECURITY_ADMIN_PASSWORD={secrets.token_urlsafe(24)}\n"
    )


def _kept(plan: Plan, name: str, *, keep: bool) -> str | None:
    path = plan.folder / name
    return path.read_text(encoding="utf-8") if keep and path.exists() else None
