"""`sickbay bench`: what it prints was measured in that run, and it leaves nothing behind."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from cli_runs import sickbay
from sickbay.cli.bench import Measured


def test_it_measures_each_promise_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row has a value of its own run, a verdict where there is a budget, and its folder is gone afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = sickbay("bench", "--holds", "10", "--outcomes", "1000", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row for row in json.loads(done.stdout)}
    assert all(row["value"] > 0 for row in rows.values())
    assert [row["verdict"] for row in rows.values() if row["budget"] is None] == [None]
    assert all(row["verdict"] in ("met", "missed") for row in rows.values() if row["budget"] is not None)
    assert rows["the same, p99"]["beside"] == "10 holds"
    assert not list(tmp_path.iterdir()), "the services' folder stays behind"


@pytest.mark.parametrize(
    ("value", "more_is_better", "verdict"),
    [(1.0, False, "met"), (1.1, False, "missed"), (1.0, True, "met"), (0.9, True, "missed")],
)
def test_a_value_at_its_budget_meets_it(value: float, more_is_better: bool, verdict: str) -> None:
    """A budget is what may be used up; past it is missed, whichever way is better."""
    assert Measured("x", value, "us", 1.0, more_is_better).verdict == verdict


def test_a_number_of_holds_out_of_range_is_refused_by_name() -> None:
    """Bad input is a usage error that names the option and what it takes."""
    done = sickbay("bench", "--holds", "3")
    assert done.returncode == 2
    assert "--holds" in done.stderr
    assert "10<=x<=5000" in done.stderr
