"""Times as people write them mean one moment each, in every zone and on the days when clocks change."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from sickbay.invalid import InvalidValue
from sickbay.when import when_ms
from sickbay_events import parse_rfc3339, rfc3339

BERLIN = ZoneInfo("Europe/Berlin")
NOW_MS = parse_rfc3339("2026-11-30T12:34:56Z")


def said(text: str, now: str = "2026-11-30T12:34:56Z", zone: ZoneInfo = BERLIN) -> str:
    return rfc3339(when_ms(text, now_ms=parse_rfc3339(now), zone=zone)).replace(".000Z", "Z")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-11-30T12:34:56Z"),
        ("2 hours ago", "2026-11-30T10:34:56Z"),
        ("an hour ago", "2026-11-30T11:34:56Z"),
        ("90m", "2026-11-30T11:04:56Z"),
        ("1h30m ago", "2026-11-30T11:04:56Z"),
        ("1 hour and 30 minutes ago", "2026-11-30T11:04:56Z"),
        ("1.5 days ago", "2026-11-29T00:34:56Z"),
        ("a week ago", "2026-11-23T12:34:56Z"),
        ("today", "2026-11-29T23:00:00Z"),
        ("Yesterday", "2026-11-28T23:00:00Z"),
        ("03:12", "2026-11-30T02:12:00Z"),
        ("13:34:56", "2026-11-30T12:34:56Z"),
        ("13:35", "2026-11-29T12:35:00Z"),
        ("23:59:30.5", "2026-11-29T22:59:30.500Z"),
        ("yesterday 14:00", "2026-11-29T13:00:00Z"),
        ("yesterday at 9:05", "2026-11-29T08:05:00Z"),
        ("Today 03:12", "2026-11-30T02:12:00Z"),
        ("03:12 UTC", "2026-11-30T03:12:00Z"),
        ("yesterday 20:00 America/New_York", "2026-11-30T01:00:00Z"),
        ("2026-11-30", "2026-11-29T23:00:00Z"),
        ("2026-11-30 9:05", "2026-11-30T08:05:00Z"),
        ("2026-11-30T14:00:30", "2026-11-30T13:00:30Z"),
        ("2026-11-30 14:00 America/New_York", "2026-11-30T19:00:00Z"),
        ("2026-11-30 14:00 UTC", "2026-11-30T14:00:00Z"),
        ("2026-11-30T14:00:00+02:00", "2026-11-30T12:00:00Z"),
        ("2026-11-30T14:00:00.25Z", "2026-11-30T14:00:00.250Z"),
    ],
)
def test_each_form_means_its_moment(text: str, meant: str) -> None:
    assert said(text) == meant


def test_days_are_calendar_days_also_when_the_clock_changes() -> None:
    """In Berlin 2026-10-25 has 25 hours and 2026-03-29 has 23."""
    assert said("1 day ago", "2026-10-25T12:00:00Z") == "2026-10-24T11:00:00Z"
    assert said("24 hours ago", "2026-10-25T12:00:00Z") == "2026-10-24T12:00:00Z"
    assert said("1 day ago", "2026-03-29T12:00:00Z") == "2026-03-28T13:00:00Z"
    assert said("today", "2026-10-25T22:30:00Z") == "2026-10-24T22:00:00Z"
    assert said("yesterday", "2026-10-26T12:00:00Z") == "2026-10-24T22:00:00Z"


def test_a_time_shown_twice_is_the_first_and_a_skipped_one_is_refused() -> None:
    """When the clock is set for summer and winter."""
    assert said("2026-10-25 02:30") == "2026-10-25T00:30:00Z"
    assert said("2026-10-25T02:30:00+01:00") == "2026-10-25T01:30:00Z", "the offset says the second one"
    with pytest.raises(InvalidValue, match="went from 02:30 on to 03:30"):
        said("2026-03-29 02:30")
    assert said("1 day ago", "2026-03-30T00:30:00Z") == "2026-03-29T01:30:00Z", "nobody wrote that time"


def test_a_day_without_midnight_begins_when_it_begins() -> None:
    assert said("2026-04-24", zone=ZoneInfo("Africa/Cairo")) == "2026-04-23T22:00:00Z"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "accepted is"),
        ("soon", "accepted is"),
        ("2 fortnights ago", "no unit"),
        ("2026-13-01", "month"),
        ("2026-11-30 25:00", "hour"),
        ("2026-11-30 14:00 Europe/Nowhere", "no time zone"),
        ("2026-11-30 14:00 ../etc/passwd", "accepted is"),
        ("99999999999 days ago", "any log"),
        ("0001-01-01", "no clock"),
        ("1700000000", "accepted is"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_can(text: str, why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        when_ms(text, now_ms=NOW_MS, zone=BERLIN)


def test_without_a_zone_it_is_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert rfc3339(when_ms("2026-11-30", now_ms=NOW_MS)) == "2026-11-29T15:00:00.000Z"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("18:00", "2026-11-30T17:00:00Z"),
        ("03:12", "2026-12-01T02:12:00Z"),
        ("tomorrow 9:00", "2026-12-01T08:00:00Z"),
        ("18:00 UTC", "2026-11-30T18:00:00Z"),
    ],
)
def test_an_end_ahead_is_the_next_time_of_day(text: str, meant: str) -> None:
    assert when_ms(text, now_ms=NOW_MS, zone=BERLIN, ahead=True) == parse_rfc3339(meant)


@pytest.mark.parametrize("text", ["25:00", "3:5", "03:60", "yesterday 24:01", "02:30 Mars/Base"])
def test_a_time_of_day_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        when_ms(text, now_ms=NOW_MS, zone=BERLIN)


def test_a_time_of_day_that_the_clock_skipped_is_refused() -> None:
    """On the night when clocks go on from 02:00 to 03:00."""
    with pytest.raises(InvalidValue, match="that the clock showed"):
        when_ms("02:30", now_ms=parse_rfc3339("2026-03-29T10:00:00Z"), zone=BERLIN)
