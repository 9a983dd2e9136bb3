"""The formats that can be imported, and how a file of each becomes calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from . import access, litellm, loglines, otel
from .calls import Call, RowRefused
from .fields import Setup
from .source import SourceRow, csv_rows, line_rows, records


class Format(NamedTuple):
    """How a file is read."""

    says: str
    rows: Callable[[Any], Iterator[SourceRow]]
    """Rows of an open file."""
    call: Callable[[Any, Setup], Call]
    """The call that one row tells of."""


def _mapped(row: Any, setup: Setup) -> Call:
    return setup.fields.call(row, setup)


def _spans(stream: Any) -> Iterator[SourceRow]:
    return _each(records(stream))


def _each(documents: Iterable[SourceRow]) -> Iterator[SourceRow]:
    for document in documents:
        if document.why:
            yield document
            continue
        try:
            for span in otel.spans(document.value):
                yield SourceRow(document.number, span)
        except RowRefused as refused:
            yield SourceRow(document.number, None, str(refused))


FORMATS: Final[dict[str, Format]] = {
    "jsonl": Format("JSON lines (or an array) with a field map", records, _mapped),
    "csv": Format("CSV with a header and a field map", csv_rows, _mapped),
    "litellm": Format("LiteLLM's spend logs, error logs and callbacks, as JSON or CSV", records, litellm.litellm_call),
    "otel": Format("OpenTelemetry GenAI spans as OTLP JSON", _spans, otel.otel_call),
    "loglines": Format("log lines of the form [llm:name] HTTP 400 model=… body=…", line_rows, loglines.logline_call),
    "nginx": Format("an access log of nginx, with a field map", line_rows, access.nginx),
    "envoy": Format("an access log of Envoy, with a field map", line_rows, access.envoy),
}
OWN: Final = "sickbay"
"""A log file as `sickbay export` writes it: copied, compressed anew, the same digest."""
