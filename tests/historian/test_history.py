"""A history is a function of the log: however it is cut, interrupted or rebuilt, the rows are the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from histories import START_MS, history
from history_rig import built, closes_databases, contents, digest, one  # noqa: F401 - a fixture
from sickbay.historian.store import Keep
from sickbay_events import CallOutcome, CallsRefused, Override, Scope, Target
from sickbay_projections import Fleet, Recorded

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def outcomes(*kinds: Any, target: Target = TARGET, every_ms: int = 1000, **fields: Any) -> list[Recorded]:
    return [
        Recorded(CallOutcome(kind=kind, id=f"{7:016x}-{n}", **fields), target, replica=f"r{n % 2}", seq=n,
                 time_ms=START_MS + n * every_ms)
        for n, kind in enumerate(kinds, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_rows_do_not_depend_on_how_the_log_is_cut_into_batches_and_transactions(seed: int) -> None:
    """Ids included: they are given in the order of the log, and rolling up has its place in it."""
    recorded = history(seed, 1500, pace=400)
    keep = Keep(minutes_days=1, hours_days=3)
    first = built(recorded, batch=1500, keep=keep)
    rows = contents(first.db)
    for batch, commit in ((1, 1), (7, 50), (500, 1)):
        assert contents(built(recorded, batch=batch, commit=commit, keep=keep).db) == rows, (batch, commit)
    full = {name for name, found in rows.items() if found}
    assert {
        "calls_by_minute",
        "calls_by_hour",
        "calls_by_day",
        "holds",
        "transitions",
        "acts",
        "refused_by_hour",
    } <= full


@pytest.mark.parametrize("seed", range(3))
def test_every_call_that_the_fold_counts_is_in_the_history_once(seed: int) -> None:
    """Redelivered events count once (SPEC 4, Once); whatever is rolled up keeps its sum and its histogram."""
    recorded = history(seed, 2500, pace=100)
    fleet, truth = Fleet(), Counter[tuple[str, str]]()
    for each in recorded:
        fleet.apply(each)
        if isinstance(each.event, CallOutcome) and not fleet.passed_over:
            assert each.target is not None
            truth[each.target.key, each.event.kind] += 1
    book = built(recorded, keep=Keep(minutes_days=1, hours_days=2))
    found = book.db.query("SELECT key, kind, sum(calls) AS n FROM calls JOIN scopes ON id = scope_id GROUP BY 1, 2")
    assert {(row["key"], row["kind"]): row["n"] for row in found} == dict(truth)
    assert one(book.db, "SELECT repeated FROM position") == fleet.repeated > 0
    measured = sum(1 for each in recorded if isinstance(each.event, CallOutcome) and each.event.took_ms is not None)
    every = " UNION ALL ".join(f"SELECT took FROM calls_by_{grain}" for grain in ("minute", "hour", "day"))
    in_histograms = one(book.db, f"SELECT sum(value) FROM ({every}), json_each(took)")
    assert 0 < in_histograms <= measured


def test_minutes_become_hours_and_hours_days_by_log_time_alone() -> None:
    """What is rolled up lies where its time says, and nothing is lost or counted twice."""
    recorded = outcomes(*["ok"] * 4000, every_ms=10 * 60_000, took_ms=100)
    book = built(recorded, keep=Keep(minutes_days=2, hours_days=10))
    last_ms = recorded[-1].time_ms
    for grain, oldest_days in (("minute", 2), ("hour", 10)):
        first_s = one(book.db, f"SELECT min(start_s) FROM calls_by_{grain}")
        assert last_ms - oldest_days * DAY_MS - DAY_MS <= first_s * 1000 <= last_ms - oldest_days * DAY_MS + HOUR_MS
    assert one(book.db, "SELECT sum(calls) FROM calls") == 4000
    assert one(book.db, "SELECT count(*) FROM calls WHERE span_s = 86400 AND start_s % 86400") == 0
    assert one(book.db, "SELECT max(calls) FROM calls WHERE span_s = 86400") == 144
    kept = built(recorded, keep=Keep(minutes_days=2, hours_days=10, days=15))
    assert one(kept.db, "SELECT sum(calls) FROM calls") == pytest.approx(15 * 144, abs=144)


def test_latency_quantiles_are_right_within_a_bucket() -> None:
    """Also of rows that were added to several times; the true quantile is at most 9 % below."""
    recorded = [
        Recorded(CallOutcome(kind="ok", took_ms=float(n), ttft_ms=n / 2), TARGET, replica="r", seq=n, time_ms=START_MS)
        for n in range(1, 1001)
    ]
    row = next(iter(built(recorded, batch=13, commit=1).db.query("SELECT * FROM calls")))
    for column, true_ms in (("p50_ms", 500), ("p95_ms", 950), ("p99_ms", 990), ("ttft_p50_ms", 250)):
        assert true_ms <= row[column] <= true_ms * 1.1, column
    assert row["calls"] == 1000


def test_a_hold_has_its_beginning_end_cause_and_the_calls_it_saved() -> None:
    """Two strikes quarantine for ten minutes (SPEC 4.1); what is refused in that time is the hold's merit."""
    recorded = outcomes("model_unavailable", "model_unavailable", status=404)
    at_ms = recorded[-1].time_ms
    for n, (after_s, rule) in enumerate(
        [(60, "quarantine"), (120, "quarantine"), (130, "breaker"), (3600, "quarantine")]
    ):
        refused = CallsRefused(count=10**n, rule=rule)
        recorded.append(Recorded(refused, TARGET, replica="r1", seq=3 + n, time_ms=at_ms + after_s * 1000))
    book = built(recorded)
    (hold,) = book.db.query("SELECT * FROM held")
    assert (hold["rule"], hold["kind"], hold["status"], hold["held_s"]) == ("quarantine", "model_unavailable", 404, 600)
    assert hold["ended_by"] == "time"
    assert hold["calls_saved"] == 11, "another rule's, and those of an hour later, are not its own"
    assert one(book.db, "SELECT sum(calls) FROM calls_saved") == 1111


def test_a_hold_that_was_lifted_ended_then_and_a_standing_one_has_no_end() -> None:
    recorded = outcomes("model_unavailable", "model_unavailable")
    standing = built(recorded)
    assert one(standing.db, "SELECT ended FROM held") is None
    assert one(standing.db, "SELECT ended_by FROM held") is None, "nothing has ended it yet"
    ok = CallOutcome(kind="ok", seen_seq=2)
    recorded.append(Recorded(ok, TARGET, replica="r1", seq=3, time_ms=recorded[-1].time_ms + 5000))
    (hold,) = built(recorded).db.query("SELECT * FROM held")
    assert (hold["held_s"], hold["ended_by"]) == (5, "success")


def test_reasons_and_actors_are_found_by_their_words() -> None:
    act = Override(action="hold", reason="answers in the wrong language", actor="ana@box", until="2023-11-15T00:00:00Z")
    recorded = [Recorded(act, scope=Scope("openrouter.ai"), seq=1, time_ms=START_MS)]
    db = built(recorded).db
    assert [row["action"] for row in db.table("acts").search("language")] == ["hold"]
    assert [row["type"] for row in db.table("transitions").search("wrong language")] == ["held"]
    assert list(db.table("acts").search("english")) == []
    assert one(db, "SELECT provider FROM operator_acts") == "openrouter.ai"


def test_routes_charsets_and_replicas_are_counted() -> None:
    common: dict[str, Any] = {"route": "brief", "stream": True}
    recorded = outcomes("ok", "ok", "timeout", charset="absent", rank=1, **common)
    recorded += [
        Recorded(CallOutcome(kind="ok", id=f"{8:016x}-1", charset="UTF-8", **common), TARGET, replica="r1", seq=4,
                 time_ms=START_MS + HOUR_MS)
    ]  # fmt: skip
    db = built(recorded).db
    (late, early) = db.query("SELECT * FROM fallbacks ORDER BY start DESC")
    assert (early["calls"], early["answered"], early["by_fallback"], early["fallback_percent"]) == (3, 2, 2, 100)
    assert late["fallback_percent"] == 0
    found = {row["charset"]: row["streams_without"] for row in db.query("SELECT * FROM charsets")}
    assert found == {"absent": 3, "utf-8": 0}
    fleet = {row["replica"]: row for row in db.query("SELECT * FROM fleet")}
    assert (fleet["r1"]["boots"], fleet["r1"]["outcomes"], fleet["r0"]["boots"]) == (2, 3, 1)
    assert fleet["r1"]["last_heard"] == "2023-11-14T23:13:20.000Z"


def test_an_empty_log_and_a_log_of_one_event_make_histories() -> None:
    empty = built([])
    assert {name: rows for name, rows in contents(empty.db).items() if rows}.keys() == {"kinds", "position"}
    for view in empty.db.view_names():
        assert list(empty.db.query(f"SELECT * FROM {view}")) == [], view
    assert one(built(outcomes("ok")).db, "SELECT calls FROM traffic") == 1


def test_names_that_no_store_takes_as_they_are_do_not_stop_the_history() -> None:
    """A NUL, half a surrogate pair, counts beyond any sum: all are told as well as they can be."""
    odd = Target("h", "m\0")
    recorded = [
        Recorded(CallsRefused(count=2**53, rule="quarantine\0"), odd, replica=f"r{n}", seq=n, time_ms=START_MS)
        for n in range(1, 3000)
    ]
    recorded.append(Recorded(CallOutcome(kind="ok", route="\ud800", charset="\udfff"), odd, seq=3000, time_ms=START_MS))
    db = built(recorded).db
    assert one(db, "SELECT model FROM traffic") == "m\0"
    assert one(db, "SELECT sum(calls) FROM calls_saved") == 2999 * 10**9


def test_the_digest_tells_histories_apart() -> None:
    """So that the tests that compare digests can fail."""
    assert digest(built(outcomes("ok", "ok")).db) != digest(built(outcomes("ok", "timeout")).db)
