"""The policy's numbers as the folds use them: whole milliseconds and counts."""

from __future__ import annotations

from typing import Any

import msgspec

from sickbay_events.derived import RULES
from sickbay_events.policy import BreakerPolicy, DegradedPolicy, Policy, RejectionsPolicy, ThrottlesPolicy

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
OVERRIDE_MS_MAX = 30 * DAY_MS
"""An operator's hold or allow ends at most this far ahead (Rule 4.7)."""
STEP_BACK_MS = 2_000
"""A log clock that steps back by less stands still; a larger step is believed (Rule 6)."""
UNHEARD_MS = 2 * DAY_MS
"""A boot or a replica not heard of for this long is dropped (Rule 4, Once)."""
BOOTS_MAX = 64
ONCE_BITS = 1_024
NEW_TARGETS_ALL = 10
"""All replicas together may bring so many times what one may in an hour: a made up name costs its maker nothing."""
NEUTRAL_TRIALS = 3
"""Leased trials in a row that tell nothing, after which a hold begins again (Rule 4)."""
SLOW_NEEDED = 20
"""Slow calls in a row that open, where slow calls count at all (Rule 4.3)."""
CLEAR_SHOWN_MS = 600_000
RELEASE_SHOWN_MS = 60_000


class Scoring(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one sort of evidence (Rule 4.0)."""

    weight: int
    """Points of a failure; an answer takes one off."""
    needed: int
    """Failures in a row that hold a target without a record."""
    above_max: int
    """What it got over by itself raises that by so much at most."""
    first_ms: int
    """First trial so long after the hold began."""
    every_ms: int
    """Trials at most so far apart, before pace and length of the hold make them rarer."""


class RuleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """One policy as it holds for one target, in integers."""

    strikes: Scoring
    throttles: Scoring
    faults: Scoring
    slow: Scoring
    bad: Scoring
    host: Scoring
    """Damaged encoding of a host's models."""
    above: int
    record_ms: int
    """Size of a half-day."""
    points_ms: int
    """How long points live after the newest failure."""
    fresh_ms: int
    """An outcome that waited longer in its reporter changes no points."""
    quick_ms: int
    """A success that waited no longer counts in every respect."""
    equal_trials: int
    trial_calls: int
    pace_max_ms: int
    held_part: int
    held_part_own: int
    held_max_ms: int
    behind_ms: int
    quarantine_ms: int
    quarantine_cap_ms: int
    quarantine_growth_milli: int
    good_answer_ms: int
    heard_ms: int
    same_request_ms: int
    took_ms: int
    forget_ms: int
    probation_ms: int
    impatience_ms: int
    breaker_ms: int
    breaker_cap_ms: int
    breaker_growth_milli: int
    jitter_percent: int
    retry_after_cap_ms: int
    spread_models: int
    spread_ms: int
    slow_ttft_ms: int
    """0: slow calls are not counted."""
    hint_ms: int
    hint_spread_percent: int
    throttle_window_ms: int
    needed_named: int
    throttle_growth_milli: int
    throttle_cap_ms: int
    quota_hint_ms: int
    quota_cap_ms: int
    throttle_trial_ms: int
    quota_trial_ms: int
    refusals: int
    refusals_replicas: int
    refusals_window_ms: int
    credential_ms: int
    credential_cap_ms: int
    credential_growth_milli: int
    degraded_ms: int
    degraded_cap_ms: int
    degraded_growth_milli: int
    clean_trials: int
    uncheckable: int
    host_models: int
    host_bad: int
    idle_ms: int
    unknown_ms: int
    readiness_failures: int
    ramp_part: int
    ramp_max_ms: int
    ramp_percents: tuple[int, ...]
    ramp_replicas: int
    shadowed: tuple[str, ...]
    """Rules that are folded and told but not enforced."""

    @classmethod
    def of(cls, policy: Policy) -> RuleLimits:
        """Round a policy's seconds to whole milliseconds."""
        evidence, trials, ramp = policy.evidence, policy.trials, policy.ramp
        points_ms, fresh_ms = _ms(evidence.window_s), _ms(evidence.queued_s)
        good_answer_ms = _ms(policy.witnesses.good_answer_s)
        return cls(
            above=evidence.above,
            record_ms=_ms(evidence.record_s),
            points_ms=points_ms,
            fresh_ms=fresh_ms,
            quick_ms=min(fresh_ms, points_ms, good_answer_ms, HOUR_MS),
            same_request_ms=_ms(evidence.same_request_s),
            took_ms=_ms(evidence.took_s),
            forget_ms=_ms(evidence.forget_s),
            probation_ms=_ms(evidence.probation_s),
            equal_trials=trials.equal,
            trial_calls=trials.calls,
            pace_max_ms=_ms(trials.pace_max_s),
            held_part=trials.held_part,
            held_part_own=trials.held_part_own,
            held_max_ms=_ms(trials.held_max_s),
            behind_ms=_ms(trials.behind_s),
            good_answer_ms=good_answer_ms,
            heard_ms=_ms(policy.witnesses.heard_s),
            **_rejections(policy),
            **_throttles(policy),
            **_breaker(policy),
            **_degraded(policy),
            idle_ms=_ms(policy.health.idle_s),
            unknown_ms=_ms(policy.health.unknown_s),
            readiness_failures=policy.health.readiness_failures,
            ramp_part=ramp.part,
            ramp_max_ms=_ms(ramp.max_s),
            ramp_percents=ramp.percents,
            ramp_replicas=ramp.replicas,
            shadowed=tuple(rule for rule in RULES if not policy.enforces(rule)),
        )


def _scoring(
    rule: RejectionsPolicy | ThrottlesPolicy | BreakerPolicy | DegradedPolicy,
    needed: int,
    above_max: int,
    *,
    weight: int = 1,
) -> Scoring:
    """One row of the table of Rule 4.0."""
    first_ms, every_ms = _ms(rule.first_s), _ms(rule.trial_every_s)
    return Scoring(weight=weight, needed=needed, above_max=above_max, first_ms=first_ms, every_ms=every_ms)


def _rejections(policy: Policy) -> dict[str, Any]:
    rejections, credential = policy.rejections, policy.credential
    hold_ms, grows = _ms(rejections.hold_s), rejections.growth > 1
    return {
        "strikes": _scoring(rejections, rejections.threshold, policy.evidence.above_max),
        "quarantine_ms": hold_ms,
        "quarantine_cap_ms": max(_ms(rejections.cap_s), hold_ms) if grows else hold_ms,
        "quarantine_growth_milli": round(rejections.growth * 1000),
        "refusals": credential.threshold,
        "refusals_replicas": credential.replicas,
        "refusals_window_ms": _ms(credential.window_s),
        "credential_ms": _ms(credential.hold_s),
        "credential_cap_ms": _ms(credential.cap_s),
        "credential_growth_milli": round(credential.growth * 1000),
    }


def _throttles(policy: Policy) -> dict[str, Any]:
    throttles = policy.throttles
    return {
        "throttles": _scoring(throttles, throttles.needed, throttles.above_max),
        "needed_named": throttles.needed_named,
        "hint_ms": _ms(throttles.hint_s),
        "hint_spread_percent": throttles.spread_percent,
        "throttle_window_ms": _ms(throttles.window_s),
        "throttle_growth_milli": round(throttles.growth * 1000),
        "throttle_cap_ms": _ms(throttles.cap_s),
        "quota_hint_ms": _ms(throttles.quota_hint_s),
        "quota_cap_ms": _ms(throttles.quota_cap_s),
        "throttle_trial_ms": _ms(throttles.trial_max_s),
        "quota_trial_ms": _ms(throttles.quota_trial_max_s),
    }


def _breaker(policy: Policy) -> dict[str, Any]:
    breaker = policy.breaker
    faults = _scoring(breaker, breaker.consecutive, policy.evidence.above_max, weight=breaker.fault_points)
    return {
        "faults": faults,
        "slow": msgspec.structs.replace(faults, weight=1, needed=SLOW_NEEDED),
        "impatience_ms": _ms(breaker.impatience_s),
        "breaker_ms": _ms(breaker.hold_s),
        "breaker_cap_ms": _ms(breaker.cap_s),
        "breaker_growth_milli": round(breaker.growth * 1000),
        "jitter_percent": breaker.jitter_percent,
        "retry_after_cap_ms": _ms(breaker.retry_after_cap_s),
        "spread_models": breaker.spread_models,
        "spread_ms": _ms(breaker.spread_s),
        "slow_ttft_ms": breaker.slow_ttft_ms,
    }


def _degraded(policy: Policy) -> dict[str, Any]:
    degraded = policy.degraded
    bad = _scoring(degraded, degraded.consecutive, policy.evidence.above_max, weight=degraded.bad_points)
    return {
        "bad": bad,
        "host": msgspec.structs.replace(bad, needed=-(-degraded.host_points // degraded.bad_points)),
        "degraded_ms": _ms(degraded.hold_s),
        "degraded_cap_ms": _ms(degraded.cap_s),
        "degraded_growth_milli": round(degraded.growth * 1000),
        "clean_trials": degraded.clean_trials,
        "uncheckable": degraded.uncheckable,
        "host_models": degraded.host_models,
        "host_bad": degraded.host_bad,
    }


def grown_ms(first_ms: int, growth_milli: int, holds: int, cap_ms: int) -> int:
    """Length of the `holds`-th hold in a row: growth counts holds and stops at the cap (Rule 4, Growth)."""
    length_ms = first_ms
    for _ in range(holds - 1):
        if length_ms >= cap_ms or growth_milli <= 1000:
            break
        length_ms = length_ms * growth_milli // 1000
    return min(length_ms, cap_ms)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
