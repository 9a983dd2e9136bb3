"""The command that writes the log to a file: export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from nats.aio.client import Client

from ..bus.jetstream import JetStreamApi
from ..bus.link import BorrowedConnection
from ..bus.reader import CaughtUp, Chunk, Gap, Interrupted, LogChanged, LogReader
from ..bus.topology import LOG
from ..log.control import lost_control_events
from ..log.file import LogLine, open_writer
from .base import (
    AsJson,
    DataFolder,
    NatsUrl,
    SaysNo,
    connected,
    error_console,
    print_json,
    run,
)

API_TIMEOUT_S: Final = 5.0


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(export)


def export(
    file: Annotated[Path, typer.Argument(help="File to write; .zst and .gz are compressed; - is standard output.")],
    *,
    first: Annotated[int, typer.Option("--from", min=1, metavar="SEQ", help="First sequence.")] = 1,
    last: Annotated[int | None, typer.Option("--to", min=1, metavar="SEQ", help="Last sequence.")] = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Write the event log to a file, up to what it holds now.

    Example: sickbay export log.jsonl.zst
    """

    async def work() -> dict[str, int]:
        async with connected(nats, data) as client:
            return await export_log(client, file, first=first, last=last)

    found = run(work())
    if as_json and str(file) != "-":
        print_json({"file": str(file), **found})
    else:
        says = f"{found['events']} events, sequences {found['first']} to {found['last']}, written to {file}"
        error_console().print(says + (f"; {found['gaps']} missing" if found["gaps"] else ""))
        if found["trimmed"]:
            kept = f"but for {found['control']} policies and operators' acts, which are in the file"
            error_console().print(f"the log has lost its first {found['trimmed']} events, {kept}")


async def export_log(client: Client, file: Path, *, first: int = 1, last: int | None = None) -> dict[str, int]:
    """Write the log from `first` to `last`, or to what it holds when this is called.

    Raises `BusError` when there is no log, `SaysNo` when it changes meanwhile, `OSError` for the file.
    """
    at = await JetStreamApi(client, timeout_s=API_TIMEOUT_S).stream_at(LOG)
    end = min(last or at.last_seq, at.last_seq)
    begin = max(first, at.first_seq)
    found = {"events": 0, "first": 0, "last": 0, "gaps": 0, "trimmed": begin - first, "control": 0}
    with open_writer(file) as write:
        if found["trimmed"] and first == 1 and (last is None or begin <= end):
            await _write_lost_control_events(client, begin, write, found)
        if begin > end:
            return found
        reader = LogReader(
            BorrowedConnection(client), LOG, after_seq=begin - 1, created_at=at.created_at, name="export"
        )
        try:
            async for event in reader:
                if isinstance(event, Chunk):
                    _write(event, end, write, found)
                elif isinstance(event, Gap):
                    found["gaps"] += min(event.last, end) - event.first + 1
                elif isinstance(event, LogChanged):
                    raise SaysNo(f"the log was replaced while it was read ({event.reason}); nothing was written")
                elif isinstance(event, Interrupted):
                    error_console().print(f"interrupted: {event.reason}; trying again")
                if reader.seq >= end or isinstance(event, CaughtUp):
                    break
        finally:
            await reader.close()
    return found


async def _write_lost_control_events(client: Client, begin: int, write: Any, found: dict[str, int]) -> None:
    """Policies and operators' acts whose copies the log has lost, right below its first event: as a rebuild folds
    them (Rule 7), so that a replay of the file knows what a rebuild knows."""
    lost = await lost_control_events(client, begin)
    for seq, message in enumerate(lost, begin - len(lost)):
        write(LogLine.of(seq, message.time_ns, message.subject, headers_of(message.headers), message.payload))
        found["first"], found["last"] = found["first"] or seq, seq
    found["control"] = len(lost)
    found["events"] += len(lost)


def _write(chunk: Chunk, end: int, write: Any, found: dict[str, int]) -> None:
    for subject, seq, time_ns, payload, headers in zip(
        chunk.subjects, chunk.seqs, chunk.times_ns, chunk.payloads, chunk.headers, strict=True
    ):
        if seq > end:
            return
        write(LogLine.of(seq, time_ns, subject.decode(), headers_of(headers), payload))
        found["events"] += 1
        found["first"] = found["first"] or seq
        found["last"] = seq


def headers_of(block: bytes | None) -> dict[str, str | list[str]]:
    """A raw header block as names and values; a name that comes twice has a list."""
    found: dict[str, str | list[str]] = {}
    for line in (block or b"").split(b"\r\n")[1:]:
        name, colon, value = line.decode("utf-8", "replace").partition(":")
        if not colon:
            continue
        before = found.get(name)
        if before is None:
            found[name] = value.strip()
        else:
            found[name] = [*(before if isinstance(before, list) else [before]), value.strip()]
    return found
