"""When may one come back: what headers and body say, in seconds (Rule 4.2).

The function reads no clock. A date is counted from the answer's own Date header, and says nothing without it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, TypeAlias

Json: TypeAlias = Any
Hint: TypeAlias = tuple[float | None, Literal["header", "body"] | None]

LONGEST_S: Final = 30 * 86_400.0
"""A longer hint is cut to this."""
_EPOCH_FROM: Final = 1_000_000_000.0
"""A number this large is a moment in Unix time, not a wait."""
_UNIT_S: Final = {"ms": 0.001, "mi": 60.0, "m": 60.0, "s": 1.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION: Final = re.compile(
    r"(\d{1,12}(?:\.\d{1,9})?)\s{0,2}(milliseconds?|msecs?|ms|minutes?|mins?|seconds?|secs?|hours?|hrs?|days?|weeks?|[smhdw])(?![a-z])"
)
_WAIT: Final = re.compile(
    r"(?:try again|retry|wait|reset|resets|available again|retry again|come back|available|refresh|refreshes|renews?)"
    r"(?: it| the request| your request| again| at least| will be| be)?"
    r" (?:after|in|for|within|at least)?:? ?(?:about|approximately|around|~)? ?"
    r"((?:\d{1,12}(?:\.\d{1,9})?\s{0,2}[a-z]{1,12}(?:,? (?:and )?)?){1,4})"
)
_WAIT_ZH: Final = re.compile(r"(\d{1,7}(?:\.\d{1,6})?)\s?(毫秒|秒|分钟|小时|天)(?:钟)?(?:之?后|内)")
_ZH_S: Final = {"毫秒": 0.001, "秒": 1.0, "分钟": 60.0, "小时": 3600.0, "天": 86400.0}
_MOMENT: Final = re.compile(
    r"(?:reset|resets|again|available|after|until|retry)\D{0,24}"
    r"(\d{4}-\d\d-\d\d[t ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:z| ?utc| ?gmt|[+-]\d\d:?\d\d))"
)
_PAIR: Final = re.compile(r"\b(r|reset|t)\s*=\s*(\d{1,9})")
_KEYS: Final = (
    ("retry_after_ms", 0.001), ("retryafterms", 0.001), ("retry_after_seconds", 1.0), ("retry_after", 1.0),
    ("retryafter", 1.0), ("retry_after_s", 1.0), ("retrydelay", 1.0), ("estimated_time", 1.0), ("retry-after", 1.0),
    ("resets_in_seconds", 1.0), ("reset_in_seconds", 1.0), ("reset_seconds", 1.0), ("retry_after_secs", 1.0),
    ("resets_at", 1.0), ("reset_at", 1.0), ("x-ratelimit-reset", 1.0), ("retry_in", 1.0), ("wait_seconds", 1.0),
)  # fmt: skip
_WINDOW_KEY: Final = "x-ratelimit-reset"
"""A window's header that a relay passes on in its body."""
_RETRY_HEADERS: Final = (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001), ("x-retry-after-ms", 0.001),
                         ("retry-after", 1.0), ("x-retry-after", 1.0), ("x-ratelimit-retry-after", 1.0))  # fmt: skip


_CLOCK: Final = re.compile(
    r"(?:replenished|resets?|retry|again|available|refreshes) (?:in|after):? (\d{1,4}):(\d\d):(\d\d)\b"
)


def retry_after(headers: Mapping[str, str], doc: Json, text: str, *, windows: bool = True) -> Hint:
    """Seconds to wait and where that was said; headers by lower-case name, text in lower case.

    `windows`: a rate limit's window that its own status, remaining or utilization calls spent says when, too. It
    says nothing about a fault.
    """
    now = _moment(headers.get("date", ""))
    for name, unit in _RETRY_HEADERS:
        if name in headers and (wait := _seconds(headers[name], unit, now)) is not None:
            return _bounded(wait), "header"
    if windows and (spent := _resets(headers, now)) is not None:
        return _bounded(spent), "header"
    said = _in_json(doc, now, 0, windows=windows)
    if said is None:
        said = _in_text(text, now)
    return (_bounded(said), "body") if said is not None else (None, None)


def _bounded(wait: float) -> float:
    return min(max(wait, 0.0), LONGEST_S)


def _moment(value: str) -> float | None:
    """A date as Unix seconds; None where it is none or names no zone."""
    value = value.strip()
    if not value or len(value) > 64:
        return None
    try:
        if value[:4].isdigit() and value[4:5] == "-":
            value = (
                value.replace(" utc", "+00:00")
                .replace(" gmt", "+00:00")
                .replace("utc", "+00:00")
                .replace("gmt", "+00:00")
            )
            when = datetime.fromisoformat(value.upper().replace(" +", "+"))
            return when.timestamp() if when.tzinfo else None
        when = parsedate_to_datetime(value)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _seconds(value: object, unit: float, now: float | None) -> float | None:
    """A number, a duration (`1m30s`), a moment or an epoch as seconds from the answer's own date."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, dict):
        seconds, nanos = value.get("seconds", 0), value.get("nanos", 0)
        parts = (_seconds(seconds, 1.0, None), _seconds(nanos, 1.0, None))
        return parts[0] + (parts[1] or 0.0) / 1e9 if parts[0] is not None else None
    if isinstance(value, int | float):
        number = float(value) if abs(value) < 1e18 else math.inf
    elif isinstance(value, str):
        value = value.strip()
        try:
            number = float(value) if len(value) < 32 else math.inf
        except ValueError:
            return _from_words(value.lower(), now)
    else:
        return None
    if not math.isfinite(number) or number < 0:
        return None
    if number >= _EPOCH_FROM and unit >= 1.0:
        moment = number / 1000.0 if number >= _EPOCH_FROM * 100 else number
        return max(moment - now, 0.0) if now is not None else None
    return number * unit


def _from_words(value: str, now: float | None) -> float | None:
    if (spelled := _duration(value)) is not None and value[:1].isdigit() and value[4:5] != "-":
        return spelled
    moment = _moment(value)
    return max(moment - now, 0.0) if moment is not None and now is not None else None


def _duration(text: str) -> float | None:
    total, found = 0.0, False
    for number, unit in _DURATION.findall(text[:64]):
        found = True
        scale = _UNIT_S["ms" if unit.startswith(("ms", "milli")) else "mi" if unit.startswith("mi") else unit[0]]
        total += float(number) * scale
    return total if found else None


_SPENT_STATUSES: Final = frozenset(("rejected", "exceeded", "exhausted", "blocked", "limited", "throttled", "spent"))
_ALLOWANCE: Final = "anthropic-ratelimit-unified-"
"""What these windows count is an allowance of hours or days, and no rate."""


def allowance_is_spent(headers: Mapping[str, str]) -> bool:
    """Whether the account's allowance, as its windows tell, refused the call. Overage is not the allowance."""
    return any(
        headers.get(f"{_ALLOWANCE}{window}status", "").lower() in _SPENT_STATUSES for window in ("", "5h-", "7d-")
    )


def _resets(headers: Mapping[str, str], now: float | None) -> float | None:
    """The longest wait among windows that are spent by their own account. One of several windows is preferred to
    what sums them up.
    """
    spent: float | None = None
    summed: float | None = None
    for name, value in headers.items():
        if "reset" not in name or "limit" not in name:
            if name == "ratelimit" and "reset=" in value + value.replace("t=", "reset="):
                pairs = dict(_PAIR.findall(value))
                if pairs.get("r") == "0" and "t" in pairs:
                    spent = max(spent or 0.0, float(pairs["t"]))
            continue
        if "overage" in name or not _is_spent(headers, name, "reset") or (wait := _seconds(value, 1.0, now)) is None:
            continue
        if name == f"{_ALLOWANCE}reset":
            summed = wait
        else:
            spent = max(spent or 0.0, wait)
    return spent if spent is not None else summed


def _is_spent(window: Mapping[str, Any], name: str, word: str) -> bool:
    """Whether the fields beside a window's reset say that nothing of it is left."""

    def beside(field: str) -> str:
        return str(window.get(name.replace(word, field), "")).strip().lower()

    if beside("status") in _SPENT_STATUSES:
        return True
    try:
        remaining, used = beside("remaining"), beside("utilization")
        return (remaining != "" and float(remaining) == 0) or (used != "" and float(used) >= 1)
    except ValueError:
        return False


def _in_json(node: Json, now: float | None, depth: int, *, windows: bool) -> float | None:
    if depth > 6:
        return None
    if isinstance(node, list):
        for item in node[:8]:
            if (wait := _in_json(item, now, depth + 1, windows=windows)) is not None:
                return wait
        return None
    if not isinstance(node, dict) or len(node) > 64:
        return None
    low = {key.lower(): value for key, value in node.items()}
    for key, unit in _KEYS:
        if key not in low or (wait := _seconds(low[key], unit, now)) is None:
            continue
        if key != _WINDOW_KEY or (windows and _is_spent(low, key, "reset")):
            return wait
    for value in node.values():
        if isinstance(value, dict | list) and (wait := _in_json(value, now, depth + 1, windows=windows)) is not None:
            return wait
    return None


def _in_text(text: str, now: float | None) -> float | None:
    if any(mark in text for mark in ("again", "retry", "wait", "reset", "available", "refresh", "renew", "replenish")):
        for found in _WAIT.finditer(text):
            if (wait := _duration(found[1])) is not None:
                return wait
        if clock := _CLOCK.search(text):
            return int(clock[1]) * 3600.0 + int(clock[2]) * 60.0 + int(clock[3])
        said = _MOMENT.search(text) if now is not None else None
        if said and now is not None and (moment := _moment(said[1])) is not None:
            return max(moment - now, 0.0)
    if not text.isascii() and (wide := _WAIT_ZH.search(text)):
        return float(wide[1]) * _ZH_S[wide[2]]
    return None
