"""Write the tables of the documentation that are made from the code: `make docs`.

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. `tests/test_docs.py` fails when one is not
as this would write it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sickbay.config import table as settings
from sickbay_events import KINDS
from sickbay_events.policy import keys

DOCS = Path(__file__).parent
_MARKED = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def kinds() -> list[str]:
    """Every kind of outcome with what it says and means."""
    rows = [(f"`{kind}`", row.says, f"`{row.scope}`", row.group) for kind, row in KINDS.items()]
    return _table(("kind", "says", "scope", "group"), rows)


def policy() -> list[str]:
    """Every key of a policy file, a section a table."""
    lines: list[str] = []
    section = ""
    for key, default, accepted, meaning in keys():
        if key.partition(".")[0] != section:
            section = key.partition(".")[0]
            lines += ["", f"## `[{section}]`", "", *_table(("key", "default", "accepted", "meaning"), ())]
        lines.append(_row((f"`{key}`", f"`{_toml(default)}`", accepted, meaning)))
    return [*lines[1:], ""]


def environment() -> list[str]:
    """Every environment variable of a process."""
    rows = [(f"`{row.name}`", f"`{row.default}`" if row.default else "", row.accepted, row.says) for row in settings()]
    return _table(("variable", "default", "accepted", "meaning"), rows)


TABLES: dict[str, Callable[[], list[str]]] = {"kinds": kinds, "policy": policy, "environment": environment}


def written(text: str) -> str:
    """The text with every marked table made anew."""
    return _MARKED.sub(lambda found: found[1] + "\n".join(TABLES[found[2]]()) + "\n" + found[3], text)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(head), "|" + "---|" * len(head), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) and value.is_integer() and value < 1e6 else str(value)


if __name__ == "__main__":
    for page in sorted(DOCS.glob("*.md")):
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
