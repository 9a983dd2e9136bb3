"""The command that reads other systems' history: import."""

from __future__ import annotations

from datetime import tzinfo
from pathlib import Path
from typing import Annotated, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from sickbay_events import KINDS, Kind

from ..importers.fields import Setup, read_setup
from ..importers.formats import FORMATS, OWN
from ..importers.run import Imported, copy_log, import_file
from ..invalid import InvalidValue
from .base import AsJson, SaysNo, console, error_console, facts, plain_table, print_json, rows
from .progress import progress

KINDS_SHOWN: Final = 20


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("import")(import_command)


def import_command(
    form: Annotated[str, typer.Argument(metavar="FORMAT", help=f"{', '.join(FORMATS)} or {OWN}.")],
    file: Annotated[Path, typer.Argument(help="What to read, also as .gz or .zst; - is standard input.")],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Log file to write; .zst, .gz.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and write nothing.")] = False,
    maps: Annotated[
        list[str] | None, typer.Option("--map", metavar="FIELD=COLUMN", help="Or COLUMN~REGEX, or a TOML file.")
    ] = None,
    constants: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Of rows that do not say it.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PROVIDER", help="Another name for a provider.")
    ] = None,
    replica: Annotated[str | None, typer.Option(help="Who made the calls, where a row does not say.")] = None,
    zone: Annotated[str, typer.Option(help="Of times without an offset: a zone's name.")] = "UTC",
    log_format: Annotated[str | None, typer.Option(help="The proxy's own format string (nginx, envoy).")] = None,
    rejects: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where rejects are noted; default OUT.rejects.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Turn another system's history into a log file to replay, compare and look back into; never into the live log.

    Example: sickbay import litellm spend.jsonl -o last-week.jsonl.zst
    """
    if form not in FORMATS and form != OWN:
        raise InvalidValue("FORMAT", form, ", ".join([*FORMATS, OWN]))
    if out is None and not dry_run:
        raise InvalidValue("--out", None, "a file to write, or --dry-run")
    target = None if dry_run else out
    setup = read_setup(
        maps or [],
        constants=constants or [],
        rename=rename or [],
        replica=replica,
        zone=_zone(zone),
        template=log_format,
    )
    done = _run(form, file, target, setup, rejects)
    _tell(done, target, as_json=as_json)
    if not done.events:
        raise SaysNo(f"no row of {file} could be read as a call" if done.rows else f"{file} has no rows")


def _run(form: str, file: Path, out: Path | None, setup: Setup, rejects: Path | None) -> Imported:
    with progress(f"import {file.name}") as shown:
        if form == OWN:
            return copy_log(file, out, shown)
        if rejects is None and out is not None and str(out) != "-":
            rejects = out.with_name(out.name + ".rejects")
        return import_file(form, file, out, setup, rejects=rejects, progress=shown)


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidValue("--zone", name, "a zone's name, such as Europe/Berlin or UTC") from None


def _tell(done: Imported, out: Path | None, *, as_json: bool) -> None:
    found = done.facts()
    if as_json and str(out) != "-":
        print_json({"out": None if out is None else str(out), **found})
        return
    shown = error_console() if str(out) == "-" else console()
    what = "would be written" if out is None else f"written to {out}"
    lines: dict[str, object] = {
        "rows": done.rows,
        "events": f"{done.events} {what}",
        "from, to": f"{found['from']} to {found['to']}" if done.events else None,
        "targets": len(done.targets),
        "no calls": "; ".join(f"{count} {why}" for why, count in done.passed.most_common()) or None,
        "rejected": "; ".join(f"{count} by {field}" for field, count in done.rejected.most_common()) or None,
        "not in order": f"{done.unsorted}, sorted by time" if done.unsorted else None,
        "of unknown length": done.unmeasured or None,
    }
    shown.print(facts(lines))
    if done.kinds:
        named: list[tuple[Kind, int]] = done.kinds.most_common(KINDS_SHOWN)  # type: ignore[assignment]
        shown.print(
            rows(plain_table("kind", "calls", "says"), ((kind, count, KINDS[kind].says) for kind, count in named))
        )
    for reject in done.shown:
        error_console().print(f"rejected: row {reject.row}, {reject.field}: {reject.why}", soft_wrap=True)
