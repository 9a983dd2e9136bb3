"""`sickbay doctor`: what is wrong with an installation, and what to do about each finding."""

from __future__ import annotations

import contextlib
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from nats.aio.client import Client

from ..bus.connect import ConnectError, NatsOptions, PermissionDenied, connect_client
from ..bus.view_names import view_names
from ..config import Settings
from .base import (
    CONNECT_TIMEOUT_S,
    AsJson,
    DataFolder,
    NatsUrl,
    ViewName,
    console,
    nats_options,
    plain_table,
    print_json,
    rows,
    run,
    settings,
)

if TYPE_CHECKING:
    from ..doctor.finding import Finding  # with all that it looks at, which no other command needs


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(doctor)


def doctor(
    *,
    system: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Environment file of the system account's user, who sees the servers."),
    ] = None,
    router: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Environment file of a router, to try what its user must not do."),
    ] = None,
    view: ViewName = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Examine NATS, the streams and the services, and say what to do about each finding. Exit code 1 if any is bad.

    Example: sickbay doctor --system /etc/sickbay/nats/system.env --router /etc/sickbay/nats/router.env
    """
    found = settings(nats=nats, data=data, view=view)
    options = nats_options(found, "sickbay-doctor")
    others = [None if path is None else _options_of(path) for path in (system, router)]
    findings = run(_examined(options, found, *others))
    bad = [finding for finding in findings if finding.level == "bad"]
    if as_json:
        print_json({"ok": not bad, "findings": msgspec.to_builtins(findings)})
    else:
        cells = ((one.level, one.what, [one.found, *([f"-> {one.do}"] if one.do else [])]) for one in findings)
        made = rows(plain_table("", "", ""), cells)
        made.show_header = False
        console().print(made)
        warned = sum(one.level == "warn" for one in findings)
        console().print(f"{len(bad)} bad, {warned} to look at, {len(findings)} examined")
    if bad:
        raise typer.Exit(1)


def _options_of(path: Path) -> NatsOptions:
    """How the process of an environment file connects, as `sickbay nats-config` writes it."""
    words = shlex.split(path.read_text(encoding="utf-8"), comments=True)
    environ = dict(word.removeprefix("export ").split("=", 1) for word in words if "=" in word)
    return nats_options(Settings.from_environment(environ), "sickbay-doctor")


async def _examined(
    options: NatsOptions, found: Settings, system: NatsOptions | None, router: NatsOptions | None
) -> list[Finding]:
    from ..doctor.checks import examine
    from ..doctor.finding import Finding, Installation

    denied: list[PermissionDenied] = []

    def note(error: Exception) -> None:
        if isinstance(error, PermissionDenied):
            denied.append(error)

    where = ", ".join(options.servers)
    clients: list[Client] = []
    try:
        clients.append(await connect_client(options, timeout_s=CONNECT_TIMEOUT_S, on_error=note))
        if system is not None:
            clients.append(await connect_client(system, timeout_s=CONNECT_TIMEOUT_S))
        first = Finding(what="connection", level="ok", found=f"{where}, {await _round_trip(clients[0])}")
        of_system = clients[1] if system is not None else None
        installation = Installation(clients[0], found, view_names(found.view), system=of_system, router=router)
        return [first, *await examine(installation, denied)]
    except ConnectError as error:
        do = "start `sickbay serve` or NATS there, or name another with --nats"
        return [Finding(what="connection", level="bad", found=str(error), do=do)]
    finally:
        for client in clients:
            with contextlib.suppress(Exception):
                await client.close()


async def _round_trip(client: Client) -> str:
    began_s = time.monotonic()
    await client.flush(timeout=2)
    return f"round trip {(time.monotonic() - began_s) * 1000:.1f} ms"
