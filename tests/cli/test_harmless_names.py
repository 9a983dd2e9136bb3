"""What an outsider wrote is shown in a terminal, a pipe, a table and a page, and does nothing there."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from cli_runs import sickbay
from history_rig import subject_of
from sickbay.cli.base import console, facts, json_text, plain_table, rows
from sickbay.cli.look import shown_status
from sickbay.cli.sentences import warning_line
from sickbay.log.file import LogLine, open_writer
from sickbay_events import CallOutcome, Override, Scope, Target, encode, rfc3339
from sickbay_projections import Recorded
from sickbay_projections.testing import START_MS

NASTY = [
    "\x1b]0;owned\x07\x1b[8mhidden\x1b[0m",
    "x\n2026-11-30 00:00:00,000 WARNING sickbay.services: released: api.openai.com gpt-5.2 from operator by clear",
    "=cmd|' /C calc'!A0",
    "gpt-\u202e5",
    "\x9b31mred\x85next\u2028line",
    "[bold]markup[/bold]",
]
SINCE, UNTIL = rfc3339(START_MS - 60_000), rfc3339(START_MS + 3_600_000)


@pytest.fixture(name="log")
def log_fixture(tmp_path: Path) -> str:
    """Every nasty model is held by two replicas, and one of them by an operator with a nasty reason."""
    dead, path = CallOutcome(kind="model_unavailable", status=404, took_ms=80), tmp_path / "log.jsonl"
    recorded = [
        Recorded(dead, Target("evil.example", model), replica=f"r{replica}\x1b[2J")
        for model in NASTY
        for replica in (1, 2)
    ]
    act = Override(action="hold", reason="a\n=1+1\x1b", actor="=ana\u202e", until=rfc3339(START_MS + 900_000))
    recorded.append(Recorded(act, scope=Scope("evil.example", None, "calm")))
    with open_writer(path) as write:
        for seq, one in enumerate(recorded, 1):
            placed = replace(one, seq=seq, time_ms=START_MS + seq)
            write(LogLine.of(seq, placed.time_ms * 1_000_000, subject_of(placed), None, encode(placed.event)))
    return str(path)


def is_plain(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("command", [["replay"], ["replay", "--at", rfc3339(START_MS + 60_000)], ["history"]])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_command_shows_names_that_move_nothing(log: str, command: list[str], form: list[str]) -> None:
    where = [log] if command[0] == "replay" else ["evil.example", "--from", log, "--since", SINCE, "--until", UNTIL]
    done = sickbay(command[0], *where, *command[1:], *form)
    assert done.returncode == 0, done.stderr
    assert is_plain(done.stdout)
    assert not any(line.startswith("2026-11-30 00:00:00,000 WARNING") for line in done.stdout.splitlines())
    if form:
        assert NASTY[3] in json.dumps(json.loads(done.stdout), ensure_ascii=False), "as data it is the exact name"


def test_a_table_of_holds_has_no_formula_and_a_line_each(log: str) -> None:
    done = sickbay("history", "evil.example", "--from", log, "--since", SINCE, "--until", UNTIL, "--csv")
    assert done.returncode == 0 and is_plain(done.stdout.replace("\r\n", "\n"))
    head, *holds = csv.reader(io.StringIO(done.stdout))
    assert len(holds) == len(NASTY) + 1
    models = {row[head.index("model")] for row in holds}
    assert "'=cmd|' /C calc'!A0" in models and "gpt-\\u202e5" in models
    assert not any(cell[:1] in ("=", "+", "-", "@") for row in holds for cell in row)
    assert any("'=ana" in cell or "=ana\\u202e" in cell for row in holds for cell in row)


def test_an_error_that_repeats_what_was_asked_is_one_line() -> None:
    done = sickbay("name", "https://evil.example:70000/\x1b[2J\n", "m")
    assert done.returncode != 0
    assert is_plain(done.stderr) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", NASTY)
def test_cells_lines_and_sentences_are_plain(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = console()
    out.print(name)
    out.print(rows(plain_table("a"), [[name], [[name, name]]]))
    out.print(facts({"name": name}))
    out.print(shown_status(_status(name)))
    shown = capsys.readouterr().out
    assert is_plain(shown)
    assert "[bold]" in shown or "bold" not in name, "what looks like markup is text"
    assert not any(line.startswith("2026-11-30 00") for line in shown.split("\n"))


def _status(name: str) -> dict[str, object]:
    warning = {"rule": "replica_suspect", "replica": name, "provider": name, "model": name, "time_ms": 0, "times": 1}
    hold = {"rule": "operator", "phase": "held", "left_s": 5.0, "actor": name, "reason": name, "began_seq": 7}
    scope = {"provider": name, "model": name, "scope": "model", "holds": [hold], "operator": None}
    projector = {"lag": 0, "phase": "writing", "name": name, "checkpoint_age_s": 0.1}
    assert name in warning_line(warning)
    return {
        "from": "services", "at": "2026-11-30T00:00:00Z", "seq": 7, "projector": projector, "scopes": [scope],
        "warnings": [warning], "next": None,
    }  # fmt: skip


@pytest.mark.parametrize("name", NASTY)
def test_json_is_the_same_data_and_moves_no_terminal(name: str) -> None:
    text = json_text({name: [name]}, indent=2)
    assert json.loads(text) == {name: [name]}
    assert is_plain(text)
