"""Rules 4.0 to 4.4 for one target, read word by word: every sort of evidence, the fleet's fold or an overlay's.

It shares no code with the fold and counts anew from a list of what happened; nothing in it is quick.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from sickbay_events import CallAnswered, CallOutcome, Target

TARGET = Target("h#a", "m")
MINUTE_MS, HOUR_MS, HALF_DAY_MS = 60_000, 3_600_000, 43_200_000
TEN_MIN_MS = 10 * MINUTE_MS
#            rule, points of a failure, needed, above at most, first trial, trials at most every
SCORED = {
    "strikes": ("quarantine", 1, 2, 15, 1_000, 12_000),
    "throttles": ("throttle", 1, 2, 30, 2_000, 5_000),
    "faults": ("breaker", 2, 5, 15, 2_000, 8_000),
    "bad": ("degraded", 3, 12, 15, 2_000, 8_000),
    "damage": ("degraded", 3, 12, 15, 2_000, 8_000),
}
REJECTIONS = ("model_unavailable", "permission_model")
FAULTS = ("server_error", "timeout", "overloaded", "network", "truncated")
THROTTLES = ("rate_limited", "quota")
BAD = ("empty_output", "malformed_output", "mangled_output")
NEUTRAL = ("bad_request", "unknown", "content_filter", "context_length")
PLACES = ("model", "credential")


class Score:
    """Points of one sort of evidence at one place."""

    def __init__(self) -> None:
        self.points = self.top = self.since_ms = self.newest_ms = self.life_ms = 0
        self.seen: list[tuple[str, str, int, bool]] = []
        """(failed or answered, replica, when, permission_model) of all that belongs to the points."""
        self.steps = 0
        self.told = False
        self.over: list[tuple[int, int]] = []
        """(half-day, failures in a row) of all that was got over by itself."""

    def drop(self) -> None:
        over = self.over
        self.__init__()  # type: ignore[misc]
        self.over = over

    def record(self, now_ms: int) -> int:
        half = now_ms // HALF_DAY_MS
        return max([failures for at, failures in self.over if at in (half, half - 1)], default=0)

    def by(self) -> dict[str, tuple[int, int, int]]:
        found = {}
        for name in {replica for _, replica, _, _ in self.seen}:
            fails = [at for what, replica, at, _ in self.seen if (what, replica) == ("failed", name)]
            answers = [at for what, replica, at, _ in self.seen if (what, replica) == ("answered", name)]
            found[name] = (len(fails), len(answers), max(fails, default=0))
        return found


class Naive:
    """What the rules say after each event."""

    def __init__(self, *, overlay: bool = False, jitter_percent: int = 10) -> None:
        self.overlay, self.jitter_percent = overlay, jitter_percent
        self.heard: dict[str, int] = {}
        self.good: dict[str, int] = {}
        self.ever_good: dict[str, int] = {}
        """For the credential: a clear of the model takes nothing from it."""
        self.clean: dict[str, int] = {}
        self.scores = {(place, name): Score() for place in PLACES for name in SCORED}
        self.holds: dict[tuple[str, str], dict[str, Any]] = {}
        self.names: dict[tuple[str, str], tuple[int, int]] = {}
        """(place, rule) -> name and end of a hold that is over."""
        self.cleared = (0, 0)
        self.ramp: dict[str, Any] = {}
        self.told: list[tuple[Any, ...]] = []

    # -- the event -----------------------------------------------------------------------------------

    def fold(self, event: CallOutcome | CallAnswered, replica: str, seq: int, now_ms: int) -> None:
        self.event, self.replica, self.seq, self.now_ms = event, replica, seq, now_ms
        self.heard[replica] = now_ms
        kind: str = event.kind if isinstance(event, CallOutcome) else "ok"
        self.kind, self.queued_ms = kind, event.queued_ms or 0
        self.took_ms = int((event.took_ms if isinstance(event, CallOutcome) else 0) or 0)
        if kind == "ok" and self.queued_ms <= TEN_MIN_MS:
            self.good[replica] = self.ever_good[replica] = now_ms
            if isinstance(event, CallOutcome) and event.checkable:
                self.clean[replica] = now_ms
        for place in PLACES:
            self.expire(place)
        if self.queued_ms <= TEN_MIN_MS:
            if isinstance(event, CallOutcome) and event.forced and kind != "ok":
                for place in PLACES:
                    for name in ("strikes", "throttles", "faults", "bad"):
                        self.told_nothing(place, name)
            else:
                self.count()
        if kind not in NEUTRAL:
            for (_, rule), hold in self.holds.items():
                if hold["proof"] and now_ms >= hold["end_ms"] and rule != "degraded":
                    hold["evidence_ms"] = now_ms

    def count(self) -> None:
        kind = self.kind
        came_through = kind == "ok" or kind in BAD
        self.one("model", "strikes", answer=came_through, failure=kind in REJECTIONS)
        for place in PLACES:
            if kind in THROTTLES and place == self.spoken_of():
                self.throttled(place)
            else:
                self.one(place, "throttles", answer=came_through, failure=False)
        if kind in BAD and ("model", "breaker") in self.holds:
            if self.is_after("model", "breaker"):
                self.end("model", "faults")
        elif kind not in BAD:
            self.one("model", "faults", answer=kind == "ok", failure=kind in FAULTS)
        if isinstance(self.event, CallOutcome):
            self.sample()

    def one(self, place: str, name: str, *, answer: bool, failure: bool) -> None:
        hold = self.holds.get((place, SCORED[name][0]))
        if failure:
            self.failed(place, name)
        elif not answer:
            self.told_nothing(place, name)
        elif hold is None:
            self.take_off(place, name)
        elif self.is_after(place, hold["rule"]):
            self.end(place, name)

    def spoken_of(self) -> str:
        assert isinstance(self.event, CallOutcome)
        return self.event.scope or ("credential" if self.kind == "quota" else "model")

    def sample(self) -> None:
        event, kind = self.event, self.kind
        assert isinstance(event, CallOutcome)
        encoding = kind == "mangled_output" and event.signature == "double_encoded"
        is_bad = kind in BAD and event.checkable and (not encoding or event.attributable)
        hold = self.holds.get(("model", "degraded"))
        if hold is not None:
            name = hold["evidence"]
            if is_bad:
                self.failed("model", name)
            elif kind != "ok" and kind not in BAD:
                self.told_nothing("model", name)
            elif self.is_after("model", "degraded"):
                self.proves(hold, name)
        elif is_bad:
            self.failed("model", "damage" if encoding else "bad")
        elif kind == "ok" and event.checkable:
            self.take_off("model", "bad")
            if event.attributable:
                self.take_off("model", "damage")

    def proves(self, hold: dict[str, Any], name: str) -> None:
        """A clean or an uncheckable answer while degraded output holds the target."""
        assert isinstance(self.event, CallOutcome)
        if self.kind == "ok" and self.event.checkable:
            if self.is_trial(hold):
                hold["neutral"] = 0
                hold["clean"] += 1
                hold["trial_ms"] = self.now_ms
                if hold["clean"] == 3:
                    self.end("model", name)
            return
        self.told_nothing("model", name)
        if self.now_ms >= hold["end_ms"]:
            hold["uncheckable"] += 1
            if hold["uncheckable"] == 20:
                self.scores["model", name].drop()
                self.lift("model", "degraded", "uncheckable")

    # -- after, leases -------------------------------------------------------------------------------

    def is_leased(self, hold: dict[str, Any]) -> bool:
        return any((lease.rule, lease.began_seq) == (hold["rule"], hold["seq"]) for lease in self.event.trial or ())

    def is_after(self, place: str, rule: str) -> bool:
        hold, cleared = self.holds.get((place, rule)), self.cleared if place == "model" else (0, 0)
        name, end_ms = (hold["seq"], hold["end_ms"]) if hold else self.names.get((place, rule), (0, 0))
        if cleared[0] > name:
            name, end_ms = cleared
        elif not name or any((lease.rule, lease.began_seq) == (rule, name) for lease in self.event.trial or ()):
            return True
        seen_seq = self.event.seen_seq
        if seen_seq is not None and seen_seq < self.seq:
            return seen_seq >= name
        took_ms = self.event.took_ms if isinstance(self.event, CallOutcome) else None
        return self.now_ms - (120_000 if took_ms is None else took_ms) >= end_ms

    def is_trial(self, hold: dict[str, Any]) -> bool:
        began_ms = self.now_ms - self.took_ms
        return self.is_leased(hold) or (self.overlay and bool(hold["trial_ms"]) and began_ms >= hold["trial_ms"])

    # -- points --------------------------------------------------------------------------------------

    def take_off(self, place: str, name: str) -> None:
        score = self.scores[place, name]
        if not score.points or self.queued_ms > 5_000:
            return
        if self.now_ms >= score.newest_ms + score.life_ms:
            score.drop()
            return
        score.points -= 1
        score.steps += 1
        score.seen.append(("answered", self.replica, self.now_ms, False))
        if not score.points:
            failures = (score.top + SCORED[name][1] - 1) // SCORED[name][1]
            if failures >= 2 and not score.told:
                score.over.append((self.now_ms // HALF_DAY_MS, failures))
            score.drop()

    def note(self, score: Score) -> None:
        score.seen.append(("failed", self.replica, self.now_ms, self.kind == "permission_model"))
        score.newest_ms = self.now_ms

    def failed(self, place: str, name: str, needed: int = 0, life_ms: int = TEN_MIN_MS, whose: str = "ask") -> None:
        """`needed`: without a record; below 0 whatever the record."""
        rule, weight, k, above_max, _, _ = SCORED[name]
        score, hold = self.scores[place, name], self.holds.get((place, rule))
        if not self.is_after(place, rule):
            return
        if hold is not None and self.is_trial(hold):
            self.note(score)
            self.trial_failed(place, name, hold)
            return
        if hold is not None and self.now_ms < hold["end_ms"]:
            self.note(score)
            if hold["by"] != self.replica:
                hold["by"] = ""
            return
        if self.queued_ms > 5_000:
            return
        if score.newest_ms and self.now_ms >= score.newest_ms + score.life_ms:
            score.drop()
        score.life_ms = life_ms
        if not score.points:
            score.since_ms, score.steps = self.now_ms, 0
        score.points += weight
        score.top = max(score.top, score.points)
        score.steps += 1
        self.note(score)
        most, least = score.record(self.now_ms), needed or k
        rows = min(least + above_max, max(least, most + 3)) if most else least
        rows = -needed if needed < 0 else rows
        score.points = min(score.points, weight * rows)
        if score.points == weight * rows:
            by = self.whose(place, name, score) if whose == "ask" else ""
            if by is not None:
                self.begin(place, name, hold, by)

    def others(self) -> bool:
        return not self.overlay and sum(self.now_ms < at + TEN_MIN_MS for at in self.heard.values()) >= 2

    def whose(self, place: str, name: str, score: Score) -> str | None:
        if not self.others():
            return ""
        by = score.by()
        most = max(by, key=lambda replica: (by[replica][0], replica))
        failures = sum(by[replica][0] for replica in by if replica != most)
        answers = sum(by[replica][1] for replica in by if replica != most)
        if failures and failures >= answers:
            return ""
        told = self.clean if name in ("bad", "damage") else self.good if place == "model" else self.ever_good
        since_ms = self.cleared[1] if place == "model" and name not in ("bad", "damage") else 0
        is_good = any(
            replica != most and since_ms < at <= self.now_ms < at + TEN_MIN_MS for replica, at in told.items()
        )
        plain = [1 for what, _, _, permission in score.seen if what == "failed" and not permission]
        if not answers and not is_good and plain:
            return most
        if not score.told:
            score.told = True
            self.told.append(("alone", place, SCORED[name][0], most))
            if name != "throttles":
                self.told.append(("suspect", place, most))
        return None

    # -- throttles -----------------------------------------------------------------------------------

    def throttled(self, place: str) -> None:
        event, is_quota = self.event, self.kind == "quota"
        assert isinstance(event, CallOutcome)
        stated_ms = self.stated_ms()
        if self.overlay:
            if self.is_after(place, "throttle") and (place, "throttle") not in self.holds:
                length_ms = stated_ms or 5_000
                if not is_quota:
                    length_ms += length_ms * 50 * (crc32(f"{self.replica} {self.seq}".encode()) % 1001) // 100_000
                    length_ms = min(length_ms, HOUR_MS)
                self.stand(place, "throttle", self.now_ms + length_ms, proof=False)
            return
        named = bool(stated_ms) and event.scope == "credential" and place == "credential"
        needed = -1 if is_quota else 1 if named else 0
        whose = "" if named and not is_quota else "ask"
        self.failed(place, "throttles", needed, max(10_000, stated_ms), whose)

    def stated_ms(self) -> int:
        assert isinstance(self.event, CallOutcome)
        is_quota = self.kind == "quota"
        asked_ms = round(max(0.0, self.event.retry_after_s or 0) * 1000)
        return min(asked_ms or (15 * MINUTE_MS if is_quota else 0), 6 * HOUR_MS if is_quota else HOUR_MS)

    # -- holds ---------------------------------------------------------------------------------------

    def distance_ms(self, name: str, n: int, first_ms: int, every_ms: int) -> int:
        held_ms = min(120_000, (self.now_ms - first_ms) // (20 if self.overlay else 80))
        return min(max(every_ms, held_ms), SCORED[name][4] << min(max(0, n - 3), 20))

    def begin(
        self, place: str, name: str, old: dict[str, Any] | None, by: str, last: str = "", took_ms: int = 0
    ) -> None:
        rule, _, _, _, _, every_s = SCORED[name]
        score, now_ms = self.scores[place, name], self.now_ms
        n, first_ms, every_ms, points = 1, now_ms, 0, score.points
        if old is not None:
            n, first_ms, every_ms, points = old["n"] + 1, old["first_ms"], old["every_ms"], old["score"]
        else:
            pace_ms = (now_ms - score.since_ms) // max(1, score.steps - 1)
            every_ms = max(every_s, min(TEN_MIN_MS, 5 * pace_ms))
        assert isinstance(self.event, CallOutcome)
        asked_ms = round(max(0.0, self.event.retry_after_s or 0) * 1000)
        distance_ms = self.distance_ms(name, n, first_ms, every_ms)
        wait_ms, length_ms = max(distance_ms, min(asked_ms, 120_000)), TEN_MIN_MS
        if rule in ("breaker", "degraded"):
            length_ms = min(TEN_MIN_MS, 30_000 * 2 ** min(n - 1, 10))
        if rule == "breaker":
            place_in = crc32(f"{TARGET.key} {self.seq}".encode()) % 2001 - 1000
            length_ms += length_ms * place_in * self.jitter_percent // 100_000
            length_ms = max(length_ms, min(asked_ms, HOUR_MS))
        if rule == "throttle":
            stated_ms, is_quota = self.stated_ms(), self.kind == "quota"
            length_ms = min(6 * HOUR_MS if is_quota else HOUR_MS, (stated_ms or 5_000) * 2 ** min(n - 1, 20))
            early_ms = min(stated_ms, 600_000 if is_quota else 120_000)
            wait_ms = early_ms if n == 1 and early_ms else max(early_ms, distance_ms)
        score.points = score.top = 0
        self.ramp.pop(place, None)
        end_ms = max(now_ms + length_ms, old["end_ms"] if old else 0)
        hold = self.stand(place, rule, end_ms, by=by, n=n, length_ms=length_ms, evidence=name)
        hold.update(first_ms=first_ms, every_ms=every_ms, score=points, last=last)
        hold["trial_ms"] = max(now_ms, now_ms - took_ms + wait_ms)

    def stand(self, place: str, rule: str, end_ms: int, *, proof: bool = True, **fields: Any) -> dict[str, Any]:
        hold = {"rule": rule, "seq": self.seq, "end_ms": end_ms, "proof": proof, "by": "", "last": "", "n": 1}
        hold |= {"trial_ms": 0, "evidence": "", "neutral": 0, "clean": 0, "uncheckable": 0, "evidence_ms": 0}
        hold |= {"first_ms": self.now_ms, "score": 0, "kind": self.kind, **fields}
        self.holds[place, rule] = hold
        self.names.pop((place, rule), None)
        self.told.append(("held", place, rule, self.seq, end_ms))
        return hold

    def trial_failed(self, place: str, name: str, hold: dict[str, Any]) -> None:
        others = [
            replica
            for replica, (failures, _, newest_ms) in self.scores[place, name].by().items()
            if replica != self.replica and failures and self.now_ms < newest_ms + TEN_MIN_MS
        ]
        is_alone = self.others() and not others and name != "throttles"
        last = "" if self.overlay else self.replica
        self.begin(place, name, hold, self.replica if is_alone else "", last, self.took_ms)

    def told_nothing(self, place: str, name: str) -> None:
        hold = self.holds.get((place, SCORED[name][0]))
        if hold is None or not self.is_leased(hold):
            return
        if hold["trial_ms"]:
            distance_ms = self.distance_ms(hold["evidence"], hold["n"], hold["first_ms"], hold["every_ms"])
            hold["trial_ms"] = max(hold["trial_ms"], self.now_ms - self.took_ms + distance_ms)
        if self.now_ms >= hold["end_ms"]:
            hold["neutral"] = hold["neutral"] + 1 if self.kind in NEUTRAL else 0
            if hold["neutral"] == 3:
                end_ms = self.now_ms + hold["length_ms"]
                hold.update(seq=self.seq, end_ms=end_ms, neutral=0, clean=0, uncheckable=0, evidence_ms=0)
                score = self.scores[place, hold["evidence"]]
                score.points = score.top = 0
                self.told.append(("held", place, hold["rule"], self.seq, end_ms))

    def end(self, place: str, name: str) -> None:
        rule, weight, _, _, _, _ = SCORED[name]
        hold, score = self.holds[place, rule], self.scores[place, name]
        failures = hold["score"] // weight
        score.drop()
        if rule == "throttle":
            if hold["n"] == 1 and hold["score"] and hold["kind"] != "quota":
                score.over.append((self.now_ms // HALF_DAY_MS, failures))
        elif failures // 2:
            score.points = weight * (failures // 2)
            score.top = weight * failures if hold["n"] == 1 else score.points
            score.since_ms = score.newest_ms = self.now_ms
            score.life_ms = TEN_MIN_MS
        if rule in ("breaker", "throttle") and not self.overlay:
            length_ms = min(4_000, (self.now_ms - hold["first_ms"]) // 20)
            if length_ms:
                self.ramp[place] = (hold["seq"], self.now_ms, self.now_ms + length_ms, self.replica)
        self.lift(place, rule, "success")

    def lift(self, place: str, rule: str, by: str) -> None:
        hold = self.holds.pop((place, rule))
        self.names[place, rule] = (hold["seq"], min(hold["end_ms"], self.now_ms))
        self.told.append(("released", place, rule, hold["seq"], by))

    def over_ms(self, hold: dict[str, Any]) -> int:
        return int(max(hold["end_ms"], hold["evidence_ms"]) + HOUR_MS if hold["proof"] else hold["end_ms"])

    def expire(self, place: str) -> None:
        for (at, rule), hold in list(self.holds.items()):
            if at == place and self.now_ms >= self.over_ms(hold):
                del self.holds[at, rule]
                self.names[at, rule] = (hold["seq"], min(hold["end_ms"], self.over_ms(hold)))
                if hold["evidence"]:
                    self.scores[at, hold["evidence"]].drop()

    def clear(self, seq: int, now_ms: int) -> None:
        """An operator clears the target."""
        for (place, rule), hold in sorted(self.holds.items()):
            if place == "model" and now_ms < self.over_ms(hold):
                self.told.append(("released", place, rule, hold["seq"], "clear"))
        for key in [key for key in self.holds if key[0] == "model"]:
            del self.holds[key]
        for key in [key for key in self.names if key[0] == "model"]:
            del self.names[key]
        for name in SCORED:
            self.scores["model", name] = Score()
        self.ramp.pop("model", None)
        self.cleared = (seq, now_ms)
        self.good = {replica: at for replica, at in self.good.items() if at > now_ms}
        self.clean = {replica: at for replica, at in self.clean.items() if at > now_ms}
