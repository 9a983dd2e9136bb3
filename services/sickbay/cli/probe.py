"""`sickbay probe`: check one target now, and say what that proves."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import nats.errors
import typer
from nats.aio.client import Client

from sickbay_events import Checkpoint, GateEntry
from sickbay_events.lease_wire import LeaseName
from sickbay_events.names import at_machine
from sickbay_events.view import CHECKPOINT_KEY

from ..bus.connect import BusError
from ..bus.entries import read_entry
from ..bus.view_names import ViewNames, view_names
from ..config import Settings
from ..control.acts import StoredAct, log_now_ms, publish_probe
from ..invalid import InvalidValue
from ..prober.settings import Probe, ProbeSettings, ProbeTarget, made_probe, read_probes
from .base import (
    AsJson,
    DataFolder,
    NatsUrl,
    SaysNo,
    ViewName,
    connected,
    console,
    plain_name,
    print_json,
    run,
    settings,
)
from .look import ask

if TYPE_CHECKING:
    from ..prober.checks import Checked  # with its HTTP client, which no other command needs

FamilyName = Literal["openai-chat", "anthropic", "gemini", "ollama"]
LevelName = Literal["readiness", "liveness"]
POLL_S: Final = 0.05
FOLDED_S: Final = 2.0


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(probe)


def probe(
    *,
    provider: Annotated[str, typer.Argument(help="Provider as routers name it, or the base URL of its API.")],
    model: Annotated[str, typer.Argument(help="Model id exactly as it is sent.")],
    file: Annotated[Path | None, typer.Option(help="File that has the target; default $SICKBAY_PROBES.")] = None,
    family: Annotated[FamilyName, typer.Option(help="Which request to make, where no file says so.")] = "openai-chat",
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="'Name: value', a secret as env:NAME; repeatable.")
    ] = None,
    level: Annotated[LevelName | None, typer.Option(help="readiness: a tiny request; liveness: any answer.")] = None,
    limit_s: Annotated[float | None, typer.Option("--limit", min=0.1, max=120, help="Seconds it may take.")] = None,
    report: Annotated[bool, typer.Option(help="Put the result into the log; a held target's trial is leased.")] = True,
    view: ViewName = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Probe one target now and say what that proves: an origin that answers, or an upstream that really does.

    Example: sickbay probe https://openrouter.ai/api/v1 z-ai/glm-5.3 -H "Authorization: Bearer env:OPENROUTER_API_KEY"
    """
    known = settings(nats=nats, data=data, view=view)
    wanted = _wanted(known, provider, model, file, family=family, header=header or [])
    wanted = wanted._replace(level=level or wanted.level, limit_s=limit_s or wanted.limit_s)
    found, ack = run(_reported(known, wanted, nats, data) if report else _unreported(wanted))
    name = f"{wanted.target.provider} {wanted.target.model}"
    if as_json:
        facts = {"provider": wanted.target.provider, "model": wanted.target.model, "asked": wanted.level}
        print_json({**facts, **found._asdict(), "proves": proves(found), "seq": ack.seq if ack is not None else None})
    else:
        stored = f"; stored, log sequence {ack.seq}" if ack is not None else ""
        console().print(f"{name}: {proves(found)} ({found.why}, {found.took_ms} ms{stored})")
    if not found.ok or found.level != wanted.level:
        raise typer.Exit(1)


def proves(found: Checked) -> str:
    """What a check proves, in words."""
    if found.ok is None:
        return "proves nothing: the request could not be made from here"
    if found.level == "liveness":
        return f"not live: {found.kind}" if not found.ok else "live: the origin answers; nothing is proved of the model"
    if not found.ok:
        return f"not ready: {found.kind}"
    return f"ready: an upstream really answers, {'with token usage' if found.usage else 'with an answer of its own'}"


def _wanted(
    known: Settings, provider: str, model: str, file: Path | None, *, family: FamilyName, header: list[str]
) -> Probe:
    """The probe as the file has it, or as the command says it."""
    path, name = str(file) if file is not None else known.probes, plain_name(provider)
    if path:
        _, probes = read_probes(Path(path).expanduser().read_text(encoding="utf-8"), machine=known.machine_name)
        for one in probes:
            if (one.target.provider, one.target.model) == (at_machine(name, known.machine_name), model):
                return one
    base, mark, alias = provider.partition("#")
    if "://" not in base:
        where = f"{path} has no such target" if path else "no file of targets is named (--file, SICKBAY_PROBES)"
        raise InvalidValue("PROVIDER", provider, f"the base URL of its API, such as https://api.x.ai/v1, since {where}")
    headers: dict[str, str] = {}
    for line in header:
        key, colon, value = line.partition(":")
        if not colon or not key.strip():
            raise InvalidValue("--header", key[:40], "'Name: value'")
        headers[key.strip()] = value.strip()
    named = plain_name(base) + mark + alias if alias else ""
    described = ProbeTarget(model=model, base_url=base, provider=named, family=family, headers=headers)
    return made_probe(described, ProbeSettings(), machine=known.machine_name)


async def _unreported(wanted: Probe) -> tuple[Checked, StoredAct | None]:
    from ..prober.checks import probe_client, run_check

    async with probe_client() as http:
        return await run_check(http, wanted), None


async def _reported(
    known: Settings, wanted: Probe, nats: str | None, data: str | None
) -> tuple[Checked, StoredAct | None]:
    """Check it as the services would: under the leases of its holds, and put the result into the log."""
    from ..prober.checks import probe_client, run_check
    from ..prober.prober import LeaseHolder

    async with connected(nats, data) as client, probe_client() as http:
        leases, seen_seq = await _leases(client, wanted, view_names(known.view))
        holder = LeaseHolder(client, known.replica_name, wanted, leases)
        if not await holder.take():
            raise SaysNo("it is held, and the lease of its trial is another one's now, or no service answers")
        try:
            found = await run_check(http, wanted)
            if found.ok is None:
                return found, None
            event = found.event(wanted, seen_seq=seen_seq, trial=leases)
            event = msgspec.structs.replace(event, id=f"{os.urandom(8).hex()}-1", interval_s=None)
            ack = await publish_probe(client, wanted.target, event, replica=known.replica_name)
            if leases:
                await _folded(client, ack.seq)
        finally:
            await holder.give_back()
        return found, ack


async def _leases(client: Client, wanted: Probe, names: ViewNames) -> tuple[list[LeaseName], int | None]:
    """The leases it needs by what the gates are told, and the largest sequence seen."""
    from ..prober.prober import probe_leases

    try:
        checkpoint = await _read(client, names, CHECKPOINT_KEY, Checkpoint)
        entries = [await _read(client, names, key, GateEntry) for key in wanted.target.keys]
        now_ms = await log_now_ms(client)
    except (BusError, nats.errors.Error, OSError) as error:
        raise SaysNo(f"the gates' view cannot be read ({error}); --no-report probes without it") from error
    seen_seq = checkpoint.seq if checkpoint is not None else None
    if wanted.level == "liveness":
        return [], seen_seq
    alive = [entry if entry is not None and entry.expires_ms > now_ms else None for entry in entries]
    leases = probe_leases(wanted.target, alive, now_ms)
    if leases is None:
        raise SaysNo(
            f"{wanted.target.provider} {wanted.target.model} is held and wants no trial now (`sickbay explain` says "
            "why); --no-report probes it all the same"
        )
    return leases, seen_seq


async def _read(client: Client, names: ViewNames, key: str, kind: type[Any]) -> Any:
    entry = await read_entry(client, names.stream, names.gate_prefix + key)
    return None if entry is None or entry.gone else msgspec.json.decode(entry.payload, type=kind)


async def _folded(client: Client, seq: int) -> None:
    """Wait until the services have folded a result: its lease is given back then."""
    deadline_s = time.monotonic() + FOLDED_S
    with suppress(SaysNo):
        while time.monotonic() < deadline_s:
            found = await ask(client, "sickbay.v1.status", {"limit": 1})
            if found is None or found["seq"] >= seq:
                return
            await asyncio.sleep(POLL_S)
