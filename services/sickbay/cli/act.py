"""Commands that write one event: hold, allow, clear, report."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
import typer
from nats.aio.client import Client

from sickbay_events import KINDS, CallOutcome, Scope, Target, rfc3339

from ..bus.connect import PermissionDenied
from ..config import Settings
from ..control.acts import (
    Force,
    StoredAct,
    await_force,
    log_now_ms,
    publish_outcome,
    publish_override,
    read_duration_s,
    scope_of,
)
from ..invalid import InvalidValue
from ..router.outbox import NotReportable, fit
from ..when import when_ms
from .base import (
    AsJson,
    DataFolder,
    NatsUrl,
    Provider,
    SaysNo,
    connected,
    console,
    print_json,
    provider_name,
    run,
    seconds,
)
from .look import ask
from .sentences import cause_of

Model: TypeAlias = Annotated[str | None, typer.Argument(help="Model id as it is sent; without it the whole host.")]
Reason: TypeAlias = Annotated[str, typer.Option("--reason", "-r", help="Why; kept in the log with your name.")]
Actor: TypeAlias = Annotated[str | None, typer.Option("--actor", help="Who; default your login at this host.")]
For: TypeAlias = Annotated[str | None, typer.Option("--for", metavar="TIME", help="How long: 90s, 30m, 1h30m, 2d.")]
Until: TypeAlias = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="To when: 18:00, 'tomorrow 9:00', 2026-11-30T18:00:00Z.")
]
New: TypeAlias = Annotated[bool, typer.Option("--new", help="Also for a name that nothing is known of yet.")]


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
    new: New = False,
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
        new=new,
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
    new: New = False,
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
        new=new,
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
    new: New = False,
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
        new=new,
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
    new: bool,
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

    async def work() -> tuple[StoredAct, Force, list[str]]:
        async with connected(nats, data) as client:
            before = await state_before(client, scope, new=new)
            end = None if until is None else rfc3339(when_ms(until, now_ms=await log_now_ms(client), ahead=True))
            ack = await publish_override(
                client, scope, action, reason=reason, actor=actor or login(), until=end, for_s=for_s
            )
            changes = [] if before is None else what_changes(action, scope, before)
            try:
                return ack, await await_force(client, ack), changes
            except PermissionDenied as error:
                return ack, Force(in_force=False, why=f"this user may not see whether it is ({error})"), changes

    ack, force, changes = run(work())
    _print_ack(ack, as_json, f"{action} {_named(scope)}", force, changes)


def _named(scope: Scope) -> str:
    return scope.provider if scope.model is None else f"{scope.provider} {scope.model}"


async def state_before(client: Client, scope: Scope, *, new: bool) -> dict[str, Any] | None:
    """What the services know of a scope before an act; None if none answers.

    Raises `SaysNo` for a name of which nothing is known, with those that are near, unless it is to be a `new` one or
    no router has reported anything yet.
    """
    found = await ask(client, "sickbay.v1.explain", {"provider": scope.provider, "model": scope.model, "near": True})
    if found is not None and found["heard"] and not found["known"] and not new:
        near = " or ".join(f"`{provider} {model or ''}`".replace(" `", "`") for provider, model in found["near"])
        meant = f"; did you mean {near}?" if near else ""
        raise SaysNo(
            f"nothing is known of {_named(scope)}, and nothing of it is held, so nothing was stored{meant} "
            "(--new does it for a name that is still to come)"
        )
    return found


def what_changes(action: str, scope: Scope, before: dict[str, Any]) -> list[str]:
    """What an act ends, replaces or leaves without effect, a line each."""
    own = [one for one in before["scopes"] if _place(one) == scope]
    wider = [one for one in before["scopes"] if _place(one) != scope]
    below = before.get("below", [])
    lines = []
    if action == "clear":
        lines = [f"ended: {line}" for one in [*own, *below] for line in held_lines(one)] or ["nothing of it was held"]
    else:
        acts = [one["operator"] for one in own if one["operator"]]
        lines += [f"replaced: {act['action']} by {act['actor']}: {act['reason']}, {_left(act)}" for act in acts]
    if action == "allow":
        stands = [line for one in own for line in held_lines(one) if not one["operator"]]
        lines += [f"let pass for as long: {line}" for line in stands]
    for one in wider:
        act = one["operator"]
        if act and act["action"] == "hold" and action == "allow":
            lines.append(
                f"NO EFFECT while {_named(_place(one))} is held by {act['actor']}: {act['reason']}, another "
                f"{seconds(act['left_s'])}; a hold of the provider wins: `sickbay clear {_named(_place(one))}` ends it"
            )
        elif action == "clear":
            lines += [f"still held: {line}" for line in held_lines(one)]
    return lines


def _left(act: dict[str, Any]) -> str:
    return f"{seconds(act['left_s'])} left"


def _place(document: dict[str, Any]) -> Scope:
    return Scope.of_key(document["key"])


def held_lines(document: dict[str, Any]) -> list[str]:
    """What holds the scope of a document, a line each; an allow is one too."""
    name, act = _named(_place(document)), document["operator"]
    lines = [f"{name} {act['action']} by {act['actor']}: {act['reason']}"] if act else []
    for hold in document["holds"]:
        since = f"since {rfc3339(hold['began_ms'])[:19]}Z"
        lines.append(f"{name} {hold['rule']} {since} ({cause_of(hold)})")
    return lines


def login() -> str:
    """The name of the user who runs this command, as operators' acts have it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return f"{name}@{socket.gethostname()}"


def _print_ack(
    ack: StoredAct, as_json: bool, what: str, force: Force | None = None, changes: Sequence[str] = ()
) -> None:
    if as_json:
        of_act = {} if force is None else {**msgspec.to_builtins(force), "changes": changes}
        print_json(msgspec.to_builtins(ack) | of_act)
        return
    again = " (it had been stored before)" if ack.duplicate else ""
    console().print(f"stored: {what}, {ack.stream} sequence {ack.seq}{again}")
    if force is not None:
        said = f"in force from log sequence {force.log_seq} on" if force.in_force else f"not yet in force: {force.why}"
        console().print(said)
    for text in changes:
        console().print(text)
