"""RFC 3339 text to and from whole milliseconds since the Unix epoch. Pure: no clock is read here."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION: Final = re.compile(r"\.(\d+)")
_MS: Final = timedelta(milliseconds=1)
_MS_MIN: Final = -62_135_596_800_000
_MS_MAX: Final = 253_402_300_799_999


def rfc3339(ms: int) -> str:
    """Milliseconds since the epoch as RFC 3339 in UTC, with three digits; clamped to years 1 to 9999."""
    at = _EPOCH + min(max(ms, _MS_MIN), _MS_MAX) * _MS
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z".rjust(24, "0")


def parse_rfc3339(text: str) -> int:
    """Whole milliseconds (cut, not rounded) of an RFC 3339 time that names its offset.

    Any number of fraction digits is read. Raises ValueError that names the accepted form.
    """
    try:
        at = datetime.fromisoformat(_FRACTION.sub(lambda m: "." + (m[1] + "000000")[:6], text, count=1))
    except (ValueError, TypeError):
        at = None
    if at is None or at.tzinfo is None:
        raise ValueError(f"{text!r} is not an RFC 3339 time with an offset, such as 2026-11-30T12:00:00Z")
    return (at - _EPOCH) // _MS
