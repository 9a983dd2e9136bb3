"""Rule 4.1 twice: the fold against a naive model that keeps every event in a list and looks back through it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules import alone
from sickbay_events import CallAnswered, CallOutcome, Lease, Policy, Released, Target, TargetHeld
from sickbay_projections import Fleet, Recorded

START_MS = 1_700_000_000_000
TEN_MIN_MS = 600_000
HOUR_MS = 3_600_000
TARGET = Target("h", "m")
REJECTIONS = ("model_unavailable", "permission_model")
ANSWERS = ("ok", "answered", "empty_output", "malformed_output", "mangled_output")
NEUTRAL = ("bad_request", "unknown", "content_filter")
OTHERS = ("server_error", "rate_limited", "auth")
ALONE = Policy.from_data(alone("quarantine"))
"""Other rules are folded and told, and change no decision."""


class Naive:
    """One target under the default policy. Every question is answered by walking back through `events`."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.holds: list[dict[str, Any]] = []
        self.since = 0
        """Index of the first event after the newest hold began: nothing before it is a strike any more."""
        self.told: list[tuple[Any, ...]] = []

    def current(self, at_ms: int) -> dict[str, Any] | None:
        hold = self.holds[-1] if self.holds else None
        if hold is None or hold["lifted"] is not None:
            return None
        over_ms = max([hold["end"], *hold["evidence"]]) + HOUR_MS
        return hold if at_ms < over_ms else None

    def is_after(self, event: dict[str, Any]) -> bool:
        if not self.holds:
            return True
        hold = self.holds[-1]
        if hold["name"] in event["leases"]:
            return True
        if event["seen"] is not None and event["seen"] < event["seq"]:
            return bool(event["seen"] >= hold["name"])
        took_ms = 120_000 if event["took"] is None or event["kind"] == "answered" else event["took"]
        denied_until = hold["end"] if hold["lifted"] is None else min(hold["end"], hold["lifted"])
        return bool(event["at"] - took_ms >= denied_until)

    def strikes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for event in reversed(self.events[self.since :]):
            if event["clears"]:
                break
            if event["strike"]:
                if found and found[-1]["at"] - event["at"] >= TEN_MIN_MS:
                    break
                found.append(event)
        return found

    def live_strikes(self, at_ms: int) -> list[dict[str, Any]]:
        strikes = self.strikes()
        return strikes if strikes and at_ms - strikes[0]["at"] < TEN_MIN_MS else []

    def has_word(self, replica: str, at_ms: int) -> bool:
        """Whether the replica saw the like within ten minutes and had no good answer after it."""
        for event in reversed(self.events[self.since :]):
            if event["replica"] == replica and event["good"]:
                return False
            if event["replica"] == replica and event["strike"]:
                return bool(at_ms - event["at"] < TEN_MIN_MS)
        return False

    def alone(self, at_ms: int) -> str | None:
        """The replica that lately reached the threshold alone, unless it had a good answer of its own since."""
        good = set[str]()
        for event in reversed(self.events[self.since :]):
            if event["alone"]:
                old = at_ms - event["at"] >= TEN_MIN_MS
                return None if old or event["replica"] in good else str(event["replica"])
            if event["good"]:
                good.add(event["replica"])
        return None

    def step(self, event: dict[str, Any]) -> None:
        at_ms, kind = event["at"], event["kind"]
        stale = event["queued"] > TEN_MIN_MS
        void = stale or (event["forced"] and kind not in ("ok", "answered"))
        hold = self.current(at_ms)
        event["clears"] = kind in ANSWERS and not void
        event["good"] = kind in ("ok", "answered") and not void
        event["strike"] = event["alone"] = False
        self.events.append(event)
        if void:
            pass
        elif kind in REJECTIONS:
            self.rejected(event, hold)
        elif hold is not None and event["clears"] and self.is_after(event):
            hold["lifted"] = at_ms
            self.told.append(("released", event["seq"], hold["name"]))
        elif hold is not None and at_ms >= hold["end"] and hold["name"] in event["leases"]:
            hold["neutral"] = hold["neutral"] + 1 if kind in NEUTRAL else 0
            if hold["neutral"] == 3:
                self.begin(event)
        hold = self.current(at_ms)
        if hold is not None and at_ms >= hold["end"] and kind not in NEUTRAL:
            hold["evidence"].append(at_ms)

    def rejected(self, event: dict[str, Any], hold: dict[str, Any] | None) -> None:
        at_ms, replica = event["at"], event["replica"]
        if hold is not None and at_ms < hold["end"]:
            hold["early"] = hold["early"] and hold["name"] not in event["leases"]
            return
        if not self.is_after(event):
            return
        if hold is not None and hold["name"] in event["leases"]:
            hold["neutral"] = 0
        alone = self.alone(at_ms)
        event["strike"] = True
        if alone is not None and alone != replica:
            self.begin(event, early=self.is_early())
            return
        strikes = self.strikes()
        if len(strikes) < 2:
            return
        others = {each["replica"] for each in self.events} - {replica}
        if any(each["replica"] != replica for each in strikes) or any(self.has_word(name, at_ms) for name in others):
            self.begin(event, early=self.is_early())
            return
        plain = [each for each in strikes if each["kind"] == "model_unavailable"]
        lately = [each for each in self.events if at_ms - each["at"] < TEN_MIN_MS and each["replica"] != replica]
        if any(each["good"] for each in lately) if len(plain) >= 2 else bool(lately):
            event["alone"] = True
        else:
            self.begin(event, early=self.is_early())

    def is_early(self) -> bool:
        """Whether an answer lay in the minute before the first of the strikes that count now."""
        strikes = self.strikes()
        if not strikes:
            return False
        first = strikes[-1]
        before = self.events[: self.events.index(first)]
        good_ms = max([each["at"] for each in before if each["good"]], default=0)
        return bool(good_ms and first["at"] - good_ms < 60_000)

    def begin(self, event: dict[str, Any], *, early: bool = False) -> None:
        self.holds.append(
            {
                "name": event["seq"],
                "end": event["at"] + TEN_MIN_MS,
                "lifted": None,
                "evidence": [],
                "neutral": 0,
                "early": early,
            }
        )
        self.since = len(self.events)
        self.told.append(("held", event["seq"], event["at"] + TEN_MIN_MS))

    def decide(self, at_ms: int) -> tuple[bool, bool, float]:
        hold = self.current(at_ms)
        if hold is None:
            return True, False, 0.0
        held = at_ms < hold["end"]
        return not held, hold["early"] if held else True, (hold["end"] - at_ms) / 1000 if held else 0.0


def recorded(event: dict[str, Any]) -> Recorded:
    fields: dict[str, Any] = {
        "seen_seq": event["seen"],
        "queued_ms": event["queued"],
        "trial": [Lease("quarantine", name) for name in event["leases"]] or None,
    }
    body: Any
    if event["kind"] == "answered":
        body = CallAnswered(**fields)
    else:
        body = CallOutcome(kind=event["kind"], took_ms=event["took"], forced=event["forced"], **fields)
    return Recorded(body, target=TARGET, replica=event["replica"], seq=event["seq"], time_ms=event["at"])


def compare(events: list[dict[str, Any]]) -> Naive:
    naive, fleet, told = Naive(), Fleet(ALONE), list[tuple[Any, ...]]()
    for event in events:
        naive.step(event)
        for derived in fleet.apply(recorded(event)):
            if derived.rule != "quarantine":
                continue
            if isinstance(derived, TargetHeld) and derived.replica is None:
                told.append(("held", derived.began_seq, derived.end_ms))
            elif isinstance(derived, Released):
                told.append(("released", derived.cause_seq, derived.began_seq))
        assert told == naive.told, event
        at_ms = event["at"]
        for ahead_ms in (0, 1, TEN_MIN_MS - 1, TEN_MIN_MS, HOUR_MS, TEN_MIN_MS + HOUR_MS - 1, TEN_MIN_MS + HOUR_MS):
            decision = fleet.decide(TARGET, at_ms + ahead_ms)
            expected = naive.decide(at_ms + ahead_ms)
            assert (decision.allowed, decision.trial, decision.retry_in_s) == expected, (event, ahead_ms)
        document = fleet.document(TARGET.key, at_ms)
        assert document is not None
        assert document["strikes"] == len(naive.live_strikes(at_ms))
    return naive


@st.composite
def events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A log of one target, with steps around every limit of the rules."""
    found, at_ms = list[dict[str, Any]](), START_MS
    steps = st.sampled_from([0, 1, 1000, 59_999, 60_000, 120_000, 599_999, TEN_MIN_MS, 700_000, HOUR_MS - 1, HOUR_MS])
    kinds = st.sampled_from([*REJECTIONS * 4, *ANSWERS, *NEUTRAL, *OTHERS])
    for seq in range(1, draw(st.integers(1, 25)) + 1):
        at_ms += draw(steps)
        found.append(
            {
                "seq": seq,
                "at": at_ms,
                "kind": draw(kinds),
                "replica": draw(st.sampled_from(["r1", "r1", "r2", "r3"])),
                "seen": draw(st.one_of(st.none(), st.integers(max(0, seq - 4), seq))),
                "leases": draw(st.lists(st.integers(max(1, seq - 4), seq), max_size=2)),
                "took": draw(st.sampled_from([None, 0, 1000, 599_999])),
                "queued": draw(st.sampled_from([0, 0, 0, 0, TEN_MIN_MS, TEN_MIN_MS + 1])),
                "forced": draw(st.sampled_from([False, False, False, True])),
            }
        )
    return found


@settings(max_examples=150, deadline=None)
@given(events())
def test_the_fold_agrees_with_the_model_on_any_log(log: list[dict[str, Any]]) -> None:
    compare(log)


@pytest.mark.parametrize("seed", range(30))
def test_the_fold_agrees_with_the_model_on_long_logs(seed: int) -> None:
    """A seeded history of 300 events in which holds, lone words and lifts really happen."""
    rng = random.Random(seed)
    at_ms, log = START_MS, list[dict[str, Any]]()
    for seq in range(1, 301):
        at_ms += rng.choice([0, 1000, 5000, 30_000, 60_000, 200_000])
        log.append(
            {
                "seq": seq,
                "at": at_ms,
                "kind": rng.choice([*REJECTIONS * 3, "ok", *ANSWERS, *NEUTRAL, *OTHERS]),
                "replica": rng.choice(["r1", "r1", "r2", "r3"]),
                "seen": rng.choice([None, seq - 1, seq - 1, max(0, seq - 8), seq + 1]),
                "leases": [seq - rng.randrange(1, 10)] if rng.random() < 0.3 else [],
                "took": rng.choice([None, 0, 2000]),
                "queued": 0,
                "forced": rng.random() < 0.05,
            }
        )
    naive = compare(log)
    assert len([told for told in naive.told if told[0] == "held"]) > 3
    assert any(told[0] == "released" for told in naive.told)
