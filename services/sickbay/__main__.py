"""The `sickbay` command, also as `python -m sickbay`; says so where only a router's part is installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exit code 1 and one plain line where what it needs is not installed."""
    try:
        from .cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("sickbay", "sickbay_events", "sickbay_projections"):
            raise
        sys.exit(
            f"sickbay: the command needs {error.name}, which a router does not: install sickbay with its server extra, "
            "sickbay[server]"
        )
    run()


if __name__ == "__main__":
    main()
