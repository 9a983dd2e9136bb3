"""`record` never blocks and never raises; what it takes is bounded, numbered and fit for the log."""

from __future__ import annotations

import json
import logging
import math
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reporter_rig import TARGET, Replica, publishing
from sickbay.bus.connect import NatsOptions
from sickbay.bus.link import Link
from sickbay.router.outbox import EVENT_BYTES_MAX, WINDOW, Backlog, NotReportable, QueuedEvent, fit, weighty
from sickbay.router.reporter import Reporter
from sickbay_events import (
    KINDS,
    CallAnswered,
    CallOutcome,
    CallsRefused,
    Kind,
    Lease,
    NameRefused,
    ProbeResult,
    Skipped,
    Target,
    decode,
    encode,
    outcome_subject,
)

NOWHERE = NatsOptions.from_url("nats://127.0.0.1:9")


def reporter(**options: Any) -> Reporter:
    """One that was never started: everything stays in its queue."""
    return Reporter(Link(NOWHERE), replica="r1", **options)


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (CallOutcome(kind="dead"), "kind"),  # type: ignore[arg-type]
        (CallOutcome(kind=None), "kind"),  # type: ignore[arg-type]
        (CallOutcome(kind="ok", took_ms=-1), "took_ms"),
        (CallOutcome(kind="ok", took_ms=86_400_001), "took_ms"),
        (CallOutcome(kind="ok", ttft_ms=math.nan), "ttft_ms"),
        (CallOutcome(kind="ok", limit_ms=math.inf), "limit_ms"),
        (CallOutcome(kind="ok", status="500"), "status"),  # type: ignore[arg-type]
        (CallOutcome(kind="ok", code=404), "code"),  # type: ignore[arg-type]
        (CallOutcome(kind="ok", detail=b"text"), "detail"),  # type: ignore[arg-type]
        (CallOutcome(kind="ok", retry_after_s=-3), "retry_after_s"),
        (CallOutcome(kind="ok", retry_after_s="3"), "retry_after_s"),  # type: ignore[arg-type]
        (CallOutcome(kind="ok", scope="planet"), "scope"),  # type: ignore[arg-type]
        (CallOutcome(kind="ok", seen_seq=2**70), "seen_seq"),
        (CallOutcome(kind="ok", skipped=[4]), "skipped"),  # type: ignore[list-item]
        (CallOutcome(kind="ok", route=object()), "route"),  # type: ignore[arg-type]
        (CallOutcome(kind="ok", trial=[Lease("x" * EVENT_BYTES_MAX, 1)]), "event"),
        (CallsRefused(count=0, rule="quarantine"), "count"),
        (ProbeResult(level="deep", ok=True), "level"),  # type: ignore[arg-type]
        ("ok", "event"),
        (None, "event"),
    ],
)
def test_a_bad_event_is_counted_under_its_field_and_logged_and_nothing_is_raised(
    event: Any, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    mine = reporter()
    with caplog.at_level(logging.ERROR, "sickbay.reporter"):
        assert mine.enqueue(TARGET, event) == 0
        assert mine.enqueue(TARGET, event) == 0
    assert mine.counts.rejected == {field: 2}
    assert mine.counts.recorded == 0
    assert len(caplog.records) == 1, "the log is not flooded: one line, the rest is counted"
    assert field in caplog.records[0].getMessage()


@pytest.mark.parametrize(
    ("target", "field"),
    [
        (Target("", "gpt-4.1"), "target.provider"),
        (Target("#team-a", "gpt-4.1"), "target.provider"),
        (Target("openrouter.ai", ""), "target.model"),
        (Target("openrouter.ai", None), "target.model"),  # type: ignore[arg-type]
        (Target("openrouter.ai", "m" * 257), "target"),
        (("openrouter.ai", "gpt-4.1"), "target"),
        (None, "target"),
    ],
)
def test_an_outcome_of_no_target_is_an_error_for_the_caller_and_nothing_is_stored(target: Any, field: str) -> None:
    """Rule 1."""
    mine = reporter()
    assert mine.enqueue(target, CallOutcome(kind="ok")) == 0
    assert mine.counts.rejected == {field: 1}
    assert mine.counts.queued == 0


anything: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.text(), max_size=3)
)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.one_of(st.sampled_from([*KINDS]), anything),
    fields=st.dictionaries(st.sampled_from(CallOutcome.__struct_fields__[1:]), anything, max_size=5),
    provider=anything,
    model=st.one_of(st.just("m"), anything),
)
def test_whatever_a_caller_gives_what_is_taken_reads_back_from_the_log(
    kind: Any, fields: dict[str, Any], provider: Any, model: Any
) -> None:
    """Our own reporter writes no poison (Rule 2), and `record` never raises."""
    mine = reporter()
    event = CallOutcome(kind=kind, **fields)
    n = mine.enqueue(Target(provider, model), event)
    assert n + sum(mine.counts.rejected.values()) == 1
    if n:
        (entry,) = mine._take(10, None)
        data = encode(msgspec.structs.replace(entry.event, id="0123456789abcdef-1", queued_ms=3))
        assert isinstance(decode(outcome_subject("r1", entry.target), data), CallOutcome)


def test_text_durations_and_hints_are_cut_to_their_limits() -> None:
    """Durations are whole milliseconds, hints at most 30 days. Rule 2: detail 200 characters, code 64, retry-after 30
    days."""
    event = CallOutcome(
        kind="server_error",
        detail="d" * 300,
        code="c" * 99,
        signature="s" * 99,
        took_ms=1234.56,
        ttft_ms=0.4,
        limit_ms=60_000,
        retry_after_s=1e12,
        skipped=[Skipped("p", "m", "quarantined")] * 80,
    )
    fitted = fit(TARGET, event)
    assert isinstance(fitted, CallOutcome)
    assert (fitted.detail, fitted.code, fitted.signature) == ("d" * 200, "c" * 64, "s" * 64)
    assert (fitted.took_ms, fitted.ttft_ms, fitted.limit_ms) == (1235, 0, 60_000)
    assert fitted.retry_after_s == 30 * 86_400
    assert fitted.skipped is not None and len(fitted.skipped) == 50
    assert event.detail == "d" * 300, "the caller's own event is left as it is"


def test_half_a_character_in_an_error_text_does_not_lose_the_outcome() -> None:
    fitted = fit(TARGET, CallOutcome(kind="server_error", detail="caf\ud83d", code="\udcff"))
    assert isinstance(fitted, CallOutcome)
    assert (fitted.detail, fitted.code) == ("caf?", "?")


def test_a_list_that_the_caller_changes_afterwards_changes_nothing() -> None:
    mine = reporter()
    trial = [Lease("quarantine", 7)]
    mine.enqueue(TARGET, CallOutcome(kind="ok", trial=trial))
    trial.append(Lease("breaker", 8))
    (entry,) = mine._take(1, None)
    assert isinstance(entry.event, CallOutcome) and entry.event.trial == [Lease("quarantine", 7)]


@pytest.mark.parametrize(("name", "error"), [("", NameRefused), ("r" * 257, NameRefused)])
def test_a_replica_needs_a_usable_name(name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Reporter(Link(NOWHERE), replica=name)


def kinds_in(mine: Reporter) -> list[str]:
    return [entry.event.kind for entry in mine._take(WINDOW, None) if isinstance(entry.event, CallOutcome)]


def test_a_full_outbox_drops_successes_before_failures_and_counts_them_by_kind() -> None:
    mine = reporter(capacity=6)
    for kind in ("ok", "timeout", "ok", "bad_request", "auth", "quota"):
        assert mine.enqueue(TARGET, CallOutcome(kind=kind))
    mine.enqueue(TARGET, CallOutcome(kind="network"))  # for the first ok
    mine.enqueue(TARGET, CallOutcome(kind="cancelled"))  # for the second ok: what is fresh stays
    assert mine.counts.dropped == {"ok": 2}
    assert kinds_in(mine) == ["timeout", "bad_request", "auth", "quota", "network", "cancelled"]


def test_an_outbox_full_of_failures_takes_only_a_failure() -> None:
    """It drops its oldest for a failure, and takes no success."""
    mine = reporter(capacity=3)
    for kind in ("timeout", "auth", "quota", "ok", "network"):
        mine.enqueue(TARGET, CallOutcome(kind=kind))
    assert mine.counts.dropped == {"ok": 1, "timeout": 1}
    assert kinds_in(mine) == ["auth", "quota", "network"]
    counts = mine.counts
    assert counts.recorded == 5, "recorded = dropped + queued + the rest"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (CallOutcome(kind="ok"), False),
        (CallOutcome(kind="ok", trial=[Lease("breaker", 9)]), True),
        (CallOutcome(kind="unknown"), False),
        (CallOutcome(kind="empty_output"), True),
        (CallAnswered(), False),
        (CallAnswered(trial=[Lease("quarantine", 3)]), True),
        (CallsRefused(count=3, rule="quarantine"), False),
        (ProbeResult(level="readiness", ok=True), False),
        (ProbeResult(level="readiness", ok=False), True),
    ],
)
def test_failures_and_what_ran_under_a_lease_go_last(event: Any, expected: bool) -> None:
    assert weighty(event) is expected


@given(st.lists(st.sampled_from(["ok", "timeout", "unknown", "quota"]), max_size=60), st.integers(1, 12))
def test_a_backlog_keeps_its_bound_its_order_and_every_failure_that_fits(kinds: list[Kind], capacity: int) -> None:
    backlog = Backlog(capacity)
    dropped = [
        entry
        for n, kind in enumerate(kinds, 1)
        if (entry := backlog.add(QueuedEvent(n, TARGET, CallOutcome(kind=kind), 0.0))) is not None
    ]
    kept = backlog.take(1000, None)
    assert len(kept) == min(len(kinds), capacity) and len(kept) + len(dropped) == len(kinds)
    assert [entry.n for entry in kept] == sorted(entry.n for entry in kept)
    failures = sum(kind in ("timeout", "quota") for kind in kinds)
    assert sum(weighty(entry.event) for entry in kept) == min(failures, capacity)


def test_numbers_that_were_dropped_in_between_count_in_the_window() -> None:
    """Rule 4, Once: never more than 1,000 between the oldest unacknowledged and the newest."""
    backlog = Backlog(10)
    for n in (5, 900, 1004, 1005):
        backlog.add(QueuedEvent(n, TARGET, CallOutcome(kind="timeout"), 0.0))
    assert [entry.n for entry in backlog.take(10, None)] == [5, 900, 1004]
    assert backlog.take(10, 5) == []
    assert [entry.n for entry in backlog.take(10, 6)] == [1005]


async def test_an_event_recorded_by_any_thread_is_stored_once_under_its_own_number(nats_server: Any) -> None:
    from reporter_rig import check_once, prepare, read_log

    await prepare(nats_server.url)
    async with publishing(nats_server.url, capacity=50_000) as replica:
        numbers: list[int] = []

        def work() -> None:
            numbers.extend(replica.reporter.enqueue(TARGET, CallOutcome(kind="ok")) for _ in range(1000))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        left = await replica.reporter.close(20)
        for thread in threads:
            thread.join()
        assert not left
        taken = sorted(n for n in numbers if n)
        assert taken == list(range(1, len(taken) + 1))
        assert len(taken) + replica.reporter.counts.rejected.get("closed", 0) == 8000
        replica.recorded_at = dict.fromkeys(taken, 0.0)
    check_once(replica, await read_log(nats_server.url))


async def test_each_sort_of_event_is_stored_under_its_subject_in_its_form(nats_server: Any) -> None:
    from reporter_rig import prepare, read_log

    await prepare(nats_server.url)
    odd = Target("localhost:11434@box 7#é", "ft:gpt-4o:acme::x*>.🎉")
    long = Target("é" * 128 + "#" + "ü" * 128, "ß" * 128)
    async with publishing(nats_server.url, replica="box 7") as replica:
        mine = replica.reporter
        mine.enqueue(odd, CallOutcome(kind="ok", id="mine", queued_ms=86_399_999, at="2026-11-30T12:00:00Z", route="r"))
        mine.enqueue(odd, CallAnswered(ttft_ms=12.5, trial=[Lease("breaker", 4)]))
        mine.enqueue(odd, CallsRefused(count=3, rule="quarantine"))
        mine.enqueue(odd, ProbeResult(level="readiness", ok=True, kind="ok", usage=True))
        mine.enqueue(long, CallOutcome(kind="timeout"))
        assert not await mine.close(5)
    stored = await read_log(nats_server.url)
    base = "box=207." + odd.key
    assert [message.subject for message in stored] == [
        f"sickbay.outcome.{base}",
        f"sickbay.outcome.{base}",
        f"sickbay.outcome.{base}",
        f"sickbay.probe.{base}",
        f"sickbay.outcome.box=207.{long.key}",
    ]
    events = [decode(message.subject, json.dumps(message.body).encode()) for message in stored]
    assert [event.id for event in events] == [f"{mine.boot}-{n}" for n in range(1, 6)]
    assert [type(event) for event in events] == [CallOutcome, CallAnswered, CallsRefused, ProbeResult, CallOutcome]
    assert stored[0].body["queued_ms"] < 86_399_999, "the wait is the reporter's to say"
    assert stored[0].body["at"] == "2026-11-30T12:00:00Z"
    assert all(isinstance(message.body.get("queued_ms", 0), int) for message in stored)
    assert len(mine.boot) == 16 and int(mine.boot, 16) >= 0


def test_a_closed_reporter_counts_what_comes_too_late() -> None:
    import asyncio

    mine = reporter()
    assert mine.enqueue(TARGET, CallOutcome(kind="timeout")) == 1
    left = asyncio.run(mine.close(0))
    assert left.by_kind == {"timeout": 1}
    assert mine.enqueue(TARGET, CallOutcome(kind="ok")) == 0
    assert mine.counts.rejected == {"closed": 1}


def test_not_reportable_names_field_and_accepted_form() -> None:
    with pytest.raises(NotReportable, match=r"kind: expected one of ok, model_unavailable, .*unknown") as caught:
        fit(TARGET, CallOutcome(kind="dead"))  # type: ignore[arg-type]
    assert caught.value.field == "kind"


def test_a_replica_in_a_test_is_what_it_says() -> None:
    """The rig's own numbers start where the reporter's do."""
    assert Replica("nats://127.0.0.1:9").record() == 1
