"""The table of checks, and how they are run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import nats.errors

from ..bus.connect import BusError, PermissionDenied
from ..bus.topology import NoJetStream, require_jetstream
from . import machine, rights, servers, services, streams
from .finding import Finding, Installation

Look: TypeAlias = Callable[[Installation], "Awaitable[list[Finding]] | list[Finding]"]


class Check(NamedTuple):
    """One check. `what` names it where it cannot be made."""

    what: str
    look: Look
    loses_data: bool = False
    """What it finds may lose events or deny by a wrong clock, so `sickbay serve` says it as it starts."""


WITHOUT_JETSTREAM: Final = (Check("server version", servers.version), Check("encryption", servers.encryption))
CHECKS: Final = (
    Check("streams", streams.topology),
    Check("copies", servers.copies, loses_data=True),
    Check("disk sync", servers.disk_sync, loses_data=True),
    Check("storage", servers.storage, loses_data=True),
    Check("clock", servers.clock, loses_data=True),
    Check("log", streams.hours, loses_data=True),
    Check("acts", streams.acts),
    Check("permissions", rights.reads),
    Check("router", rights.router_rights),
    Check("files", machine.files),
    Check("unreadable events", streams.dead),
    Check("snapshots", streams.fold_versions),
    Check("services", services.folding),
    Check("HTTP", services.over_http),
    Check("health", services.unverified),
)


async def examine(installation: Installation, denied: Sequence[PermissionDenied] = ()) -> list[Finding]:
    """All findings, in the order in which one rests on the other. Raises nothing that a server can cause.

    `denied`: what the server has denied this user so far, as it comes.
    """
    findings = [finding for check in WITHOUT_JETSTREAM for finding in await _run(check, installation, denied)]
    try:
        await require_jetstream(installation.client)
    except NoJetStream as error:
        return [*findings, Finding(what="JetStream", level="bad", found=str(error), do="enable JetStream")]
    except BusError as error:
        return [*findings, Finding(what="JetStream", level="bad", found=str(error), do=_hint(denied))]
    findings.append(Finding(what="JetStream", level="ok", found="enabled for this account"))
    for check in CHECKS:
        findings += await _run(check, installation, denied)
    return findings


async def losses(installation: Installation) -> list[Finding]:
    """What may lose events here, each with its remedy. Raises nothing that a server can cause."""
    found = [finding for check in CHECKS if check.loses_data for finding in await _run(check, installation, ())]
    return [finding for finding in found if finding.level != "ok"]


async def _run(check: Check, installation: Installation, denied: Sequence[PermissionDenied]) -> list[Finding]:
    try:
        found = check.look(installation)
        return await found if inspect.isawaitable(found) else found
    except (BusError, nats.errors.Error, OSError) as error:
        hint = _hint(denied) if denied else "see the message; the checks after it still ran"
        return [Finding(what=check.what, level="warn", found=str(error) or type(error).__name__, do=hint)]
    except Exception as error:  # noqa: BLE001 - a strange answer ends one check, not those after it
        said = f"could not be looked at ({type(error).__name__}: {error})"
        return [Finding(what=check.what, level="warn", found=said, do="the checks after it still ran")]


def _hint(denied: Sequence[PermissionDenied]) -> str:
    return f"{denied[0]}; doctor wants an operator's user" if denied else "look into the log of the NATS server"
