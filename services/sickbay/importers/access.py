"""Access logs of nginx and Envoy: a line is taken apart by the format string that the proxy's configuration has.

Provider and model stand nowhere in the usual formats: a field map says which variable has them, or which part of the
request's path (`--map 'model=request~/deployments/([^/]+)/'`, `--set provider=api.example`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from ..invalid import InvalidValue
from .calls import Call, NotACall, RowRefused
from .fields import Setup
from .values import duration_ms, time_ms

NGINX: Final = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"'
)
"""nginx's own format `combined`; what stands behind it in a line is left alone."""
ENVOY: Final = (
    '[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% '
    '%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" '
    '"%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"'
)
"""Envoy's default format."""
_NGINX_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_ENVOY_VARIABLE: Final = re.compile(r"%([A-Z_]+(?:\([^)]*\))?(?::\d+)?)%")
_FLAGS: Final = {"UF": "connect", "UT": "timeout", "SI": "timeout", "UC": "reset", "UR": "reset", "URX": "connect",
                 "UPE": "reset", "DC": "aborted"}  # fmt: skip
"""Response flags, and what the transport saw."""
_OWN: Final = ("NR", "NC", "UH", "UO", "RL", "RLSE", "UAEX", "FI", "LH", "LR", "IH", "OM", "DPE")
"""Flags of answers that the proxy gave by itself."""
_LISTED: Final = r"([^\s,]*(?:,[^\s,]+|(?:,| :) [^\s,]+)*)"
"""A value up to the next space, or several as nginx lists them: `502, 200`, `502 : 200`."""


def nginx(line: str, setup: Setup) -> Call:
    """The call that a line of nginx tells of. Raises `RowRefused`, `NotACall`, `InvalidValue`."""
    row = _apart(line, setup.template or NGINX, "nginx")
    status = row.get("upstream_status", row.get("status"))
    return _call({**row, "status": status, "status_told": row.get("status")}, setup, _nginx_rest)


def _nginx_rest(row: dict[str, Any], found: Call) -> None:
    is_left = row.get("status_told") == "499"
    if row.get("upstream_status") == "" and not is_left:
        raise NotACall("answered by the proxy itself")
    if found.took_ms is None:
        times = str(row.get("upstream_response_time") or row.get("request_time") or "")
        found.took_ms = duration_ms(times.replace(":", ",").rpartition(",")[2].strip(), 1000.0, "request_time")
    if is_left:
        found.status, found.kind = None, "cancelled"  # nginx's own: the client closed the connection


def envoy(line: str, setup: Setup) -> Call:
    """The call that a line of Envoy tells of. Raises `RowRefused`, `NotACall`, `InvalidValue`."""
    row = _apart(line, setup.template or ENVOY, "envoy")
    return _call({**row, "status": row.get("RESPONSE_CODE")}, setup, _envoy_rest)


def _envoy_rest(row: dict[str, Any], found: Call) -> None:
    flags = str(row.get("RESPONSE_FLAGS") or "").split(",")
    if any(flag in _OWN for flag in flags):
        raise NotACall("answered by the proxy itself")
    if found.took_ms is None:
        found.took_ms = duration_ms(row.get("DURATION"), 1.0, "DURATION")
    found.at_ms += round(found.took_ms or 0)  # the line has the time of the request's beginning
    error = next((_FLAGS[flag] for flag in flags if flag in _FLAGS), None)
    if error == "aborted":
        found.status, found.kind = None, "cancelled"
    elif error is not None:
        # The status is the proxy's word for it, not the provider's.
        found.status, found.error = None, error


def _call(row: dict[str, Any], setup: Setup, rest: Callable[[dict[str, Any], Call], None]) -> Call:
    fields = setup.fields
    time = next((row[name] for name in ("time_iso8601", "time_local", "msec", "START_TIME") if row.get(name)), None)
    if "at" not in fields.columns and time is not None:
        row = {**row, "at": time_ms(time, setup.zone)}
    found = fields.call(row, setup)
    rest(row, found)
    if not found.model:
        raise NotACall("no model in it (--map model=… says where it stands)")
    if not found.provider:
        raise RowRefused("provider", "there is none in the line; --map or --set says where it stands")
    return found


def _apart(line: str, template: str, proxy: str) -> dict[str, Any]:
    pattern, names = _pattern(template, proxy)
    found = pattern.match(line)
    if found is None:
        raise RowRefused("line", "it is not in the format of the log; --log-format is the proxy's own format string")
    return {name: "" if value == "-" else value for name, value in zip(names, found.groups(), strict=True)}


@lru_cache(maxsize=8)
def _pattern(template: str, proxy: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """The format string as a pattern: each variable goes up to the text that follows it."""
    variable = _NGINX_VARIABLE if proxy == "nginx" else _ENVOY_VARIABLE
    names: list[str] = []
    pattern, at = "", 0
    for found in variable.finditer(template):
        pattern += re.escape(template[at : found.start()])
        after = template[found.end() : found.end() + 1]
        if at and found.start() == at:
            raise InvalidValue("--log-format", template, "a format string with some text between its variables")
        names.append(next(group for group in found.groups() if group))
        pattern += rf"([^{re.escape(after)}]*)" if after not in ("", " ") else _LISTED
        at = found.end()
    if not names:
        raise InvalidValue(
            "--log-format", template, f"a format string of {proxy}, such as {NGINX if proxy == 'nginx' else ENVOY}"
        )
    return re.compile(pattern + re.escape(template[at:])), tuple(names)
