"""The evidence rule (Rule 4.0) as bounds: how high points can be at most by the log's failures and answers alone, when
a trial may be wanted at the earliest, and on whose word a hold may rest."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from sickbay_events import KINDS, CallAnswered, CallOutcome, GateEntry, ProbeResult, Scope, TargetHeld
from sickbay_events.view import HoldView
from sickbay_projections.decide import decide_entries

from .world import POLICY


class Lesson(NamedTuple):
    """Numbers of one rule: the group that fails, the groups that answer, points of a failure, failures needed, what a
    record adds at most, the first trial, trials at most every."""

    group: str
    answers: tuple[str, ...]
    weight: int
    needed: int
    above_max: int
    first_s: float
    every_s: float


_P: Final = POLICY
LESSONS: Final = {
    "quarantine": Lesson("rejection", ("success", "degraded"), 1, _P.rejections.threshold, _P.evidence.above_max,
                         _P.rejections.first_s, _P.rejections.trial_every_s),
    "throttle": Lesson("throttle", ("success", "degraded"), 1, _P.throttles.needed, _P.throttles.above_max,
                       _P.throttles.first_s, _P.throttles.trial_every_s),
    "breaker": Lesson("fault", ("success",), _P.breaker.fault_points, _P.breaker.consecutive, _P.evidence.above_max,
                      _P.breaker.first_s, _P.breaker.trial_every_s),
    "degraded": Lesson("degraded", ("success",), _P.degraded.bad_points, _P.degraded.consecutive,
                       _P.evidence.above_max, _P.degraded.first_s, _P.degraded.trial_every_s),
}  # fmt: skip


class Tally:
    """Points of one scope and rule, as many as there can be: every failure that may count scores, and only answers that
    surely take one off do so. `most`: of failures in a row, ever. `failed`: by replica, since the last hold ended."""

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.points = self.most = 0
        self.failed: Counter[str] = Counter()

    def scores(self, replica: str, *, is_free: bool) -> None:
        """A failure. Before the end of a hold it is noted only."""
        self.failed[replica] += 1
        if is_free:
            most = self.lesson.weight * (self.lesson.needed + self.lesson.above_max)
            self.points = min(most, self.points + self.lesson.weight)
            self.most = max(self.most, -(-self.points // self.lesson.weight))

    def answered(self) -> None:
        """An answer while nothing is held."""
        self.points = max(0, self.points - 1)

    def over(self, score: int, *, by: str) -> None:
        """A hold of so many points is over: half of its failures stay, but where it was no mistake at all."""
        failures = score // self.lesson.weight
        self.most = max(self.most, failures)
        keeps = by in ("success", "wide_close") and self.lesson.group != "throttle"
        self.points = self.lesson.weight * (failures // 2) if keeps else 0
        self.failed.clear()

    def fault(self, held: TargetHeld, event: CallOutcome | ProbeResult, replicas: int) -> str:
        """Why this hold may not have begun by points; "" if it may."""
        numbers, lesson = held.numbers, self.lesson
        needed, record = numbers["needed"], numbers["record"]
        is_quota = event.kind == "quota"
        is_named = held.rule == "throttle" and getattr(event, "scope", None) == "credential"
        least = 1 if is_quota or (is_named and held.scope.model is None) else lesson.needed
        above = max(least, record + POLICY.evidence.above) if record and not is_quota else least
        if needed != min(least + lesson.above_max, above):
            return f"takes {needed} with a record of {record}"
        if record > self.most:
            return f"has a record of {record}, and {self.most} were the most in a row"
        if self.points < lesson.weight * needed:
            return f"rests on {self.points} points of {lesson.weight * needed}"
        if held.by is None and len(self.failed) < min(2, replicas) and not is_named:
            return f"rests on {set(self.failed)} alone, and names nobody"
        if held.by is not None and held.by not in self.failed:
            return f"rests on the word of {held.by}, who saw nothing"
        return ""


def distance_ms(rule: str, nth: int) -> int:
    """How far apart the trials of a hold are at least."""
    lesson = LESSONS[rule]
    return int(1000 * min(lesson.every_s, lesson.first_s * 2.0 ** max(0, nth - POLICY.trials.equal)))


def farthest_ms(rule: str, event: CallOutcome | ProbeResult) -> int:
    """And at most."""
    limits, trials = POLICY.throttles, POLICY.trials
    stated_s = 0.0
    if rule == "throttle":
        stated_s = limits.quota_trial_max_s if event.kind == "quota" else limits.trial_max_s
    return round(1000 * max(LESSONS[rule].every_s, trials.pace_max_s, trials.held_max_s, stated_s))


def is_certain_answer(event: CallOutcome | CallAnswered, rule: str) -> bool:
    """Whether this surely takes a point off, where nothing is held."""
    if (event.queued_ms or 0) > POLICY.evidence.queued_s * 1000:
        return False
    if isinstance(event, CallAnswered):
        return rule != "degraded"
    return KINDS[event.kind].group == "success" and (rule != "degraded" or bool(event.checkable))


def word_fault(entry: GateEntry, hold: HoldView, now_ms: int) -> str:
    """Whom a hold on one word denies but should not, or lets pass; "" if it is well."""
    if not hold.by or now_ms >= hold.end_ms or len(entry.holds) > 1 or entry.allow is not None or entry.ramp:
        return ""
    own = decide_entries((entry, None, None), now_ms, hold.by, replicas=2)
    other = decide_entries((entry, None, None), now_ms, hold.by + "-other", replicas=2)
    if own.allowed or not other.allowed or not other.trial:
        return f"rests on the word of {hold.by}: {own} for it, {other} for another"
    return ""


def spoken_of(event: CallOutcome, key: str) -> str:
    """Scope key that a throttle at this model speaks of (Rule 4.2): its credential has an alias, or it is the model."""
    host, alias, _ = key.split(".")
    is_models = (event.scope or KINDS[event.kind].scope) == "model"
    return key if is_models or not Scope.of_key(key).alias else f"{host}.{alias}"
