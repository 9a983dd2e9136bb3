"""Spans of the fold for OpenTelemetry."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ..bus.reader import Chunk
from ..router.tracing import open_tracer
from .loop import FoldSpan


def fold_span() -> FoldSpan:
    """What makes a span of every chunk of the log that a projector folds. Raises `TracingUnavailable`."""
    tracer = open_tracer()

    def span(chunk: Chunk, is_writer: bool) -> AbstractContextManager[object]:
        attributes = {
            "sickbay.fold.events": len(chunk.seqs),
            "sickbay.fold.first_seq": chunk.seqs[0],
            "sickbay.fold.last_seq": chunk.seqs[-1],
            "sickbay.fold.pending": chunk.pending,
            "sickbay.projector.writer": is_writer,
        }
        return tracer.start_as_current_span("sickbay.fold", attributes=attributes, record_exception=False)

    return span
