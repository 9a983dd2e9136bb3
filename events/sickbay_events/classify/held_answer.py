"""Sickbay's own refusal as an HTTP answer: how it is written, and how another Sickbay knows it again.

A client library shows headers seldom, a proxy passes them on seldom, and some keep nothing of an error but its message.
So the mark stands in a header and in the message itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ..verdict import Verdict

HELD_HEADER: Final = "x-sickbay"
HELD_VALUE: Final = "held"
HELD_MARK: Final = "sickbay_held"
"""The error's type, and the first word of its message."""
_SAID: Final = re.compile(HELD_MARK + r"(?: \((\w{1,32})\), (\d{1,9}(?:\.\d{1,3})?) s left)?")
_SIGNATURE: Final = "held"


def held_message(provider: str, model: str, reason: str, retry_in_s: float) -> str:
    """The message of a refusal. `held_verdict` reads reason and time out of it."""
    return f"{HELD_MARK} ({reason}), {retry_in_s:.1f} s left: Sickbay holds {provider} / {model}"


def held_verdict(headers: Mapping[str, str], text: str, retry_after_s: float | None) -> Verdict | None:
    """The verdict on an error answer that is a refusal of Sickbay; None for any other. `headers` by lower-case name,
    `text` in lower case, `retry_after_s` what the answer says about waiting.

    It is `cancelled`, for no provider was called, with the hold's reason as its code. Nobody records it.
    """
    said = _SAID.search(text)
    if said is None and headers.get(HELD_HEADER, "").lower() != HELD_VALUE:
        return None
    reason, left_s = (said[1], said[2]) if said is not None else (None, None)
    wait_s = float(left_s) if left_s is not None else retry_after_s
    return Verdict(
        kind="cancelled",
        scope="none",
        signature=_SIGNATURE,
        code=reason,
        retry_after_s=wait_s,
        retry_after_from=None if wait_s is None else "body" if left_s is not None else "header",
    )


def is_held_verdict(verdict: Verdict) -> bool:
    """Whether a verdict says that Sickbay itself refused the call."""
    return verdict.kind == "cancelled" and verdict.signature == _SIGNATURE
