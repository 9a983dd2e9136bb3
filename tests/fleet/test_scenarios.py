"""The stories of `make fleet` with a bound, told from one seed; and that rivals and tables are what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.provider import Condition, Luck, Outage, bursts
from fleet.rivals import RIVALS, Asked, Breaker, Cooldown, Outliers, Rival
from fleet.scenarios import SCENARIOS, Scenario
from fleet.tables import BEGIN, END, ROOT, SHORT, write
from fleet.world import ALONE, SIDES, TOGETHER, Story, Told, tell

QUICK = [scenario for scenario in SCENARIOS if scenario.is_quick]
BY_NAME = {scenario.story.name: scenario.story for scenario in SCENARIOS}
DEAD = BY_NAME["dead 40 s, 500, 1/s"]


class Telling(dict[str, Told]):
    """A story from one seed, told by the sides that its figures ask for."""

    def __init__(self, story: Story) -> None:
        super().__init__()
        self._story = story

    def __missing__(self, side: str) -> Told:
        return self.setdefault(side, tell(self._story, 1, side))


@pytest.mark.parametrize("scenario", QUICK, ids=lambda scenario: scenario.story.name)
def test_the_fleet_keeps_its_bounds(scenario: Scenario) -> None:
    """Every figure keeps its bound, but those of which it is said why they miss it."""
    for figure in scenario.measure([Telling(scenario.story)]):
        assert figure.is_kept(1) or figure.miss, f"{scenario.story.name}: {figure}"


def test_a_story_told_twice_from_one_seed_is_the_same() -> None:
    """Whatever differs between two tellings comes from the seed or from the policy, nothing from the machine."""
    for side in SIDES:
        assert tell(DEAD, 7, side) == tell(DEAD, 7, side)
        assert tell(DEAD, 7, side) != tell(DEAD, 8, side)


def test_every_side_is_offered_the_same_calls() -> None:
    """And what they meet is the same: all calls that nobody refuses are answered or not alike."""
    tolds = [tell(DEAD, 3, side) for side in SIDES]
    assert len({told.counts["offered"] for told in tolds}) == 1
    healthy = BY_NAME["three calls an hour and replica: healthy, 1 % noise"]
    tolds = [tell(healthy, 3, side) for side in ("Envoy", "Resilience4j")]  # neither ever holds it
    assert [told.counts["refused"] for told in tolds] == [0, 0]
    assert tolds[0].counts["down"] == tolds[1].counts["down"] > 0


def test_with_the_cluster_off_no_router_hears_of_another() -> None:
    """Each for itself pays what it takes as often as there are replicas."""
    told = tell(DEAD, 1, ALONE)
    assert told.holds == 0
    assert told.dead > tell(DEAD, 1, TOGETHER).dead


def outcomes(rival: Rival, *conditions: Condition, at_s: float = 100.0, retry_after_s: int | None = None) -> None:
    """The same replica's, one each 0.1 s."""
    for n, condition in enumerate(conditions):
        asked: Asked = rival.ask("r0", at_s + n / 10)
        rival.told("r0", at_s + n / 10, condition, retry_after_s, asked)


def test_a_cooldown_is_read_by_the_others_within_a_second_and_ends_for_all() -> None:
    rival = Cooldown(["r0", "r1"])
    assert rival.is_free("r1", 100.0)
    outcomes(rival, "down", "down", "down", at_s=100.0)
    assert rival.is_free("r0", 100.3), "three are allowed"
    outcomes(rival, "down", at_s=100.3)
    assert not rival.is_free("r0", 100.3)
    assert rival.is_free("r1", 100.9)
    assert not rival.is_free("r1", 101.0)
    assert rival.is_free("r0", 105.3)
    assert rival.is_free("r1", 105.3)


def test_a_429_cools_at_once_and_as_long_as_it_asks() -> None:
    rival = Cooldown(["r0"])
    outcomes(rival, "network", "network", "network", "network", "network")
    assert rival.is_free("r0", 100.5), "failed connections do not count"
    outcomes(rival, "limited", retry_after_s=20)
    assert not rival.is_free("r0", 119.9)
    assert rival.is_free("r0", 120.0)


def test_outlier_detection_ejects_longer_each_time_and_lets_in_at_a_sweep() -> None:
    rival = Outliers(["r0", "r1"])
    outcomes(rival, "down", "down", "ok", "slow", "down", "limited", "network", "gone", at_s=101.0)
    assert rival.is_free("r0", 101.7), "an answer ends the run"
    outcomes(rival, "down", at_s=101.8)
    assert not rival.is_free("r0", 101.8)
    assert rival.is_free("r1", 101.8), "each for itself"
    assert not rival.is_free("r0", 139.9), "30 s are over at 131.8, the next sweep is at 140"
    assert rival.is_free("r0", 140.0)
    outcomes(rival, "down", "down", "down", "down", "down", at_s=141.0)
    assert not rival.is_free("r0", 199.9)
    assert rival.is_free("r0", 210.0)


def test_a_breaker_wants_a_hundred_calls_and_ten_trials() -> None:
    rival = Breaker(["r0"])
    for n in range(50):
        outcomes(rival, "ok", at_s=100.0 + n / 10)
    for n in range(49):
        outcomes(rival, "down", at_s=105.0 + n / 10)
    assert rival.is_free("r0", 110.0)
    outcomes(rival, "down", at_s=110.0)
    assert not rival.is_free("r0", 169.9)
    assert [rival.ask("r0", 170.0) for _ in range(11)] == ["trial"] * 10 + ["no"]
    for n in range(10):
        rival.told("r0", 171.0, "down" if n < 5 else "ok", None, "trial")
    assert not rival.is_free("r0", 230.9), "half of ten failed"
    assert [rival.ask("r0", 231.0) for _ in range(10)] == ["trial"] * 10
    for n in range(10):
        rival.told("r0", 232.0, "down" if n < 4 else "ok", None, "trial")
    assert rival.ask("r0", 232.0) == "free"


def test_bursts_are_the_share_of_the_calls_that_they_say() -> None:
    found = bursts(0.05, "down", 100_000.0, 1)
    assert sum(outage.to_s - outage.from_s for outage in found) / 100_000 == pytest.approx(0.1, rel=0.1)
    assert {outage.share for outage in found} == {0.5}


def test_a_refused_call_is_lost_only_where_it_would_have_been_answered() -> None:
    story = BY_NAME["dead 40 s, 500, 12/s"]
    provider = story.provider(1)
    (outage,) = provider.outages
    assert isinstance(outage, Outage)
    luck = Luck(0.5, 0.5, 0.5)
    assert not provider.would_answer("r0", outage.from_s, luck)
    assert provider.would_answer("r0", outage.to_s, luck)
    limited = BY_NAME["limited to 50% by a minute, does not say when, 12/s, 4 replicas"].provider(1)
    assert [limited.would_answer("r0", 1.0, luck) for _ in range(361)] == [True] * 360 + [False]
    assert limited.answer("r0", 1.0, 12.0, luck).condition == "ok", "what is refused takes no room"


def test_every_story_has_a_name_of_its_own_and_the_short_table_finds_its_own() -> None:
    assert len(BY_NAME) == len(SCENARIOS)
    assert set(SHORT) <= set(BY_NAME)
    assert set(RIVALS) < set(SIDES)


def test_a_table_is_written_between_the_marks_of_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    for _ in range(2):
        write(page, ["", "| new |", ""])
        assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}\n\n| new |\n\n{END}\nafter\n"
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(ValueError, match="no place"):
        write(page, [])
    for name in ("README.md", "docs/fleet.md"):
        assert (ROOT / name).read_text(encoding="utf-8").count(BEGIN) == 1
