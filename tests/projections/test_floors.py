"""The floors of the projections: which may import which (rules/__init__.py, state/__init__.py, replay/__init__.py)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sickbay_projections

ROOM = Path(sickbay_projections.__file__).parent
FLOORS = ("state", "rules", "face", "replay")
"""From the ground up: a floor imports its own and those below it."""


def floor_of(module: str) -> str:
    head = module.split(".", maxsplit=1)[0]
    return head if head in FLOORS else "face"


def imported(path: Path) -> list[str]:
    """Modules of this package that a file imports, from its root on."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = list(path.relative_to(ROOM).parts)[: -node.level]
            base = ".".join([*parts, *(node.module or "").split(".")]).strip(".")
            found += [base] if node.module else [".".join([*parts, alias.name]) for alias in node.names]
    return found


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOM)))
def test_a_file_imports_its_own_floor_and_those_below(path: Path) -> None:
    own = floor_of(".".join(path.relative_to(ROOM).parts))
    above = [name for name in imported(path) if FLOORS.index(floor_of(name)) > FLOORS.index(own)]
    assert above == []
