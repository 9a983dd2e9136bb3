"""Every command that reads a log file, on every odd file: an answer with what it lacks, or a plain error."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_runs import sickbay
from known_log import KnownLog

LINES = 60
COMMANDS = {
    "replay": ("replay", "FILE"),
    "replay to": ("replay", "FILE", "--to", "40"),
    "replay at": ("replay", "FILE", "--at", "2026-05-28T20:26:40.200Z"),
    "replay since": ("replay", "FILE", "--from", "2 hours ago", "--json"),
    "compare": ("replay", "FILE", "--against", "none"),
    "compare the log's": ("replay", "FILE", "--policy", "log", "--against", "default", "--json"),
    "history": ("history", "provider-1.example", "--from", "FILE"),
    "history since": ("history", "provider-1.example", "--from", "FILE", "--since", "2 hours ago", "--json"),
}
ANSWERED, REFUSED = 0, 1
FILES: dict[str, tuple[Callable[[list[bytes]], bytes], int, str]] = {
    "empty": (lambda _: b"", ANSWERED, ""),
    "one event": (lambda lines: lines[0], ANSWERED, ""),
    "without its head": (lambda lines: b"".join(lines[20:]), ANSWERED, ""),
    "cut within a line": (lambda lines: b"".join(lines)[:-20], ANSWERED, ""),
    "an event of a later version": (
        lambda lines: lines[0] + lines[1].replace(b'"data":{', b'"data":{"v":2,') + lines[2],
        ANSWERED,
        "",
    ),
    "a file of another version": (
        lambda lines: lines[0].replace(b'"seq":', b'"sequence":') + lines[1],
        REFUSED,
        "line 1: Object missing required field `seq`",
    ),
    "cut within its first line": (lambda lines: lines[0][:50], REFUSED, "there is no whole line in it"),
    "compressed and cut before its first line ends": (
        lambda lines: gzip.compress(b"".join(lines))[:30],
        REFUSED,
        "there is no whole line in it",
    ),
    "compressed and cut": (lambda lines: gzip.compress(b"".join(lines))[:-400], ANSWERED, ""),
}


@pytest.fixture(name="lines", scope="module")
def lines_fixture(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    path = tmp_path_factory.mktemp("odd") / "log.jsonl"
    KnownLog(LINES).write(path)
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers_or_says_why_not(command: str, lines: list[bytes], tmp_path: Path) -> None:
    """Exit code, what is said on stderr, and no traceback, for each of the files."""
    path = tmp_path / "odd.jsonl"
    for name, (make, code, says) in FILES.items():
        path.write_bytes(make(lines))
        done = sickbay(*(str(path) if word == "FILE" else word for word in COMMANDS[command]))
        assert done.returncode == code, (name, done.stderr)
        assert says in " ".join(done.stderr.split()), (name, done.stderr)
        assert "Traceback" not in done.stderr, name
