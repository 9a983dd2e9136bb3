"""`sickbay history` tells what was held, from the services' file and from a log as a file; `serve` keeps the file."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_runs import Serve, serve_fixture, sickbay  # noqa: F401 - a fixture
from histories import START_MS
from history_rig import built, subject_of
from sickbay.bus.filelock import FileLock
from sickbay.historian.query import history_report
from sickbay.log.file import LogLine, open_writer
from sickbay_events import CallOutcome, CallsRefused, Lease, Target, encode, rfc3339
from sickbay_projections import Recorded
from waiting import until_sync

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
SINCE, UNTIL = rfc3339(START_MS - 60_000), rfc3339(START_MS + 3_600_000)


def log_file(path: Path, recorded: list[Recorded]) -> str:
    with open_writer(path) as write:
        for each in recorded:
            write(LogLine.of(each.seq, each.time_ms * 1_000_000, subject_of(each), None, encode(each.event)))
    return str(path)


@pytest.fixture(name="quarantined")
def quarantined_fixture(tmp_path: Path) -> str:
    """Two replicas meet a dead model; a third call is refused; half an hour later it answers."""
    dead = CallOutcome(kind="model_unavailable", status=404, took_ms=80)
    return log_file(
        tmp_path / "log.jsonl",
        [
            Recorded(dead, TARGET, replica="r1", seq=1, time_ms=START_MS),
            Recorded(dead, TARGET, replica="r2", seq=2, time_ms=START_MS + 1000),
            Recorded(CallsRefused(count=37, rule="quarantine"), TARGET, replica="r1", seq=3, time_ms=START_MS + 60_000),
            Recorded(CallOutcome(kind="ok", took_ms=900), TARGET, replica="r1", seq=4, time_ms=START_MS + 1_800_000),
        ],
    )


def test_it_shows_the_hold_with_its_cause_its_end_and_the_calls_it_saved(quarantined: str) -> None:
    done = sickbay("history", TARGET.provider, TARGET.model, "--from", quarantined, "--since", SINCE, "--until", UNTIL)
    assert done.returncode == 0, done.stderr
    assert "3 calls, 1 answered (half in 0.9 s, 95 % in 0.9 s); 2 failed" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if "10 min 0 s" in line]
    assert row.split()[-2:] == ["time", "37"]
    assert f"{TARGET.model} quarantine" in row
    assert "model_unavailable (404), 2 failures, 0 answers, 2 in a row needed" in done.stdout
    assert "█" in done.stdout
    assert "\x1b" not in done.stdout, "no colour where it is no terminal"


def test_a_hold_that_failed_trials_began_again_is_one_row(tmp_path: Path) -> None:
    """From its first beginning to the answer that ended it, with the trials in between counted."""
    dead, fine = {"kind": "model_unavailable", "status": 404}, {"kind": "ok"}
    story = [(0, dead, 0), (1, dead, 0), (3, dead, 2), (6, dead, 3), (10, fine, 4)]
    recorded = [
        Recorded(
            CallOutcome(**fields, took_ms=80, trial=[Lease("quarantine", began_seq)] if began_seq else None),  # type: ignore[arg-type]
            TARGET, replica=f"r{n % 2}", seq=n, time_ms=START_MS + at_s * 1000,
        )
        for n, (at_s, fields, began_seq) in enumerate(story, start=1)
    ]  # fmt: skip
    found = sickbay("history", TARGET.provider, "--from", log_file(tmp_path / "log.jsonl", recorded), "--json")
    (hold,) = json.loads(found.stdout)["holds"]
    assert (hold["began_seq"], hold["held_s"], hold["ended_by"]) == (2, 9.0, "success")
    assert hold["because"].endswith("2 in a row needed, trial 2 failed")


def test_it_is_80_columns_wide_where_the_terminal_is(quarantined: str) -> None:
    given = ["history", "openrouter.ai", "--from", quarantined, "--since", SINCE, "--until", UNTIL]
    done = sickbay(*given, environment={"COLUMNS": "80"})
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "quarantine" in done.stdout


def test_json_and_csv_say_the_same(quarantined: str) -> None:
    given = ["history", TARGET.provider, TARGET.model, "--from", quarantined, "--since", SINCE, "--until", UNTIL]
    found = json.loads(sickbay(*given, "--json").stdout)
    (row,) = csv.DictReader(io.StringIO(sickbay(*given, "--csv").stdout))
    (hold,) = found["holds"]
    assert hold["calls_saved"] == found["calls_saved"] == int(row["calls_saved"]) == 37
    assert (hold["began"], hold["ended"]) == (row["began"], row["ended"])
    assert row["ended"] == rfc3339(START_MS + 601_000)
    assert found["kinds"] == {"model_unavailable": 2, "ok": 1}


def test_a_standing_hold_is_still_held_and_so_far(tmp_path: Path) -> None:
    """Its length grows to the last event, and what ends it is not said before it has."""
    dead = CallOutcome(kind="model_unavailable", status=404)
    recorded = [Recorded(dead, TARGET, replica=f"r{n}", seq=n, time_ms=START_MS + n * 1000) for n in (1, 2)] + [
        Recorded(CallOutcome(kind="bad_request"), TARGET, replica="r1", seq=3, time_ms=START_MS + 92_000)
    ]
    source = log_file(tmp_path / "log.jsonl", recorded)
    shown = sickbay("history", TARGET.provider, "--from", source).stdout
    assert "1 min 30 s so far" in shown and "still held" in shown
    (hold,) = json.loads(sickbay("history", TARGET.provider, "--from", source, "--json").stdout)["holds"]
    assert (hold["ended"], hold["ended_by"], hold["held_s"]) == (None, None, 90)


def test_a_standing_hold_of_a_quiet_log_is_over_when_its_end_has_come(tmp_path: Path) -> None:
    """A hold goes on, and ends, also while nothing is logged: asked at a time, not at the last event."""
    dead = CallOutcome(kind="model_unavailable", status=404)
    recorded = [Recorded(dead, TARGET, replica=f"r{n}", seq=n, time_ms=START_MS + n * 1000) for n in (1, 2)]
    with contextlib.closing((book := built(recorded)).db.conn):
        for after_s, expected in ((0, (None, None, 0)), (90, (None, None, 90)), (600, ("ended", "time", 600))):
            at_ms = START_MS + 2_000 + after_s * 1000
            (hold,) = history_report(book.db, TARGET.provider, None, START_MS, at_ms + 1, at_ms=at_ms).holds
            assert (hold.ended and "ended", hold.ended_by, hold.held_s) == expected


def test_a_file_is_shown_from_its_beginning_unless_a_time_is_named(tmp_path: Path) -> None:
    """A log of three days has its first hold in it, not only those of its last day."""
    dead = CallOutcome(kind="model_unavailable", status=404)
    recorded = [Recorded(dead, TARGET, replica=f"r{n}", seq=n, time_ms=START_MS + n) for n in (1, 2)]
    recorded.append(Recorded(CallOutcome(kind="ok"), TARGET, replica="r1", seq=3, time_ms=START_MS + 3 * 86_400_000))
    given = ["history", TARGET.provider, "--from", log_file(tmp_path / "log.jsonl", recorded), "--json"]
    whole, day = json.loads(sickbay(*given).stdout), json.loads(sickbay(*given, "--since", "1 day ago").stdout)
    assert (len(whole["holds"]), whole["calls"], len(day["holds"]), day["calls"]) == (1, 3, 0, 1)
    assert whole["since_ms"] == START_MS + 1


def test_a_hold_is_shown_where_it_reaches_into_the_time_asked_for(quarantined: str) -> None:
    given = ["history", TARGET.provider, TARGET.model, "--from", quarantined, "--json"]
    for since_s, until_s, holds in ((300, 400, 1), (-60, 0, 0), (601, 700, 0), (600, 700, 1)):
        span = ("--since", rfc3339(START_MS + since_s * 1000), "--until", rfc3339(START_MS + until_s * 1000))
        assert len(json.loads(sickbay(*given, *span).stdout)["holds"]) == holds, (since_s, until_s)


def test_an_empty_log_and_one_event_are_told(tmp_path: Path) -> None:
    empty = log_file(tmp_path / "empty.jsonl", [])
    done = sickbay("history", "openrouter.ai", "--from", empty)
    assert done.returncode == 0, done.stderr
    assert "nothing is known of it" in done.stdout
    ok = Recorded(CallOutcome(kind="ok"), TARGET, replica="r1", seq=1, time_ms=START_MS)
    single = log_file(tmp_path / "one.jsonl", [ok])
    done = sickbay("history", "openrouter.ai", "--from", single)
    assert "1 calls, 1 answered" in done.stdout
    assert "nothing was held" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--since", "soon"), 2, "accepted is"),
        (("--since", "1 hour ago", "--until", "2 hours ago"), 2, "is not before"),
        (("--history", "/nonexistent/history.db"), 1, "there is no history yet"),
        (("--history", "off"), 1, "no history is kept here"),
        (("--history", "/dev/null"), 1, "/dev/null"),
        (("--from", "/nonexistent/log.jsonl"), 1, "No such file"),
    ],
)
def test_what_cannot_be_told_is_a_plain_error(
    arguments: tuple[str, ...], code: int, says: str, quarantined: str
) -> None:
    source = () if "--from" in arguments or "--history" in arguments else ("--from", quarantined)
    done = sickbay("history", "openrouter.ai", *source, *arguments)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def told(folder: str) -> bool:
    done = sickbay("history", TARGET.provider, "--json", environment={"SICKBAY_DATA": folder})
    return done.returncode == 0 and len(json.loads(done.stdout)["holds"]) == 1


def test_serve_keeps_the_history_and_history_reads_it_meanwhile_and_afterwards(
    serve: Callable[..., Serve], tmp_path: Path
) -> None:
    """Ended by a signal or killed, it leaves no process that goes on writing."""
    folder = str(tmp_path / "data")
    served = serve("--data", folder).ready()
    assert f"{folder}/history.db" in served.said
    for replica in ("r1", "r2"):
        history_report = ["report", TARGET.provider, TARGET.model, "--kind", "model_unavailable", "--replica", replica]
        assert sickbay(*history_report, environment={"SICKBAY_DATA": folder}).returncode == 0
    until_sync(lambda: told(folder), "the hold is in the history")
    lock = FileLock(tmp_path / "data" / "history.db.lock")
    assert not lock.take(), "the historian writes"
    assert served.end()[0] == 0
    assert lock.take(), "and has ended with the services"
    lock.release()
    assert told(folder), "the history is read without any service"
    served = serve("--data", folder).ready()
    until_sync(lambda: not taken(lock), "the historian runs again")
    os.kill(served.process.pid, signal.SIGKILL)
    until_sync(lambda: taken(lock), "it ends when its parent is gone")
    assert serve("--data", folder).ready().end()[0] == 0, "the NATS server that outlived its parent ends too"


def taken(lock: FileLock) -> bool:
    if lock.take():
        lock.release()
        return True
    return False


def test_history_off_keeps_none(serve: Callable[..., Serve], tmp_path: Path) -> None:
    served = serve("--data", str(tmp_path / "data"), "--history", "off").ready()
    assert "  history  " not in served.said
    assert not (tmp_path / "data" / "history.db").exists()
