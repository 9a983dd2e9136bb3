"""LiteLLM: rows of its tables `LiteLLM_SpendLogs` and `LiteLLM_ErrorLogs`, and what its callbacks log of each call.

A callback's `standard_logging_object` (alone, or inside the `kwargs` that a success or failure callback gets) has the
spend log's fields with the error beside them; a spend log has the error in its `metadata`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from .calls import Call, NotACall, RowRefused
from .fields import Setup, provider
from .values import status_value, text_of, time_ms

_CLASSES: Final = {
    "AuthenticationError": 401,
    "BadGatewayError": 502,
    "BadRequestError": 400,
    "ContentPolicyViolationError": 400,
    "ContextWindowExceededError": 400,
    "InternalServerError": 500,
    "NotFoundError": 404,
    "PermissionDeniedError": 403,
    "RateLimitError": 429,
    "ServiceUnavailableError": 503,
    "UnprocessableEntityError": 422,
    "UnsupportedParamsError": 400,
}
"""The status behind each class of error, where a row has none."""
_TRANSPORT: Final = {"Timeout": "timeout", "APITimeoutError": "timeout", "APIConnectionError": "connect"}
"""Classes whose status is the library's invention: nothing was answered."""
_PROVIDERS_WORD: Final = re.compile(r"\b[A-Z]\w*Exception\b\s*-|\blitellm\.\w+Error\b")
"""An error of the provider names it so; one of the gateway itself does not."""
_GATEWAY: Final = ("ProxyException", "BudgetExceededError", "HTTPException", "RouterRateLimitError")


def litellm_call(row: Mapping[str, Any], setup: Setup) -> Call:
    """The call that a row tells of. Raises `RowRefused`, `NotACall`."""
    kwargs = _object(row.get("kwargs"))
    for holder in (row, kwargs):
        found = _object(holder.get("standard_logging_object"))
        if found:
            row = found
            break
    if "exception_string" in row or "exception_type" in row:
        return _error_log(row, setup)
    metadata, hidden = _object(row.get("metadata")), _object(row.get("hidden_params"))
    if str(row.get("cache_hit")).lower() == "true":
        raise NotACall("answered from the gateway's cache")
    information = _object(row.get("error_information")) or _object(metadata.get("error_information"))
    failed = "failure" in (row.get("status"), metadata.get("status")) or bool(text_of(row.get("error_str")))
    begin_ms, at_ms = time_ms(row.get("startTime"), setup.zone, "startTime"), _end_ms(row, setup)
    label = text_of(row.get("custom_llm_provider")) or text_of(information.get("llm_provider"))
    found_call = Call(
        at_ms=at_ms,
        provider="",
        model=text_of(hidden.get("litellm_model_name")) or text_of(row.get("model")),
        replica=setup.replica,
        took_ms=max(0, at_ms - begin_ms),
        ttft_ms=_first_content_ms(row, begin_ms, at_ms, setup),
        stream=row.get("stream") is True,
    )
    if failed:
        text = text_of(information.get("error_message")) or text_of(row.get("error_str"))
        _failed(found_call, text_of(information.get("error_class")), information.get("error_code"), text)
    else:
        found_call.status = 200
        found_call.body = _answer(row.get("response"))
    if not found_call.model:
        raise NotACall("without a model: never sent to a provider")
    _name(found_call, text_of(hidden.get("api_base")) or text_of(row.get("api_base")), label, setup)
    return found_call


def _error_log(row: Mapping[str, Any], setup: Setup) -> Call:
    begin_ms, at_ms = time_ms(row.get("startTime"), setup.zone, "startTime"), _end_ms(row, setup)
    found = Call(
        at_ms=at_ms,
        provider="",
        model=text_of(row.get("litellm_model_name")) or text_of(row.get("model_group")),
        replica=setup.replica,
        took_ms=max(0, at_ms - begin_ms),
    )
    _name(found, text_of(row.get("api_base")), "", setup)
    _failed(found, text_of(row.get("exception_type")), row.get("status_code"), text_of(row.get("exception_string")))
    return found


def _end_ms(row: Mapping[str, Any], setup: Setup) -> int:
    return time_ms(row.get("endTime") or row.get("startTime"), setup.zone, "endTime")


def _first_content_ms(row: Mapping[str, Any], begin_ms: int, at_ms: int, setup: Setup) -> float | None:
    """Of a call that was no stream, the table has its end there."""
    if row.get("completionStartTime") in (None, ""):
        return None
    first_ms = time_ms(row["completionStartTime"], setup.zone, "completionStartTime")
    return first_ms - begin_ms if begin_ms < first_ms < at_ms else None


def _name(found: Call, base: str, label: str, setup: Setup) -> None:
    """Provider and model as they were called: the library's own prefix was never sent."""
    prefix, slash, rest = found.model.partition("/")
    label = label or (prefix if slash and not base else "")
    found.provider = provider(base if "://" in base else (base and f"https://{base}") or label, setup)
    if label and slash and prefix == label:
        found.model = rest
    if not found.provider:
        raise RowRefused("provider", "neither api_base nor custom_llm_provider says one; --set provider=HOST")


def _failed(found: Call, name: str, code: Any, text: str) -> None:
    name = name.rpartition(".")[2]
    if name in _GATEWAY and not _PROVIDERS_WORD.search(text):
        raise NotACall("refused by the gateway itself")
    found.body = text
    if name in _TRANSPORT:
        found.error, found.body = _TRANSPORT[name], ""
        return
    found.status = status_value(code, "error_code") or _CLASSES.get(name)


def _answer(value: Any) -> str:
    """The whole answer, if the gateway was set to keep it; else nothing."""
    found = _object(value)
    return json.dumps(found) if "choices" in found else ""


def _object(value: Any) -> Mapping[str, Any]:
    """A JSON column is an object, or the text of one."""
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}
