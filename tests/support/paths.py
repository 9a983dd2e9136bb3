"""Where the repository's parts are, for tests that read its files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CASES: Final = ROOT / "tests" / "cases"
SUPPORT: Final = ROOT / "tests" / "support"
