"""Commands of the HTTP interface: `sickbay api` runs it alone, `sickbay token` makes a token for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from ..config import SettingRefused, Settings
from ..invalid import InvalidValue
from .base import DataFolder, NatsUrl, console, nats_options, settings
from .http import answering, listening
from .running import ended_by_signal, log_to_stderr, loop_runner, stdin_closes

ROLES: Final = ("report", "read", "operate")


def add(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(api)
    app.command("token")(token_command)


def api(
    *,
    nats: NatsUrl = None,
    data: DataFolder = None,
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="Where to answer; default $SICKBAY_HTTP.")
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who may use it; default $SICKBAY_HTTP_TOKENS.")
    ] = None,
    history: Annotated[
        str | None, typer.Option(metavar="FILE", help="The history's file, for routes and replicas on the page.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)] = False,
) -> None:
    """Answer HTTP and nothing else, for services that run elsewhere; several may run.

    Example: sickbay api --nats nats://nats:4222 --http 0.0.0.0:8480 --tokens /etc/sickbay/tokens.toml
    """
    found = settings(
        nats=nats,
        data=data,
        http=http,
        http_tokens=None if tokens is None else str(tokens),
        history=history,
        log_level=log_level,
    )
    if found.http_address is None:
        raise SettingRefused("SICKBAY_HTTP", found.http, "host:port, where this command answers")
    log_to_stderr(found.log_level)
    with loop_runner() as runner:
        runner.run(_api(found, until_stdin_closes=until_stdin_closes))


async def _api(found: Settings, *, until_stdin_closes: bool) -> None:
    ended = ended_by_signal()  # before the imports below, which take a moment
    from ..api.app import Api

    watch = asyncio.create_task(stdin_closes(ended)) if until_stdin_closes else None
    listener = listening(found)
    assert listener is not None
    try:
        options = nats_options(found, f"sickbay-http {found.replica_name}")
        async with Api(found, options) as made, answering(made.asgi, listener, made.end_streams):
            host, port = listener.getsockname()[:2]
            out = console()
            out.print(f"sickbay api answers at http://{host}:{port}/")
            out.print(f"  NATS      {', '.join(options.servers)}")
            sys.stdout.flush()
            await ended.wait()
    finally:
        if watch is not None:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        listener.close()


def token_command(
    name: Annotated[str, typer.Argument(help="Who it is for: a router, a service, a person.")],
    *,
    roles: Annotated[
        str | None, typer.Option("--roles", metavar="ROLES", help="report, read, operate, joined by commas.")
    ] = None,
    replica: Annotated[
        str | None, typer.Option(metavar="NAME", help="Under which name it reports; default the token's.")
    ] = None,
    rotate: Annotated[
        Path | None,
        typer.Option("--rotate", metavar="FILE", help="Add a second token of this name to the file, with its rights."),
    ] = None,
) -> None:
    """Make a token for the HTTP interface; print it once, and the lines that make it known.

    Example: sickbay token router-7 --roles report,read >> tokens.toml
    """
    from ..api.tokens import make_token

    if not name.strip():
        raise InvalidValue("name", name, "a name that says who it is")
    made = make_token()
    if rotate is not None:
        if roles is not None or replica is not None:
            raise InvalidValue("--rotate", str(rotate), "--rotate alone: roles and replica stay those of the name")
        _rotate(rotate, name, made)
        typer.echo(f"the new token, which nothing keeps: {made}", err=True)
        typer.echo(f"both tokens of {name} count now: take the first one out of {rotate} when nobody uses it", err=True)
        return
    wanted = [role.strip() for role in (roles or "read").split(",")]
    if not set(wanted) <= set(ROLES) or len(set(wanted)) < len(wanted):
        raise InvalidValue("roles", roles, "some of report, read, operate, each once, joined by commas")
    typer.echo(f"the token, which nothing keeps: {made}", err=True)
    typer.echo(_row_of(name, made, wanted, replica))


def _row_of(name: str, made: str, roles: Sequence[str], replica: str | None) -> str:
    """The lines of a token in a file of tokens."""
    from ..api.tokens import digest_of

    lines = [
        "[[token]]",
        f"name = {json.dumps(name, ensure_ascii=False)}",
        f'sha256 = "{digest_of(made).hex()}"',
        f"roles = {json.dumps(list(roles))}",
    ]
    if replica is not None:
        lines.append(f"replica = {json.dumps(replica, ensure_ascii=False)}")
    return "\n".join([*lines, ""])


def _rotate(path: Path, name: str, made: str) -> None:
    """Add a second token of a name to a file, whose comments and order stay. Raises `InvalidValue`, `OSError`."""
    from ..api.tokens import PER_NAME_MAX, read_tokens

    found = [one for one in read_tokens(path) if one.name == name]
    if not found:
        raise InvalidValue("name", name, f"the name of a token in {path}")
    if len(found) >= PER_NAME_MAX:
        accepted = f"a name with one token: take the first of {name} out of {path}, which is the older one"
        raise InvalidValue("name", name, accepted)
    (one,) = found
    replica = None if one.replica == name else one.replica
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" + _row_of(name, made, sorted(one.roles), replica))
