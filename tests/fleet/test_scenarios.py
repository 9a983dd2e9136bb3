"""A fleet together against the same routers each for itself, in virtual time: what is gained, and that nothing is lost.

`make fleet` prints the table of docs/fleet.md. FLEET_SEEDS says how many seeds are told of each story: 3 there,
1 in `make test`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fleet.scenarios import SCENARIOS, Figure, Scenario, table
from fleet.world import tell

SEEDS = range(1, 1 + int(os.environ.get("FLEET_SEEDS", "1")))
_measured: list[tuple[str, list[Figure]]] = []


@pytest.fixture(scope="module", autouse=True)
def _printed() -> Iterator[None]:
    yield
    print(f"\nseeds {SEEDS[0]} to {SEEDS[-1]}; the worst of them, of times held the mean")
    print("\n".join(table(_measured)))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.story.name)
def test_the_fleet_keeps_its_bounds(scenario: Scenario) -> None:
    """Every figure keeps its bound, but those of which it is known, with the rule, that they miss it."""
    figures = scenario.measure(SEEDS)
    _measured.append((scenario.story.name, figures))
    for figure in figures:
        assert figure.is_met or figure.miss, f"{scenario.story.name}: {figure}"


def test_a_story_told_twice_from_one_seed_is_the_same() -> None:
    """Whatever differs between two tellings comes from the seed or from the cluster, nothing from the machine."""
    story = SCENARIOS[0].story
    assert tell(story, 7, together=True) == tell(story, 7, together=True)
    assert tell(story, 7, together=True) != tell(story, 8, together=True)


def test_with_the_cluster_off_no_router_hears_of_another() -> None:
    """Each for itself pays the threshold as often as there are replicas."""
    told = tell(SCENARIOS[0].story, 1, together=False)
    assert told.holds == 0
    assert told.dead >= 4 * 5
