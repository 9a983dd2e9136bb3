"""Write the tables of the documentation that are made from the code: `make docs`.

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. `tests/docs/test_pages.py` fails when one is not
as this would write it.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer.main

import sickbay
import sickbay_events
import sickbay_projections
from sickbay.cli import app
from sickbay.cli.nats_equivalents import example, table_of
from sickbay.config import setting_rows as settings
from sickbay.metrics import ROUTER, SERVICES, Metric
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


def errors() -> list[str]:
    """Every error class that a caller can meet, by package."""
    rows = sorted(
        (error.__module__.partition(".")[0], error.__name__, error.__mro__[1].__name__, _first_line(error.__doc__))
        for error in exceptions()
        if not error.__name__.startswith("_")
    )
    return _table(("error", "is a", "from", "means"), [(f"`{n}`", f"`{b}`", f"`{m}`", says) for m, n, b, says in rows])


def exceptions() -> Iterator[type[BaseException]]:
    """Every exception class of the three packages, underscored ones included."""
    for package in (sickbay_events, sickbay_projections, sickbay):
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if info.name.endswith("__main__"):
                continue
            module = importlib.import_module(info.name)
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == module.__name__:
                    yield value


def commands() -> list[str]:
    """Every command with its help and its example."""
    rows = [
        (f"`{path}`", _first_line(command.help), f"`{_example(command.help)}`")
        for path, command in all_commands(typer.main.get_command(app))
    ]
    return _table(("command", "does", "example"), rows)


def equivalents() -> list[str]:
    """Every command that NATS alone can do as well."""
    found = table_of(example()).items()
    cells = [(f"`sickbay {command}`", "<br>".join(f"`{line}`" for line in lines)) for command, lines in found]
    return _table(("command", "with NATS alone"), cells)


def metrics(rows: Sequence[Metric]) -> list[str]:
    """Every metric of one sort of process."""
    cells = [(f"`{row.name}`", row.sort, ", ".join(f"`{name}`" for name in row.labels), row.says) for row in rows]
    return _table(("metric", "type", "labels", "says"), cells)


def all_commands(command: Any, path: str = "sickbay") -> Iterator[tuple[str, Any]]:
    """Every command of the command line that is not hidden, groups left out: (`sickbay policy check`, it)."""
    for name, inner in getattr(command, "commands", {}).items():
        if inner.hidden:
            continue
        if hasattr(inner, "commands"):
            yield from all_commands(inner, f"{path} {name}")
        else:
            yield f"{path} {name}", inner


def _first_line(text: str | None) -> str:
    line = " ".join((text or "").strip().partition("\n\n")[0].split())
    return re.sub(r" \(SPEC [^)]*\)", "", line)


def _example(text: str | None) -> str:
    found = re.search(r"Example: (.*?)(?:\n\s*\n|\Z)", text or "", re.DOTALL)
    return " ".join(found[1].split()) if found else ""


TABLES: dict[str, Callable[[], list[str]]] = {
    "kinds": kinds,
    "policy": policy,
    "environment": environment,
    "errors": errors,
    "commands": commands,
    "equivalents": equivalents,
    "metrics_services": lambda: metrics(SERVICES),
    "metrics_router": lambda: metrics(ROUTER),
}


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
