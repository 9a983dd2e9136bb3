"""Running the `sickbay` command in tests: in this process, which is quick, or as a process of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from unittest import mock

from sickbay.cli import main

CLEAN = {key: value for key, value in os.environ.items() if not key.startswith("SICKBAY_")}
NOWHERE = "/nonexistent/sickbay"


def sickbay(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command here, with pipes for a terminal. Not from within an event loop: it makes its own."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code: object = 0
    with (
        mock.patch.dict(os.environ, {**CLEAN, "SICKBAY_DATA": NOWHERE, **environment}, clear=True),
        mock.patch.object(sys, "argv", ["sickbay", *arguments]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    assert isinstance(code, int)
    said, complained = (stream.buffer.getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(["sickbay", *arguments], code, said, complained)


def sickbay_process(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "sickbay.cli", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        env={**CLEAN, "SICKBAY_DATA": NOWHERE, **environment},
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
