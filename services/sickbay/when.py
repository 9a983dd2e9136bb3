"""Times as people write them, to log time in milliseconds: for every `--since`, `--until`, `--from`, `--to`, `--at`.

    when_ms("2 hours ago", now_ms=..., zone=ZoneInfo("Europe/Berlin"))
    when_ms("2026-11-30 14:00", ...)   when_ms("2026-11-30T13:00:00Z", ...)   when_ms("yesterday", ...)

A time without an offset is local: at this machine, or where a zone's name behind it says. Days and weeks ago are
calendar days at the same time on the clock, which on two days a year are 23 and 25 hours; smaller units are exact.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sickbay_events.times import parse_rfc3339

from .invalid import InvalidValue

ACCEPTED: Final = (
    "an RFC 3339 time (2026-11-30T12:00:00Z), a date or a local time (2026-11-30, 2026-11-30 14:00), a time of day "
    "(03:12, yesterday 14:00), both with a zone's name such as Europe/Berlin behind it or not, now, today, yesterday, "
    "or how long ago (2 hours ago, 90m, 3d)"
)


_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_NAMES: Final = {
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
    "hour": "h", "hours": "h", "hr": "h", "hrs": "h", "day": "d", "days": "d", "week": "w", "weeks": "w",
}  # fmt: skip
_AGO: Final = re.compile(r"(?:(?:an?\s|\d+(?:\.\d+)?)\s*[a-z]+\s*(?:,|and\b)?\s*)+(?:\bago)?")
_PART: Final = re.compile(r"(\ban?(?=\s)|\d+(?:\.\d+)?)\s*([a-z]+)")
_LOCAL: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?))?(?:\s+([A-Za-z][\w+/-]*))?"
)
_OF_DAY: Final = re.compile(
    r"(?:(today|yesterday|tomorrow)\s+(?:at\s+)?)?(\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)(?:\s+([A-Za-z][\w+/-]*))?",
    re.IGNORECASE,
)
_DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
_YEARS_MAX: Final = 1_000


def when_ms(text: str, *, now_ms: int, zone: tzinfo | None = None, ahead: bool = False) -> int:
    """Milliseconds since the epoch. `zone` None: this machine's. Raises `InvalidValue` with the accepted forms.

    A time of day alone is the latest that was, or with `ahead` the next that comes.
    """
    given = " ".join(text.split())
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone)
    word = given.lower()
    if word == "now":
        return now_ms
    if word in ("today", "yesterday"):
        return _ms(text, (now - timedelta(days=word == "yesterday")).replace(tzinfo=None), zone, whole_day=True)
    if _AGO.fullmatch(word):
        return _ago_ms(text, word.removesuffix("ago"), now_ms, now, zone)
    of_day = _OF_DAY.fullmatch(given)
    if of_day is not None:
        return _of_day_ms(text, *of_day.groups(), now_ms=now_ms, zone=zone, ahead=ahead)
    local = _LOCAL.fullmatch(given)
    if local is not None:
        return _local_ms(text, *local.groups(), zone=zone)
    try:
        return parse_rfc3339(given)
    except ValueError:
        raise InvalidValue("time", text, ACCEPTED) from None


def _zone(text: str, name: str | None, zone: tzinfo | None) -> tzinfo | None:
    """The zone of this name, or the one that is given."""
    if name is None:
        return zone
    try:
        return ZoneInfo({"utc": "UTC", "z": "UTC"}.get(name.lower(), name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        accepted = f"a time zone such as Europe/Berlin or UTC: {name!r} is no time zone"
        raise InvalidValue("time", text, accepted) from None


def _of_day_ms(
    text: str, day: str | None, time: str, name: str | None, *, now_ms: int, zone: tzinfo | None, ahead: bool
) -> int:
    zone = _zone(text, name, zone)
    today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone).date()
    if day is not None:
        return _local_ms(text, str(today + timedelta(days=_DAYS[day.lower()])), time, None, zone=zone)
    found = _local_ms(text, str(today), time, None, zone=zone)
    if (found > now_ms) != ahead:
        found = _local_ms(text, str(today + timedelta(days=1 if ahead else -1)), time, None, zone=zone)
    return found


def _local_ms(text: str, date: str, time: str | None, name: str | None, *, zone: tzinfo | None) -> int:
    zone = _zone(text, name, zone)
    hour, _, rest = (time or "00:00").partition(":")
    try:
        naive = datetime.fromisoformat(f"{date}T{hour:0>2}:{rest}")
    except ValueError as error:
        raise InvalidValue("time", text, f"a date and a time that exist: {error}") from None
    return _ms(text, naive, zone, whole_day=time is None)


def _ago_ms(text: str, parts: str, now_ms: int, now: datetime, zone: tzinfo | None) -> int:
    seconds, days = 0.0, 0.0
    for number, unit in _PART.findall(parts):
        short = _NAMES.get(unit, unit)
        if short not in _UNITS_S:
            raise InvalidValue("time", text, f"s, m, h, d or w, or their names: {unit!r} is no unit of time")
        count = 1.0 if number in ("a", "an") else float(number)
        if short in ("d", "w") and count.is_integer():
            days += count * (7 if short == "w" else 1)
        else:
            seconds += count * _UNITS_S[short]
    if days > _YEARS_MAX * 365 or seconds > _YEARS_MAX * 365 * 86_400:
        raise InvalidValue("time", text, f"at most {_YEARS_MAX} years: that is longer ago than any log")
    if days:
        naive = now.replace(tzinfo=None) - timedelta(days=days)
        now_ms = _ms(text, naive, zone, whole_day=False, lenient=True)
    return now_ms - round(seconds * 1000)


def _ms(text: str, naive: datetime, zone: tzinfo | None, *, whole_day: bool, lenient: bool = False) -> int:
    """A time on the clock of a zone; the first of two that look alike.

    A time that the clock skipped is refused. The beginning of a day is not: a day may begin later than midnight.
    """
    if whole_day:
        naive = naive.replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        at = naive.astimezone() if zone is None else naive.replace(tzinfo=zone)
        there_and_back = at.astimezone(UTC).astimezone(zone).replace(tzinfo=None)
        if there_and_back != naive and not (whole_day or lenient):
            skipped = f"it went from {naive:%H:%M} on to {there_and_back:%H:%M} that day"
            raise InvalidValue("time", text, f"a time that the clock showed: {skipped}")
        return round(at.timestamp() * 1000)
    except (OverflowError, OSError) as error:
        raise InvalidValue("time", text, f"a time of a calendar, but no clock has shown that: {error}") from None


def seconds(value: float) -> str:
    """Seconds as people say them: `0.4 s`, `52 s`, `9 min 12 s`, `3 h 5 min`, `2 d 4 h`."""
    if value < 10:
        return f"{max(value, 0.0):.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
