"""The command that folds a log again: replay."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import typer
from nats.aio.client import Client

from sickbay_events import DerivedEvent, HealthChanged, Policy, Released, TargetHeld, WarningRaised, rfc3339
from sickbay_projections import FOLD_VERSION, Fleet

from ..invalid import InvalidValue
from ..log.file import LogFile
from ..log.folding import TO_THE_END, Bound, Folding, InspectAt, fold_file
from ..replay.past import Base, find_base, fold_live, log_now
from ..replay.questions import ReplayQuestions, read_questions
from ..replay.spool import DerivedSpool
from .base import (
    AsJson,
    DataFolder,
    NatsUrl,
    connected,
    console,
    error_console,
    json_text,
    plain_table,
    rows,
    run,
    seconds,
)
from .compare import LIVE, Asked, compare
from .look import held_table, scope_cells
from .places import place_of
from .progress import progress

_PLACE: Final = "SEQ|TIME"


AsksFile: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Questions, a JSON object a line: at, provider, model, replica.")
]
Against: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Compare with this policy, or with none, default, log; likewise --policy."),
]
Html: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the comparison as a page with timelines.")
]


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("replay")(replay_command)


def replay_command(
    source: Annotated[str, typer.Argument(help="live, or a log file as `sickbay export` writes it; - is stdin.")],
    *,
    first: Annotated[str | None, typer.Option("--from", metavar=_PLACE, help="Show what follows from here on.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar=_PLACE, help="Fold up to here.")] = None,
    at: Annotated[str | None, typer.Option(metavar=_PLACE, help="Show what was held here.")] = None,
    asks: AsksFile = None,
    policy: Annotated[str | None, typer.Option(metavar="FILE", help="Policy until the log brings its own.")] = None,
    against: Against = None,
    html: Html = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Fold a log again and show what follows from it: holds, releases, the state's digest, answers to questions.

    Example: sickbay replay live --from '2 hours ago' --json
    """
    if against is not None:
        if at is not None or asks is not None:
            raise InvalidValue("--against", against, "two policies and the whole log, without --at and --asks")
        compare(Asked(source, policy, against, first, last, nats, data), html=html, as_json=as_json)
        return
    if html is not None:
        raise InvalidValue("--html", str(html), "the page of a comparison: say with --against what to compare with")
    given = None if policy is None else Policy.from_toml(Path(policy).read_text(encoding="utf-8"))
    if at is not None and last is not None:
        raise InvalidValue("--at, --to", f"{at}, {last}", "one of the two")

    with DerivedSpool() as derived:

        async def live() -> Replay:
            async with connected(nats, data) as client:
                wanted = await _wanted(client, first, last or at, asks)
                return await replay_live(client, wanted, derived, at=at is not None, policy=given)

        if source == LIVE:
            done = run(live())
        else:
            wanted = run(_wanted(None, first, last or at, asks))
            done = replay_file(Path(source), wanted, derived, at=at is not None, policy=given)
        for note in done.notes:
            error_console().print(f"sickbay: {note}", soft_wrap=True)
        write_json(done) if as_json else show_replay(done)


class ReplayRange(NamedTuple):
    """What of a log is wanted."""

    first: Bound
    last: Bound
    asks: ReplayQuestions | None


async def _wanted(client: Client | None, first: str | None, last: str | None, asks: Path | None) -> ReplayRange:
    places = [TO_THE_END if text is None else await place_of(client, text) for text in (first, last)]
    now = await place_of(client, "now") if asks is not None else TO_THE_END
    return ReplayRange(places[0], places[1], None if asks is None else read_questions(asks, now_ms=now.time_ms or 0))


class Replay(NamedTuple):
    """A log that was folded."""

    source: str
    folding: Folding
    derived: DerivedSpool
    took_s: float
    notes: list[str]
    """What a reader of the result must know: for stderr."""
    asks: ReplayQuestions | None
    at_ms: int | None
    """Log time of the state that is to be shown; None: none is."""
    cut: str | None = None
    begins: str = ""


def replay_file(
    path: Path, wanted: ReplayRange, derived: DerivedSpool, *, at: bool = False, policy: Policy | None = None
) -> Replay:
    """Fold a file. Raises `LogFileError`, `OSError`."""
    file = LogFile(path)
    folding = _folding(Fleet(policy or Policy()), wanted, derived)
    total = path.stat().st_size if path.is_file() else None
    began_s = time.monotonic()
    with progress(f"replay {path.name}", total) as shown:
        fold_file(file, folding, shown)
    notes = [f"{path}: {file.cut}"] if file.cut else []
    if folding.first_seq > 1:
        notes.append(f"{path} begins at sequence {folding.first_seq}: what came before is in no count here")
    if not folding.events:
        notes.append(f"{path} has no events")
    took_s = time.monotonic() - began_s
    at_ms = _at_ms(wanted.last, folding.fleet) if at else None
    return Replay(str(path), folding, derived, took_s, notes + _unread(folding), wanted.asks, at_ms, file.cut)


async def replay_live(
    client: Client, wanted: ReplayRange, derived: DerivedSpool, *, at: bool = False, policy: Policy | None = None
) -> Replay:
    """Fold the live log. Raises `OutOfReach`, `BusError`."""
    log = await log_now(client)
    base = await _base(client, log, wanted, at=at, policy=policy)
    folding = _folding(base.fleet, wanted, derived)
    total = max(0, min(log.last_seq, wanted.last.seq or log.last_seq) - max(base.fleet.seq, log.first_seq - 1))
    began_s = time.monotonic()
    with progress("replay", None if wanted.last.time_ms is not None else total) as shown:
        await fold_live(client, folding, base, log, shown)
    took_s = time.monotonic() - began_s
    notes = [base.note] if base.note else []
    if not log.last_seq:
        notes.append("the log has no events")
    at_ms = _at_ms(wanted.last, folding.fleet) if at else None
    return Replay(LIVE, folding, derived, took_s, notes + _unread(folding), wanted.asks, at_ms, begins=base.begins)


async def _base(client: Client, log: Any, wanted: ReplayRange, *, at: bool, policy: Policy | None) -> Base:
    """What to begin from: as near as what is wanted lets, or from the log's beginning where all of it is."""
    if policy is not None:
        return Base(Fleet(policy), 0, "beginning" if log.first_seq <= 1 else "trimmed")
    earliest_ms = wanted.asks.earliest_ms if wanted.asks is not None else None
    if wanted.first == TO_THE_END and earliest_ms is None and not at:
        return await find_base(client, log, wanted.last, oldest=True)
    places = [bound for bound in (wanted.first, wanted.last if at else TO_THE_END) if bound != TO_THE_END]
    if earliest_ms is not None:
        places.append(Bound(time_ms=earliest_ms))
    # The nearest snapshot that lies before all of them.
    bases = [await find_base(client, log, place) for place in places]
    return min(bases, key=lambda base: base.fleet.seq)


def _folding(fleet: Fleet, wanted: ReplayRange, derived: DerivedSpool) -> Folding:
    derived.first_seq, derived.first_ms = wanted.first.seq or 0, wanted.first.time_ms or 0
    looks: list[InspectAt] = wanted.asks.looks() if wanted.asks is not None else []
    return Folding(fleet, end=wanted.last, looks=looks, told=derived.append)


def _at_ms(last: Bound, fleet: Fleet) -> int:
    return last.time_ms if last.time_ms is not None else fleet.time_ms


def _unread(folding: Folding) -> list[str]:
    found = folding.poison["version"]
    return [f"{found} events are of a later version than this one reads and were passed over"] if found else []


# -- what people see -------------------------------------------------------------------------------------


def show_replay(done: Replay) -> None:
    """Print a replay for people."""
    out, folding, derived = console(), done.folding, done.derived
    fleet = folding.fleet
    if done.at_ms is not None:
        documents = [fleet.document(key, done.at_ms) for key, _ in fleet.entries()]
        cells = [cell for document in documents if document is not None for cell in scope_cells(document)]
        out.print(f"held at {rfc3339(done.at_ms)[:23]}Z, log sequence {fleet.seq}:" + ("" if cells else " nothing"))
        if cells:
            out.print(held_table(cells, console().width))
    elif done.asks is None and derived.newest:
        if (earlier := sum(derived.counts.values()) - derived.counts["health"] - len(derived.newest)) > 0:
            out.print(f"({earlier} earlier ones are not shown; --json has them all)")
        out.print(
            rows(plain_table("seq", "time", "what", "provider", "model", "until"), _transition_cells(derived.newest))
        )
    if done.asks is not None:
        out.print(
            rows(plain_table("at", "provider", "model", "replica", "answer", "left", "seq"), _answer_cells(done.asks))
        )
    numbers = [f"{folding.events} events up to sequence {fleet.seq}"]
    if unread := sum(folding.poison.values()):
        numbers.append(f"{unread} unreadable")
    if folding.gaps:
        numbers.append(f"{folding.gaps} missing")
    counted = {"held": "holds", "released": "releases", "warning": "warnings", "health": "changes of health"}
    numbers += [f"{derived.counts[name]} {word}" for name, word in counted.items() if derived.counts[name]]
    rate = f" in {seconds(done.took_s)} ({folding.events / done.took_s:,.0f} a second)" if done.took_s > 0.5 else ""
    out.print(f"{', '.join(numbers)}{rate}; digest {fleet.digest()}")


def _transition_cells(events: Iterable[DerivedEvent]) -> Iterator[tuple[object, ...]]:
    for event in events:
        until = rfc3339(event.end_ms)[11:19] if isinstance(event, TargetHeld) else ""
        yield (
            event.cause_seq,
            rfc3339(event.time_ms)[11:23],
            _word(event),
            event.scope.provider,
            event.scope.model or "",
            until,
        )


def _word(event: DerivedEvent) -> str:
    if isinstance(event, TargetHeld):
        alone = f" for {event.replica} alone" if event.replica else ""
        return f"held by {event.rule}{alone}" + ("" if event.enforced else " (shadow)") + _actor(event)
    if isinstance(event, Released):
        return f"released ({event.rule}) by {event.by}{_actor(event)}"
    if isinstance(event, HealthChanged):
        return f"{event.new}, was {event.old}"
    if isinstance(event, WarningRaised):
        return f"warns: {event.rule} {event.signature or event.replica or ''}".strip()
    return event.rule


def _actor(event: TargetHeld | Released) -> str:
    """Who did it, if an operator did."""
    return f", {event.actor}: {event.reason}" if event.actor else ""


def _answer_cells(asks: ReplayQuestions) -> Iterator[tuple[object, ...]]:
    for found in asks.answers:
        left = seconds(found["retry_in_s"]) if not found["allowed"] else ""
        answer = ("yes" if found["allowed"] else "no") + f", {found['reason']}" + (", trial" if found["trial"] else "")
        yield found["at"][:23], found["provider"], found["model"], found["replica"], answer, left, found["seq"]


# -- what machines read ----------------------------------------------------------------------------------


def write_json(done: Replay) -> None:
    """Print a replay as one JSON document; the long lists go out as they come."""
    out = sys.stdout
    out.write(json_text(replayed_facts(done), indent=2)[:-2])
    _write_list("holds", (hold_fact(fact) for fact in done.derived.facts() if fact["type"] == "held"))
    _write_list("transitions", done.derived.facts())
    out.write("\n}\n")


def _write_list(name: str, facts: Iterable[dict[str, Any]]) -> None:
    out = sys.stdout
    out.write(f',\n  "{name}": [')
    for number, fact in enumerate(facts):
        out.write(",\n    " if number else "\n    ")
        out.write(json_text(fact))
    out.write("]")


def replayed_facts(done: Replay) -> dict[str, Any]:
    """What `replay --json` prints, but `holds` and `transitions`."""
    folding = done.folding
    fleet = folding.fleet
    facts: dict[str, Any] = {
        "source": done.source,
        "events": folding.events,
        "first_seq": folding.first_seq,
        "seq": fleet.seq,
        "time": rfc3339(fleet.time_ms),
        "fold_version": FOLD_VERSION,
        "policy_seq": fleet.policy_seq,
        "digest": fleet.digest(),
        "gaps": folding.gaps,
        "poison": dict(folding.poison),
        "counts": dict(done.derived.counts),
        "took_s": round(done.took_s, 3),
        "cut": done.cut,
        "notes": done.notes,
    }
    if done.begins:
        facts["begins"] = done.begins
    if done.at_ms is not None:
        facts["at"] = rfc3339(done.at_ms)
        facts["scopes"] = [fleet.document(key, done.at_ms) for key, _ in fleet.entries()]
    if done.asks is not None:
        facts["answers"] = done.asks.answers
    return facts


def hold_fact(held: TargetHeld | dict[str, Any]) -> dict[str, Any]:
    """A hold by what names it and by its end: equal live and in a replay."""
    if isinstance(held, TargetHeld):
        scope, names = held.scope.key, {name: getattr(held, name) for name in _NAMES}
    else:
        scope, names = held["scope"], {name: held[name] for name in _NAMES}
    return {"scope": scope, **names}


_NAMES: Final = ("rule", "began_seq", "cause_seq", "end_ms")
