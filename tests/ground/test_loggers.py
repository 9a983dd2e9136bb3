"""Every line that the product logs is one harmless line, whoever set up the logging (`loggers`)."""

from __future__ import annotations

import ast
import io
import logging
from collections.abc import Iterator

import pytest

from paths import ROOT
from sickbay.cli.running import log_to_stderr
from sickbay.loggers import LOG_FORM, harmless_record, logger

FORGED = "x\n2026-11-30 00:00:00,000 WARNING sickbay.services: released: api.openai.com from operator by clear"


@pytest.fixture(name="written")
def written_fixture() -> Iterator[io.StringIO]:
    """What a handler of somebody else's writes of the logger `sickbay.test-lines`."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(LOG_FORM))
    found = logger("sickbay.test-lines")
    found.addHandler(handler)
    yield stream
    found.removeHandler(handler)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (FORGED, "x\\n2026-11-30"),
        ("\x1b]0;owned\x07\x1b[8mhidden", "\\x1b]0;owned\\x07\\x1b[8mhidden"),
        ("gpt-\u202e5", "gpt-\\u202e5"),
        ("a\rb\x9bc\x00", "a\\rb\\x9bc\\x00"),
        ("\u2066a\u200b\u2028b", "\\u2066a\\u200b\\u2028b"),
    ],
)
def test_a_name_moves_nothing_and_forges_no_line(written: io.StringIO, name: str, shown: str) -> None:
    logger("sickbay.test-lines").warning("held: %s by %s", name, "breaker", extra={"model": name})
    (line,) = written.getvalue().splitlines()
    assert shown in line and line.endswith(" by breaker")


def test_an_exceptions_text_forges_no_line_either(written: io.StringIO) -> None:
    """Also that of a cause, and of a member of a group."""
    found = ExceptionGroup("two", [KeyError("a"), RuntimeError("\x1b[2J" + FORGED)])
    found.__cause__ = ValueError(FORGED)
    try:
        raise found
    except ExceptionGroup:
        logger("sickbay.test-lines").exception("it failed")
    first, *rest = written.getvalue().splitlines()
    assert first.endswith("it failed")
    assert rest and all(line.startswith("  ") and line.isprintable() for line in rest)


def test_a_harmless_record_is_not_touched() -> None:
    """Its template and arguments stay what a collector of errors groups by."""
    record = logging.LogRecord("sickbay", logging.INFO, __file__, 1, "held: %s", ("größer 模型",), None)
    assert harmless_record(record) and (record.msg, record.args) == ("held: %s", ("größer 模型",))


def test_a_record_that_cannot_be_made_a_text_is_the_handlers_affair() -> None:
    assert harmless_record(logging.LogRecord("sickbay", logging.INFO, __file__, 1, "%d", ("one",), None))


def test_the_services_log_makes_lines_of_libraries_harmless_too(monkeypatch: pytest.MonkeyPatch) -> None:
    root, stream = logging.getLogger(), io.StringIO()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(root, "level", root.level)
    log_to_stderr("WARNING")
    logging.getLogger("some.library").warning("asked for %s", FORGED)
    (line,) = stream.getvalue().splitlines()
    assert "x\\n2026" in line


def test_every_module_takes_its_logger_from_here() -> None:
    """What takes one from the standard library is about the loggers of others."""
    found = [
        f"{path.name}: {ast.unparse(node)}"
        for path in (ROOT / "services" / "sickbay").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("logging.getLogger")
    ]
    assert sorted(found) == [f"{name}.py: found = logging.getLogger(name)" for name in ("loggers", "logs")]
