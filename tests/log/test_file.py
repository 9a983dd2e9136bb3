"""A log as a file: what is written is read back byte for byte, and what is wrong is told with its line."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import zstandard

from sickbay.log.file import LogFile, LogFileError, LogLine, format_rfc3339_ns, open_writer

PAYLOADS = [
    b'{"kind":"ok"}',
    b'{"kind":"ok",\n "took_ms": 1.50}',
    b"",
    b"not json",
    b"\xff\x00\xfe",
    b"[" * 5000,
    b'"\xed\xa0\x80"',
    '{"detail":"não é \U0001f600"}'.encode(),
]
TIME_NS = 1_796_000_000_123_456_789


def lines(count: int = len(PAYLOADS)) -> list[LogLine]:
    return [
        LogLine.of(7 + n, TIME_NS + n, "sickbay.outcome.r1.h.=.m", {"Nats-Msg-Id": f"b-{n}"}, PAYLOADS[n % 8])
        for n in range(count)
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_what_is_written_is_read_back(tmp_path: Path, suffix: str) -> None:
    """Sequence, time, subject, headers and body come back, whatever the body is and however it is compressed."""
    path = tmp_path / f"log{suffix}"
    with open_writer(path) as write:
        for line in lines():
            write(line)
    reader = LogFile(path)
    read = list(reader)
    assert [line.seq for line in read] == list(range(7, 15))
    assert all(line.time_ms == TIME_NS // 1_000_000 and line.headers["Nats-Msg-Id"] for line in read)
    # A line break between the tokens of JSON becomes a space; every other byte is kept.
    assert [line.payload for line in read] == [payload.replace(b"\n", b" ") for payload in PAYLOADS]
    assert reader.cut is None


def test_a_line_has_the_documented_form(tmp_path: Path) -> None:
    """The file is JSON lines with nanoseconds, `data` for a JSON body and `data_b64` for any other (SPEC 7)."""
    with open_writer(tmp_path / "log.jsonl") as write:
        for line in lines(4):
            write(line)
    first, _, _, fourth = (json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines())
    assert first == {
        "seq": 7,
        "time": "2026-11-30T00:53:20.123456789Z",
        "subject": "sickbay.outcome.r1.h.=.m",
        "headers": {"Nats-Msg-Id": "b-0"},
        "data": {"kind": "ok"},
    }
    assert fourth["data_b64"] == "bm90IGpzb24=" and "data" not in fourth


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_a_file_cut_anywhere_gives_its_whole_lines(tmp_path: Path, suffix: str) -> None:
    """Wherever the file breaks off, the lines before are right, and the reader says that the end is missing."""
    path = tmp_path / f"log{suffix}"
    whole = lines(300)
    with open_writer(path) as write:
        for line in whole:
            write(line)
    data = path.read_bytes()
    drawn = random.Random(7)
    for size in [*(drawn.randrange(4, len(data)) for _ in range(40)), len(data) - 5]:
        path.write_bytes(data[:size])
        reader = LogFile(path)
        read = list(reader)
        assert read == whole[: len(read)] and reader.lines == len(read)
        at_a_break = suffix == ".jsonl" and data[size - 1 : size + 1].count(b"\n")
        assert at_a_break or reader.cut is not None


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("{", "truncated"),
        ('{"seq":"x","time":"2026-11-30T00:00:00Z","subject":"s"}', "seq"),
        ('{"seq":1,"time":"yesterday","subject":"s","data":{}}', "RFC 3339"),
        ('{"seq":1,"time":"2026-11-30T00:00:00Z","subject":"s","data_b64":"%"}', "data_b64"),
        ("[1]", "object"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, names: str) -> None:
    """A line in the middle that is none stops the reading, with its number, its fault and the accepted form."""
    path = tmp_path / "log.jsonl"
    good = '{"seq":1,"time":"2026-11-30T00:00:00Z","subject":"s","data":{}}'
    path.write_text(f"{good}\n\n{line}\n{good}\n")
    with pytest.raises(LogFileError, match=f"line 3: .*{names}.*a line is"):
        list(LogFile(path))


def test_compressed_files_may_follow_one_another(tmp_path: Path) -> None:
    """`cat a.gz b.gz` and `cat a.zst b.zst` are logs too."""
    text = b'{"seq":1,"time":"2026-11-30T00:00:00Z","subject":"s","data":{}}\n'
    for pack in (gzip.compress, zstandard.ZstdCompressor().compress):
        path = tmp_path / "both"
        path.write_bytes(pack(text) + pack(text))
        reader = LogFile(path)
        assert len(list(reader)) == 2 and reader.cut is None


def test_damaged_compressed_data_is_an_error(tmp_path: Path) -> None:
    """Garbage inside a compressed file is not taken for its end."""
    data = bytearray(gzip.compress(b"x" * 50 + bytes(range(256)) * 100))
    data[len(data) // 2] ^= 0xFF
    data[30:40] = bytes(10)
    (tmp_path / "log.gz").write_bytes(data)
    with pytest.raises(LogFileError):
        list(LogFile(tmp_path / "log.gz"))


def test_a_file_that_failed_leaves_no_name(tmp_path: Path) -> None:
    """An export that broke off leaves nothing that looks like a log, and never writes over one."""
    path = tmp_path / "log.jsonl"
    with pytest.raises(RuntimeError, match="server gone"), open_writer(path) as write:
        write(lines(1)[0])
        raise RuntimeError("server gone")
    assert list(tmp_path.iterdir()) == []
    path.write_text("precious")
    with pytest.raises(FileExistsError), open_writer(path):
        pass
    assert path.read_text() == "precious"


def test_nanoseconds_before_and_after_the_epoch() -> None:
    """Times are cut to milliseconds downwards, as the live reader cuts them."""
    for time_ns in (0, 999_999, 1_000_000, TIME_NS, 1_796_000_000_999_999_999):
        line = LogLine.of(1, time_ns, "s", None, b"")
        assert line.time == format_rfc3339_ns(time_ns) and line.time_ms == time_ns // 1_000_000
