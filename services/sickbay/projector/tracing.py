"""A span `sickbay.fold` for each chunk of the log that a projector folds (SICKBAY_TRACES=1 in the services)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..bus.reader import Chunk
from .loop import Projector

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


def enable_folds(projector: Projector, tracer: Tracer) -> None:
    """Make a span of every chunk of the log that this projector folds from now on."""

    @contextmanager
    def span_of(chunk: Chunk) -> Iterator[None]:
        attributes = {
            "sickbay.fold.events": len(chunk.seqs),
            "sickbay.fold.first_seq": chunk.seqs[0],
            "sickbay.fold.last_seq": chunk.seqs[-1],
            "sickbay.fold.pending": chunk.pending,
            "sickbay.projector.writer": projector.is_writer,
        }
        with tracer.start_as_current_span("sickbay.fold", attributes=attributes, record_exception=False):
            yield

    projector.around_fold = span_of
