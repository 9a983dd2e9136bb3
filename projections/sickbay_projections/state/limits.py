"""The policy's numbers as the folds use them: whole milliseconds and counts."""

from __future__ import annotations

from typing import Any

import msgspec

from sickbay_events.derived import RULES
from sickbay_events.policy import BreakerPolicy, Policy

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
OVERRIDE_MS_MAX = 30 * DAY_MS
"""An operator's hold or allow ends at most this far ahead (SPEC 4.7)."""
STEP_BACK_MS = 2_000
"""A log clock that steps back by less stands still; a larger step is believed (SPEC 6)."""
UNHEARD_MS = 2 * DAY_MS
"""A boot or a replica not heard of for this long is dropped (SPEC 4, Once)."""
BOOTS_MAX = 64
ONCE_BITS = 1_024
NEUTRAL_TRIALS = 3
"""Leased trials in a row that tell nothing, after which a hold begins again (SPEC 4)."""
BUCKETS = 6
"""Buckets of the breaker's window (SPEC 4.3)."""
SAMPLE_BUCKETS = 30
"""Buckets of the window of samples (SPEC 4.4)."""
CLEAR_SHOWN_MS = 600_000
RELEASE_SHOWN_MS = 60_000


class RuleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """One policy as it holds for one target, in integers."""

    strikes: int
    strikes_window_ms: int
    quarantine_ms: int
    quarantine_cap_ms: int
    quarantine_growth_milli: int
    early_trial_ms: int
    good_answer_ms: int
    heard_ms: int
    same_request_ms: int
    took_ms: int
    forget_ms: int
    probation_ms: int
    impatience_ms: int
    run_faults: int
    run_ms: int
    fresh_ms: int
    """An outcome that waited longer in its reporter is in no run of faults."""
    bucket_ms: int
    window_ms: int
    share_percent: int
    share_attempts: int
    low_share_percent: int
    low_share_attempts: int
    shares_only_above: int
    breaker_ms: int
    breaker_cap_ms: int
    breaker_growth_milli: int
    jitter_percent: int
    retry_after_cap_ms: int
    spread_models: int
    spread_ms: int
    slow_ttft_ms: int
    """0: slow calls are not counted."""
    slow_percent: int
    suspect_percent: int
    hint_ms: int
    hint_spread_percent: int
    throttle_window_ms: int
    throttle_answers: int
    throttle_answers_small: int
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
    sample_ms: int
    """Size of a bucket of samples."""
    samples_ms: int
    """Length of their window."""
    bad: int
    bad_percent: int
    checkable: int
    degraded_ms: int
    degraded_cap_ms: int
    degraded_growth_milli: int
    clean_trials: int
    uncheckable: int
    host_models: int
    host_bad: int
    counted_ms: int
    """A success that waited no longer in its reporter is in every window that counts successes."""
    idle_ms: int
    unknown_ms: int
    readiness_failures: int
    ramp_step_ms: int
    ramp_percents: tuple[int, ...]
    ramp_replicas: int
    shadowed: tuple[str, ...]
    """Rules that are folded and told but not enforced."""

    @classmethod
    def of(cls, policy: Policy) -> RuleLimits:
        """Round a policy's seconds to whole milliseconds."""
        rejections, evidence = policy.rejections, policy.evidence
        throttles, credential = policy.throttles, policy.credential
        ramp, bucket_ms = policy.ramp, _ms(policy.breaker.bucket_s)
        degraded, sample_ms = policy.degraded, _ms(policy.degraded.bucket_s)
        hold_ms = _ms(rejections.hold_s)
        grows = rejections.growth > 1
        return cls(
            strikes=rejections.threshold,
            strikes_window_ms=_ms(rejections.window_s),
            quarantine_ms=hold_ms,
            quarantine_cap_ms=max(_ms(rejections.cap_s), hold_ms) if grows else hold_ms,
            quarantine_growth_milli=round(rejections.growth * 1000),
            early_trial_ms=_ms(rejections.early_trial_s),
            good_answer_ms=_ms(policy.witnesses.good_answer_s),
            heard_ms=_ms(policy.witnesses.heard_s),
            same_request_ms=_ms(evidence.same_request_s),
            took_ms=_ms(evidence.took_s),
            forget_ms=_ms(evidence.forget_s),
            probation_ms=_ms(evidence.probation_s),
            fresh_ms=_ms(evidence.queued_s),
            suspect_percent=policy.witnesses.suspect_percent,
            **_breaker(policy.breaker),
            hint_ms=_ms(throttles.hint_s),
            hint_spread_percent=throttles.spread_percent,
            throttle_window_ms=_ms(throttles.window_s),
            throttle_answers=throttles.answers,
            throttle_answers_small=throttles.answers_small_fleet,
            throttle_growth_milli=round(throttles.growth * 1000),
            throttle_cap_ms=_ms(throttles.cap_s),
            quota_hint_ms=_ms(throttles.quota_hint_s),
            quota_cap_ms=_ms(throttles.quota_cap_s),
            throttle_trial_ms=_ms(throttles.trial_every_s),
            quota_trial_ms=_ms(throttles.quota_trial_every_s),
            refusals=credential.threshold,
            refusals_replicas=credential.replicas,
            refusals_window_ms=_ms(credential.window_s),
            credential_ms=_ms(credential.hold_s),
            credential_cap_ms=_ms(credential.cap_s),
            credential_growth_milli=round(credential.growth * 1000),
            sample_ms=sample_ms,
            samples_ms=sample_ms * SAMPLE_BUCKETS,
            bad=degraded.bad,
            bad_percent=degraded.share_percent,
            checkable=degraded.checkable,
            degraded_ms=_ms(degraded.hold_s),
            degraded_cap_ms=_ms(degraded.cap_s),
            degraded_growth_milli=round(degraded.growth * 1000),
            clean_trials=degraded.clean_trials,
            uncheckable=degraded.uncheckable,
            host_models=degraded.host_models,
            host_bad=degraded.host_bad,
            counted_ms=min(
                bucket_ms * BUCKETS, sample_ms * SAMPLE_BUCKETS, _ms(policy.witnesses.good_answer_s), HOUR_MS
            ),
            idle_ms=_ms(policy.health.idle_s),
            unknown_ms=_ms(policy.health.unknown_s),
            readiness_failures=policy.health.readiness_failures,
            ramp_step_ms=_ms(ramp.step_s),
            ramp_percents=ramp.percents,
            ramp_replicas=ramp.replicas,
            shadowed=tuple(rule for rule in RULES if not policy.enforces(rule)),
        )


def _breaker(breaker: BreakerPolicy) -> dict[str, Any]:
    return {
        "impatience_ms": _ms(breaker.impatience_s),
        "run_faults": breaker.consecutive,
        "run_ms": _ms(breaker.run_s),
        "bucket_ms": _ms(breaker.bucket_s),
        "window_ms": _ms(breaker.bucket_s) * BUCKETS,
        "share_percent": breaker.share_percent,
        "share_attempts": breaker.share_attempts,
        "low_share_percent": breaker.low_share_percent,
        "low_share_attempts": breaker.low_share_attempts,
        "shares_only_above": breaker.shares_only_above,
        "breaker_ms": _ms(breaker.hold_s),
        "breaker_cap_ms": _ms(breaker.cap_s),
        "breaker_growth_milli": round(breaker.growth * 1000),
        "jitter_percent": breaker.jitter_percent,
        "retry_after_cap_ms": _ms(breaker.retry_after_cap_s),
        "spread_models": breaker.spread_models,
        "spread_ms": _ms(breaker.spread_s),
        "slow_ttft_ms": breaker.slow_ttft_ms,
        "slow_percent": breaker.slow_percent,
    }


def grown_ms(first_ms: int, growth_milli: int, holds: int, cap_ms: int) -> int:
    """Length of the `holds`-th hold in a row: growth counts holds and stops at the cap (SPEC 4, Growth)."""
    length_ms = first_ms
    for _ in range(holds - 1):
        if length_ms >= cap_ms or growth_milli <= 1000:
            break
        length_ms = length_ms * growth_milli // 1000
    return min(length_ms, cap_ms)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
