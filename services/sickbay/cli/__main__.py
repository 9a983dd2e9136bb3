"""`python -m sickbay.cli` is the `sickbay` command."""

from __future__ import annotations

from . import main

main()
