"""Verdicts that an attempt gives by itself, and what it reads of an answer beside its text."""

from __future__ import annotations

import math
from typing import Any, Final

from sickbay_events import Verdict
from sickbay_events.outcome import DAY_MS

OK: Final = Verdict(kind="ok", scope="none")
UNCHECKED: Final = Verdict(kind="ok", scope="none", checkable=False)
UNKNOWN: Final = Verdict(kind="unknown", scope="none", confidence="low")
LEFT_EARLY: Final = Verdict(kind="cancelled", scope="none")
CHARSET_ABSENT: Final = "absent"


def is_unfinished(verdict: Verdict) -> bool:
    """Whether the bytes of an answer told no end of it."""
    if verdict.kind == "empty_output":
        return verdict.signature in ("empty_body", "keep_alive_only")
    return verdict.kind == "truncated" or (verdict.kind == "ok" and not verdict.checkable and not verdict.signature)


def milliseconds(seconds: float) -> int | None:
    """Whole milliseconds, 0 to 24 h; None if `seconds` is not finite."""
    return max(0, min(DAY_MS, round(seconds * 1000))) if math.isfinite(seconds) else None


def charset_said(content_type: Any) -> str:
    """The charset that a content type names, in lower case, or `absent`."""
    for part in str(content_type).split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().lower() == "charset" and value.strip():
            return value.strip().strip("\"'").lower()[:64]
    return CHARSET_ABSENT
