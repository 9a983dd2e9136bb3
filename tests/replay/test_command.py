"""`sickbay replay`: the same from a file and from a live server, to any place, with questions; known truth is found."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from cli_runs import Done, sickbay
from known_log import START_MS, STEP_MS, KnownLog
from nats_servers import NatsServer
from past_rig import TARGETS, api, fleet_of, history, services, settled
from sickbay.bus.topology import LOG, SNAPSHOTS_STREAM
from sickbay.cli.files import export_log
from sickbay.cli.places import read_place
from sickbay.control.acts import publish_outcome
from sickbay.invalid import InvalidValue
from sickbay.log.decode import DecodedBatch
from sickbay.log.file import LogFile, LogFileError
from sickbay.log.folding import Bound, Folding, InspectAt, fold_file, replay
from sickbay.replay.spool import DerivedSpool
from sickbay_events import CallOutcome, TargetHeld, rfc3339
from sickbay_projections import Fleet


def replayed(*arguments: str, code: int = 0) -> dict[str, Any]:
    done = sickbay("replay", *arguments, "--json")
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[KnownLog, Path]:
    """A log with planted incidents, as a file."""
    log, file = KnownLog(8_000), tmp_path_factory.mktemp("known") / "log.jsonl"
    log.write(file)
    return log, file


def test_the_planted_incidents_and_nothing_else_come_out(known: tuple[KnownLog, Path]) -> None:
    """Every hold of a log with known truth, at the very event that must begin it, and not one more."""
    log, file = known
    found = replayed(str(file))
    assert {(hold["scope"], hold["rule"], hold["began_seq"]) for hold in found["holds"]} == log.holds
    assert len(log.holds) == 15 and found["events"] == found["seq"] == 8_000 and found["cut"] is None
    assert len(found["transitions"]) == sum(found["counts"].values())


def test_columns_are_the_lines(known: tuple[KnownLog, Path], tmp_path: Path) -> None:
    """What is read many lines at a time is what is read line by line, for every form a line may have."""
    _, file = known
    lines = file.read_text(encoding="utf-8").splitlines()[:50]
    odd = [
        lines[0].replace('"seq":1,', '"seq":1 , '),
        lines[1].replace('Z"', '+00:00"'),
        "",
        lines[2][: lines[2].index(',"data"')] + ',"data_b64":"bm90IGpzb24="}',
        lines[3][: lines[3].index(',"data"')] + "}",
        *lines[4:],
    ]
    for number, content in enumerate((lines, odd, [*odd, lines[0].replace('"seq":1', '"seq":51')[:-30]])):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("\n".join(content), encoding="utf-8")
        one, many = LogFile(path), LogFile(path)
        by_line = [(line.seq, line.time_ms, line.subject, line.payload) for line in one]
        by_column = [
            (seq, time_ms, subject, bytes(payload))
            for columns in many.columns()
            for seq, time_ms, subject, payload in zip(*columns[:4], strict=True)
        ]
        assert by_column == by_line and len(by_line) == 50
        assert (many.lines, many.cut) == (one.lines, one.cut) and (many.cut is not None) == (number == 2)


def test_every_place_stops_where_it_says(known: tuple[KnownLog, Path]) -> None:
    """--to a sequence or a time gives the state of a plain fold to there, digest by digest."""
    _, file = known
    for seq in (1, 4_711, 8_000):
        plain = Folding(Fleet(), end=Bound(seq=seq))
        fold_file(LogFile(file), plain)
        at = rfc3339(START_MS + seq * STEP_MS)
        for place in (str(seq), at):
            found = replayed(str(file), "--to", place)
            assert (found["seq"], found["digest"]) == (seq, plain.fleet.digest()), place
    part = replayed(str(file), "--from", "4001", "--to", "6000")
    assert part["events"] == 6_000 and all(4_001 <= fact["cause_seq"] <= 6_000 for fact in part["transitions"])
    assert part["holds"]


def test_looks_see_the_state_as_it_was(known: tuple[KnownLog, Path]) -> None:
    """A look on the way has the digest of a fold that ends there, however many there are and whatever the chunks."""
    _, file = known
    seen: list[tuple[int, str]] = []
    places = [Bound(time_ms=START_MS + n * 3_503) for n in range(12)]
    looks = [InspectAt(place, lambda fleet: seen.append((fleet.seq, fleet.digest()))) for place in places]
    fold_file(LogFile(file), Folding(Fleet(), looks=looks))
    for place, found in zip(places, seen, strict=True):
        plain = Folding(Fleet(), end=place)
        fold_file(LogFile(file), plain)
        assert (plain.fleet.seq, plain.fleet.digest()) == found


def test_a_clock_that_stepped_back_does_not_bring_the_past_back() -> None:
    """What comes after an event later than the place is beyond it, also when its own time is earlier again."""
    times = [10, 20, 50, 15, 60]
    found = DecodedBatch(["s"] * 5, [CallOutcome(kind="ok")] * 5, [1, 2, 3, 4, 5], times)
    assert [Bound(time_ms=at).end_in(found, 0) for at in (9, 10, 30, 50, 99)] == [0, 1, 2, 4, 5]
    assert Bound(time_ms=30).end_in(found, 31) == 0 and Bound().end_in(found, 99) == 5
    assert Bound(seq=4).end_in(found, 0) == 4


def test_questions_are_answered_from_the_state_as_it_was(known: tuple[KnownLog, Path], tmp_path: Path) -> None:
    """Each answer is a decision at its own time, in the order of the file, whatever the order of times."""
    log, file = known
    scope, _, began_seq = min((hold for hold in log.holds if hold[1] == "quarantine"), key=lambda hold: hold[2])
    began_ms = START_MS + began_seq * STEP_MS
    question = {"provider": "sick-0.example#team", "model": "vendor/patient", "replica": "router-1"}
    times = [began_ms + 1_000, began_ms - 1, began_ms, began_ms + 90_000]
    asks = tmp_path / "asks.jsonl"
    asks.write_text("\n".join(json.dumps({"at": rfc3339(at), **question}) for at in times) + "\n\n", encoding="utf-8")
    answers = replayed(str(file), "--asks", str(asks))["answers"]
    assert [answer["reason"] for answer in answers] == ["quarantined", "ok", "quarantined", "quarantined"]
    assert [answer["retry_in_s"] for answer in answers] == [599.0, 0.0, 1.0, 510.0], "until its first trial, or its end"
    assert answers[2]["scope"] == scope and answers[2]["seq"] == began_seq == answers[2]["began_seq"]
    shown = sickbay("replay", str(file), "--asks", str(asks)).stdout
    assert shown.count("no, quarantined") == 3 and "yes, ok" in shown
    for line, says in (
        ('{"at":"soon","provider":"a","model":"b"}', "time: 'soon'"),
        ('{"at":"now","provider":"a"}', "Object missing required field `model`"),
        ('{"at":"now","provider":"a","model":"b","replika":"x"}', "Object contains unknown field"),
        ("nonsense", "JSON is malformed"),
    ):
        asks.write_text(line, encoding="utf-8")
        done = sickbay("replay", str(file), "--asks", str(asks))
        assert done.returncode == 2 and "asks.jsonl, line 1: " in done.stderr and says in done.stderr
        assert "Traceback" not in done.stderr


def test_what_was_held_at_a_place(known: tuple[KnownLog, Path]) -> None:
    """--at shows the holds as they stood, with the time that was left."""
    _, file = known
    at = rfc3339(START_MS + 7_000 * STEP_MS)
    found = replayed(str(file), "--at", at)
    held = {scope["provider"] for scope in found["scopes"] if scope["holds"]}
    assert "sick-0.example#team" in held and found["at"] == at
    shown = sickbay("replay", str(file), "--at", at).stdout
    assert "held at 2026-" in shown and "quarantined" in shown
    done = sickbay("replay", str(file), "--at", "1", "--to", "2")
    assert done.returncode == 2 and "one of the two" in done.stderr


def test_odd_files(known: tuple[KnownLog, Path], tmp_path: Path) -> None:
    """Empty, one event, without its head, cut within a line, of a later version, in no order, no log at all."""
    _, file = known
    lines = file.read_bytes().splitlines(keepends=True)[:300]

    def run(content: bytes, *arguments: str) -> Done:
        path = tmp_path / "odd.jsonl"
        path.write_bytes(content)
        return sickbay("replay", str(path), *arguments)

    empty = run(b"", "--json")
    assert json.loads(empty.stdout)["events"] == 0 and "has no events" in empty.stderr and empty.returncode == 0
    assert json.loads(run(lines[0], "--json").stdout)["seq"] == 1
    headless = run(b"".join(lines[100:]), "--json")
    assert json.loads(headless.stdout)["first_seq"] == 101 and "begins at sequence 101" in headless.stderr
    cut = run(b"".join(lines)[:-20], "--json")
    assert json.loads(cut.stdout)["events"] == 299 and "ends in the middle of line 300" in cut.stderr
    later = run(b"".join(lines[:10]) + lines[10].replace(b'"data":{', b'"data":{"v":2,'), "--json")
    assert json.loads(later.stdout)["poison"] == {"version": 1} and "1 events are of a later version" in later.stderr
    for content, says in (
        (lines[1] + lines[0], "line 2: sequence 1 after 2"),
        (b"SQLite format 3\x00\x01\x02\n" + lines[0], "line 1"),
        (lines[0] + b'{"seq":2}\n' + lines[2], "line 2: Object missing required field"),
        (lines[0] + lines[1].replace(b"2026-", b"26-"), "line 2"),
    ):
        done = run(content)
        assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr, done.stderr
    gone = sickbay("replay", str(tmp_path / "nothing.jsonl"))
    assert gone.returncode == 1 and "nothing.jsonl" in gone.stderr


def test_a_pipe_is_a_source(known: tuple[KnownLog, Path]) -> None:
    """`-` reads standard input; run as a user does, with nothing said beside the answer."""
    _, file = known
    command = [sys.executable, "-m", "sickbay", "replay", "-", "--json"]
    with file.open("rb") as stdin:
        done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["digest"] == replay(LogFile(file)).fleet.digest() and done.stderr == ""


def test_a_bar_stands_on_a_terminal_only(known: tuple[KnownLog, Path]) -> None:
    """With stderr on a terminal there is a rate and the time left; in a pipe nothing of it."""
    _, file = known
    assert sickbay("replay", str(file)).stderr == ""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sickbay", "replay", str(file)],
        stdout=subprocess.DEVNULL, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 65_536)
        except OSError:
            break
        if not data:
            break
        seen += data
    os.close(ours)
    assert process.wait() == 0 and b"events/s" in seen and b"replay log.jsonl" in seen and b"0:00:0" in seen


def test_what_was_told_needs_no_memory(known: tuple[KnownLog, Path]) -> None:
    """Derived events come back in order from beside the memory, and only the newest stay in it."""
    _, file = known
    done = replay(LogFile(file))
    with DerivedSpool() as spool:
        spool.append(done.derived)
        assert [fact["cause_seq"] for fact in spool.facts()] == [event.cause_seq for event in done.derived]
        assert len(spool.newest) < len(done.derived) and spool.counts["held"] == 15
        assert sum(isinstance(event, TargetHeld) for event in spool.newest) == 15


@pytest.mark.parametrize("text", ["", "-3", "4.5", "soon", "2026-13-01"])
def test_a_place_that_is_none(text: str) -> None:
    """Digits are a sequence, all else must be a time."""
    with pytest.raises(InvalidValue):
        read_place(text, 0)


def test_places() -> None:
    """As people write them."""
    assert read_place(" 4711 ", 0) == Bound(seq=4711)
    assert read_place("2026-11-30T00:00:01Z", 0) == Bound(time_ms=1_795_996_801_000)


async def test_the_live_log_and_its_export_give_the_same(
    nats_server: NatsServer, nats_client: Client, tmp_path: Path
) -> None:
    """Digest, holds and transitions; a part of it begins at a snapshot and ends in the same state."""
    async with services(nats_server.url) as running:
        await history(nats_client, 1, 120)
        last = await settled(nats_client, running)
        live = fleet_of(running).digest()
    file = tmp_path / "log.jsonl.gz"
    await export_log(nats_client, file)
    by_file = await asyncio.to_thread(replayed, str(file))
    by_live = await asyncio.to_thread(replayed, "live", "--nats", nats_server.url)
    assert by_live["digest"] == by_file["digest"] == live and by_live["begins"] == "beginning"
    for name in ("holds", "transitions", "poison", "gaps", "events", "counts"):
        assert by_live[name] == by_file[name], name
    late = await asyncio.to_thread(replayed, "live", "--from", str(last), "--nats", nats_server.url)
    assert late["begins"] == "snapshot" and late["events"] == 0 and late["digest"] == live


async def test_odd_live_logs(nats_server: NatsServer, nats_client: Client) -> None:
    """Empty, one event, without its head, with the snapshots gone too: an answer and what it lacks, no traceback."""
    url = ("--nats", nats_server.url)
    done = await asyncio.to_thread(sickbay, "replay", "live", *url)
    assert done.returncode == 1 and LOG in done.stderr and "Traceback" not in done.stderr, "there is no log"
    async with services(nats_server.url) as running:
        empty = await asyncio.to_thread(replayed, "live", *url)
        assert (empty["events"], empty["seq"]) == (0, 0) and empty["notes"] == ["the log has no events"]
        await publish_outcome(nats_client, TARGETS[0], CallOutcome(kind="ok"), replica="r")
        await settled(nats_client, running)
        assert (await asyncio.to_thread(replayed, "live", *url))["seq"] == 1
        await history(nats_client, 3, 60)
        last = await settled(nats_client, running)
    await api(nats_client, f"STREAM.PURGE.{LOG}", {"seq": 30})
    await api(nats_client, f"STREAM.PURGE.{SNAPSHOTS_STREAM}")
    part = await asyncio.to_thread(replayed, "live", *url)
    assert part["first_seq"] == 30 and part["seq"] == last and part["begins"] == "trimmed"
    assert "the log begins at sequence 30" in part["notes"][0]
    await api(nats_client, f"STREAM.PURGE.{LOG}")
    none = await asyncio.to_thread(sickbay, "replay", "live", *url)
    assert none.returncode == 1 and "the log has lost all its events" in none.stderr


def test_a_line_out_of_order_is_named_also_within_a_block(tmp_path: Path, known: tuple[KnownLog, Path]) -> None:
    """The number of the line is that of the file, in the second block as well as in the first."""
    lines = known[1].read_bytes().splitlines(keepends=True)
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join([*lines[:7_000], lines[10], *lines[7_000:]]))
    with pytest.raises(LogFileError, match="line 7001: sequence 11 after 7000"):
        replay(LogFile(path))
