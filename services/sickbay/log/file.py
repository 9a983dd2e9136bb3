"""A log as a file: one JSON object a line, optionally compressed with zstd or gzip (Rule 7).

    with open_writer(Path("log.jsonl.zst")) as write:
        write(LogLine.of(seq, time_ns, subject, headers, payload))
    reader = LogFile(Path("log.jsonl.zst"))
    for line in reader:
        ...
    reader.cut            # None, or what says that the file ends in the middle of something

A reader streams: it holds one block of the file at a time. A caller that wants many lines at once uses
`reader.columns()`.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

import msgspec

from sickbay_events.times import parse_rfc3339, rfc3339

BLOCK_BYTES: Final = 256 << 10
"""A few hundred lines: what is made of them stays in the processor's cache until it is folded."""
SECONDS_MAX: Final = 4_096
"""Seconds whose reading is kept at hand: a log has many lines in one."""
LINE_BYTES_MAX: Final = 64 << 20
"""NATS refuses messages over 64 MiB; a longer line is no line of a log."""
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_NS: Final = 1_000_000_000
_ACCEPTED: Final = '{"seq", "time", "subject", "headers", "data" or "data_b64"}'
_STDIO: Final = Path("-")
_encoder: Final = msgspec.json.Encoder()
_json: Final = msgspec.json.Decoder()


class LogFileError(ValueError):
    """A file that is no log. Attributes: `path`, `line` (from 1), `why`."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        self.path, self.line, self.why = path, line, why
        super().__init__(f"{path}, line {line}: {why}")


class LogLine(msgspec.Struct, frozen=True, gc=False):
    """One message of the log as the file has it."""

    seq: int
    time: str
    """RFC 3339 in UTC with nine digits."""
    subject: str
    headers: dict[str, str | list[str]] = {}
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """The JSON body as it was stored."""
    data_b64: str | msgspec.UnsetType = msgspec.UNSET
    """The body, where it is no JSON."""

    @classmethod
    def of(
        cls, seq: int, time_ns: int, subject: str, headers: dict[str, str | list[str]] | None, payload: bytes
    ) -> LogLine:
        """The line of a stored message; `time_ns` counts from the Unix epoch."""
        body = _json_line(payload)
        if body is None:
            return cls(
                seq,
                format_rfc3339_ns(time_ns),
                subject,
                headers or {},
                data_b64=base64.b64encode(payload).decode("ascii"),
            )
        return cls(seq, format_rfc3339_ns(time_ns), subject, headers or {}, data=msgspec.Raw(body))

    @property
    def time_ms(self) -> int:
        """Whole milliseconds since the epoch, cut as the live reader cuts them. Raises ValueError."""
        return _time_ms(self.time)

    @property
    def payload(self) -> bytes:
        """The message's body. Raises ValueError for a `data_b64` that is none."""
        if self.data is not msgspec.UNSET:
            return bytes(self.data)
        if self.data_b64 is msgspec.UNSET:
            return b""
        try:
            return base64.b64decode(self.data_b64, validate=True)
        except binascii.Error as error:
            raise ValueError(f"data_b64 is not base64: {error}") from error


_decoder: Final = msgspec.json.Decoder(LogLine)


class Columns(NamedTuple):
    """Lines in the file's order as parallel lists."""

    seqs: list[int]
    times_ms: list[int]
    subjects: list[str]
    payloads: list[bytes] | list[msgspec.Raw]
    is_json: bool
    """Each body is one whole JSON value without a line break."""

    def cut(self, begin: int, end: int) -> Columns:
        """The lines from index `begin` to before `end`."""
        part = slice(begin, end)
        return Columns(self.seqs[part], self.times_ms[part], self.subjects[part], self.payloads[part], self.is_json)


class _Lean(msgspec.Struct, frozen=True, gc=False):
    """What a fold needs of a line; the rest is skipped unread."""

    seq: int
    time: str
    subject: str
    data: msgspec.Raw


_lean: Final = msgspec.json.Decoder(_Lean)


class _Seconds(dict[str, int]):
    """`2026-11-30T01:02:03` -> milliseconds since the epoch. Raises ValueError for what is no time."""

    def __missing__(self, text: str) -> int:
        if len(self) >= SECONDS_MAX:
            self.clear()
        self[text] = found = parse_rfc3339(text + "Z")
        return found


_seconds: Final = _Seconds()
_THOUSANDTHS: Final = {f"{number:03d}": number for number in range(1000)}
_OWN_SEAM: Final = b'}\n{"seq":'
"""Between two lines as the exporter writes them; a longer one is found sooner."""


def format_rfc3339_ns(time_ns: int) -> str:
    """Nanoseconds since the epoch as RFC 3339 in UTC with nine digits."""
    seconds, rest = divmod(time_ns, _NS)
    return f"{rfc3339(seconds * 1000)[:19]}.{rest:09d}Z"


@lru_cache(maxsize=64)
def _second_ms(text: str) -> int:
    return parse_rfc3339(text + "Z")


def _time_ms(text: str) -> int:
    # The exporter's own form is read by its parts, since a log has many lines in one second.
    if len(text) == 30 and text[19] == "." and text[29] == "Z" and text[20:29].isdigit():
        return _second_ms(text[:19]) + int(text[20:23])
    return parse_rfc3339(text)


def _columns(block: bytes) -> Columns | None:
    """Many whole lines at once; None if any of them is not in the exporter's own form."""
    seams = block.count(b"\n")
    # To the decoder lines are no boundaries: no object may end in another line than its own.
    if block[:1] != b"{" or block[-1:] != b"}":
        return None
    if block.count(_OWN_SEAM) != seams and block.count(b"}\n{") != seams:
        return None
    try:
        lines = _lean.decode_lines(block)
        if len(lines) != seams + 1:
            return None
        times = [line.time for line in lines]
        # `.123456789Z` of all of them in a row, looked at as a whole.
        fractions, count = "".join([time[19:] for time in times]), len(times)
        digits = fractions.replace(".", "").replace("Z", "")
        if (
            fractions[::11] != "." * count
            or fractions[10::11] != "Z" * count
            or len(digits) != 9 * count
            or not (digits.isdecimal() and digits.isascii())
        ):
            return None
        seconds, thousandths = _seconds, _THOUSANDTHS
        times_ms = [seconds[time[:19]] + thousandths[time[20:23]] for time in times]
    except (ValueError, RecursionError):  # among them DecodeError, ValidationError, UnicodeDecodeError
        return None
    return Columns(
        [line.seq for line in lines], times_ms, [line.subject for line in lines], [line.data for line in lines], True
    )


def _json_line(payload: bytes) -> bytes | None:
    """The body on one line if it is JSON, else None."""
    try:
        _json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    # Inside JSON strings a line break is never bare, so here it is white space and may become another.
    return payload.replace(b"\r", b" ").replace(b"\n", b" ").strip()


@contextmanager
def open_writer(path: Path) -> Iterator[Callable[[LogLine], None]]:
    """Write a log file; compressed if its name ends in `.zst` or `.gz`; `-` is standard output.

    The file appears under its name only when it is whole: until then it is `<name>.part`.
    Raises OSError; `FileExistsError` if the name is taken.
    """
    if path == _STDIO:
        yield lambda line: _write_line(sys.stdout.buffer, line)
        sys.stdout.buffer.flush()
        return
    if path.exists():
        raise FileExistsError(f"{path} exists already; name another file or remove it first")
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as raw, _compressed(path, raw) as stream:
            yield lambda line: _write_line(stream, line)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _write_line(stream: Any, line: LogLine) -> None:
    stream.write(_encoder.encode(line) + b"\n")


@contextmanager
def _compressed(path: Path, raw: BinaryIO) -> Iterator[Any]:
    if path.suffix == ".gz":
        with gzip.GzipFile(fileobj=raw, mode="wb", filename="") as stream:
            yield stream
    elif path.suffix == ".zst":
        with _zstandard().ZstdCompressor(level=6).stream_writer(raw, closefd=False) as stream:
            yield stream
    else:
        yield raw


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise RuntimeError("a .zst file needs the package zstandard: pip install 'sickbay[server]'") from error
    return zstandard


def _stdin() -> AbstractContextManager[io.BufferedReader]:
    return nullcontext(cast(io.BufferedReader, sys.stdin.buffer))


class LogFile:
    """Reads a log file line by line, once. The content tells the compression, not the name.

    Iterating raises `LogFileError` with the number of a line that is not one. A file that ends in the middle
    (a copy that broke off, an exporter that was killed) gives every whole line, and then `cut` says where it
    ends; nothing is raised for it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        """Lines read so far."""
        self.bytes_read = 0
        """Bytes of the file as it lies on the disk."""
        self.cut: str | None = None
        """What the end of the file lacks, None if it is whole."""

    def __iter__(self) -> Iterator[LogLine]:
        for block, is_last in self._texts():
            yield from self._last(block) if is_last else self._lines(block)

    def columns(self) -> Iterator[Columns]:
        """The same lines, a block of the file at a time, several times faster. Raises as iterating does."""
        for block, is_last in self._texts():
            found = None if is_last else _columns(block)
            if found is not None:
                self.lines += len(found.seqs)
                yield found
                continue
            # Something is not in the exporter's own form: line by line, which says what and where.
            lines = list(self._last(block) if is_last else self._lines(block))
            if lines:
                yield Columns(
                    [line.seq for line in lines],
                    [_time_ms(line.time) for line in lines],
                    [line.subject for line in lines],
                    [line.payload for line in lines],
                    is_json=False,
                )

    def _texts(self) -> Iterator[tuple[bytes, bool]]:
        """Whole lines in blocks, without the last line break; what follows the last break comes last, by itself."""
        rest = b""
        for block in self._blocks():
            end = block.rfind(b"\n")
            if end < 0:
                rest += block
                if len(rest) > LINE_BYTES_MAX:
                    raise LogFileError(self.path, self.lines + 1, f"longer than {LINE_BYTES_MAX} bytes")
                continue
            yield b"".join((rest, memoryview(block)[:end])), False
            rest = block[end + 1 :]
        if rest.strip():
            yield rest, True

    def _last(self, rest: bytes) -> Iterator[LogLine]:
        """The piece after the last line break: a line whose break was left out, or the half of one."""
        try:
            yield self._line(rest)
        except LogFileError:
            self.cut = self.cut or f"the file ends in the middle of line {self.lines}, which is left out"
            self.lines -= 1

    def _lines(self, block: bytes) -> Iterator[LogLine]:
        try:
            lines = _decoder.decode_lines(block)
        except (msgspec.DecodeError, UnicodeDecodeError):
            lines = []
        if len(lines) != block.count(b"\n") + 1:
            # A bad line, or blank ones: one by one, so that the numbers are right.
            for text in block.split(b"\n"):
                if text.strip():
                    yield self._line(text)
                else:
                    self.lines += 1
            return
        for line in lines:
            self.lines += 1
            self._check(line)
            yield line

    def _line(self, text: bytes) -> LogLine:
        self.lines += 1
        try:
            line = _decoder.decode(text)
        except (ValueError, RecursionError) as error:
            raise LogFileError(self.path, self.lines, f"{error}; a line is {_ACCEPTED}") from error
        self._check(line)
        return line

    def _check(self, line: LogLine) -> None:
        """What the decoder does not look into is looked into here, where the line's number is known."""
        try:
            _time_ms(line.time)
            if line.data is msgspec.UNSET:
                _ = line.payload
        except ValueError as error:
            raise LogFileError(self.path, self.lines, f"{error}; a line is {_ACCEPTED}") from error

    def _blocks(self) -> Iterator[bytes]:
        raw: io.BufferedReader
        with _stdin() if self.path == _STDIO else self.path.open("rb") as raw:
            start = raw.peek(4)[:4]
            if start.startswith(_GZIP):
                yield from self._decompressed(raw, lambda: zlib.decompressobj(wbits=31))
            elif start == _ZSTD:
                yield from self._decompressed(raw, lambda: _zstandard().ZstdDecompressor().decompressobj())
            else:
                while block := raw.read1(BLOCK_BYTES):
                    self.bytes_read += len(block)
                    yield block

    def _decompressed(self, raw: io.BufferedReader, make: Callable[[], Any]) -> Iterator[bytes]:
        """The content of one frame after another; both libraries read alike."""
        frame = make()
        try:
            while block := raw.read1(BLOCK_BYTES // 16):
                self.bytes_read += len(block)
                while block:
                    if frame.eof:
                        frame = make()
                    yield frame.decompress(block)
                    block = frame.unused_data if frame.eof else b""
        except Exception as error:
            # zlib and zstandard have each an error class of their own, and the second is not always there.
            raise LogFileError(self.path, self.lines + 1, f"the compressed data is damaged: {error}") from error
        if not frame.eof:
            self.cut = "the compressed file is cut off; what is whole was read"
