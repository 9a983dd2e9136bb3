"""What can be wrong with a history's file."""

from __future__ import annotations

from pathlib import Path


class HistoryRefused(Exception):
    """A file that cannot be gone on with as a history; it is left as it is. Attributes: `path`, `why`."""

    def __init__(self, path: Path, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path}: {why}")


class HistoryUnusable(HistoryRefused):
    """A history of ours that is damaged, or that a later version made: it is set aside, and one is built anew."""


class RivalWriter(HistoryRefused):
    """Another process has written to the history since this one did: what is at hand may be in it already."""
