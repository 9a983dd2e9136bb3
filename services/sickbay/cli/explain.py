"""The command that tells why: explain, now or at a place in the log's past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer
from nats.aio.client import Client
from rich.console import Group, RenderableType

from sickbay_events import Scope, Target, rfc3339
from sickbay_projections import Fleet

from ..bus.connect import PermissionDenied
from ..control.acts import scope_of
from ..invalid import InvalidValue
from ..log.folding import TO_THE_END, Bound
from ..log.transitions import warnings_of
from ..replay.past import PastView, state_at
from ..replay.replica import seen_by
from ..replay.story import Step, trace
from ..service.rpc import documents_around
from .base import (
    AsJson,
    DataFolder,
    NatsUrl,
    Provider,
    connected,
    console,
    line,
    plain_table,
    print_json,
    provider_name,
    rows,
    run,
    seconds,
)
from .look import ask, held_table, scope_cells
from .places import place_of
from .progress import progress
from .sentences import WARNINGS_MAX, sentences, warning_line

STEPS_MAX: Final = 20


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(explain)


def explain(
    provider: Provider,
    model: Annotated[str | None, typer.Argument(help="Model id; without it the host as a whole.")] = None,
    *,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="As it was at this log time: '2 hours ago'.")] = None,
    seq: Annotated[int | None, typer.Option(min=1, metavar="N", help="As it was after this log sequence.")] = None,
    replica: Annotated[
        list[str] | None, typer.Option(help="Also why this router skips it, or not; repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many of the newest events to show at most.")] = STEPS_MAX,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Show why a target is held or not: its state, the rule, and the very events in the log that led to it.

    Example: sickbay explain openrouter.ai z-ai/glm-5.3 --at '2 hours ago' --replica router-2
    """
    name = provider_name(provider)
    scope = scope_of(name, model)
    if at is not None and seq is not None:
        raise InvalidValue("--at, --seq", f"{at}, {seq}", "one of the two")
    if replica and model is None:
        raise InvalidValue("--replica", replica[0], "a replica together with a model")

    async def work() -> Explanation:
        async with connected(nats, data) as client:
            if at is None and seq is None and not replica:
                question = {"provider": name, "model": model, "near": True}
                state = await ask(client, "sickbay.v1.explain", question)
                warnings = await warnings_of(client, scope, state["at"]) if state is not None else []
                try:
                    return Explanation(state, await trace(client, scope), warnings=warnings)
                except PermissionDenied as error:
                    if state is None:
                        raise
                    return Explanation(state, [], denied=str(error), warnings=warnings)
            bound = await place_of(client, at) if at is not None else Bound(seq=seq) if seq else TO_THE_END
            return await told_of_then(client, scope, bound, tuple(replica or ()))

    explanation = run(work())
    story = explanation.steps[-limit:]
    if as_json:
        facts = {
            "scope": scope.key,
            "state": explanation.state,
            "events": msgspec.to_builtins(story),
            "warnings": explanation.warnings,
        }
        past = {"base": explanation.base, "replicas": explanation.replicas} if explanation.base is not None else {}
        denied = {"denied": explanation.denied} if explanation.denied else {}
        print_json({**facts, **past, **denied})
        return
    out = console()
    if explanation.base is not None:
        for text in _shown_place(explanation):
            out.print(text)
    out.print(_shown_state(explanation.state, scope.provider, model))
    for warning in explanation.warnings[:WARNINGS_MAX]:
        out.print(warning_line(warning))
    for seen in explanation.replicas:
        out.print(_shown_replica(seen))
    if story:
        cells = [(s.seq, rfc3339(s.time_ms)[11:23], s.replica, s.what, s.effect) for s in story]
        out.print(rows(plain_table("seq", "time", "from", "event", "effect"), cells))
    elif explanation.denied:
        out.print(f"the events are for an operator's user: {explanation.denied}")
    else:
        out.print("the log has no event of it that changed anything")


class Explanation(NamedTuple):
    """What there is to tell. `base` says what a state of the past was folded from, None for the services' own."""

    state: dict[str, Any] | None
    steps: list[Step]
    base: dict[str, Any] | None = None
    replicas: tuple[dict[str, Any], ...] = ()
    denied: str = ""
    """Why the events are missing: a NATS user that only looks may read the state, but not the log."""
    warnings: Sequence[dict[str, Any]] = ()
    """The last 24 hours' warnings; none for a state of the past."""


async def told_of_then(client: Client, scope: Scope, bound: Bound, replicas: tuple[str, ...]) -> Explanation:
    """State, story and replicas at a place in the log. Raises `OutOfReach`, `BusError`."""
    with progress("folding") as shown:
        past = await state_at(client, bound, shown)
    fleet = past.fleet
    at_ms = bound.time_ms if bound.time_ms is not None else await _asked_ms(client, bound, fleet)
    target = None if scope.model is None else Target(scope.provider, scope.model)
    state = documents_around(fleet, scope, at_ms)
    seen = [await seen_by(client, target, name, fleet, at_ms) for name in replicas if target is not None]
    return Explanation(state, await trace(client, scope, fleet.seq), base_facts(past, at_ms), tuple(seen))


async def _asked_ms(client: Client, bound: Bound, fleet: Fleet) -> int:
    """Asked-at: the time of the event a sequence names; now where nothing was named."""
    return fleet.time_ms if bound.seq is not None else (await place_of(client, "now")).time_ms or fleet.time_ms


def base_facts(past: PastView, at_ms: int) -> dict[str, Any]:
    """Where a state of the past comes from, and what it lacks."""
    return {
        "at": rfc3339(at_ms),
        "seq": past.fleet.seq,
        "begins": past.base.begins,
        "from_seq": past.base_seq,
        "folded": past.folded,
        "is_whole": not past.base.note,
        "note": past.base.note,
    }


def _shown_place(explanation: Explanation) -> list[str]:
    base = explanation.base or {}
    begins = {"snapshot": f"the snapshot at {base['from_seq']}", "beginning": "the log's beginning"}
    source = begins.get(base["begins"], "the first event that the log still has")
    head = f"as it was at {base['at'][:23]}Z, log sequence {base['seq']} (from {source} and {base['folded']} events)"
    return [head, f"not whole: {base['note']}"] if base["note"] else [head]


def _shown_replica(seen: dict[str, Any]) -> Group:
    """Why this replica may call it, or not."""
    cluster, overlay, ramp = seen["cluster"], seen["overlay"], seen["ramp"]
    lines = [f"{seen['replica']} {'may call it' if seen['allowed'] else 'skips it'}"]
    lines.append(f"  told by the cluster   {_decided(cluster)}")
    if ramp is not None:
        small = "" if ramp["replicas"] >= ramp["counts_from_replicas"] else "; too few replicas for a ramp"
        place = f"{ramp['place_percent']:.0f} % of the ring: in from {ramp['in_from'][11:19]}"
        lines.append(f"  place in the ramp     {place}{small}")
    lines.append(f"  by its own outcomes   {_decided(overlay)}, {overlay['outcomes']} outcomes of it")
    refused, skipped = seen["refused"][-3:], seen["skipped"][-3:]
    lines += [f"  it said at {fact['seq']}: {fact['count']} calls refused by {fact['rule']}" for fact in refused]
    lines += [f"  it said at {fact['seq']}: skipped in a chain, {fact['reason']}" for fact in skipped]
    return Group(*map(line, lines))


def _decided(decision: dict[str, Any]) -> str:
    if decision["allowed"]:
        return "on probation: one trial is wanted" if decision["trial"] else "nothing holds it"
    return f"{decision['reason']} for another {seconds(decision['retry_in_s'])} (since {decision['began_seq']})"


def _shown_state(found: dict[str, Any] | None, provider: str, model: str | None) -> RenderableType:
    name = f"{provider} {model}" if model else provider
    if found is None:
        return line(f"{name}: no service answers, so only the events are shown")
    lines: list[RenderableType] = []
    decision = found.get("decision")
    if decision is not None:
        word = "may be called" if decision["allowed"] else f"is held for another {seconds(decision['retry_in_s'])}"
        why = decision["reason"] if decision["reason"] != "ok" else "no rule holds it"
        trial = ", on probation: one trial is wanted" if decision["allowed"] and decision["trial"] else ""
        lines.append(line(f"{name} {word}: {why}{trial} (log sequence {found['seq']})"))
    told = [scope for scope in [*found["scopes"], *found.get("below", [])] if _tells(scope)]
    cells = [cell for scope in told for cell in scope_cells(scope)]
    if cells:
        lines.append(held_table(cells, console().width))
    elif decision is None:
        known = "nothing of it is held" if found.get("known", found["scopes"]) else "nothing is known of it"
        lines.append(line(f"{name}: {known}{_meant(found)}"))
    elif not found.get("known", True):
        lines.append(line(f"nothing is known of {name}{_meant(found)}"))
    for scope in found["scopes"]:
        lines += [line(text) for text in sentences(scope)]
    return Group(*lines)


def _meant(found: dict[str, Any]) -> str:
    near = [f"{provider} {model or ''}".rstrip() for provider, model in found.get("near", [])]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _tells(scope: dict[str, Any]) -> bool:
    return bool(scope["holds"] or scope["operator"] or scope.get("alone"))
