"""Keys that a policy had before points (Rule 4.0): each is refused with what to write now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .errors import PolicyRefused

_NO: Final = "a policy without this key: "
_POINTS: Final = _NO + "failures score points now, no share of a window holds; "
GONE: Final[dict[str, str]] = {
    "rejections.window_s": _NO + "write evidence.window_s, which counts for points of every kind",
    "rejections.early_trial_s": _NO + "every hold is tried early; write rejections.first_s for the first trial",
    "breaker.run_s": _NO + "write evidence.window_s, which counts for points of every kind",
    "breaker.bucket_s": _POINTS + "leave it out",
    "breaker.share_percent": _POINTS + "write breaker.fault_points (2 hold at shares over 1/3)",
    "breaker.share_attempts": _POINTS + "write breaker.consecutive",
    "breaker.low_share_percent": _POINTS + "write breaker.fault_points (2 hold at shares over 1/3)",
    "breaker.low_share_attempts": _POINTS + "write breaker.consecutive",
    "breaker.shares_only_above": _NO + "five in a row open at every rate; write evidence.above for noise",
    "breaker.slow_percent": _POINTS + "20 slow calls in a row open; leave it out",
    "degraded.bucket_s": _POINTS + "leave it out",
    "degraded.bad": _POINTS + "write degraded.consecutive",
    "degraded.share_percent": _POINTS + "write degraded.bad_points (3 hold at shares over 1/4)",
    "degraded.checkable": _POINTS + "write degraded.consecutive",
    "throttles.answers": _NO + "write throttles.needed, the throttles in a row that hold the fleet",
    "throttles.answers_small_fleet": _NO + "write throttles.needed, which counts for fleets of every size",
    "throttles.quota_trial_every_s": _NO + "write throttles.quota_trial_max_s",
    "overlay.extra_s": _NO + "a replica's own hold is tried like the fleet's; write trials.held_part_own",
    "overlay.cap_s": _NO + "a replica's own hold is tried like the fleet's; write trials.held_part_own",
    "ramp.step_s": _NO + "a ramp is a part of the time held; write ramp.part and ramp.max_s",
    "witnesses.suspect_percent": _NO + "the rule Whose word needs no share; leave it out",
}
"""Keys of policies before points (Rule 4.0), and what to write now."""


def refuse_gone(section: str, path: str, table: Mapping[str, Any]) -> None:
    """Refuse a table of this section that has one of them. Raises `PolicyRefused`, whose key begins with `path`."""
    for key, value in table.items():
        if (instead := GONE.get(f"{section}.{key}")) is not None:
            raise PolicyRefused(f"{path}.{key}", value, instead)
