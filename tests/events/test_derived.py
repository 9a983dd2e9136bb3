"""The numbers of derived events in words for people (Rule 4.0, An operator sees)."""

from __future__ import annotations

import pytest

from sickbay_events.derived import numbers_in_words

POINTS = {"points": 2, "needed": 2, "record": 0, "failures": 2, "answers": 0, "replicas": 2, "since_ms": 9, "n": 1}


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({}, ""),
        (POINTS, "2 failures, 0 answers, 2 in a row needed"),
        (POINTS | {"failures": 1, "answers": 1}, "1 failure, 1 answer, 2 in a row needed"),
        (POINTS | {"record": 5}, "2 failures, 0 answers, 2 in a row needed, got over 5 by itself before"),
        (POINTS | {"n": 3}, "2 failures, 0 answers, 2 in a row needed, trial 2 failed"),
        ({"strikes": 3, "replicas": 2}, "3 strikes"),
        ({"failures": 1, "replicas": 1, "n": 1}, "1 failure"),
        ({"open": 1, "models": 4, "n": 2}, "1 open, 4 models"),
    ],
)  # fmt: skip
def test_numbers_are_told_without_what_only_machines_read(numbers: dict[str, int], words: str) -> None:
    assert numbers_in_words(numbers) == words
