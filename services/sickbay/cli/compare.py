"""One history under two policies: the table, the JSON and the page of `sickbay replay --against`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple

from nats.aio.client import Client

from sickbay_events import rfc3339
from sickbay_projections.replay.compared import ComparedScope, FirstDifference, Part, Result
from sickbay_projections.replay.estimate import Unanswered

from ..log.file import LogFile
from ..log.folding import TO_THE_END, Bound, fold_file
from ..replay.compare import LOG, Comparing, compared_facts, world_of
from ..replay.past import SETTLED_MS, Base, fold_live, log_now
from ..replay.report import write_report
from .base import connected, console, error_console, plain_table, print_json, rows, run, seconds
from .places import place_of
from .progress import progress

LIVE: Final = "live"
ROWS_SHOWN: Final = 12


class Asked(NamedTuple):
    """What is to be compared, as the command line has it."""

    source: str
    policy: str | None
    against: str
    first: str | None
    last: str | None
    nats: str | None
    data: str | None


def compare(asked: Asked, *, html: Path | None, as_json: bool) -> None:
    """Compare and show. Raises `InvalidValue`, `PolicyRefused`, `LogFileError`, `BusError`, `OSError`."""
    if html is not None and html.exists():
        raise FileExistsError(f"{html} exists already; name another file or remove it first")
    notes: list[str] = []
    began_s = time.monotonic()
    comparing = run(_live(asked, notes)) if asked.source == LIVE else _file(asked, notes)
    result = comparing.comparison.result()
    if not result.events:
        notes.append(f"{asked.source} has no events to compare by")
    for note in notes:
        error_console().print(f"sickbay: {note}", soft_wrap=True)
    if html is not None:
        write_report(html, result, _lines(result, *result.parts), source=asked.source, notes=notes)
    if as_json:
        print_json({"source": asked.source, "notes": notes, **compared_facts(result)})
        return
    show_comparison(result)
    if html is not None:
        console().print(f"the page with a timeline per target is in {html}")
    if (took_s := time.monotonic() - began_s) > 2:
        error_console().print(f"{result.events} events in {seconds(took_s)}")


def _comparing(asked: Asked, first: Bound, last: Bound) -> Comparing:
    one = world_of("--policy", LOG if asked.policy is None else asked.policy)
    return Comparing(one, world_of("--against", asked.against), first=first, last=last)


async def _places(client: Client | None, asked: Asked) -> list[Bound]:
    return [TO_THE_END if text is None else await place_of(client, text) for text in (asked.first, asked.last)]


def _file(asked: Asked, notes: list[str]) -> Comparing:
    comparing, path = _comparing(asked, *run(_places(None, asked))), Path(asked.source)
    file = LogFile(path)
    with progress(f"compare {path.name}", path.stat().st_size if path.is_file() else None) as shown:
        fold_file(file, comparing, shown)
    if file.cut:
        notes.append(f"{path}: {file.cut}")
    _begins(comparing, str(path), comparing.first_seq, comparing.first_ms, notes)
    return comparing


async def _live(asked: Asked, notes: list[str]) -> Comparing:
    async with connected(asked.nats, asked.data) as client:
        comparing, log = _comparing(asked, *await _places(client, asked)), await log_now(client)
        base = Base(comparing.fleet, 0, "beginning" if log.first_seq <= 1 else "trimmed")
        with progress("compare", max(0, log.last_seq - log.first_seq + 1)) as shown:
            await fold_live(client, comparing, base, log, shown)
    first_ms = comparing.first_ms or comparing.fleet.time_ms
    _begins(comparing, "the log", comparing.first_seq or log.first_seq, first_ms, notes)
    return comparing


def _begins(comparing: Comparing, source: str, first_seq: int, first_ms: int, notes: list[str]) -> None:
    """Of a log without its head say what the comparison lacks, and from when on it lacks nothing."""
    if first_seq <= 1 or not comparing.events:
        return
    whole_ms = first_ms + SETTLED_MS
    beyond = ", which is after its end" if whole_ms > comparing.latest_ms else ""
    notes.append(
        f"{source} begins at sequence {first_seq}, {rfc3339(first_ms)[:19]}Z: what came before is in no count here, "
        f"and what it left behind is missing in both; a whole answer can be given from {rfc3339(whole_ms)[:19]}Z on"
        f"{beyond}"
    )


# -- what people see -------------------------------------------------------------------------------------


def show_comparison(result: Result) -> None:
    """Print a comparison for people, within 80 columns."""
    out, (one, other) = console(), result.parts
    if not result.events:
        return
    span = seconds((result.to_ms - result.from_ms) / 1000)
    out.print(f"{result.events} events, {result.calls} calls, {span} from {rfc3339(result.from_ms)[:16]} UTC")
    made = plain_table("", one.name, other.name)
    out.print(rows(made, _lines(result, one, other)))
    for line in _difference(result.first_difference, one, other):
        out.print(line)
    if result.rows:
        made = plain_table("provider", "model", f"held: {one.name} / {other.name}", "dead", "good")
        out.print(rows(made, map(_row, result.rows[:ROWS_SHOWN])))
        if (more := len(result.rows) - ROWS_SHOWN) > 0:
            out.print(f"({more} more; --json and --html have them)")


def _lines(result: Result, one: Part, other: Part) -> list[tuple[str, str, str]]:
    lines = [
        ("holds", str(one.holds), str(other.holds)),
        ("  by rule", _rules(one), _rules(other)),
        ("time held", seconds(one.held_ms / 1000), seconds(other.held_ms / 1000)),
        ("dead calls avoided", str(one.calls.dead), str(other.calls.dead)),
        ("good calls refused", str(one.calls.good), str(other.calls.good)),
        ("  of those that tell", _share(one), _share(other)),
        ("caller's own refused", str(one.calls.neutral), str(other.calls.neutral)),
    ]
    if one.calls.unsure or other.calls.unsure:
        lines.append(("  of unknown length", str(one.calls.unsure), str(other.calls.unsure)))
    if result.refused:
        lines += [
            ("refused in the history", str(result.refused), str(result.refused)),
            ("  and here", str(one.also_refused), str(other.also_refused)),
            ("  made here instead", str(one.let_through.calls), str(other.let_through.calls)),
            ("  of them good", _estimate(one.let_through), _estimate(other.let_through)),
        ]
    return lines


def _rules(part: Part) -> str:
    return ", ".join(f"{rule} {count}" for rule, count in part.rules.items()) or "-"


def _share(part: Part) -> str:
    found = part.kept_back
    if found.share is None:
        return "-"
    return f"{found.share:.1%} ({found.low:.1%} to {found.high:.1%})"


def _estimate(found: Unanswered) -> str:
    if not found.calls:
        return "-"
    blind = f", {found.blind} blind" if found.blind else ""
    return f"about {found.good:.0f} ({found.low:.0f} to {found.high:.0f}{blind})"


def _difference(first: FirstDifference | None, one: Part, other: Part) -> list[str]:
    if first is None:
        return ["both conclude the same from every event"]
    status = f" ({first.status})" if first.status is not None else ""
    head = (
        f"first difference: sequence {first.seq}, {rfc3339(first.time_ms)[:19]}Z, {first.event}{status}"
        + (f" from {first.replica}" if first.replica else "")
        + f", {first.provider} {first.model or ''}".rstrip()
    )
    says = [
        f"  {part.name}: {'; '.join(said) or 'nothing'}" for part, said in zip((one, other), first.says, strict=True)
    ]
    return [head, *says]


def _row(row: ComparedScope) -> tuple[str, str, str, str, str]:
    one, other = row.parts
    return (
        row.provider,
        row.model or f"(the whole {'host' if row.scope.count('.') == 0 else 'credential'})",
        f"{seconds(one.held_ms / 1000)} / {seconds(other.held_ms / 1000)}",
        f"{one.calls.dead} / {other.calls.dead}",
        f"{one.calls.good} / {other.calls.good}",
    )
