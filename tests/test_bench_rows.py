"""The budget table's rows: a miss reads as a miss, and figures keep what they tell."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import ModuleType

import pytest

from paths import ROOT

BENCH = ROOT / "bench"


@pytest.fixture(scope="module")
def rows() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rows", BENCH / "rows.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["rows"] = module
    spec.loader.exec_module(module)
    return module


def test_a_budget_is_met_on_the_side_that_is_better(rows: ModuleType) -> None:
    assert rows.Row("decide", 0.9, "us", 1.0).met() is True
    assert rows.Row("decide", 1.1, "us", 1.0).met() is False
    assert rows.Row("fold", 210_000, "events/s", 200_000, better="higher").met() is True
    assert rows.Row("fold", 190_000, "events/s", 200_000, better="higher").met() is False
    assert rows.Row("reader", 1.0, "us").met() is None


def test_a_percentile_is_one_of_the_samples(rows: ModuleType) -> None:
    samples = list(range(1, 101))
    assert rows.percentile(samples, 0.99) == 99
    assert rows.percentile(samples, 0.5) == 50
    assert rows.percentile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="at least one"):
        rows.percentile([], 0.5)


@pytest.mark.parametrize(
    ("value", "text"), [(0.4213, "0.421"), (5.306, "5.31"), (56.78, "56.8"), (123456.7, "123,457")]
)
def test_a_number_keeps_about_three_digits(rows: ModuleType, value: float, text: str) -> None:
    assert rows.number(value) == text


def test_the_table_says_by_how_much_a_budget_is_missed(rows: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    rows.print_rows([rows.Row("decide()", 2.5, "us", 1.0, "120x cheaper than a Redis GET")])
    line = capsys.readouterr().out.splitlines()[1]
    assert "MISSED (2.50 of budget)" in line
    assert line.endswith("120x cheaper than a Redis GET")


def test_a_bench_that_is_not_there_is_named_with_those_that_are() -> None:
    done = subprocess.run([sys.executable, BENCH / "run.py", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no such bench: bench_nonsense; there are bench_" in done.stderr
