"""What "Start here" and the questions and answers show runs, in order, and prints what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from paths import ROOT
from shown import COMMAND, blocks, environment, python, run, shape  # noqa: F401 - a fixture

DOCS = ROOT / "docs"
START = (DOCS / "start.md").read_text(encoding="utf-8")
FAQ = (DOCS / "faq.md").read_text(encoding="utf-8")


def test_the_five_minutes_go_as_they_are_told(environment: dict[str, str]) -> None:  # noqa: F811
    (router,) = blocks("python", START)
    (printed,) = blocks("text", START)
    assert shape(python(router, environment)) == shape(printed)
    told = re.findall(r"^\$ sickbay (.*)\n((?:(?!\$ ).*\n)*)", "".join(blocks("console", START)), re.MULTILINE)
    assert len(told) == 4
    for line, expected in told:
        command, _, reason = line.partition(" --reason ")
        words = [*command.split(), *(["--reason", reason.strip('"')] if reason else [])]
        assert shape(run([COMMAND, *words], environment).stdout) == shape(expected), line


@pytest.mark.parametrize("page", ["start.md", "README.md"])
def test_the_first_example_says_so_where_no_services_run(page: str, tmp_path: Path) -> None:
    """It ends with what to do, instead of waiting for a hold that cannot come."""
    text = (DOCS.parent if page == "README.md" else DOCS).joinpath(page).read_text(encoding="utf-8")
    code = blocks("python", text)[0].replace("timeout_s=5", "timeout_s=0.2")
    found = {"PATH": "", "HOME": str(tmp_path), "SICKBAY_DATA": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=found, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "start `sickbay serve`" in done.stderr


@pytest.mark.parametrize("code", blocks("python", FAQ))
def test_what_the_answers_show_runs(code: str, environment: dict[str, str]) -> None:  # noqa: F811
    printed = python(code, environment).splitlines()
    for said in re.findall(r"print\(.*\)  # (.*)", code):
        assert said in printed
