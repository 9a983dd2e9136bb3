"""What every command shares: options, the connection, output for people and for machines, exit codes.

Exit codes: 0 done, 1 no (it could not be done, or the answer is no), 2 usage (what was asked makes no sense).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from nats.aio.client import Client
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sickbay_events import provider_of
from sickbay_events.harmless import harmless
from sickbay_events.names import at_machine

from ..bus.connect import BusError, NatsOptions, PermissionDenied, connect_client
from ..bus.view_names import ViewNames, view_names
from ..config import Settings
from ..when import seconds as seconds  # noqa: PLC0414 - all commands have it from here

_T = TypeVar("_T")

CONNECT_TIMEOUT_S = 5.0
PIPE_COLUMNS = 240
"""Width where no terminal says one: nothing is wrapped, so that a pipe can be searched line by line."""

NatsUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--nats", metavar="URL", help="Where NATS is; default $SICKBAY_NATS, or the embedded one."),
]
DataFolder: TypeAlias = Annotated[
    str | None, typer.Option("--data", metavar="FOLDER", help="Folder of the embedded NATS; default $SICKBAY_DATA.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print facts as JSON.")]
ViewName: TypeAlias = Annotated[
    str | None, typer.Option("--view", metavar="NAME", help="Which view of the log; default $SICKBAY_VIEW, or none.")
]
Provider: TypeAlias = Annotated[str, typer.Argument(help="Provider as routers name it (openrouter.ai), or its URL.")]


class SaysNo(Exception):
    """The command cannot be done, or its answer is no: the text goes to stderr, the exit code is 1."""


def console() -> Console:
    """Standard output; without colours where it is no terminal or NO_COLOR is set."""
    return _console(sys.stdout.isatty(), stderr=False)


def error_console() -> Console:
    """Standard error, likewise."""
    return _console(sys.stderr.isatty(), stderr=True)


def _console(terminal: bool, *, stderr: bool) -> Console:
    width = None if terminal or "COLUMNS" in os.environ else PIPE_COLUMNS
    return _HarmlessConsole(
        stderr=stderr, highlight=False, width=width, no_color=None if terminal else True, emoji=False
    )


class _HarmlessConsole(Console):
    """A console on which a string is one line of text: no markup, and nothing in it moves the cursor or hides."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; a string as `line` has it, anything else as it is."""
        super().print(*[line(one) if isinstance(one, str) else one for one in objects], **options)


def line(text: str) -> Text:
    """A text with names from outside, as one harmless line."""
    return Text(harmless(text))


def plain_table(*columns: str, title: str | None = None) -> Table:
    """A table without lines between its cells, narrow enough for 80 columns."""
    made = Table(*columns, box=None, pad_edge=False, title=title, title_justify="left", padding=(0, 2, 0, 0))
    for column in made.columns:
        column.overflow = "fold"
    return made


def rows(made: Table, cells: Iterable[Iterable[object]]) -> Table:
    """Fill a table; what stands in a cell is harmless text on one line, a list's parts on a line each."""
    for row in cells:
        made.add_row(*[cell if isinstance(cell, Table) else _cell(cell) for cell in row])
    return made


def _cell(value: object) -> Text:
    if isinstance(value, list):
        return Text("\n".join(harmless(_text(part)) for part in value))
    return line(_text(value))


def facts(pairs: dict[str, object]) -> Table:
    """Two columns: a name and what it is. None is left out."""
    made = plain_table("", "")
    made.show_header = False
    made.columns[0].no_wrap = True
    return rows(made, ((name, value) for name, value in pairs.items() if value is not None))


def _text(value: object) -> str:
    return "yes" if value is True else "no" if value is False else str(value)


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json_text(value, indent=2) + "\n")


def json_text(value: object, indent: int | None = None) -> str:
    """As JSON; names stay readable, and what a terminal would obey is an escape of JSON."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "".join([one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text])


def plain_name(text: str) -> str:
    """The provider's name of a name or a URL, without any machine's."""
    return provider_of(text) if "://" in text else text


def provider_name(text: str) -> str:
    """The provider's name of a name or a URL, as the log has it.

    A loopback host is another machine on every box, so it gets this machine's name, which is said on stderr;
    `localhost:11434@box-7` names another's.
    """
    plain = plain_name(text)
    named = at_machine(plain, Settings.from_environment().machine_name)
    if named != plain:
        typer.echo(f"{harmless(plain)} is {harmless(named)} in the log: each machine has its own", err=True)
    return named


def chosen_view(view: str | None) -> ViewNames:
    """The view that a command is about. Raises `InvalidValue`."""
    return view_names(settings(view=view).view)


def settings(**given: Any) -> Settings:
    """The settings of this run: options, then environment, then defaults."""
    return Settings.from_environment(**given)


def nats_options(found: Settings, name: str) -> NatsOptions:
    """How to reach NATS by these settings. Raises `SaysNo` if they name none and none runs in the data folder."""
    if found.nats_url:
        return found.nats_options(name)
    raise SaysNo(
        f"no NATS is named and none runs from {found.data_folder}: start `sickbay serve`, "
        "or say where NATS is with --nats URL or SICKBAY_NATS"
    )


@asynccontextmanager
async def connected(nats: str | None, data: str | None = None) -> AsyncIterator[Client]:
    """A client for one command. What the server forbids ends the command with the subject that was refused."""
    denied: list[PermissionDenied] = []

    def note(error: Exception) -> None:
        if isinstance(error, PermissionDenied):
            denied.append(error)

    options = nats_options(settings(nats=nats, data=data), "sickbay-cli")
    client = await connect_client(options, timeout_s=CONNECT_TIMEOUT_S, on_error=note)
    try:
        yield client
    except (BusError, TimeoutError) as error:
        if denied:
            raise SaysNo(str(denied[0])) from error
        raise
    finally:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.close(), 1.0)


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run one command's coroutine to its end."""
    return asyncio.run(work)
