"""Rule 4.2 and the credential strikes of 4.1 twice: the folds against a naive model that walks back through a list."""

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
MODELS = (Target("h#a", "m"), Target("h#a", "n"))
CREDENTIAL = MODELS[0].keys[1]
RULES = ("throttle", "credential")
ALONE = Policy.from_data(alone("throttle", "credential"))
GOOD = ("ok", "answered")
ANSWERS = (*GOOD, "empty_output")
NEUTRAL = ("bad_request", "unknown")
LIMITS = ("rate_limited", "quota")
KINDS = (*LIMITS * 3, "auth", "auth", *ANSWERS, *NEUTRAL, "server_error", "model_unavailable")


class Naive:
    """Two models of one credential under the default policy; every question walks back through `events`.

    A fleet of fewer than four replicas: three throttles are needed, and there is no ramp to see.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.holds: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.told: list[tuple[Any, ...]] = []

    # -- questions -------------------------------------------------------------------------------------

    def last(self, scope: str, rule: str) -> dict[str, Any] | None:
        found = self.holds.get((scope, rule), [])
        return found[-1] if found else None

    def over_ms(self, hold: dict[str, Any]) -> int:
        if hold["lifted"] is not None:
            return int(hold["lifted"])
        if hold["rule"] == "throttle":
            return int(hold["end"])
        return int(max([hold["end"], *hold["evidence"]])) + HOUR_MS

    def is_after(self, event: dict[str, Any], hold: dict[str, Any] | None) -> bool:
        if hold is None or (hold["rule"], hold["name"]) in event["leases"]:
            return True
        if event["seen"] is not None and event["seen"] < event["seq"]:
            return bool(event["seen"] >= hold["name"])
        took_ms = 120_000 if event["took"] is None or event["kind"] == "answered" else event["took"]
        ended_ms = hold["end"] if hold["lifted"] is None else min(hold["end"], hold["lifted"])
        return bool(event["at"] - took_ms >= ended_ms)

    def of_scope(self, scope: str) -> list[dict[str, Any]]:
        """Outcomes of this scope, newest first: a model's own, or those of all models of a credential."""
        return [each for each in reversed(self.events) if scope in (each["target"], CREDENTIAL)]

    def has_good(self, scope: str, at_ms: int, within_ms: int, *, but: str | None = None) -> bool:
        return any(
            each["kind"] in GOOD and each["queued"] <= TEN_MIN_MS and each["replica"] != but
            for each in self.of_scope(scope)
            if at_ms - each["at"] < within_ms
        )

    def likes(self, scope: str, kind: str, at_ms: int) -> set[str]:
        """Replicas that saw the like within ten minutes and had no good answer of this scope after it."""
        good, found = set[str](), set[str]()
        for each in self.of_scope(scope):
            if each["kind"] in GOOD and each["queued"] <= TEN_MIN_MS:
                good.add(each["replica"])
            if each["counted"] == (scope, kind) and at_ms - each["at"] < TEN_MIN_MS and each["replica"] not in good:
                found.add(each["replica"])
        return found

    def alone(self, scope: str, kind: str, at_ms: int) -> str | None:
        """The replica that lately reached the threshold alone, unless it was answered or all were held since."""
        good, newest = set[str](), None
        for each in self.of_scope(scope):
            if each["kind"] in GOOD and each["queued"] <= TEN_MIN_MS:
                good.add(each["replica"])
            if each["began"] == scope:
                break
            if each["alone"] == (scope, kind):
                newest = each
                break
        if newest is None or at_ms - newest["at"] >= TEN_MIN_MS or newest["replica"] in good:
            return None
        return str(newest["replica"])

    def pending(self, scope: str, at_ms: int) -> list[dict[str, Any]]:
        """Throttles of the last ten seconds with no answer and no beginning of a hold since."""
        found = list[dict[str, Any]]()
        for each in self.of_scope(scope):
            answered = each["kind"] in ANSWERS and each["queued"] <= 10_000 and not each["void"]
            if answered or each["began"] == scope or at_ms - each["at"] >= 10_000:
                break
            if each["counted"] is not None and each["counted"][0] == scope and each["queued"] <= 10_000:
                found.append(each)
        return found

    def strikes(self, scope: str) -> list[dict[str, Any]]:
        found = list[dict[str, Any]]()
        for each in self.of_scope(scope):
            if (each["kind"] in ANSWERS and not each["void"]) or each["refused"] == scope:
                break
            if each["strike"] == scope:
                if found and found[-1]["at"] - each["at"] >= TEN_MIN_MS:
                    break
                found.append(each)
        return found

    # -- steps -----------------------------------------------------------------------------------------

    def step(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        forced = event["forced"] and kind not in GOOD
        event["void"] = forced or event["queued"] > TEN_MIN_MS
        event.update(counted=None, alone=None, began=None, strike=None, refused=None)
        self.events.append(event)
        scopes = (event["target"], CREDENTIAL)
        standing = {rule: [self.last(scope, rule) for scope in scopes] for rule in RULES}
        if not event["void"]:
            if kind in ANSWERS:
                for rule in RULES:
                    for scope in scopes:
                        self.answered(event, scope, rule)
            for hold in standing["throttle"]:
                lease = ("throttle", hold["name"]) if hold else None
                if hold and lease in event["leases"] and event["at"] < self.over_ms(hold) and kind not in NEUTRAL:
                    hold["tried"] = event["at"]
            if kind in LIMITS:
                self.throttled(event, event["scope"] or ("model" if kind == "rate_limited" else "credential"))
            if kind == "auth":
                self.refused(event, event["scope"] or "credential")
            elif kind not in ANSWERS:
                for scope in scopes:
                    self.told_nothing(event, scope)
        for hold in standing["credential"]:
            if hold and kind not in NEUTRAL and hold["end"] <= event["at"] < self.over_ms(hold):
                hold["evidence"].append(event["at"])

    def answered(self, event: dict[str, Any], scope: str, rule: str) -> None:
        hold = self.last(scope, rule)
        if hold is None or not self.is_after(event, hold):
            return
        hold["answered"] = True
        if event["at"] < self.over_ms(hold):
            hold["lifted"] = event["at"]
            self.told.append(("released", event["seq"], scope, rule, hold["name"]))

    def throttled(self, event: dict[str, Any], named: str) -> None:
        scope, at_ms = event["target"] if named == "model" else CREDENTIAL, event["at"]
        hold, is_quota = self.last(scope, "throttle"), event["kind"] == "quota"
        if not self.is_after(event, hold) or (not is_quota and event["queued"] > 10_000):
            return
        replica, event["counted"] = event["replica"], (scope, event["kind"])
        backed = bool(self.likes(scope, event["kind"], at_ms) - {replica}) or not self.has_good(
            scope, at_ms, TEN_MIN_MS, but=replica
        )
        holds = 1 + sum(1 for _ in self.in_a_row(scope))
        if hold is not None and at_ms < self.over_ms(hold):
            end_ms = at_ms + self.length_ms(event, holds - 1)
            if backed and end_ms > hold["end"]:
                self.told.append(("held", event["seq"], scope, "throttle", hold["name"], end_ms))
                hold["end"], hold["kind"] = end_ms, event["kind"]
            return
        alone = self.alone(scope, event["kind"], at_ms)
        second = alone is not None and alone != replica
        names = {replica}
        if not is_quota:
            pending = self.pending(scope, at_ms)
            names = {each["replica"] for each in pending}
            if self.has_good(scope, at_ms, 10_000) or (len(pending) < 3 and not second):
                return
        if second or len(names) > 1 or backed:
            event["began"] = scope
            self.begin(event, scope, "throttle", self.length_ms(event, holds))
        else:
            event["alone"] = (scope, event["kind"])

    def in_a_row(self, scope: str) -> list[dict[str, Any]]:
        """Throttles, newest first, until one that was answered."""
        found = list[dict[str, Any]]()
        for hold in reversed(self.holds.get((scope, "throttle"), [])):
            if hold["answered"]:
                break
            found.append(hold)
        return found

    def length_ms(self, event: dict[str, Any], holds: int) -> int:
        is_quota = event["kind"] == "quota"
        hint_ms = (event["hint"] or (900 if is_quota else 5)) * 1000
        return int(min(hint_ms * 2 ** (max(1, holds) - 1), 6 * HOUR_MS if is_quota else HOUR_MS))

    def refused(self, event: dict[str, Any], named: str) -> None:
        scope, at_ms = event["target"] if named == "model" else CREDENTIAL, event["at"]
        hold = self.last(scope, "credential")
        if hold is not None and at_ms < self.over_ms(hold) and at_ms < hold["end"]:
            return
        if not self.is_after(event, hold):
            return
        if hold is not None and ("credential", hold["name"]) in event["leases"]:
            hold["neutral"] = 0
        event["strike"] = scope
        strikes = self.strikes(scope)
        heard = {each["replica"] for each in self.events if at_ms - each["at"] < TEN_MIN_MS}
        if len(strikes) >= 3 and len({each["replica"] for each in strikes}) >= min(2, len(heard)):
            event["refused"] = scope
            nth = 1
            if hold is not None and at_ms < self.over_ms(hold) + TEN_MIN_MS:
                nth = hold["nth"] + 1
            self.begin(event, scope, "credential", min(300_000 * 2 ** (nth - 1), HOUR_MS), nth)

    def told_nothing(self, event: dict[str, Any], scope: str) -> None:
        hold = self.last(scope, "credential")
        if hold is None or not hold["end"] <= event["at"] < self.over_ms(hold):
            return
        if ("credential", hold["name"]) in event["leases"]:
            hold["neutral"] = hold["neutral"] + 1 if event["kind"] in NEUTRAL else 0
            if hold["neutral"] == 3:
                event["refused"] = scope
                self.begin(event, scope, "credential", hold["length"], hold["nth"])

    def begin(self, event: dict[str, Any], scope: str, rule: str, length_ms: int, nth: int = 1) -> None:
        end_ms = event["at"] + length_ms
        hold = {"name": event["seq"], "rule": rule, "began": event["at"], "end": end_ms, "kind": event["kind"]}
        hold |= {"lifted": None, "answered": False, "evidence": [], "neutral": 0, "tried": 0}
        self.holds.setdefault((scope, rule), []).append(hold | {"length": length_ms, "nth": nth})
        self.told.append(("held", event["seq"], scope, rule, event["seq"], end_ms))

    def wants_early(self, hold: dict[str, Any], at_ms: int) -> bool:
        if hold["rule"] != "throttle" or hold["end"] - hold["began"] <= 120_000:
            return False
        every_ms = TEN_MIN_MS if hold["kind"] == "quota" else 120_000
        return bool(at_ms - (hold["tried"] or hold["began"]) >= every_ms)

    def decide(self, target: str, at_ms: int) -> tuple[bool, bool, float]:
        found = [self.last(scope, rule) for scope in (target, CREDENTIAL) for rule in RULES]
        live = [hold for hold in found if hold is not None and at_ms < self.over_ms(hold)]
        denying = [hold for hold in live if at_ms < hold["end"]]
        if not denying:
            return True, bool(live), 0.0
        left_s = (max(hold["end"] for hold in denying) - at_ms) / 1000
        return False, all(self.wants_early(hold, at_ms) for hold in denying), left_s


def recorded(event: dict[str, Any]) -> Recorded:
    fields: dict[str, Any] = {
        "seen_seq": event["seen"],
        "queued_ms": event["queued"],
        "trial": [Lease(rule, name) for rule, name in event["leases"]] or None,
    }
    body: Any
    if event["kind"] == "answered":
        body = CallAnswered(**fields)
    else:
        body = CallOutcome(
            kind=event["kind"],
            took_ms=event["took"],
            forced=event["forced"],
            scope=event["scope"] if event["kind"] in (*LIMITS, "auth") else None,
            retry_after_s=event["hint"],
            **fields,
        )
    target = next(each for each in MODELS if each.key == event["target"])
    return Recorded(body, target=target, replica=event["replica"], seq=event["seq"], time_ms=event["at"])


def compare(events: list[dict[str, Any]]) -> Naive:
    naive, fleet, told = Naive(), Fleet(ALONE), list[tuple[Any, ...]]()
    for event in events:
        naive.step(event)
        for derived in fleet.apply(recorded(event)):
            if isinstance(derived, TargetHeld) and derived.replica is None and derived.rule in RULES:
                told.append(
                    ("held", derived.cause_seq, derived.scope.key, derived.rule, derived.began_seq, derived.end_ms)
                )
            elif isinstance(derived, Released) and derived.rule in RULES:
                told.append(("released", derived.cause_seq, derived.scope.key, derived.rule, derived.began_seq))
        assert sorted(told) == sorted(naive.told), event
        for target in MODELS:
            for ahead_ms in (0, 1, 4999, 5000, 120_000, TEN_MIN_MS, HOUR_MS, 6 * HOUR_MS):
                at_ms = event["at"] + ahead_ms
                decision = fleet.decide(target, at_ms)
                assert (decision.allowed, decision.trial, decision.retry_in_s) == naive.decide(target.key, at_ms), event
        for key in (event["target"], CREDENTIAL):
            document = fleet.document(key, event["at"])
            assert document is not None
            assert document["throttles"] == min(20, len(naive.pending(key, event["at"]))), event
    assert fleet.digest() == Fleet.decode(fleet.encode()).digest()
    return naive


def an_event(rng: Any, seq: int, at_ms: int, kind: str) -> dict[str, Any]:
    """One outcome; `rng` has `choice`: a seeded random, or hypothesis's."""
    return {
        "seq": seq,
        "at": at_ms,
        "kind": kind,
        "target": rng.choice(MODELS).key,
        "scope": rng.choice([None, None, "model", "credential"]),
        "replica": rng.choice(["r1", "r1", "r2", "r3"]),
        "seen": rng.choice([None, seq - 1, seq - 1, seq - 1, max(0, seq - 4), seq]),
        "leases": [(rng.choice(RULES), max(1, seq - back)) for back in rng.choice([[], [], [], [1], [2, 5], [3, 7]])],
        "took": rng.choice([None, 0, 1000, 599_999]),
        "queued": rng.choice([0] * 12 + [10_000, 10_001, TEN_MIN_MS, TEN_MIN_MS + 1]),
        "forced": rng.choice([False] * 9 + [True]),
        "hint": rng.choice([None, None, 1, 7, 121, 5000]),
    }


class Drawn:
    """Choices that hypothesis can make smaller."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def choice(self, among: Any) -> Any:
        return self._draw(st.sampled_from(list(among)))


@st.composite
def logs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A log of both models, with steps around every limit of the rules."""
    rng, at_ms, found = Drawn(draw), START_MS, list[dict[str, Any]]()
    for seq in range(1, draw(st.integers(1, 20)) + 1):
        at_ms += rng.choice([0, 0, 1, 1000, 4999, 5000, 9_999, 10_000, 120_000, 599_999, TEN_MIN_MS, HOUR_MS])
        found.append(an_event(rng, seq, at_ms, rng.choice(KINDS)))
    return found


@settings(max_examples=120, deadline=None)
@given(logs())
def test_the_folds_agree_with_the_model_on_any_log(log: list[dict[str, Any]]) -> None:
    compare(log)


def long_log(seed: int) -> list[dict[str, Any]]:
    rng, at_ms, log = random.Random(seed), START_MS, list[dict[str, Any]]()
    for seq in range(1, 251):
        at_ms += rng.choice([0, 100, 1000, 1000, 5000, 30_000, 200_000])
        log.append(an_event(rng, seq, at_ms, rng.choice((*KINDS, "auth", "auth"))))
    return log


@pytest.mark.parametrize("seed", range(30))
def test_the_folds_agree_with_the_model_on_long_logs(seed: int) -> None:
    compare(long_log(seed))


def test_the_long_logs_exercise_every_part_of_the_rules() -> None:
    happened = dict.fromkeys(("throttle", "credential", "released", "moved_out", "alone", "doubled"), 0)
    for seed in range(30):
        naive = Naive()
        for event in long_log(seed):
            naive.step(event)
            happened["doubled"] += event["began"] is not None and len(naive.in_a_row(event["began"])) > 1
        for told in naive.told:
            if told[0] == "released":
                happened["released"] += 1
            elif told[1] == told[4]:
                happened[told[3]] += 1
            else:
                happened["moved_out"] += 1
        happened["alone"] += sum(1 for event in naive.events if event["alone"])
    assert min(happened.values()) > 10, happened
