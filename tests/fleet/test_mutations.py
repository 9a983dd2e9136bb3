"""Whoever takes a rule out of the product is caught: each rule is switched off in turn, and the simulator's checker
says so within a few seeds (`sim`). The rules are replaced from outside; the product has no switches for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from sickbay.bus.topology import GATE_PREFIX
from sickbay.projector.writer import GateWriter, _encode
from sickbay.service.leases import Leases, _subject
from sickbay_events.view import CHECKPOINT_KEY
from sickbay_projections import decide, fold
from sickbay_projections.rules import holds, scopes, scoring
from sickbay_projections.state import points
from sim.history import run
from waiting import patience

SEEDS = 60


class Mutation(NamedTuple):
    """`where` and `name` of what is replaced by `by(what it was)`, the faults that bring it out, and words of which the
    checker must say one. `seed`: where the search begins, near a history that brings it out."""

    where: Any
    name: str
    by: Callable[[Any], Any]
    faults: tuple[str, ...]
    says: tuple[str, ...]
    seed: int = 1


def _without(*dropped: str) -> Callable[[Any], Any]:
    """`Leases._put`, to whose headers something does not come."""

    def mutate(_put: Any) -> Any:
        async def put(self: Leases, name: Any, data: bytes, ttl: str, expected: int, more: Any = None) -> int:
            headers = {"Nats-Expected-Last-Subject-Sequence": str(expected), "Nats-TTL": ttl, **(more or {})}
            kept = {key: value for key, value in headers.items() if key not in dropped}
            reply = await self._client.request(_subject(name), data, timeout=patience(2.0), headers=kept)
            return int(json.loads(reply.data).get("seq", 0))

        return put

    return mutate


def _claim_blindly(_put_checkpoint: Any) -> Any:
    """The checkpoint's put without its compare."""

    async def put(self: GateWriter, checkpoint: Any, _expected: int) -> Any:
        return await self._publisher.publish(GATE_PREFIX + CHECKPOINT_KEY, _encode(checkpoint), {})

    return put


MUTATIONS: dict[str, Mutation] = {
    "the seen_seq check": Mutation(
        holds, "is_after", lambda _: lambda *_: True, ("slow_network", "paused_replica"), ("by what is not after it",)
    ),
    "the checkpoint claim before writing": Mutation(
        GateWriter,
        "fresh",
        lambda _: property(lambda self: self.is_writer),
        ("sleeping_projector",),
        ("without having claimed the checkpoint",),
    ),
    "the mending of the view": Mutation(
        GateWriter, "_judge", lambda _: lambda *_: None, ("lie_in_the_bucket",), ("not well", "no rest")
    ),
    "the two-witness rule": Mutation(
        scopes,
        "has_other_good",
        lambda _: lambda *_: False,
        ("lying_replica", "broken_uplink"),
        ("alone, while",),
        10,
    ),
    "whose word": Mutation(
        scoring, "_word", lambda _: lambda *_: "", ("lying_replica", "broken_uplink"), ("names nobody", "alone, while")
    ),
    "one word denies only its replica": Mutation(
        decide,
        "denies",
        lambda _: lambda hold, at_ms, _replica: at_ms < hold.end_ms,
        ("lying_replica", "broken_uplink"),
        ("rests on the word of",),
    ),
    "the points that are needed": Mutation(
        points, "needed", lambda _: lambda *_: 1, ("trouble",), ("with a record of", "rests on")
    ),
    "what it got over by itself": Mutation(
        points,
        "needed",
        lambda _: lambda least, *_: least,
        ("lying_replica", "broken_uplink", "trouble"),
        ("with a record of",),
        100,
    ),
    "answers take a point off": Mutation(
        points, "subtract", lambda _: lambda *_: False, ("lying_replica", "broken_uplink"), ("points of",)
    ),
    "the distances of trials": Mutation(
        scoring, "_distance_ms", lambda _: lambda *_: 1, ("trouble",), ("from the wrong time on",)
    ),
    "distances that double": Mutation(
        scoring,
        "_distance_ms",
        lambda _: lambda case, numbers, *_: numbers.first_ms,
        ("trouble",),
        ("from the wrong time on",),
    ),
    "a trial that tells nothing": Mutation(
        scoring, "told_nothing", lambda _: lambda *_: None, ("trouble",), ("as if",)
    ),
    "an answer ends a hold": Mutation(
        scoring, "end_hold", lambda _: lambda *_args, **_more: None, ("trouble",), ("does not end it", "not well")
    ),
    "growth per hold": Mutation(holds, "nth", lambda _: lambda *_: 1, ("trouble",), ("in a row",)),
    "growth forgotten": Mutation(holds, "nth", lambda nth: lambda *given: nth(*given) + 1, ("trouble",), ("in a row",)),
    "the lease expiry": Mutation(
        Leases, "_put", _without("Nats-TTL"), ("lost_lease",), ("after anybody had it", "not well")
    ),
    "the same-request rule": Mutation(fold, "is_repeat", lambda _: lambda *_: False, ("trouble",), ("rests on",), 36),
    "the compare-and-set of a lease": Mutation(
        Leases, "_put", _without("Nats-Expected-Last-Subject-Sequence"), ("trouble",), ("was given to",)
    ),
    "the compare-and-set of the checkpoint": Mutation(
        GateWriter,
        "_put_checkpoint",
        _claim_blindly,
        ("sleeping_projector",),
        ("took the checkpoint",),
        12,
    ),
    "the once rule": Mutation(
        fold, "is_first", lambda _: lambda *_: True, ("duplicates", "lost_acks"), ("are repeats", "folded before")
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_without_this_rule_the_checker_finds_a_history_that_breaks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few seeds, one is caught, and for the right reason."""
    rule = MUTATIONS[name]
    before = vars(rule.where)[rule.name]
    monkeypatch.setattr(rule.where, rule.name, rule.by(before))
    said: list[str] = []
    for seed in range(rule.seed, rule.seed + SEEDS):
        said += run(seed, rule.faults).broken
        if any(word in text for text in said for word in rule.says):
            print(f"caught at seed {seed}: {said[-1][:200]}")
            return
    pytest.fail(f"{name}: nothing in {SEEDS} seeds; the checker said {said[:3]}")


def test_with_all_rules_in_place_the_same_seeds_are_well() -> None:
    """What is caught above is the missing rule, and not the faults."""
    for faults, first in sorted({(rule.faults, rule.seed) for rule in MUTATIONS.values()}):
        for seed in range(first, first + 2):
            assert not run(seed, faults).broken, (seed, faults)
