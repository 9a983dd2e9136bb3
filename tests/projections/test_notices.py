"""Warnings: what is worth a person's look and gates nothing (Rule 4.5)."""

from __future__ import annotations

from typing import Any

import pytest

from sickbay_events import Policy, Scope, Target, WarningRaised
from sickbay_events.kinds import Kind
from sickbay_projections import Fleet
from sickbay_projections.rules.warnings import SIGNATURES_MAX
from sickbay_projections.state.store import ROUTES_MAX
from sickbay_projections.testing import Log, Story, given, warned

TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
HOST = Scope("openrouter.ai")
MIDNIGHT_MS = 19_675 * 86_400_000
"""Log time of a test's second 0: the beginning of an hour and of a day."""
MS = 0.001
HOUR_S, DAY_S = 3600, 86_400


@pytest.fixture
def log() -> Log:
    return Log(TARGET, start_ms=MIDNIGHT_MS)


def odd(log: Log, at_s: float, **fields: Any) -> Any:
    """An answer in a script that nobody asked for: a signature that is only for warnings."""
    return log.outcome("ok", at_s=at_s, **{"signature": "non_ascii_unprompted", **fields})


def warnings(story: Story) -> list[tuple[str, str]]:
    return [(event.rule, event.scope.key) for event in story.derived if isinstance(event, WarningRaised)]


# -- signatures ----------------------------------------------------------------------------------------


def test_a_novel_signature_warns_at_its_second_sighting(log: Log) -> None:
    story = given(odd(log, 0)).then()
    story.when(odd(log, 5)).then(
        warned(
            "novel_signature",
            scope=TARGET.scope,
            signature="non_ascii_unprompted",
            cause_seq=2,
            numbers={"in_day": 2, "in_hour": 2},
        )
    )
    story.when(*(odd(log, 6) for _ in range(17))).then()
    story.then_decision(TARGET, log.ms(6), allowed=True, reason="ok")


@pytest.mark.parametrize(("again_s", "warns"), [(DAY_S - MS, True), (DAY_S, False)])
def test_the_second_sighting_lies_within_the_24_hours_of_the_first(log: Log, again_s: float, warns: bool) -> None:
    story = given(odd(log, 0)).when(odd(log, again_s))
    assert warnings(story) == ([("novel_signature", TARGET.key)] if warns else [])


def test_what_was_absent_for_a_day_is_novel_again(log: Log) -> None:
    story = given(odd(log, 0), odd(log, 1), odd(log, 2), odd(log, DAY_S + 5)).when(odd(log, DAY_S + 6))
    assert warnings(story) == [("novel_signature", TARGET.key)]


def test_a_familiar_signature_warns_at_the_twentieth_in_an_hour(log: Log) -> None:
    story = given(odd(log, 0), odd(log, 1))
    for n in range(19):
        story.when(odd(log, HOUR_S + n)).then()
    story.when(odd(log, 2 * HOUR_S - MS)).then(
        warned("familiar_signature", numbers={"in_day": 22, "in_hour": 20}, signature="non_ascii_unprompted")
    )
    story.when(*(odd(log, 2 * HOUR_S + n) for n in range(19))).then()


def test_an_hour_warns_once(log: Log) -> None:
    story = given(odd(log, 0), odd(log, 1)).when(*(odd(log, 2 + n) for n in range(100))).then()
    for hour in (1, 2, 3):
        story.when(*(odd(log, hour * HOUR_S + n) for n in range(100)))
        assert warnings(story) == [("familiar_signature", TARGET.key)]


def test_each_scope_counts_its_own(log: Log) -> None:
    """Damaged encoding is the host's, a leaked token the model's, and another model's is another scope's."""
    other = Target("openrouter.ai#team-a", "other")
    story = given()
    for target in (TARGET, other):
        story.when(log.outcome("mangled_output", at_s=0, target=target, signature="control_token")).then()
    story.when(log.outcome("mangled_output", at_s=0, signature="double_encoded", scope="host")).then()
    story.when(log.outcome("mangled_output", at_s=0, signature="double_encoded", scope="host", target=other))
    story.then(warned("novel_signature", scope=HOST, signature="double_encoded"))
    story.when(log.outcome("mangled_output", at_s=0, signature="control_token"))
    story.then(warned("novel_signature", scope=TARGET.scope))


def test_a_refused_credential_with_a_signature_is_the_credentials(log: Log) -> None:
    story = given(*(log.outcome("auth", at_s=n, signature="odd") for n in range(2)))
    assert warnings(story) == [("novel_signature", Scope("openrouter.ai", "team-a").key)]


@pytest.mark.parametrize("signature", ["tool_calls", "capped"])
def test_ordinary_turns_that_could_not_be_checked_are_no_news(log: Log, signature: str) -> None:
    story = given(*(log.outcome("ok", at_s=0, checkable=False, signature=signature) for _ in range(60)))
    assert warnings(story) == []


@pytest.mark.parametrize("kind", ["bad_request", "context_length", "content_filter", "cancelled"])
def test_the_callers_own_doing_is_no_news(log: Log, kind: Kind) -> None:
    assert warnings(given(*(log.outcome(kind, at_s=0, signature="refusal") for _ in range(60)))) == []


def test_a_foreign_shape_is_told_of_the_target(log: Log) -> None:
    story = given(*(log.outcome("unknown", at_s=0, signature="foreign_shape") for _ in range(2)))
    assert warnings(story) == [("novel_signature", TARGET.key)]


def test_what_waited_over_an_hour_is_statistics(log: Log) -> None:
    for queued_ms, count in ((3_600_000, 1), (3_600_001, 0)):
        log.seq = 0
        assert len(warnings(given(*(odd(log, 0, queued_ms=queued_ms) for _ in range(2))))) == count


def test_the_signatures_of_a_scope_are_bounded_and_the_longest_unseen_leaves(log: Log) -> None:
    story = given(*(odd(log, HOUR_S * n, signature=f"s{n:03}") for n in range(3 + SIGNATURES_MAX)))
    notices = story.fleet.store.nodes[TARGET.key].state.notices
    assert notices is not None
    assert sorted(notices.signatures) == [f"s{n:03}" for n in range(3, 3 + SIGNATURES_MAX)]


def test_a_long_or_strange_signature_is_cut_and_does_no_harm(log: Log) -> None:
    story = given(*(odd(log, 0, signature=name) for name in ("x" * 500, "x" * 500, "\ud800ü.*", "\ud800ü.*", "", "")))
    assert [event.signature for event in story.derived] == ["x" * 64, "\ud800ü.*", ""]  # type: ignore[union-attr]
    assert Fleet.decode(story.fleet.encode()).digest() == story.fleet.digest()


def test_the_policy_sets_the_numbers(log: Log) -> None:
    policy = Policy.from_data({"warnings": {"novel_count": 3, "familiar_count": 4}})
    story = given(odd(log, 0), odd(log, 1), policy=policy).then()
    story.when(odd(log, 2)).then(warned("novel_signature"))
    story.when(*(odd(log, HOUR_S) for _ in range(3))).then()
    story.when(odd(log, HOUR_S)).then(warned("familiar_signature"))


# -- sustained fallback --------------------------------------------------------------------------------


def chain(log: Log, at_s: float, rank: int, route: str = "brief", **fields: Any) -> Any:
    return log.outcome("ok", at_s=at_s, route=route, rank=rank, **fields)


def test_half_of_twenty_answers_by_fallback_warn_once_an_hour(log: Log) -> None:
    story = given(*(chain(log, n, rank=n % 2) for n in range(19))).then()
    story.when(chain(log, 20, rank=1)).then(
        warned("sustained_fallback", route="brief", numbers={"answers": 20, "by_fallback": 10})
    )
    story.when(*(chain(log, 30, rank=2) for _ in range(50))).then()
    story.when(*(chain(log, HOUR_S, rank=1) for _ in range(19))).then()
    story.when(chain(log, HOUR_S, rank=1)).then(warned("sustained_fallback", route="brief"))


def test_under_half_does_not_warn(log: Log) -> None:
    story = given(*(chain(log, n, rank=0) for n in range(11)), *(chain(log, n, rank=1) for n in range(10))).then()
    story.when(chain(log, 30, rank=1)).then(warned("sustained_fallback", numbers={"answers": 22, "by_fallback": 11}))


def test_routes_and_hours_are_counted_apart_and_only_answers_count(log: Log) -> None:
    story = given(
        *(chain(log, 0, rank=1, route=f"r{n}") for n in range(60) for _ in range(19)),
        *(log.outcome("server_error", at_s=0, route="r0", rank=1, target=Target("h", f"m{n}")) for n in range(50)),
        *(chain(log, HOUR_S, rank=1, route=f"r{n}") for n in range(60) for _ in range(19)),
    )
    assert warnings(story) == []


def test_the_answers_of_a_route_count_over_targets_and_replicas(log: Log) -> None:
    others = [Target("h", "a"), Target("h#b", "b"), TARGET]
    events = [chain(log, 0, rank=1, target=others[n % 3], replica=f"r{n % 4}") for n in range(20)]
    assert [rule for rule, _ in warnings(given(*events))] == ["sustained_fallback"]


def test_routes_are_bounded_within_an_hour_and_leave_with_it(log: Log) -> None:
    story = given(*(chain(log, 0, rank=0, route=f"r{n}") for n in range(ROUTES_MAX + 50)))
    assert len(story.fleet.store.routes) == ROUTES_MAX
    story.when(chain(log, HOUR_S, rank=0, route="other"))
    assert list(story.fleet.store.routes) == ["other"]
    assert Fleet.decode(story.fleet.encode()).digest() == story.fleet.digest()


# -- wrong endpoints, charsets, pipelines ---------------------------------------------------------------


def test_three_wrong_endpoints_in_an_hour_warn_by_host_and_model(log: Log) -> None:
    alias = Target("openrouter.ai#team-b", TARGET.model)
    story = given(
        log.outcome("wrong_endpoint", at_s=0),
        log.outcome("wrong_endpoint", at_s=1, target=alias),
        log.outcome("wrong_endpoint", at_s=2, target=Target("openrouter.ai", "other")),
    ).then()
    story.when(log.outcome("wrong_endpoint", at_s=HOUR_S - MS)).then(warned("wrong_endpoint", numbers={"in_hour": 3}))
    story.when(*(log.outcome("wrong_endpoint", at_s=HOUR_S + n) for n in range(2))).then()
    story.when(log.outcome("wrong_endpoint", at_s=HOUR_S + 9)).then(warned("wrong_endpoint"))
    story.when(*(log.outcome("wrong_endpoint", at_s=HOUR_S + 10) for _ in range(9))).then()


@pytest.mark.parametrize("signature", ["double_encoded", "replacement_char", "own_decoding"])
def test_a_damaged_answer_without_charset_warns_once_a_day_per_host(log: Log, signature: str) -> None:
    def damaged(at_s: float, charset: str | None = "absent", **fields: Any) -> Any:
        return log.outcome("mangled_output", at_s=at_s, signature=signature, charset=charset, **fields)

    def told(*events: Any) -> list[tuple[str, str]]:
        return [each for each in warnings(story.when(*events)) if each[0] == "charset_absent"]

    story = given()
    assert told(damaged(0, "utf-8"), damaged(0, None)) == []
    assert told(damaged(1), damaged(2, target=Target("openrouter.ai", "other"))) == [("charset_absent", HOST.key)]
    assert told(damaged(3, target=Target("h", "m"))) == [("charset_absent", "h")]
    assert told(damaged(DAY_S - MS)) == []
    assert told(damaged(DAY_S)) == [("charset_absent", HOST.key)]


def test_a_clean_answer_without_charset_is_no_news(log: Log) -> None:
    story = given(
        *(log.outcome("ok", at_s=0, charset="absent") for _ in range(9)),
        log.outcome("mangled_output", at_s=0, signature="loop", charset="absent"),
    )
    assert warnings(story) == []


def test_own_decoding_names_its_replica_once_an_hour_and_touches_no_fold(log: Log) -> None:
    def own(at_s: float, replica: str = "r1") -> Any:
        return log.outcome("mangled_output", at_s=at_s, signature="own_decoding", scope="none", replica=replica)

    story = given(*(own(0, "r9") for _ in range(1))).when(*(own(n) for n in range(40)))
    story.then(warned("pipeline_suspect", replica="r1", scope=TARGET.scope, cause_seq=2))
    story.when(own(41, "r2")).then(warned("pipeline_suspect", replica="r2"))
    story.when(own(HOUR_S - MS)).then()
    story.when(own(HOUR_S)).then(warned("pipeline_suspect", replica="r1"))
    document = story.fleet.document(TARGET.key, log.ms(HOUR_S))
    assert document is not None
    assert (document["evidence"], document["health"]) == ({}, "unknown")


# -- the state -----------------------------------------------------------------------------------------


def test_an_overlay_warns_of_nothing(log: Log) -> None:
    events = [odd(log, n) for n in range(60)] + [chain(log, n, rank=1) for n in range(60)]
    assert given(*events, overlay=True).derived == []


def test_a_clear_empties_it(log: Log) -> None:
    story = given(odd(log, 0), log.override("clear", at_s=1)).when(odd(log, 2)).then()
    story.when(odd(log, 3)).then(warned("novel_signature"))


def test_a_clock_that_steps_back_by_days_leaves_no_hour_ahead_of_it(log: Log) -> None:
    day_s = 2 * DAY_S
    story = given(odd(log, day_s), *(chain(log, day_s, rank=1) for _ in range(19)))
    story.when(odd(log, 0, route="brief", rank=1))
    assert warnings(story) == [("sustained_fallback", TARGET.key), ("novel_signature", TARGET.key)]
    assert Fleet.decode(story.fleet.encode()).digest() == story.fleet.digest()


def test_warnings_live_through_encode_and_decode(log: Log) -> None:
    events = [odd(log, 0), *(chain(log, 0, rank=1) for _ in range(19)), log.outcome("wrong_endpoint", at_s=0)]
    events += [log.outcome("wrong_endpoint", at_s=1)]
    story = given(*events)
    copy = Fleet.decode(story.fleet.encode())
    last = [odd(log, 2), chain(log, 2, rank=1), log.outcome("wrong_endpoint", at_s=3)]
    told = [event for one in last for event in copy.apply(one)]
    story.when(*last).then(warned("novel_signature"), warned("sustained_fallback"), warned("wrong_endpoint"))
    assert story.all == told
    assert copy.encode() == story.fleet.encode()


def test_a_success_with_a_signature_counts_as_any_other_success(log: Log) -> None:
    plain, signed = given(*(odd(log, n, signature=None) for n in range(9))), Log(TARGET, start_ms=MIDNIGHT_MS)
    story = given(*(odd(signed, n) for n in range(9)))
    for name in ("good_ms", "clean_ms", "answers"):
        states = [each.fleet.store.nodes[TARGET.key].state for each in (plain, story)]
        assert getattr(states[0], name) == getattr(states[1], name)
