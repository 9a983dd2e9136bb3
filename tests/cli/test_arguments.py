"""Arguments that cannot be meant: exit code 2 or 1, one line that names the field, and no NATS asked before."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_runs import sickbay


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (("report", "p", "m", "--kind", "ok", "--took-ms", "-5"), 2, "took-ms"),
        (("report", "p", "m", "--kind", "ok", "--took-ms", "nan"), 2, "took-ms"),
        (("report", "p", "m", "--kind", "ok", "--took-ms", "86400001"), 2, "took-ms"),
        (("report", "p", "", "--kind", "ok"), 2, "model"),
        (("report", "p", "m" * 300, "--kind", "ok"), 2, "256 bytes"),
        (("policy", "check", "BINARY"), 1, "(file)"),
        (("policy", "set", "BINARY", "--reason", "x"), 1, "(file)"),
    ],
)
def test_the_field_is_named(tmp_path: Path, given: tuple[str, ...], code: int, said: str) -> None:
    """Nothing is `unexpected`: whoever typed it reads what is accepted."""
    binary = tmp_path / "policy.toml"
    binary.write_bytes(b"\xcb\xff\x00")
    done = sickbay(*[str(binary) if word == "BINARY" else word for word in given])
    assert done.returncode == code, done.stderr
    assert said in done.stderr and "unexpected" not in done.stderr and "NATS" not in done.stderr
