"""Commands that write one event: hold, allow, clear, report."""

from __future__ import annotations

import getpass
import socket
from typing import Annotated, TypeAlias

import msgspec
import typer

from sickbay_events import KINDS, CallOutcome, Target

from ..bus.connect import PermissionDenied
from ..config import Settings
from ..control.acts import (
    Force,
    StoredAct,
    await_force,
    publish_outcome,
    publish_override,
    read_duration_s,
    scope_of,
)
from ..invalid import InvalidValue
from ..router.outbox import NotReportable, fit
from .base import AsJson, DataFolder, NatsUrl, Provider, connected, console, print_json, provider_name, run

Model: TypeAlias = Annotated[str | None, typer.Argument(help="Model id as it is sent; without it the whole host.")]
Reason: TypeAlias = Annotated[str, typer.Option("--reason", "-r", help="Why; kept in the log with your name.")]
Actor: TypeAlias = Annotated[str | None, typer.Option("--actor", help="Who; default your login at this host.")]
For: TypeAlias = Annotated[str | None, typer.Option("--for", metavar="TIME", help="How long: 90s, 30m, 1h30m, 2d.")]
Until: TypeAlias = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="To when: 2026-11-30T18:00:00Z (RFC 3339).")
]


def add(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (hold, allow, clear, report):
        app.command()(command)


def hold(
    *,
    provider: Provider,
    reason: Reason,
    model: Model = None,
    length: For = None,
    until: Until = None,
    actor: Actor = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Keep every replica from calling a host or a model, until the time you say.

    Example: sickbay hold openrouter.ai z-ai/glm-5.3 --for 30m --reason "answers in the wrong language"
    """
    _override(
        action="hold",
        provider=provider,
        model=model,
        reason=reason,
        actor=actor,
        length=length,
        until=until,
        nats=nats,
        data=data,
        as_json=as_json,
    )


def allow(
    *,
    provider: Provider,
    reason: Reason,
    model: Model = None,
    length: For = None,
    until: Until = None,
    actor: Actor = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Let calls pass whatever the rules say, until the time you say.

    Example: sickbay allow api.openai.com gpt-5.2 --for 10m --reason "the outage is over, see it ourselves"
    """
    _override(
        action="allow",
        provider=provider,
        model=model,
        reason=reason,
        actor=actor,
        length=length,
        until=until,
        nats=nats,
        data=data,
        as_json=as_json,
    )


def clear(
    *,
    provider: Provider,
    reason: Reason,
    model: Model = None,
    actor: Actor = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """End every hold and forget every count of a host or a model and what lies below it.

    Example: sickbay clear openrouter.ai z-ai/glm-5.3 --reason "the provider confirmed the model is back"
    """
    _override(
        action="clear",
        provider=provider,
        model=model,
        reason=reason,
        actor=actor,
        nats=nats,
        data=data,
        as_json=as_json,
    )


def report(
    *,
    provider: Provider,
    model: Annotated[str, typer.Argument(help="Model id exactly as it was sent.")],
    kind: Annotated[str, typer.Option("--kind", "-k", help=f"What came of the call: {', '.join(KINDS)}.")],
    status: Annotated[int | None, typer.Option(help="HTTP status.")] = None,
    took_ms: Annotated[float | None, typer.Option(help="How long the call took, ms.")] = None,
    replica: Annotated[str | None, typer.Option(help="Who reports; default $SICKBAY_REPLICA or the host.")] = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Publish the outcome of one call and print where the log has it.

    Example: sickbay report openrouter.ai z-ai/glm-5.3 --kind model_unavailable --status 404
    """
    if kind not in KINDS:
        raise InvalidValue("--kind", kind, ", ".join(KINDS))
    settings = Settings.from_environment(nats=nats, data=data, replica=replica)
    named = provider_name(provider)
    target = Target(named, model)
    try:
        given = msgspec.structs.replace(CallOutcome(kind="ok"), kind=kind, status=status, took_ms=took_ms)
        outcome = msgspec.convert(fit(target, given), CallOutcome, from_attributes=True)
    except NotReportable as error:
        field = error.field.removeprefix("target.").replace("_", "-")
        raise InvalidValue(field, took_ms if field == "took-ms" else model, str(error)) from error

    async def work() -> StoredAct:
        async with connected(nats, data) as client:
            return await publish_outcome(client, target, outcome, replica=settings.replica_name)

    _print_ack(run(work()), as_json, f"{kind} of {named} {model}")


def _override(
    *,
    action: str,
    provider: str,
    model: str | None,
    reason: str,
    actor: str | None,
    nats: str | None,
    data: str | None,
    as_json: bool,
    length: str | None = None,
    until: str | None = None,
) -> None:
    scope = scope_of(provider_name(provider), model)
    for_s = None if length is None else read_duration_s(length)
    if action != "clear" and (for_s is None) == (until is None):
        given = "both" if length else "neither"
        raise InvalidValue("--for, --until", given, f"one of the two, such as --for 30m: a {action} has to end")

    async def work() -> tuple[StoredAct, Force]:
        async with connected(nats, data) as client:
            ack = await publish_override(
                client, scope, action, reason=reason, actor=actor or login(), until=until, for_s=for_s
            )
            try:
                return ack, await await_force(client, ack)
            except PermissionDenied as error:
                return ack, Force(in_force=False, why=f"this user may not see whether it is ({error})")

    what = scope.provider if scope.model is None else f"{scope.provider} {scope.model}"
    ack, force = run(work())
    _print_ack(ack, as_json, f"{action} {what}", force)


def login() -> str:
    """The name of the user who runs this command, as operators' acts have it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return f"{name}@{socket.gethostname()}"


def _print_ack(ack: StoredAct, as_json: bool, what: str, force: Force | None = None) -> None:
    if as_json:
        print_json(msgspec.to_builtins(ack) | ({} if force is None else msgspec.to_builtins(force)))
        return
    again = " (it had been stored before)" if ack.duplicate else ""
    console().print(f"stored: {what}, {ack.stream} sequence {ack.seq}{again}")
    if force is not None:
        said = f"in force from log sequence {force.log_seq} on" if force.in_force else f"not yet in force: {force.why}"
        console().print(said)
