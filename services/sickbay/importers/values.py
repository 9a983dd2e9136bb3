"""Reading single values of other systems: times, durations, numbers, in whatever form they come."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from sickbay_events.times import parse_rfc3339

from .calls import RowRefused

_ACCESS: Final = re.compile(r"(\d{2})/([A-Z][a-z]{2})/(\d{4}):(\d{2}:\d{2}:\d{2})(\.\d+)? ([+-]\d{4})")
_MONTHS: Final = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_FIRST_MS: Final = 946_684_800_000  # 2000
_LAST_MS: Final = 4_102_444_800_000  # 2100
_UNITS_MS: Final = {"": None, "ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1000.0, "m": 60_000.0}
_LENGTH: Final = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([a-zµ]*)")


def time_ms(value: Any, zone: tzinfo = UTC, field: str = "at") -> int:
    """A time as milliseconds since the epoch. Raises `RowRefused`.

    Numbers are seconds, milliseconds, microseconds or nanoseconds by their size; texts are RFC 3339, ISO without an
    offset (then of `zone`), or an access log's `30/Nov/2026:14:00:00 +0000`.
    """
    found: int | None = None
    if isinstance(value, str):
        value = value.strip().strip("[]")
        if _NUMBER.fullmatch(value):
            # A whole number of nanoseconds is more than a float holds.
            value = int(value) if value.lstrip("-").isdecimal() else float(value)
        else:
            found = _text_ms(value, zone)
    if found is None and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        found = _epoch_ms(value)
    if found is None:
        raise RowRefused(field, f"{str(value)[:60]!r} is no time" if value not in (None, "") else "there is none")
    if not _FIRST_MS <= found < _LAST_MS:
        raise RowRefused(field, f"{str(value)[:60]!r} lies outside the years 2000 to 2099")
    return found


def _epoch_ms(value: float) -> int:
    size = abs(value)
    if size < 1e11:
        return math.floor(value * 1000)
    if size < 1e14:
        return math.floor(value)
    return int(value // 1_000) if size < 1e17 else int(value // 1_000_000)


def _text_ms(text: str, zone: tzinfo) -> int | None:
    access = _ACCESS.fullmatch(text)
    if access is not None and access[2] in _MONTHS:
        month = _MONTHS.index(access[2]) + 1
        text = f"{access[3]}-{month:02d}-{access[1]}T{access[4]}{access[5] or ''}{access[6][:3]}:{access[6][3:]}"
    text = re.sub(r"(?<=:\d\d),(?=\d)", ".", text, count=1)
    text = re.sub(r"\s*UTC$", "Z", text)
    try:
        return parse_rfc3339(text)
    except ValueError:
        pass
    try:
        return math.floor(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def duration_ms(value: Any, unit_ms: float, field: str) -> float | None:
    """A duration in milliseconds; a number without a unit counts in `unit_ms`. Raises `RowRefused`."""
    if value in (None, "", "-"):
        return None
    found = _LENGTH.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    if found is None or found[2] not in _UNITS_MS:
        raise RowRefused(field, f"{str(value)[:60]!r} is no length of time")
    return float(found[1]) * (_UNITS_MS[found[2]] or unit_ms)


def status_value(value: Any, field: str = "status") -> int | None:
    """An HTTP status; None for none (`0`, `-`, empty, `000`). Of `502, 200` the last. Raises `RowRefused`."""
    if value in (None, ""):
        return None
    text = str(value).replace(":", ",").rpartition(",")[2].strip().removesuffix(".0")
    if text in ("-", "0", "000", ""):
        return None
    if not text.isdecimal() or not 100 <= int(text) <= 599:
        raise RowRefused(field, f"{str(value)[:40]!r} is no HTTP status")
    return int(text)


def truth(value: Any) -> bool:
    """Yes or no, as CSV and JSON files say it."""
    return value is True or str(value).strip().lower() in ("true", "t", "yes", "1", "on")


def text_of(value: Any) -> str:
    """A name or a text; a number is its digits, None and `-` are empty."""
    if value is None or value == "-" or isinstance(value, dict | list | bool):
        return ""
    return str(value).strip()
