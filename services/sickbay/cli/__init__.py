"""The `sickbay` command: the operator's desk. May import every room."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import version
from typing import Annotated

import typer

from sickbay_events import EventError

from ..bus.connect import BusError, OptionsError
from ..historian.errors import HistoryRefused
from ..invalid import InvalidValue
from ..log.file import LogFileError
from .act import add as add_acts
from .alerts import add as add_alerts
from .api import add as add_api
from .base import SaysNo, error_console
from .bench import add as add_bench
from .demo.run import add as add_demo
from .doctor import add as add_doctor
from .explain import add as add_explain
from .files import add as add_files
from .history import add as add_history
from .imports import add as add_imports
from .look import add as add_looks
from .nats_equivalents import add as add_equivalents
from .natsconfig import add as add_nats_config
from .parsing import add as add_words
from .policy import add as add_policy
from .probe import add as add_probe
from .prober import add as add_prober
from .replay import add as add_replay
from .serve import add as add_serve
from .verify import add as add_verify

app = typer.Typer(
    name="sickbay",
    help="One lesson for the whole fleet: which (provider, model) may be called, decided from an event log on NATS.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sickbay {version('sickbay')}")
        raise typer.Exit


@app.callback()
def _options(
    shown: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options before any command."""


for add in (
    add_demo,
    add_serve,
    add_api,
    add_looks,
    add_explain,
    add_acts,
    add_files,
    add_imports,
    add_replay,
    add_verify,
    add_history,
    add_doctor,
    add_alerts,
    add_nats_config,
    add_policy,
    add_probe,
    add_prober,
    add_words,
    add_bench,
    add_equivalents,
):
    add(app)

_USAGE = (InvalidValue, OptionsError)
_NO = (SaysNo, BusError, EventError, HistoryRefused, LogFileError, OSError)


def main() -> None:
    """Run the command line. Errors are one plain line on stderr; the exit code is 0 done, 1 no, 2 usage."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe has enough (`sickbay status | head`): no error, and nothing more to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except _USAGE as error:
        _fail(error, 2)
    except _NO as error:
        _fail(error, 1)
    except Exception as error:  # noqa: BLE001 - a person gets a sentence, not a traceback
        if os.environ.get("SICKBAY_LOG_LEVEL", "").upper() == "DEBUG":
            traceback.print_exc()
        _fail(f"unexpected {type(error).__name__}: {error} (SICKBAY_LOG_LEVEL=DEBUG shows where)", 1)


def _fail(error: object, code: int) -> None:
    error_console().print(f"sickbay: {error}", soft_wrap=True)
    sys.exit(code)
