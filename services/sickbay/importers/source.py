"""Rows of a file, one at a time: JSON lines, a JSON array or document, CSV, lines of text; plain, gzip or zstd.

A file is never read as a whole, but for a JSON document that stands over several lines (up to 256 MiB).
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

LINE_BYTES_MAX: Final = 16 << 20
"""A longer line is refused."""
DOCUMENT_BYTES_MAX: Final = 256 << 20
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_PEEK: Final = 4_096


class SourceRow(NamedTuple):
    """One row: its line (of an array its number) from 1, and its value, or why there is none."""

    number: int
    value: Any
    why: str = ""


@contextmanager
def open_source(path: Path) -> Iterator[BinaryIO]:
    """The file's content, decompressed; `-` is standard input. Raises OSError, RuntimeError."""
    with nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb") as raw:
        plain = _plain(raw)
        try:
            yield plain
        except Exception as error:
            # The last of them belongs to a package that is not always there.
            if not isinstance(error, EOFError | zlib.error) and type(error).__name__ != "ZstdError":
                raise
            raise OSError(f"{path}: the compressed data is damaged or cut off: {error}") from error
        finally:
            if plain is not raw:
                plain.close()


def _plain(raw: Any) -> Any:
    start = raw.peek(4)[:4]
    if start.startswith(_GZIP):
        return io.BufferedReader(gzip.GzipFile(fileobj=raw))
    if start == _ZSTD:
        try:
            import zstandard
        except ImportError as error:
            raise RuntimeError("a .zst file needs the package zstandard: pip install 'sickbay[server]'") from error
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))
    return raw


def line_rows(stream: BinaryIO) -> Iterator[SourceRow]:
    """Lines of text without their breaks; empty ones are left out."""
    number = 0
    while line := stream.readline(LINE_BYTES_MAX):
        number += 1
        if not line.endswith(b"\n") and len(line) >= LINE_BYTES_MAX:
            while (rest := stream.readline(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
                pass
            yield SourceRow(number, None, f"longer than {LINE_BYTES_MAX >> 20} MiB")
        elif line.strip():
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            yield SourceRow(number, text.removeprefix("\ufeff") if number == 1 else text)


def records(stream: Any) -> Iterator[SourceRow]:
    """Objects of JSON lines, of arrays, of one document over several lines, or the rows of a CSV with a header."""
    start = bytes(stream.peek(_PEEK)[:_PEEK]).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        return
    if start[:1] == b"[":
        yield from _array(stream)
    elif start[:1] == b"{":
        yield from _json_lines(stream)
    else:
        yield from csv_rows(stream)


def csv_rows(stream: Any) -> Iterator[SourceRow]:
    """Rows of a CSV as objects by its header. A header with tabs and without commas makes it a TSV."""
    head = bytes(stream.peek(_PEEK)[:_PEEK]).partition(b"\n")[0]
    delimiter = "\t" if b"\t" in head and b"," not in head else ";" if b";" in head and b"," not in head else ","
    csv.field_size_limit(LINE_BYTES_MAX)
    text = io.TextIOWrapper(stream, "utf-8-sig", "replace", newline="")
    try:
        yield from _csv(csv.DictReader(text, delimiter=delimiter, restkey="", strict=True))
    finally:
        text.detach()  # the caller opened the stream and closes it


def _csv(reader: csv.DictReader[str]) -> Iterator[SourceRow]:
    while True:
        try:
            found = next(reader, None)
        except csv.Error as error:
            yield SourceRow(reader.line_num, None, f"not CSV: {error}")
            continue
        if found is None:
            return
        if isinstance(found.get(""), list):
            yield SourceRow(reader.line_num, None, "it has more columns than the header")
        else:
            yield SourceRow(reader.line_num, found)


def _json_lines(stream: BinaryIO) -> Iterator[SourceRow]:
    is_first = True
    for row in line_rows(stream):
        if row.why:
            yield row
            continue
        try:
            yield from _each(row.number, msgspec.json.decode(row.value))
        except (msgspec.DecodeError, RecursionError) as error:
            if is_first and row.value.lstrip()[:1] == "{":
                yield from _document(row, stream, str(error))
                return
            yield SourceRow(row.number, None, f"not JSON: {error}")
        is_first = False


def _document(first: SourceRow, stream: BinaryIO, why: str) -> Iterator[SourceRow]:
    """A first line that is no whole object: either the document goes on below, or that line alone is broken."""
    rest = stream.read(DOCUMENT_BYTES_MAX + 1)
    if len(rest) > DOCUMENT_BYTES_MAX:
        yield SourceRow(
            first.number, None, f"a document over several lines is longer than {DOCUMENT_BYTES_MAX >> 20} MiB"
        )
        return
    try:
        yield from _each(1, msgspec.json.decode(first.value.encode() + b"\n" + rest))
    except (msgspec.DecodeError, RecursionError):
        yield SourceRow(first.number, None, f"not JSON: {why}")
        for row in _json_lines(io.BytesIO(rest)):
            yield row._replace(number=row.number + first.number)


def _each(number: int, value: Any) -> Iterator[SourceRow]:
    for one in value if isinstance(value, list) else [value]:
        yield SourceRow(number, one) if isinstance(one, dict) else SourceRow(number, None, "not an object")


def _array(stream: Any) -> Iterator[SourceRow]:
    """Objects of an array, however long it is, or of several one after the other."""
    text = codecs.getincrementaldecoder("utf-8-sig")("replace")
    decoder, buffer, number = json.JSONDecoder(), "", 0
    while True:
        buffer = buffer.lstrip(" \t\r\n,[]")
        try:
            value, end = decoder.raw_decode(buffer) if buffer else (None, 0)
            # A number may go on in the next block; an object ends where it ends.
            is_whole = end > 0 and (isinstance(value, dict) or end < len(buffer))
        except (ValueError, RecursionError):
            is_whole, value, end = False, None, 0
        if is_whole:
            number += 1
            yield SourceRow(number, value) if isinstance(value, dict) else SourceRow(number, None, "not an object")
            buffer = buffer[end:]
        elif len(buffer) < LINE_BYTES_MAX and (block := stream.read(1 << 20)):
            buffer += text.decode(block)
        elif buffer:
            # Damaged, or broken off: what follows the next line break may be whole again.
            number += 1
            yield SourceRow(number, None, "not JSON, or broken off")
            buffer = buffer.partition("\n")[2]
        else:
            return
