"""Commands that run or describe the services: serve, asyncapi."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import typer

from ..config import Settings
from .base import DataFolder, console
from .http import Front, answering, listening
from .running import collect_seldom, ended_by_signal, log_to_stderr, loop_runner, stdin_closes

if TYPE_CHECKING:
    from faststream.asgi import AsgiFastStream

Listen: TypeAlias = Annotated[
    str | None, typer.Option("--http", metavar="HOST:PORT", help="Where HTTP is answered, or off.")
]


def add(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(serve)
    app.command()(asyncapi)


def serve(
    *,
    nats: Annotated[
        str | None,
        typer.Option("--nats", metavar="URL", help="NATS to use; without it one is run here."),
    ] = None,
    data: DataFolder = None,
    port: Annotated[int | None, typer.Option(help="Port of the embedded NATS; default the last one it had.")] = None,
    policy: Annotated[Path | None, typer.Option(help="Policy file (TOML) that seeds an empty log.")] = None,
    shadow: Annotated[
        bool | None, typer.Option("--shadow", help="Where the log has no policy yet: fold and tell, enforce nothing.")
    ] = None,
    view: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which view is the fleet's; default $SICKBAY_VIEW, or none.")
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Write a view of this name beside the running services, by --policy if any."),
    ] = None,
    probes: Annotated[Path | None, typer.Option(help="File (TOML) of targets to probe while nobody calls.")] = None,
    alerts: Annotated[Path | None, typer.Option(help="File (TOML) of receivers that are told of holds.")] = None,
    http: Listen = None,
    history: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the history is kept, or off; default in the data folder.")
    ] = None,
    sync_always: Annotated[
        bool | None, typer.Option("--sync-always", help="Embedded NATS: write to the disk before acknowledging.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)] = False,
) -> None:
    """Run everything in one process: NATS (unless you name one), the projector, the answers to questions.

    Example: sickbay serve --data /var/lib/sickbay
    """
    given = locals()  # every option but the last is a setting of the same name
    del given["until_stdin_closes"]
    settings = Settings.from_environment(**given)
    if settings.http_tokens:
        from ..api.tokens import read_tokens

        read_tokens(Path(settings.http_tokens).expanduser())  # refused here, before a server of its own runs
    with loop_runner() as runner:
        runner.run(_serve(settings, until_stdin_closes=until_stdin_closes))


async def _serve(settings: Settings, *, until_stdin_closes: bool) -> None:
    ready, ended = asyncio.Event(), ended_by_signal()  # before the imports below, which take a moment
    from ..service.app import make_app

    log_to_stderr(settings.log_level)
    watch = asyncio.create_task(stdin_closes(ended)) if until_stdin_closes else None
    listener = listening(settings)
    work = asyncio.create_task(_until(make_app(settings), settings, listener, ready, ended))
    over = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait((work, over), return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and not ready.is_set():
            work.cancel()  # a signal during the start, which may wait for a server that does not come
        with contextlib.suppress(asyncio.CancelledError):
            await work
    finally:
        for task in (over, watch):
            if task is not None:
                task.cancel()
        if listener is not None:
            listener.close()


async def _until(
    app: AsgiFastStream, settings: Settings, listener: socket.socket | None, ready: asyncio.Event, ended: asyncio.Event
) -> None:
    """The application's life, begun and ended in one task as its task group wants it."""
    from ..service.app import services_of

    over: asyncio.Task[Any] | None = None
    async with app.start_lifespan_context(), _http(app, settings, listener):
        services = services_of(app)
        await services.ready()
        ready.set()
        collect_seldom()
        _say_ready(app, settings, listener)
        over = await _first(ended.wait(), services.broken())
    over.result()  # outside, where no task group wraps what was raised


async def _first(*works: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """The first that is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    return done.pop()


@contextlib.asynccontextmanager
async def _http(app: AsgiFastStream, settings: Settings, listener: socket.socket | None) -> AsyncIterator[None]:
    """Answer HTTP: the services' own paths, and the whole interface where questions are answered at all."""
    from ..service.app import services_of

    services = services_of(app)
    if listener is None:
        yield
        return
    if services.is_beside:
        async with answering(app, listener):
            yield
        return
    from ..api.app import Api
    from ..api.armor import Armor
    from ..service.exposition import exposition

    options = msgspec.structs.replace(services.options, name=f"sickbay-http {settings.replica_name}")
    async with (
        Api(settings, options, metrics=lambda accept: exposition(services, accept)) as api,
        answering(Front(Armor(app), api.asgi), listener, api.end_streams),
    ):
        yield


def _say_ready(app: AsgiFastStream, settings: Settings, listener: socket.socket | None) -> None:
    from ..service.app import services_of

    services = services_of(app)
    out = console()
    out.print(f"sickbay {version('sickbay')} is ready")
    if settings.nats:
        out.print(f"  NATS      {', '.join(services.options.servers)}")
    else:
        folder = settings.data_folder.absolute()
        out.print(f"  NATS      {services.options.servers[0]}, embedded in {folder}")
        out.print(f"  connect   sickbay.connect() here with SICKBAY_DATA={folder}, or")
        out.print(f"            SICKBAY_NATS=$(cat {folder / 'nats.url'})", soft_wrap=True)
    if listener is not None:
        host, port = listener.getsockname()[:2]
        out.print(f"  health    http://{host}:{port}/healthz")
        if not services.is_beside:
            out.print(f"  page      http://{host}:{port}/")
    assert services.projector is not None
    fleet = services.projector.fleet
    if services.is_beside:
        out.print(f"  beside    writes the view {settings.beside}, tells and answers nothing")
        out.print(f"  compare   sickbay verify --beside {settings.beside}")
    if services.prober is not None:
        out.print(f"  probes    {services.prober.size} targets, while nobody calls them")
    if services.alerting is not None:
        names = ", ".join(relay.receiver.name for relay in services.alerting.relays)
        out.print(f"  alerts    to {names}")
    if fleet.policy.shadow.all:
        out.print("  shadow    no rule is enforced; `sickbay status` marks what would be held")
    elif settings.shadow:
        stands = f"the policy in force (log sequence {fleet.policy_seq}) enforces"
        out.print(f"  shadow    NOT in shadow: {stands}; `sickbay policy set` changes it")
    if settings.history_path is not None:
        out.print(f"  history   {settings.history_path}")
    out.print("  ask       sickbay status")
    sys.stdout.flush()


def asyncapi(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; default standard output.")] = None,
) -> None:
    """Print the event contract as an AsyncAPI document (JSON).

    Example: sickbay asyncapi -o asyncapi.json
    """
    from ..service.app import app
    from ..service.asyncapi import asyncapi_document

    text = json.dumps(asyncapi_document(app.schema), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
