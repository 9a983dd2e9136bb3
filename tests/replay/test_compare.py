"""One history under two policies: counted exactly where the history knows, estimated with an interval where not."""

from __future__ import annotations

import asyncio
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.aio.client import Client

from cli_runs import sickbay
from histories import history
from nats_servers import NatsServer
from past_rig import services
from sickbay.bus.topology import LOG
from sickbay.cli.compare import Asked, _file, _live
from sickbay.cli.files import export_log
from sickbay.control.acts import publish, publish_outcome
from sickbay.log.file import LogLine, open_writer
from sickbay.replay.past import log_now
from sickbay.replay.report import comparison_report
from sickbay_events import CallOutcome, CallsRefused, Lease, Policy, Target, encode, outcome_subject, rfc3339
from sickbay_events.codec import POLICY_SUBJECT, override_subject, probe_subject
from sickbay_events.outcome import Override, PolicyChanged, ProbeResult
from sickbay_projections import Fleet, Recorded
from sickbay_projections.replay.compare import Comparison
from sickbay_projections.replay.compared import Result
from sickbay_projections.replay.counterfactual import World
from sickbay_projections.replay.estimate import Nearby, Unanswered, share
from sickbay_projections.replay.traffic import BUCKETS_MAX, Traffic
from sickbay_projections.testing import START_MS, Log
from waiting import until

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")


def subject_of(each: Recorded) -> str:
    if isinstance(each.event, PolicyChanged):
        return POLICY_SUBJECT
    if isinstance(each.event, Override):
        assert each.scope is not None
        return override_subject(each.scope)
    assert each.target is not None
    named = probe_subject if isinstance(each.event, ProbeResult) else outcome_subject
    return named(each.replica, each.target)


def compared(one: World, other: World, recorded: list[Recorded], **bounds: int) -> Result:
    comparison = Comparison(one, other, **bounds)
    for each in recorded:
        comparison.take([subject_of(each)], [each.event], [each.seq], [each.time_ms])
    return comparison.result()


def written(path: Path, recorded: list[Recorded]) -> Path:
    with open_writer(path) as write:
        for each in recorded:
            write(LogLine.of(each.seq, each.time_ms * 1_000_000, subject_of(each), None, encode(each.event)))
    return path


def dead_model(*, good_before: bool = False) -> list[Recorded]:
    """A model that answers nothing but 404 for ten minutes, one call every 10 s of 0.5 s each, then well again.

    Recorded by two routers that knew of no holds: no `seen_seq`.
    """
    log = Log(TARGET)
    recorded = [log.outcome("ok", at_s=-5, took_ms=500, replica="r1")] if good_before else []
    for n in range(100):
        kind: Any = "model_unavailable" if n < 60 else "ok"
        status = 404 if n < 60 else 200
        recorded.append(log.outcome(kind, status=status, at_s=n * 10, took_ms=500, replica=f"r{n % 2}"))
    return recorded


def test_a_week_without_sickbay_says_what_sickbay_would_have_spared_and_cost() -> None:
    """Held by the second rejection (10 s), tried 17 times, answered by the trial at 640 s.

    41 dead calls are spared, and the four good ones before that trial are kept back.
    """
    result = compared(World("default", Policy()), World("none", None), dead_model())
    ours, none = result.parts
    assert (ours.holds, ours.rules, ours.held_ms) == (1, {"quarantine": 1}, 630_000)
    assert (ours.calls.dead, ours.calls.good, ours.calls.neutral) == (41, 4, 0)
    assert (ours.kept_back.count, ours.kept_back.of) == (4, 45)
    assert ours.kept_back.low < 4 / 45 < ours.kept_back.high
    assert (none.holds, none.held_ms, none.calls.all) == (0, 0, 0)
    first = result.first_difference
    assert first is not None
    assert (first.seq, first.event, first.status, first.replica) == (2, "model_unavailable", 404, "r1")
    assert (first.provider, first.model) == (TARGET.provider, TARGET.model)
    assert first.says == (["held by quarantine of the model for 600 s"], [])
    (row,) = result.rows
    assert [sum(counts) for counts in zip(*[t[1:] for t in row.traffic], strict=True)] == [40, 60, 0]


def test_the_trials_that_a_policy_would_have_wanted_are_made_by_calls() -> None:
    """A hold is tried early and ever more rarely (Rule 4.0, Trials): those dead calls are made, not spared."""
    world = World("default", Policy())
    made = [
        (each.time_ms - START_MS) // 1000
        for each in dead_model()
        if not world.take(subject_of(each), each.event, each.seq, each.time_ms, each.target)
    ]
    assert made[:12] == [0, 10, 20, 30, 40, 50, 60, 70, 100, 140, 190, 240]
    assert [made[n + 1] - made[n] for n in range(12, 18)] == [50] * 6


def test_what_the_refused_calls_would_have_told_is_withheld_from_the_folds() -> None:
    """A good answer in the middle of a hold by a call that would not have been made does not end the hold."""
    log = Log(TARGET)
    recorded = [log.outcome("model_unavailable", at_s=n, took_ms=10, replica=f"r{n}") for n in range(2)]
    recorded += [log.outcome("ok", at_s=1 + n / 10, took_ms=10, seen_seq=n + 1, replica="r0") for n in range(1, 10)]
    result = compared(World("default", Policy()), World("none", None), recorded)
    assert result.parts[0].calls.good == 9
    assert result.parts[0].held_ms == 900, "to the last event"


def test_a_call_that_began_before_the_hold_is_not_refused() -> None:
    """Rule 4, After: by `seen_seq` where there is one, by its length where not; of a call without a length the
    result is unsure."""
    log = Log(TARGET)
    recorded = [log.outcome("model_unavailable", at_s=n, took_ms=10, replica=f"r{n}") for n in range(2)]
    recorded += [
        log.outcome("ok", at_s=5, took_ms=10, seen_seq=1, replica="r0"),  # its gate had not heard
        log.outcome("ok", at_s=6, took_ms=5_500, replica="r0"),  # began at 0.5 s
        log.outcome("ok", at_s=7, took_ms=5_500, seen_seq=2, replica="r0"),  # knew, and is counted
        log.outcome("ok", at_s=8, took_ms=1_000, queued_ms=7_000, replica="r0"),  # began at 0 s
    ]
    result = compared(World("default", Policy()), World("none", None), recorded)
    assert (result.parts[0].calls.good, result.parts[0].calls.unsure) == (1, 0)
    recorded = [*recorded[:2], log.outcome("timeout", at_s=1.5, replica="r0")]
    result = compared(World("default", Policy()), World("none", None), recorded)
    assert (result.parts[0].calls.dead, result.parts[0].calls.unsure) == (1, 1)


def test_a_call_that_knew_of_the_hold_is_refused_a_lease_or_force_is_not() -> None:
    """A recorded lease or a forced call is let pass."""
    log = Log(TARGET)
    recorded = [log.outcome("model_unavailable", at_s=n, took_ms=10, replica=f"r{n}") for n in range(2)]
    recorded += [
        log.outcome("model_unavailable", at_s=1.5, took_ms=10, seen_seq=2, replica="r0"),
        log.outcome("bad_request", at_s=1.6, took_ms=10, seen_seq=2, trial=[Lease("quarantine", 2)], replica="r0"),
        log.outcome("model_unavailable", at_s=1.7, took_ms=10, seen_seq=2, forced=True, replica="r0"),
    ]
    result = compared(World("default", Policy()), World("none", None), recorded)
    assert result.parts[0].calls.dead == 1


def test_two_policies_differ_first_where_the_stricter_one_begins_to_hold() -> None:
    strict = Policy.from_data({"rejections": {"threshold": 2, "hold_s": 100}})
    lax = Policy.from_data({"rejections": {"threshold": 3, "hold_s": 100}})
    result = compared(World("strict", strict), World("lax", lax), dead_model())
    first = result.first_difference
    assert first is not None
    assert (first.seq, first.says) == (2, (["held by quarantine of the model for 100 s"], []))
    same = compared(World("a", strict), World("b", strict), dead_model())
    assert same.first_difference is None
    assert same.parts[0].calls == same.parts[1].calls


def test_a_policy_that_is_named_holds_throughout_and_the_logs_own_follows_the_log() -> None:
    log = Log(TARGET)
    recorded = [log.policy({"rejections": {"threshold": 5}}, at_s=0)]
    recorded += [log.outcome("model_unavailable", at_s=1 + n, took_ms=10, replica=f"r{n % 2}") for n in range(3)]
    result = compared(World("default", Policy()), World("log", Policy(), pinned=False), recorded)
    assert (result.parts[0].holds, result.parts[1].holds) == (1, 0)


def test_a_rule_in_shadow_holds_nothing() -> None:
    shadowed = Policy.from_data({"shadow": {"rules": ["quarantine"]}})
    result = compared(World("shadow", shadowed), World("none", None), dead_model())
    assert (result.parts[0].holds, result.parts[0].calls.all, result.first_difference) == (0, 0, None)


def test_an_operators_allow_admits_calls_and_a_clear_ends_what_was_held() -> None:
    log = Log(TARGET)
    recorded = [log.outcome("model_unavailable", at_s=n, took_ms=10, replica=f"r{n}") for n in range(2)]
    recorded += [log.outcome("timeout", at_s=1.5, took_ms=10)]
    recorded += [log.override("allow", at_s=1.6, until_s=8), log.outcome("timeout", at_s=1.8, took_ms=10)]
    recorded += [log.override("clear", at_s=20)]
    recorded += [log.outcome("timeout", at_s=25, took_ms=10)]
    result = compared(World("default", Policy()), World("none", None), recorded)
    assert result.parts[0].calls.dead == 1, "the one at 1.5 s"
    assert result.parts[0].held_ms == 19_000


def test_a_hold_of_the_whole_credential_refuses_its_models() -> None:
    one, other = Target("h#a", "m1"), Target("h#a", "m2")
    log = Log(one)
    recorded = [log.outcome("quota", at_s=0, took_ms=10, retry_after_s=60)]
    recorded += [log.outcome("ok", at_s=5, took_ms=10, target=other)]
    result = compared(World("default", Policy()), World("none", None), recorded)
    parts = {row.scope: row.parts[0] for row in result.rows}
    assert parts[other.key].calls.good == 1
    assert parts[other.keys[1]].holds == 1


# -- calls that the history itself refused ---------------------------------------------------------------


def with_refusals() -> list[Recorded]:
    """Held by two rejections; in that minute 40 calls were refused; around it 6 of 8 answers were good."""
    log = Log(TARGET)
    recorded = [log.outcome("ok", at_s=n, took_ms=10, replica="r0") for n in range(-100, -94)]
    recorded += [log.outcome("model_unavailable", at_s=n, took_ms=10, replica=f"r{n}") for n in range(2)]
    minute = rfc3339(log.ms(10))
    recorded.append(log.event(CallsRefused(count=40, rule="quarantine", minute=minute), at_s=71, replica="r0"))
    return recorded


def test_refused_calls_that_a_world_would_have_made_are_estimated_with_an_interval() -> None:
    result = compared(World("default", Policy()), World("none", None), with_refusals())
    ours, none = result.parts
    assert (result.refused, ours.also_refused, ours.let_through.calls) == (40, 40, 0)
    assert (none.also_refused, none.let_through.calls, none.let_through.blind) == (0, 40, 0)
    assert none.let_through.good == pytest.approx(30)
    assert none.let_through.low == pytest.approx(40 * share(6, 8).low)
    assert none.let_through.high == pytest.approx(40 * share(6, 8).high)


def test_answers_far_from_the_minute_and_of_other_targets_say_nothing_of_it() -> None:
    log = Log(TARGET)
    recorded = [log.outcome("ok", at_s=-500, took_ms=10), log.outcome("ok", at_s=0, took_ms=1, target=Target("h", "m"))]
    recorded.append(log.event(CallsRefused(count=7, rule="breaker", minute=rfc3339(log.ms(10))), at_s=71))
    recorded.append(log.outcome("ok", at_s=900, took_ms=10))
    none = compared(World("default", Policy()), World("none", None), recorded).parts[1]
    found = none.let_through
    assert (found.calls, found.blind, found.low, found.high, found.good) == (7, 7, 0, 7, 3.5)


def test_answers_after_the_minute_count_too_and_so_does_a_minute_that_cannot_be() -> None:
    log = Log(TARGET)
    recorded = [log.event(CallsRefused(count=10, rule="breaker", minute="2001-01-01T00:00:00Z"), at_s=100)]
    recorded += [log.outcome("ok", at_s=110 + n, took_ms=1) for n in range(30)]
    none = compared(World("default", Policy()), World("none", None), recorded).parts[1]
    assert none.let_through.low == pytest.approx(10 * share(20, 20).low), "twenty after it, and no more"
    assert none.let_through.high == 10


def test_the_interval_is_wilsons() -> None:
    found = share(8, 10)
    assert (found.share, round(found.low, 3), round(found.high, 3)) == (0.8, 0.49, 0.943)
    assert (share(0, 0).share, share(0, 0).low, share(0, 0).high) == (None, 0.0, 1.0)
    assert (share(0, 5).low, share(5, 5).high) == (0.0, 1.0)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_an_interval_holds_its_share_and_narrows_with_evidence(count: int, more: int) -> None:
    of = count + more
    found = share(count, of)
    assert 0.0 <= found.low <= found.high <= 1.0
    if of:
        assert found.low <= count / of + 1e-6
        assert found.high >= count / of - 1e-6
        wider = found.high - found.low
        assert share(count * 4, of * 4).high - share(count * 4, of * 4).low <= wider + 1e-5
        assert math.isfinite(wider)


def test_sums_of_estimates_are_closed_once() -> None:
    nearby, sums = Nearby(), Unanswered()
    nearby.refused("k", 3, START_MS, [sums])
    nearby.answered("k", START_MS + 400_000, good=True)
    nearby.finish()
    nearby.finish()
    assert (sums.calls, sums.blind) == (3, 3)


# -- any history -----------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_in_any_history_every_call_is_counted_once_and_the_folds_see_what_was_made(seed: int) -> None:
    recorded = history(seed, 300, targets=4)
    world = World("w", Policy())
    fleet, made = Fleet(Policy()), 0
    calls = refused = 0
    for each in recorded:
        target = each.target
        was = world.take(subject_of(each), each.event, each.seq, each.time_ms, target)
        calls += isinstance(each.event, CallOutcome)
        refused += was and isinstance(each.event, CallOutcome)
        if not was and not isinstance(each.event, PolicyChanged):
            fleet.apply(each)
            made += 1
    result = compared(World("w", Policy()), World("none", None), recorded)
    assert result.calls == calls
    assert result.parts[0].calls.all == refused
    assert result.events == len(recorded)
    assert result.parts[0].also_refused + result.parts[0].let_through.calls == result.refused
    for spells in world.spells.values():
        for spell in spells:
            assert spell.from_ms <= spell.end_ms
    again = compared(World("w", Policy()), World("none", None), recorded)
    assert again == result


def test_what_lies_before_the_place_is_folded_and_not_counted() -> None:
    recorded = dead_model()
    result = compared(World("default", Policy()), World("none", None), recorded, from_ms=START_MS + 300_000)
    assert result.events == 70
    assert (result.parts[0].holds, result.parts[0].held_ms) == (1, 340_000), "it had begun before"
    assert (result.parts[0].calls.dead, result.parts[0].calls.good) == (24, 4)


def test_a_drawing_needs_no_more_buckets_however_long_the_history() -> None:
    traffic = Traffic()
    for n in range(20_000):
        traffic.add("k", START_MS + n * 60_000, "success" if n % 3 else "fault")
    traffic.add("k", START_MS - 3_600_000, "neutral")
    found = traffic.of("k")
    assert len(found) <= BUCKETS_MAX + 1
    assert [sum(column) for column in list(zip(*found, strict=True))[1:]] == [13_333, 6_667, 1]


# -- the page --------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags in balance, and what a page must not have."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.text = ""
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


NASTY = Target("</svg><script>alert(1)</script>\"'&", "<img src=x onerror=alert(1)>$title ${one}")


def nasty() -> Result:
    log = Log(NASTY)
    recorded = [log.outcome("model_unavailable", at_s=n, took_ms=10, replica=f"<b>{n}") for n in range(6)]
    return compared(World("<i>a</i>.toml", Policy()), World("none", None), recorded)


def test_the_page_is_whole_has_no_script_and_asks_nobody_for_anything() -> None:
    page = Page()
    text = comparison_report(nasty(), [("holds", "<b>1</b>", "0")], source="<u>week</u>", notes=["<s>cut</s>"])
    page.feed(text)
    assert page.open == []
    assert set(page.names) & {"script", "img", "link", "iframe", "b", "u", "s", "i", "object", "use"} == set()
    assert [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")] == []
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text
    assert NASTY.model in page.text, "what is in it is shown as it is"
    assert "prefers-color-scheme: dark" in text


def test_the_page_has_a_timeline_for_every_target_with_both_policies() -> None:
    result = compared(World("default", Policy()), World("none", None), dead_model())
    page = Page()
    page.feed(comparison_report(result, [], source="week.jsonl"))
    assert page.names.count("svg") == len(result.rows) == 1
    assert "quarantine, sequence 2" in page.text
    assert "1 hold, 41 dead calls avoided, 4 good ones refused" in page.text


def test_the_page_of_an_empty_comparison_says_so() -> None:
    text = comparison_report(compared(World("a", Policy()), World("none", None), []), [], source="empty")
    assert "Neither policy would have held anything" in text


# -- the command -----------------------------------------------------------------------------------------


def test_one_command_says_whether_it_would_have_helped(tmp_path: Path) -> None:
    log, page = written(tmp_path / "week.jsonl.zst", dead_model()), tmp_path / "page.html"
    done = sickbay("replay", str(log), "--against", "none", "--html", str(page), environment={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    facts = {line[:22].strip(): line[22:].split() for line in done.stdout.splitlines()}
    assert facts["dead calls avoided"] == ["41", "0"]
    assert facts["good calls refused"] == ["4", "0"]
    assert "first difference: sequence 2" in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert page.read_text().startswith("<!doctype html>")
    again = sickbay("replay", str(log), "--against", "none", "--html", str(page))
    assert again.returncode == 1
    assert "exists already" in again.stderr


def test_two_policy_files_are_compared_as_json(tmp_path: Path) -> None:
    log = written(tmp_path / "week.jsonl", dead_model())
    for name, threshold in (("a.toml", 2), ("b.toml", 4)):
        (tmp_path / name).write_text(f"[rejections]\nthreshold = {threshold}\n")
    a, b = str(tmp_path / "a.toml"), str(tmp_path / "b.toml")
    done = sickbay("replay", str(log), "--policy", a, "--against", b, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert [part["name"] for part in facts["parts"]] == ["a.toml", "b.toml"]
    assert [part["calls"]["dead"] for part in facts["parts"]] == [41, 40]
    assert facts["first_difference"]["seq"] == 2
    assert facts["first_difference"]["time"] == rfc3339(START_MS + 10_000)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--against", "nowhere.toml"), 2, "nowhere.toml"),
        (("--policy", "nowhere.toml", "--against", "none"), 2, "none (nothing is held)"),
        (("--against", "none", "--at", "5"), 2, "--against"),
        (("--html", "page.html"), 2, "--against"),
        (("--against", "bad.toml"), 1, "rejections.threshold"),
    ],
)
def test_a_mistake_is_named(arguments: tuple[str, ...], code: int, says: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("[rejections]\nthreshold = -1\n")
    done = sickbay("replay", str(written(tmp_path / "week.jsonl", dead_model())), *arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr


def test_an_empty_file_one_event_a_trimmed_head_and_a_cut_file_are_compared_too(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    recorded = dead_model()
    written(tmp_path / "one.jsonl", recorded[:1])
    written(tmp_path / "head.jsonl", recorded[20:])
    whole = written(tmp_path / "whole.jsonl", recorded).read_bytes()
    (tmp_path / "cut.jsonl").write_bytes(whole[:-40])
    expected = {"empty": (0, "no events"), "one": (1, ""), "head": (80, "begins at sequence 21"), "cut": (99, "cut")}
    expected["cut"] = (99, "in the middle of line 100")
    for name, (events, says) in expected.items():
        done = sickbay("replay", str(tmp_path / f"{name}.jsonl"), "--against", "none", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["events"] == events
        assert says in done.stderr


async def test_the_live_log_and_its_export_are_compared_alike(
    nats_server: NatsServer, nats_client: Client, tmp_path: Path
) -> None:
    async with services(nats_server.url):
        for n in range(12):
            event = CallOutcome(kind="model_unavailable" if n < 9 else "ok", status=404 if n < 9 else 200, took_ms=1)
            await publish_outcome(nats_client, TARGET, event, replica=f"r{n % 2}")
        await export_log(nats_client, tmp_path / "log.jsonl.zst")
    notes: list[str] = []
    live = await _live(Asked("live", "default", "none", None, None, nats_server.url, None), notes)
    asked = Asked(str(tmp_path / "log.jsonl.zst"), "default", "none", None, None, None, None)
    filed = await asyncio.to_thread(_file, asked, notes)
    one, other = live.comparison.result(), filed.comparison.result()
    assert one == other
    assert one.parts[0].calls.dead >= 6
    assert notes == []


async def test_a_live_log_without_its_head_is_compared_under_the_policy_that_was_in_force(
    nats_server: NatsServer, nats_client: Client, tmp_path: Path
) -> None:
    """What operators decided in the part that is gone counts on the log's side; what is missing is said."""

    async def is_copied() -> bool:
        return (await log_now(nats_client)).last_seq > 0

    async with services(nats_server.url):
        policy = Policy.from_data({"rejections": {"threshold": 4}})
        await publish(nats_client, POLICY_SUBJECT, encode(PolicyChanged(policy=policy.to_data())), "policy")
        await until(is_copied, "its copy comes by itself")
        for n in range(9):
            event = CallOutcome(kind="model_unavailable", status=404, took_ms=1)
            await publish_outcome(nats_client, TARGET, event, replica=f"r{n % 2}")
        last = (await log_now(nats_client)).last_seq
        await nats_client.request(f"$JS.API.STREAM.PURGE.{LOG}", b'{"seq":%d}' % (last - 7))
        await export_log(nats_client, tmp_path / "log.jsonl")
    notes: list[str] = []
    live = await _live(Asked("live", None, "default", None, None, nats_server.url, None), notes)
    filed = await asyncio.to_thread(
        _file, Asked(str(tmp_path / "log.jsonl"), None, "default", None, None, None, None), []
    )
    result = live.comparison.result()
    assert result == filed.comparison.result()
    strikes = [row.holds[side][0].numbers["failures"] for row in result.rows[:1] for side in (0, 1)]
    assert strikes == [4, 2], "the log's own policy, and the default"
    assert f"begins at sequence {last - 7}" in notes[0] and "a whole answer can be given from" in notes[0]


async def test_an_empty_live_log_is_compared_to_nothing(nats_server: NatsServer) -> None:
    async with services(nats_server.url):
        pass
    notes: list[str] = []
    empty = await _live(Asked("live", None, "none", None, None, nats_server.url, None), notes)
    assert (empty.comparison.result().events, notes) == (0, [])
