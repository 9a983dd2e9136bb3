"""What the README and the page for routers show runs, in order, against the real services, and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
ROUTERS = (ROOT / "docs" / "routers.md").read_text(encoding="utf-8")
FALLBACK = (ROOT / "docs" / "fallback.md").read_text(encoding="utf-8")
COMMAND = str(Path(sysconfig.get_path("scripts")) / "sickbay")
START_LIMIT_S = 30


def blocks(language: str, page: str = README) -> list[str]:
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
            assert process.wait(START_LIMIT_S) == 0, rest


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done


def python(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "nothing but `logging` speaks on a router's stderr"
    return done.stdout


def shape(text: str) -> str:
    """Output without what differs from run to run: numbers, times, boots, and spaces that follow from them."""
    text = re.sub(r"(?<=/)[0-9a-f]{8}\b", "BOOT", text)
    return "\n".join(re.sub(r"\s+", " ", re.sub(r"\d+", "0", line)).strip() for line in text.strip().splitlines())


def test_what_the_readme_shows_runs_and_prints_what_it_says(environment: dict[str, str]) -> None:
    first, second = blocks("python")
    printed = python(first, environment)
    assert "reason='quarantined'" in printed
    assert re.search(r"retry_in_s=59\d\.\d", printed)
    (console,) = blocks("console")
    for command, expected in re.findall(r"^\$ sickbay (.*)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE):
        done = run([COMMAND, *command.split()], environment)
        assert shape(done.stdout) == shape(expected), f"sickbay {command} printed\n{done.stdout}"
    # The second one meets the hold that the first one brought about, and goes on to the next target.
    assert "Hello." in (printed := python(second, environment))
    for said in re.findall(r"print\(.*\)  # (grok.*)", second):
        assert said in printed.splitlines()


@pytest.mark.parametrize("code", [*blocks("python", ROUTERS), *blocks("python", FALLBACK)])
def test_what_the_pages_for_routers_show_runs(code: str, environment: dict[str, str]) -> None:
    printed = python(code, environment).splitlines()
    # Where a comment says what is printed, that is what is printed.
    for said in re.findall(r"print\(.*\)  # (.*)", code):
        assert said in printed


def test_the_first_screen_shows_code_that_runs() -> None:
    """Name, one sentence, why it is hard, five guarantees, and ten to twenty lines before line 40."""
    lines = README.splitlines()
    begin, end = lines.index("```python"), lines.index("```")
    assert end < 40
    assert 10 <= sum(bool(line.strip()) for line in lines[begin + 1 : end]) <= 20
    assert sum(line.startswith("- **") for line in lines[:begin]) == 5


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", README, re.MULTILINE))
def test_the_make_targets_that_the_readme_names_exist(target: str) -> None:
    assert subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=False).returncode == 0
