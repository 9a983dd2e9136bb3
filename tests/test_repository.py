"""The repository: what it must hold, what it must not, and how large its parts may grow."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 70
"""About 300 and about 40 read well; these are where a second idea must be looked for."""
LARGER = {
    "streams": 90,  # a table of data
    "decide_entries": 90,  # asked on every request of a router
    "_outcome": 90,  # folded for every event
}
VERBS = {
    *("add", "clear", "connect", "decode", "drive", "encode", "fold", "main", "step_back", "take_back", "total"),
}
"""Functions that are one idea in several rooms: commands add themselves, each rule folds and takes back, and so on."""
TWO_THINGS = {"KindRow", "Position", "Rule"}
"""Names that still stand for two things: to be emptied, never to grow."""


HOLDS_FORBIDDEN = {"test_redact.py"}
"""Shows keys that are none, since telling them is its subject."""


def _files() -> list[Path]:
    """What git tracks, or would: everything that is not ignored, pictures left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no git checkout")
    names = [name for name in done.stdout.splitlines() if not name.endswith(".png")]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def _texts() -> Iterator[tuple[str, str]]:
    for path in _files():
        if path.name not in HOLDS_FORBIDDEN:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


# Put together from pieces, so that this file does not hold what it forbids.
REGISTRIES = [("pypi", "org"), ("pythonhosted", "org"), ("registry", "npmjs"), ("proxy", "golang", "org")]
FORBIDDEN = {
    "a package registry's host": "|".join(re.escape(".".join(parts)) for parts in REGISTRIES),
    "a path of one machine": "|".join(f"/{folder}/" for folder in ("root", "work", "Users", "home/[a-z]+")),
    "a key": r"(?:sk-[A-Za-z0-9]{20}|ghp_[A-Za-z0-9]{20}|AKIA(?![0-9A-Z]*EXAMPLE)[0-9A-Z]{16})",
    "a mark of a merge": r"^(?:<{7}|>{7}) ",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = [f"{name}: {match[0]}" for name, text in _texts() for match in pattern.finditer(text)]
    assert found == []


def test_every_file_is_text_that_ends_with_a_newline() -> None:
    ragged = [name for name, text in _texts() if text and (not text.endswith("\n") or "\r" in text)]
    assert ragged == []


def _python() -> list[Path]:
    return [path for path in _files() if path.suffix == ".py"]


def test_files_stay_of_a_size_that_reads_well() -> None:
    sizes = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in _python() if "tests" not in path.parts
    }
    assert len(sizes) > 20
    large = {path.name: lines for path, lines in sizes.items() if lines > FILE_LINES_MAX}
    assert large == {}


def test_names_of_tests_are_short_claims() -> None:
    """Under 80 characters; the story behind a test stands in its docstring."""
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in _python()
        if "tests" in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name) >= 80
    ]
    assert long == []


def test_functions_stay_of_a_size_that_reads_well() -> None:
    large = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in _python()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= LARGER.get(node.name, FUNCTION_LINES_MAX)
    ]
    assert large == []


def test_a_public_name_stands_for_one_thing() -> None:
    """A class or function that modules share by name alone makes a reader look twice: prefix it by its room."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in _python():
        if path.relative_to(ROOT).parts[0] not in ("events", "projections", "services"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                homes[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(homes) > 500
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in VERBS | TWO_THINGS} == {}


def _constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.partition("==") for line in lines if not line.startswith("#")]
    assert all(
        re.fullmatch(r"[A-Za-z0-9_.-]+", name) and re.fullmatch(r"[\w.+!]+", version) for name, _, version in rows
    )
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in rows}


def test_constraints_are_versions_only_and_name_every_direct_dependency() -> None:
    known = _constraints()
    wanted = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["server"],
        *PROJECT["dependency-groups"]["dev"],
    ]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=;~! ]", line)[0]).lower() for line in wanted}
    assert len(names) > 10
    assert names - set(known) == set()


def test_the_tests_run_with_the_versions_of_the_constraints() -> None:
    """After an upgrade by hand: `make constraints`."""
    differing = {
        name: (version, importlib.metadata.version(name))
        for name, version in _constraints().items()
        if importlib.metadata.version(name) != version
    }
    assert differing == {}


def test_the_client_is_pinned_to_the_minor_it_was_tested_with() -> None:
    """The bulk reader replaces one of its private parts."""
    (pin,) = [line for line in PROJECT["project"]["dependencies"] if line.startswith("nats-py")]
    assert re.fullmatch(r"nats-py>=(\d+)\.(\d+)(?:\.\d+)?,<\1\.\d+", pin)
    low, high = re.findall(r"\d+\.(\d+)", pin)
    assert int(high) == int(low) + 1


def test_a_router_installs_two_packages() -> None:
    assert [re.split(r"[<>=]", line)[0] for line in PROJECT["project"]["dependencies"]] == ["msgspec", "nats-py"]


def test_the_wheel_holds_the_three_packages_and_the_license() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == ["events/sickbay_events", "projections/sickbay_projections", "services/sickbay"]
    assert all((ROOT / package / "py.typed").exists() for package in packages)
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")[:200]
    assert PROJECT["project"]["license"] == "Apache-2.0"


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "\n## Unreleased\n" in changelog


@pytest.mark.parametrize(
    "target", ["setup", "demo", "test", "lint", "types", "bench", "docs", "site", "pictures", "constraints"]
)
def test_make_knows_the_target(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ci_stops_at_the_first_thing_that_fails() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert script.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in script
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, check=True)
