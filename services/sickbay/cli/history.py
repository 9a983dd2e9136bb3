"""Commands of the history: `sickbay history` shows what was held, `sickbay historian` keeps the file."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
import typer
from rich.text import Text

from sickbay_events import rfc3339
from sickbay_events.harmless import harmless

from ..invalid import InvalidValue
from ..when import when_ms
from .base import (
    AsJson,
    DataFolder,
    NatsUrl,
    Provider,
    SaysNo,
    console,
    nats_options,
    plain_table,
    print_json,
    provider_name,
    rows,
    seconds,
    settings,
)

if TYPE_CHECKING:
    from ..historian.query import HoldRow, Report  # with sqlite-utils, which takes a moment and no other command needs

HistoryFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--history", metavar="FILE", help="The history's file; default $SICKBAY_HISTORY."),
]
TIMELINE_CHARS: Final = 48
ACTS_SHOWN: Final = 20


def add(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(history)
    app.command()(historian)


def history(
    *,
    provider: Provider,
    model: Annotated[str | None, typer.Argument(help="Model id; without it the host and all its models.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="From when: '2 hours ago', 2026-11-30, '2026-11-30 14:00', RFC 3339.",
            show_default="1 day ago; with --from its beginning",
        ),
    ] = None,
    until: Annotated[str, typer.Option(help="To when, in the same forms.")] = "now",
    file: HistoryFile = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="LOG", help="An exported or imported log instead: JSON lines.")
    ] = None,
    data: DataFolder = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the holds as CSV.")] = False,
) -> None:
    """Show what was held when, why, how it ended and how many calls that saved.

    Example: sickbay history openrouter.ai z-ai/glm-5.3 --since "2 days ago"
    """
    from ..historian.query import first_ms, history_report, now_ms, open_for_reading

    if source is not None:
        from ..historian.build import built_from

        database, where = built_from(source).db, source
    else:
        path = settings(data=data, history=None if file is None else str(file)).history_path
        if path is None:
            raise SaysNo("no history is kept here: name its file (--history, SICKBAY_HISTORY) or a log (--from)")
        database, where = open_for_reading(path), path
    with contextlib.closing(database.conn):
        end_ms = now_ms(database, live=source is None)
        until_ms = _moment("--until", until, end_ms)
        begins_ms = first_ms(database) if source is not None and since is None else None
        since_ms = _moment("--since", since or "1 day ago", end_ms) if begins_ms is None else begins_ms
        if since_ms >= until_ms:
            begin = since or f"{rfc3339(since_ms)[:19]}Z (the beginning)"
            raise typer.BadParameter(f"--since {begin} is not before --until {until}")
        found = history_report(
            database, provider_name(provider), model, since_ms, until_ms, at_ms=end_ms - (source is not None)
        )
    if as_json:
        print_json(msgspec.to_builtins(found))
    elif as_csv:
        _print_csv(found)
    else:
        _print(found, where)


def _moment(option: str, text: str, now_ms: int) -> int:
    try:
        return when_ms(text, now_ms=now_ms)
    except InvalidValue as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def _print_csv(found: Report) -> None:
    writer = csv.writer(sys.stdout)
    from ..historian.query import HoldRow

    writer.writerow(HoldRow.__struct_fields__)
    for hold in found.holds:
        builtins = msgspec.to_builtins(hold)
        writer.writerow(["" if value is None else harmless(value, "csv") for value in builtins.values()])


def _print(found: Report, where: Path) -> None:
    out = console()
    name = f"{found.provider} {found.model}" if found.model else found.provider
    out.print(f"{name}, {found.since[:19]}Z to {found.until[:19]}Z")
    if found.truncated:
        out.print(f"  {found.truncated}")
    if found.calls:
        slow = ""
        if found.p50_ms is not None and found.p95_ms is not None:
            slow = f" (half in {seconds(found.p50_ms / 1000)}, 95 % in {seconds(found.p95_ms / 1000)})"
        out.print(f"{found.calls} calls, {found.answered} answered{slow}; {found.failed} failed")
    for kind, count in found.kinds.items():
        if kind != "ok":
            out.print(f"  {count} x {kind}")
    if not found.holds:
        out.print(f"nothing was held ({where})" if found.known else f"nothing is known of it ({where})")
        _print_acts(found)
        return
    cells = [
        (hold.began[:19].replace("T", " "), seconds(hold.held_s) + ("" if hold.ended else " so far"),
         [_what(hold), f"  {hold.because}"], hold.ended_by or "still held", hold.calls_saved or "")
        for hold in found.holds
    ]  # fmt: skip
    out.print(rows(plain_table("began (UTC)", "held for", "what, because", "ended by", "saved"), cells))
    out.print()
    for lane in found.lanes(TIMELINE_CHARS):
        line = Text(lane.bar, style="red" if lane.enforced else "yellow")
        line.append(f" {harmless(lane.name)}", style="default")
        out.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    out.print(_scale(found))
    _print_acts(found)


def _print_acts(found: Report) -> None:
    """What operators did in that time, and why."""
    out = console()
    if (earlier := len(found.acts) - ACTS_SHOWN) > 0:
        out.print(f"({earlier} earlier acts; --json has them all)")
    for act in found.acts[-ACTS_SHOWN:]:
        name = " ".join(str(act[key]) for key in ("provider", "model") if act[key])
        out.print(f"{act['at'][:19]}Z {act['action']} {name}, {act['actor']}: {act['reason']}")


def _what(hold: HoldRow) -> str:
    return f"{hold.model or f'({hold.scope})'} {hold.rule}{'' if hold.enforced else ' (shadow)'}"


def _scale(found: Report) -> str:
    """The beginning and the end of the time shown, under the lanes."""
    short = 10 if found.until_ms - found.since_ms > 2 * 86_400_000 else 16
    begin, end = found.since[:short].replace("T", " "), found.until[:short].replace("T", " ")
    return begin + end.rjust(TIMELINE_CHARS - len(begin))


def historian(
    *,
    file: HistoryFile = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)] = False,
) -> None:
    """Keep the history's file up with the log, as `sickbay serve` does, in a process of its own.

    Example: sickbay historian --nats nats://nats:4222 --history /var/lib/sickbay/history.db
    """
    from ..historian.store import Keep
    from .running import ended_by_signal, log_to_stderr, loop_runner, stdin_closes

    found = settings(nats=nats, data=data, history=None if file is None else str(file), log_level=log_level)
    path = found.history_path
    if path is None:
        raise SaysNo("it needs a file: name one with --history or SICKBAY_HISTORY")
    keep = Keep(minutes_days=found.history_minutes_days, hours_days=found.history_hours_days, days=found.history_days)
    log_to_stderr(found.log_level)

    async def work() -> None:
        from ..bus.link import Link
        from ..historian.historian import Historian

        ended = ended_by_signal()
        watch = asyncio.create_task(stdin_closes(ended)) if until_stdin_closes else None
        link = Link(nats_options(found, f"sickbay-historian {found.replica_name}"))
        link.start()
        kept = Historian(link, path, keep=keep)
        running = asyncio.create_task(kept.run())
        over = asyncio.create_task(ended.wait())
        try:
            await asyncio.wait([running, over], return_when=asyncio.FIRST_COMPLETED)
            kept.stop()
            await running
        finally:
            for task in (over, watch):
                if task is not None:
                    task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await link.close()

    with loop_runner() as runner:
        runner.run(work())
