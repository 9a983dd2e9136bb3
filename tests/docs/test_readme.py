"""What the README and the page for routers show runs, in order, against the real services, and prints what it says."""

from __future__ import annotations

import re
import subprocess

import pytest

from paths import ROOT
from shown import COMMAND, blocks, environment, python, run, shape  # noqa: F401 - a fixture

README = (ROOT / "README.md").read_text(encoding="utf-8")
ROUTERS = (ROOT / "docs" / "routers.md").read_text(encoding="utf-8")
FALLBACK = (ROOT / "docs" / "fallback.md").read_text(encoding="utf-8")


def test_what_the_readme_shows_runs_and_prints_what_it_says(environment: dict[str, str]) -> None:  # noqa: F811
    first, second = blocks("python", README)
    printed = python(first, environment)
    assert "reason='quarantined'" in printed
    assert re.search(r"retry_in_s=(0\.\d|59\d)", printed)
    (console,) = blocks("console", README)
    for command, expected in re.findall(r"^\$ sickbay (.*)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE):
        done = run([COMMAND, *command.split()], environment)
        assert shape(done.stdout) == shape(expected), f"sickbay {command} printed\n{done.stdout}"
    # The second one meets the hold that the first one brought about, and goes on to the next target.
    assert "Hello." in (printed := python(second, environment))
    for said in re.findall(r"print\(.*\)  # (grok.*)", second):
        assert said in printed.splitlines()


@pytest.mark.parametrize("code", [*blocks("python", ROUTERS), *blocks("python", FALLBACK)])
def test_what_the_pages_for_routers_show_runs(code: str, environment: dict[str, str]) -> None:  # noqa: F811
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
