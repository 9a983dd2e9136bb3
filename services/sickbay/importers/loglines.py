"""Lines that a program logs of its calls: `[llm:name] HTTP 400 model=… body=…`, with a time before or in it.

After the tag comes `HTTP <status>`, `ok`, or what the transport saw (`timeout`, `connect`, …); then `key=value`, in any
order, values with spaces in quotes; `body=` (or `error=`) is the rest of the line.
"""

from __future__ import annotations

import re
from typing import Final

from .calls import ERRORS, Call, NotACall, RowRefused
from .fields import Setup, provider
from .values import duration_ms, status_value, time_ms, truth

_TAG: Final = re.compile(r"\[llm:([^\]\s]{1,256})\]\s*")
_SAYS: Final = re.compile(r"(?:HTTP(?:/[\d.]+)?\s+(\d{3})|([A-Za-z_]+))(?=[\s:,;]|$)[:,;]?\s*")
_PAIR: Final = re.compile(r"([A-Za-z_][\w.-]*)=(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,;]*)[\s,;]*")
_TIME: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:[.,]\d+)?(?:\s?(?:Z|UTC|[+-]\d{2}:?\d{2}))?"
    r"|\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4}|(?<![\d.])1\d{9}(?:\.\d+|\d{3})?(?![\d.])"
)
_REST: Final = ("body", "error", "response", "message")
_TOOK: Final = {"took": 1000.0, "took_s": 1000.0, "took_ms": 1.0, "ms": 1.0, "duration": 1000.0, "duration_ms": 1.0,
                "latency": 1000.0, "latency_ms": 1.0, "elapsed": 1000.0, "elapsed_ms": 1.0}  # fmt: skip


def logline_call(line: str, setup: Setup) -> Call:
    """The call that a line tells of. Raises `RowRefused`, `NotACall`."""
    tag = _TAG.search(line)
    if tag is None:
        raise NotACall("a line without [llm:name]")
    said = _SAYS.match(line, tag.end())
    word = (said[2] or "").lower() if said is not None else ""
    if said is None or (said[1] is None and word not in ("ok", "cancelled", *ERRORS)):
        raise RowRefused("status", f"after the tag stands {line[tag.end() : tag.end() + 20]!r}, not HTTP and a status")
    pairs, body = _pairs(line, said.end())
    times = _TIME.search(line[: tag.start()])
    at = pairs.get("at") or pairs.get("time") or pairs.get("ts") or (times[0] if times is not None else None)
    took_ms = next((duration_ms(pairs[name], unit, name) for name, unit in _TOOK.items() if name in pairs), None)
    found = Call(
        at_ms=time_ms(at, setup.zone, "time"),
        provider=provider(pairs.get("provider") or tag[1], setup),
        model=pairs.get("model", ""),
        replica=pairs.get("replica") or setup.replica,
        status=status_value(said[1]),
        error=word if word in ERRORS else None,
        kind=word if word == "cancelled" else None,
        took_ms=took_ms,
        ttft_ms=duration_ms(pairs.get("ttft_ms"), 1.0, "ttft_ms"),
        stream=truth(pairs.get("stream")),
        route=pairs.get("route"),
    )
    if word == "ok":
        found.status = 200
    if found.status is not None and found.status >= 400:
        found.body = body  # of an answer there may be text in it, and only half of it
    if "retry_after" in pairs:
        found.headers = {"retry-after": pairs["retry_after"]}
    return found


def _pairs(line: str, start: int) -> tuple[dict[str, str], str]:
    """The pairs, and what `body=` begins: it goes to the end of the line, quotes around all of it taken off."""
    found: dict[str, str] = {}
    while (pair := _PAIR.match(line, start)) is not None:
        name = pair[1].lower()
        if name in _REST:
            rest = line[pair.start(2) :].strip()
            if rest[:1] in "\"'" and rest[-1:] == rest[:1] and len(rest) > 1:
                rest = rest[1:-1].replace('\\"', '"').replace("\\\\", "\\")
            return found, rest
        value = pair[2]
        found[name] = value[1:-1] if value[:1] in ("'", '"') and len(value) > 1 else value
        start = pair.end()
    return found, line[start:].strip()
