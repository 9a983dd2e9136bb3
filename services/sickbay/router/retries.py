"""Clients that retry by themselves inside an attempt: named once, since they hide what an attempt is to report.

A 429 with a long Retry-After becomes a timeout so, and several requests count as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from ..loggers import logger

_log = logger("sickbay.attempt")

_COUNT: Final = "x-stainless-retry-count"
"""The header by which the OpenAI and Anthropic SDKs, and others made like them, count their retries."""


def warn_of_retries(found: Any) -> None:
    """Warn if the request of an answer or of an exception was a retry of its client's own. Never raises."""
    if found is None:
        return
    try:
        for holder in (found, getattr(found, "response", None)):
            if (request := getattr(holder, "request", None)) is not None and is_retry(request):
                _warn_once(str(request.headers.get("user-agent") or "a client").partition("/")[0], "max_retries=0")
                return
        response = getattr(found, "response", found)
        meta = response.get("ResponseMetadata") if isinstance(response, Mapping) else None
        if isinstance(meta, Mapping) and int(meta.get("RetryAttempts") or 0) > 0:
            _warn_once("botocore", 'retries={"total_max_attempts": 1}')
    except Exception:  # noqa: BLE001, S110 - foreign classes may do anything when looked at; it is only a warning
        pass


def is_retry(request: Any) -> bool:
    """Whether a request is a retry of its client's own."""
    count = request.headers.get(_COUNT)
    return count is not None and int(count) > 0


@lru_cache(maxsize=32)
def _warn_once(library: str, setting: str) -> None:
    _log.warning(
        "%s retried by itself inside an attempt, so that one attempt hides several answers: set %s there, and let"
        " `call` go on to the next target (said once)",
        library,
        setting,
        extra={"event": "client_retries", "library": library},
    )
