"""The bar on the shared corpus of real answers, where that corpus is at hand beside the repository."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paths import ROOT
from sickbay_events.classify import classify
from sickbay_events.verdict import Verdict

CORPUS = Path(os.environ.get("SICKBAY_CORPUS") or ROOT.parent / "shared" / "corpus" / "outcomes.jsonl")
pytestmark = pytest.mark.skipif(not CORPUS.exists(), reason="no corpus beside this checkout")


def judged() -> list[tuple[dict[str, Any], Verdict]]:
    rows = [json.loads(line) for line in CORPUS.read_text("utf-8").splitlines() if line.strip()]
    return [
        (
            row,
            classify(
                status=row["status"],
                headers=row["headers"],
                body=row["body"].encode(),
                requested_model=row["requested_model"] or "",
                provider=row["provider"],
                error=None if row["error_kind"] == "http" else row["error_kind"],
                stream=row["stream"],
            ),
        )
        for row in rows
    ]


def test_kinds_scopes_and_waits_reach_the_bar() -> None:
    """Rows taken from real answers and not marked uncertain: 95 % of kinds, 90 % of scopes and waits."""
    sure = [pair for pair in judged() if pair[0]["form"] in ("exact", "envelope") and not pair[0].get("uncertain")]
    kinds = sum(verdict.kind == row["expected"] for row, verdict in sure)
    scopes = sum(verdict.scope == row["scope"] for row, verdict in sure)
    waits = sum(verdict.retry_after_s == pytest.approx(row["retry_after_s"]) for row, verdict in sure)
    assert kinds >= 0.95 * len(sure)
    assert scopes >= 0.90 * len(sure)
    assert waits >= 0.90 * len(sure)


def test_not_one_answer_about_something_else_is_taken_for_a_dead_model() -> None:
    wrong = [
        row["id"]
        for row, verdict in judged()
        if verdict.kind == "model_unavailable" and row["expected"] != "model_unavailable"
    ]
    assert wrong == []


def test_without_the_providers_name_nothing_is_taken_for_a_dead_model_either() -> None:
    """A relay in front of an unknown family falls back on the general rules."""
    for row, _ in judged():
        if row["expected"] == "model_unavailable" or row["error_kind"] != "http":
            continue
        verdict = classify(
            status=row["status"], headers=row["headers"], body=row["body"], requested_model=row["requested_model"] or ""
        )
        assert verdict.kind != "model_unavailable", row["id"]
