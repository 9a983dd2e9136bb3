"""Which column says what: the field map of JSON lines, CSV and access logs.

fields = Fields.read(["at=finished", "model=request.model", "took_s=seconds", "model=path~/models/([^/:]+)"])
fields.call({"finished": …, "request": {"model": …}}, setup)
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from sickbay_events import NameRefused, provider_of

from ..invalid import InvalidValue
from .calls import ERRORS, Call, RowRefused
from .values import duration_ms, status_value, text_of, time_ms, truth

USUAL: Final[dict[str, tuple[str, ...]]] = {
    "at": ("at", "end_time", "endTime", "time", "timestamp", "ts", "@timestamp", "datetime", "date"),
    "begin": ("begin", "start_time", "startTime", "started_at"),
    "provider": ("provider", "base_url", "api_base", "url", "host", "endpoint"),
    "model": ("model", "model_id", "model_name", "requested_model"),
    "replica": ("replica", "router", "instance", "pod", "hostname"),
    "status": ("status", "status_code", "http_status", "code"),
    "error": ("error_kind", "transport_error"),
    "kind": ("kind",),
    "body": ("body", "error_body", "response_body", "error_message", "error", "detail"),
    "took_ms": ("took_ms", "duration_ms", "latency_ms", "elapsed_ms", "response_ms"),
    "took_s": ("took_s", "duration_s", "latency_s", "duration", "latency", "elapsed", "took"),
    "ttft_ms": ("ttft_ms",),
    "ttft_s": ("ttft_s", "ttft"),
    "limit_ms": ("limit_ms", "timeout_ms"),
    "limit_s": ("limit_s", "timeout_s"),
    "stream": ("stream", "streaming"),
    "route": ("route",),
    "rank": ("rank",),
    "retry_after": ("retry_after", "retry-after"),
}
"""Every field with the columns it is looked for in when no map names one."""
ACCEPTED: Final = f"FIELD=COLUMN, FIELD=COLUMN~REGEX or a TOML file; fields are {', '.join(USUAL)}"
_TIMEOUTS: Final = ("timeout", "timed out", "timedout", "readtimeout", "connecttimeout", "deadline_exceeded")


class Column(NamedTuple):
    """Where a field's value stands: a column, or a path of keys with dots; of it the part that a pattern captures."""

    name: str
    match: re.Pattern[str] | None = None

    def of(self, row: Mapping[str, Any]) -> Any:
        """The value; None if there is none."""
        value: Any = row.get(self.name)
        if value is None and "." in self.name:
            value = row
            for key in self.name.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
        if value is None or self.match is None:
            return value
        found = self.match.search(str(value))
        return None if found is None else found[found.re.groups and 1]


class Setup(NamedTuple):
    """What the command line says of every row."""

    fields: Fields
    replica: str = "imported"
    """The replica that made the calls, where a row does not say."""
    zone: tzinfo = UTC
    """Of times without an offset."""
    rename: Mapping[str, str] = {}
    """Providers by another name: `openrouter` -> `openrouter.ai`."""
    constants: Mapping[str, str] = {}
    template: str = ""
    """Of access logs: the format string as the proxy's own configuration has it."""


class Fields(msgspec.Struct, frozen=True):
    """A field map."""

    columns: dict[str, tuple[Column, ...]] = {}

    def value(self, row: Mapping[str, Any], field: str, setup: Setup) -> Any:
        """The first value that is there: of the mapped columns, else of the usual ones, else the constant."""
        columns = self.columns.get(field)
        for one in columns or USUAL[field]:
            value = one.of(row) if isinstance(one, Column) else row.get(one)
            if value is not None and value != "":
                return value
        return setup.constants.get(field)

    def call(self, row: Mapping[str, Any], setup: Setup) -> Call:
        """The call that a row tells of. Raises `RowRefused`."""

        def of(field: str) -> Any:
            return self.value(row, field, setup)

        took_ms = self._length(row, "took", setup)
        at = of("at")
        if at is None and (begin := of("begin")) is not None:
            at_ms = time_ms(begin, setup.zone, "begin") + round(took_ms or 0)
        else:
            at_ms = time_ms(at, setup.zone)
            if took_ms is None and (begin := of("begin")) is not None:
                took_ms = max(0, at_ms - time_ms(begin, setup.zone, "begin"))
        retry_after, body = text_of(of("retry_after")), of("body")
        return Call(
            at_ms=at_ms,
            provider=provider(of("provider"), setup),
            model=text_of(of("model")),
            replica=text_of(of("replica")) or setup.replica,
            status=status_value(of("status")),
            error=error_of(of("error")),
            kind=text_of(of("kind")) or None,
            headers={"retry-after": retry_after} if retry_after else {},
            body=msgspec.json.encode(body).decode() if isinstance(body, dict | list) else text_of(body),
            took_ms=took_ms,
            ttft_ms=self._length(row, "ttft", setup),
            limit_ms=self._length(row, "limit", setup),
            stream=truth(of("stream")),
            route=text_of(of("route")) or None,
            rank=_rank(of("rank")),
        )

    def _length(self, row: Mapping[str, Any], name: str, setup: Setup) -> float | None:
        for unit, unit_ms in (("ms", 1.0), ("s", 1000.0)):
            value = self.value(row, f"{name}_{unit}", setup)
            if value is not None:
                return duration_ms(value, unit_ms, f"{name}_{unit}")
        return None


def provider(value: Any, setup: Setup) -> str:
    """A provider's name of a URL, a host or a label, by the name that the command line gives it."""
    text = text_of(value)
    base, mark, alias = text.partition("#") if "://" in text else (text, "", "")
    try:
        name = (provider_of(base) if "://" in base else base) + mark + alias
    except NameRefused as error:
        raise RowRefused("provider", error.accepted) from error
    return setup.rename.get(name, setup.rename.get(text, name))


def error_of(value: Any) -> str | None:
    """What the transport saw, in the words of `classify`; None for none. Raises `RowRefused`."""
    text = text_of(value).lower()
    if not text:
        return None
    if text in ERRORS:
        return text
    if any(word in text for word in _TIMEOUTS):
        return "timeout"
    raise RowRefused("error", f"{text[:40]!r} is none of {', '.join(ERRORS)}")


def _rank(value: Any) -> int:
    text = text_of(value) or "0"
    if not text.isdecimal() or len(text) > 6:
        raise RowRefused("rank", f"{text[:20]!r} is no count from 0")
    return int(text)


def read_setup(
    maps: Sequence[str],
    *,
    constants: Sequence[str] = (),
    rename: Sequence[str] = (),
    replica: str | None = None,
    zone: tzinfo = UTC,
    template: str | None = None,
) -> Setup:
    """What the options say; later ones win. Raises `InvalidValue`, OSError for a map file that cannot be read."""
    found: dict[str, list[Column]] = {}
    fixed, names = dict[str, str](), dict[str, str]()
    for text in maps:
        field, mark, column = text.partition("=")
        if mark and not Path(text).is_file():
            found.setdefault(_known(field), []).append(_column(field, column))
            continue
        _read_file(Path(text), found, fixed, names)
    fixed |= {_known(field): value for field, value in (_pair("--set", text) for text in constants)}
    names |= dict(_pair("--rename", text) for text in rename)
    fields = Fields({field: tuple(columns) for field, columns in found.items()})
    return Setup(fields, replica or fixed.get("replica", "imported"), zone, names, fixed, template or "")


def _read_file(path: Path, found: dict[str, list[Column]], fixed: dict[str, str], names: dict[str, str]) -> None:
    """A map file: `[fields]` field = "column", ["column", …] or {column, match}; `[set]`; `[rename]`."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidValue("--map", str(path), f"a TOML file ({error})") from error
    if extra := sorted(set(data) - {"fields", "set", "rename"}):
        raise InvalidValue(f"{path}: {extra[0]}", data[extra[0]], "the tables [fields], [set] and [rename]")
    for field, value in data.get("fields", {}).items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict) and set(one) <= {"column", "match"} and isinstance(one.get("column"), str):
                one = one["column"] + (f"~{one['match']}" if "match" in one else "")
            if not isinstance(one, str):
                raise InvalidValue(
                    f"{path}: fields.{field}", one, 'a column, a list of them or {column = "…", match = "…"}'
                )
            found.setdefault(_known(field), []).append(_column(field, one))
    fixed |= {_known(field): str(value) for field, value in data.get("set", {}).items()}
    names |= {name: str(value) for name, value in data.get("rename", {}).items()}


def _known(field: str) -> str:
    if field not in USUAL:
        raise InvalidValue("--map", field, ACCEPTED)
    return field


def _column(field: str, text: str) -> Column:
    name, mark, pattern = text.partition("~")
    if not name:
        raise InvalidValue("--map", f"{field}={text}", ACCEPTED)
    try:
        return Column(name, re.compile(pattern) if mark else None)
    except re.error as error:
        raise InvalidValue("--map", f"{field}={text}", f"a regular expression ({error})") from error


def _pair(option: str, text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name or not value:
        raise InvalidValue(option, text, "NAME=VALUE")
    return name, value
