"""What a page shows, run: its blocks, a `sickbay serve` to run them against, and how to compare what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from waiting import patience

COMMAND = str(Path(sysconfig.get_path("scripts")) / "sickbay")
START_LIMIT_S = 30


def blocks(language: str, page: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """`sickbay serve` with its own NATS, and what a process needs to find it; both end with the tests."""
    data = tmp_path_factory.mktemp("serve") / "data"
    given = {name: value for name, value in os.environ.items() if not name.startswith(("SICKBAY_", "COLUMNS"))}
    found = {**given, "SICKBAY_DATA": str(data), "SICKBAY_REPLICA": "services", "PYTHONWARNINGS": "error"}
    command = [COMMAND, "serve", "--http", "off", "--until-stdin-closes"]
    with subprocess.Popen(
        command, env=found, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        said = ""
        for line in process.stdout:
            said += line
            if "ask " in line:
                break
        assert "is ready" in said, said
        try:
            yield found
        finally:
            process.stdin.close()
            rest = process.stdout.read()
            assert process.wait(patience(START_LIMIT_S)) == 0, rest


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=patience(START_LIMIT_S), check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def python(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(START_LIMIT_S),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "nothing but `logging` speaks on a router's stderr"
    return done.stdout


def shape(text: str) -> str:
    """Output without what differs from run to run: numbers, times, boots, and spaces that follow from them."""
    text = re.sub(r"(?<=/)[0-9a-f]{8}\b", "BOOT", text)
    return "\n".join(re.sub(r"\s+", " ", re.sub(r"\d+", "0", line)).strip() for line in text.strip().splitlines())
