"""The answer to a call that Sickbay refuses: an error in the provider's own shape, which every client understands."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import msgspec

from sickbay_events.classify.held_answer import HELD_HEADER, HELD_MARK, HELD_VALUE, held_message

from ..router.errors import Held
from .asked import Dialect

HELD_STATUS: Final = 503
NO_RETRY: Final = ("x-should-retry", "false")
"""By this header the OpenAI and Anthropic SDKs raise at once. Else they sleep as Retry-After says, and try again."""


class HeldAnswer(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes


def refusal_of(held: Held, dialect: Dialect) -> HeldAnswer:
    """The answer that says why the target is held, and how long still."""
    decision, target = held.decision, held.target
    message = held_message(target.provider, target.model, decision.reason, held.retry_in_s)
    headers = {
        "content-type": "application/json",
        "retry-after": str(max(1, math.ceil(held.retry_in_s))),
        HELD_HEADER: HELD_VALUE,
        NO_RETRY[0]: NO_RETRY[1],
    }
    return HeldAnswer(HELD_STATUS, headers, msgspec.json.encode(_error(message, decision.reason, dialect)))


def _error(message: str, reason: str, dialect: Dialect) -> dict[str, Any]:
    if dialect == "anthropic":
        return {"type": "error", "error": {"type": HELD_MARK, "message": message}}
    if dialect == "google":
        details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": HELD_MARK}]
        return {"error": {"code": HELD_STATUS, "message": message, "status": "UNAVAILABLE", "details": details}}
    if dialect == "bedrock":
        return {"__type": "ServiceUnavailableException", "message": message}
    return {"error": {"message": message, "type": HELD_MARK, "param": None, "code": reason}}
