"""History of other systems becomes a log file: every format, what is left out, and what never enters it."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import paths
from cli_runs import sickbay
from histories import history
from sickbay.importers.access import NGINX
from sickbay.importers.calls import RowRefused, inner
from sickbay.importers.fields import USUAL, Setup, read_setup
from sickbay.importers.formats import FORMATS
from sickbay.importers.run import copy_log, import_file
from sickbay.importers.sorting import Sorter
from sickbay.importers.values import duration_ms, status_value, time_ms
from sickbay.invalid import InvalidValue
from sickbay.log.file import LogFile, LogFileError, LogLine, open_writer
from sickbay.log.folding import replay
from sickbay_events import Poison, decode, encode, outcome_subject, override_subject, read_subject
from sickbay_events.codec import POLICY_SUBJECT, probe_subject
from sickbay_events.outcome import Override, PolicyChanged, ProbeResult

CASES = paths.CASES / "import"
SECRETS = ("secret diary", "sk-proj", "88dc28d0", "10.0.0.7", "python")
TIMES = '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" ' + (
    '"$http_user_agent" $request_time $upstream_status'
)
PATH = "REQ(X-ENVOY-ORIGINAL-PATH?:PATH)"
SETUPS: dict[str, Callable[[], Setup]] = {
    "litellm_spend.jsonl": lambda: read_setup([], rename=["openai=api.openai.com"]),
    "app.log": lambda: read_setup([], rename=["openrouter=openrouter.ai"]),
    "calls.csv": lambda: read_setup([str(CASES / "map.toml")]),
    "nginx.log": lambda: read_setup(
        ["model=request~/deployments/([^/]+)/"], constants=["provider=acme.openai.azure.com"], template=TIMES
    ),
    "envoy.log": lambda: read_setup(["provider=REQ(:AUTHORITY)", f"model={PATH}~/models/([^:/]+)"]),
}
GLM, GPT9 = ("openrouter.ai", "z-ai/glm-5.3"), ("api.openai.com", "gpt-9")
AZURE, GEMINI = ("acme.openai.azure.com", "gpt-5.2"), ("generativelanguage.googleapis.com", "gemini-3-pro")
EXPECTED: list[tuple[str, str, list[tuple[Any, ...]], dict[str, int], dict[str, int]]] = [
    (
        "litellm",
        "litellm_spend.jsonl",
        [
            ("10:00:02.500", "imported", *GLM, "ok", 200, 2500),
            ("10:00:33.000", "imported", "api.openai.com", "gpt-5.2", "ok", 200, 3000),
            ("10:01:00.400", "imported", *GLM, "model_unavailable", 404, 400),
            ("10:03:00.000", "imported", *GLM, "timeout", None, 60_000),
        ],
        {"answered from the gateway's cache": 1, "refused by the gateway itself": 1},
        {"startTime": 1, "row": 1},
    ),
    (
        "litellm",
        "litellm_callbacks.jsonl",
        [
            ("10:00:00.800", "imported", "api.deepseek.com", "deepseek-chat", "rate_limited", 429, 800),
            ("10:00:12.000", "imported", "api.deepseek.com", "deepseek-chat", "empty_output", 200, 2000),
        ],
        {},
        {},
    ),
    (
        "litellm",
        "litellm_errors.json",
        [
            ("10:00:01.000", "imported", *GPT9, "model_unavailable", 404, 1000),
            ("10:00:05.250", "imported", *GPT9, "network", None, 5250),
        ],
        {},
        {},
    ),
    (
        "otel",
        "otel.json",
        [
            ("10:00:00.900", "box-7", *GPT9, "ok", 200, 900),
            ("10:00:05.120", "box-7", *GPT9, "model_unavailable", 404, 120),
            ("10:00:39.000", "box-7", *GPT9, "timeout", None, 30_000),
            ("10:00:50.040", "box-7", *GPT9, "rate_limited", 429, 40),
        ],
        {"a span that is no call to a model": 1, "a span of an agent or a tool": 1},
        {"model": 1},
    ),
    (
        "loglines",
        "app.log",
        [
            ("10:00:00.120", "imported", *GLM, "ok", 200, 2400),
            ("10:00:04.000", "router-2", "groq", "llama-9", "model_unavailable", 400, None),
            ("10:00:05.250", "imported", *GLM, "model_unavailable", 404, 310),
            ("10:00:06.000", "imported", "groq", "llama-3.3-70b-versatile", "timeout", None, 30_000),
            ("10:00:09.000", "imported", "groq", "llama-3.3-70b-versatile", "rate_limited", 429, None),
        ],
        {"a line without [llm:name]": 1},
        {"status": 1, "time": 1},
    ),
    (
        "csv",
        "calls.csv",
        [
            ("10:00:00.000", "batch-1", *GLM, "ok", 200, 1500),
            ("10:00:09.000", "batch-1", *GLM, "model_unavailable", 404, 300),
        ],
        {},
        {"status": 1, "model": 2},
    ),
    (
        "nginx",
        "nginx.log",
        [
            ("10:00:01.000", "imported", *AZURE, "ok", 200, 1204),
            ("10:00:04.000", "imported", *AZURE, "server_error", 502, 3000),
            ("10:00:05.000", "imported", *AZURE, "cancelled", None, 61_500),
        ],
        {"answered by the proxy itself": 1, "no model in it (--map model=… says where it stands)": 1},
        {"line": 1},
    ),
    (
        "envoy",
        "envoy.log",
        [
            ("10:00:01.500", "imported", *GEMINI, "ok", 200, 1500),
            ("10:00:10.250", "imported", *GEMINI, "network", None, 250),
            ("10:00:40.020", "imported", *GEMINI, "cancelled", None, 20),
            ("10:00:50.030", "imported", *GEMINI, "rate_limited", 429, 30),
            ("10:01:20.000", "imported", *GEMINI, "timeout", None, 60_000),
        ],
        {"answered by the proxy itself": 1},
        {},
    ),
]


def setup_of(name: str) -> Setup:
    return SETUPS.get(name, lambda: read_setup([]))()


def read(path: Path) -> Iterator[tuple[LogLine, Any, Any]]:
    for line in LogFile(path):
        yield line, read_subject(line.subject), decode(line.subject, line.payload)


@pytest.mark.parametrize(("form", "name", "expected", "passed", "rejected"), EXPECTED, ids=[e[1] for e in EXPECTED])
def test_a_file_of_each_format_becomes_the_events_that_it_tells_of(
    form: str, name: str, expected: list[Any], passed: Any, rejected: Any, tmp_path: Path
) -> None:
    out, rejects = tmp_path / "out.jsonl", tmp_path / "rejects"
    done = import_file(form, CASES / name, out, setup_of(name), rejects=rejects)
    found = [
        (line.time[11:23], at.replica, at.target.provider, at.target.model, event.kind, event.status, event.took_ms)
        for line, at, event in read(out)
    ]
    assert found == expected
    assert (dict(done.passed), dict(done.rejected)) == (passed, rejected)
    assert done.rows == done.events + sum(passed.values()) + sum(rejected.values())
    noted = [json.loads(line) for line in rejects.read_text().splitlines()] if rejected else []
    assert len(noted) == sum(rejected.values())
    assert all(set(one) == {"row", "field", "why"} for one in noted)
    for line, _, event in read(out):
        assert event.at == line.time[:23] + "Z", "imported history carries its own time"
        assert event.id == line.headers["Nats-Msg-Id"]
        assert event.id.endswith(f"-{line.seq}")


@pytest.mark.parametrize(("form", "name"), [e[:2] for e in EXPECTED], ids=[e[1] for e in EXPECTED])
def test_what_people_wrote_and_keys_are_in_no_file_that_is_written(form: str, name: str, tmp_path: Path) -> None:
    written = tmp_path / "out.jsonl", tmp_path / "rejects"
    import_file(form, CASES / name, written[0], setup_of(name), rejects=written[1])
    for path in written:
        text = path.read_text() if path.exists() else ""
        assert [word for word in SECRETS if word in text] == [], path


@pytest.mark.parametrize(("form", "name"), [e[:2] for e in EXPECTED], ids=[e[1] for e in EXPECTED])
def test_importing_twice_gives_the_same_bytes_and_the_same_state(form: str, name: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    for out in (one, two):
        import_file(form, CASES / name, out, setup_of(name))
    assert one.read_bytes() == two.read_bytes()
    assert replay(LogFile(one)).fleet.digest() == replay(LogFile(two)).fleet.digest()


def test_rows_are_sorted_by_time_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"at": 1_790_000_000 + (n * 7919) % 5_000, "provider": "h", "model": f"m{n}", "status": 200}
            for n in range(5_000)]  # fmt: skip
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    import_file("jsonl", source, tmp_path / "whole.jsonl", read_setup([]))
    monkeypatch.setattr(Sorter.__init__, "__defaults__", (64,))
    spilled: list[int] = []
    spill = Sorter._spill

    def counted(self: Sorter) -> None:
        spilled.append(len(self._run))
        spill(self)

    monkeypatch.setattr(Sorter, "_spill", counted)
    done = import_file("jsonl", source, tmp_path / "runs.jsonl", read_setup([]))
    assert (tmp_path / "whole.jsonl").read_bytes() == (tmp_path / "runs.jsonl").read_bytes()
    times = [line.time for line in LogFile(tmp_path / "runs.jsonl")]
    assert times == sorted(times)
    assert done.unsorted > 0
    assert spilled
    assert max(spilled) == 64, "no more lines than that are ever held"


def test_a_dry_run_says_what_would_happen_and_writes_nothing(tmp_path: Path) -> None:
    done = sickbay("import", "litellm", str(CASES / "litellm_spend.jsonl"), "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["rows"], facts["events"], facts["out"]) == (8, 4, None)
    assert facts["rejected"] == {"startTime": 1, "row": 1}
    assert "rejected: row 7, startTime" not in facts
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_file_and_the_rejects_and_overwrites_neither(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl.zst"
    arguments = ("import", "loglines", str(CASES / "app.log"), "-o", str(out))
    done = sickbay(*arguments)
    assert done.returncode == 0, done.stderr
    assert "5 written to" in done.stdout
    assert "rejected: row 7, time: there is none" in done.stderr
    assert len((tmp_path / "out.jsonl.zst.rejects").read_text().splitlines()) == 2
    again = sickbay(*arguments)
    assert again.returncode == 1
    assert "exists already" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("nonsense", "x.log", "-o", "o"), 2, "FORMAT"),
        (("jsonl", "x.log"), 2, "--out"),
        (("jsonl", "x.log", "-o", "o", "--map", "weather=w"), 2, "weather"),
        (("jsonl", "x.log", "-o", "o", "--map", "model=a~("), 2, "regular expression"),
        (("jsonl", "x.log", "-o", "o", "--zone", "Mars/Olympus"), 2, "zone"),
        (("jsonl", "x.log", "-o", "o", "--set", "model"), 2, "NAME=VALUE"),
        (("jsonl", "x.log", "-o", "o"), 1, "x.log"),
        (("sickbay", str(CASES / "app.log"), "-o", "o"), 1, "line 1"),
    ],
)
def test_a_mistake_is_named_with_what_is_accepted(
    arguments: tuple[str, ...], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = sickbay("import", *arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_file_in_which_nothing_is_a_call_says_so(tmp_path: Path) -> None:
    for text, says in (("", "has no rows"), ("INFO started\n", "no row of")):
        (tmp_path / "a.log").write_text(text)
        done = sickbay("import", "loglines", str(tmp_path / "a.log"), "-o", str(tmp_path / "o.jsonl"))
        assert done.returncode == 1
        assert says in done.stderr
        assert not (tmp_path / "o.jsonl").exists()


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_an_exported_log_is_imported_to_the_same_digest(ending: str, tmp_path: Path) -> None:
    """With poison, a gap, operators, policies, probes and a beginning that was trimmed."""
    source = tmp_path / "log.jsonl.gz"
    with open_writer(source) as write:
        for each in history(3, 400):
            if each.seq in (1, 2, 77):
                continue
            if isinstance(each.event, PolicyChanged):
                subject = POLICY_SUBJECT
            elif isinstance(each.event, Override):
                assert each.scope is not None
                subject = override_subject(each.scope)
            else:
                assert each.target is not None
                named = probe_subject if isinstance(each.event, ProbeResult) else outcome_subject
                subject = named(each.replica, each.target)
            body = b"\xff no json" if each.seq == 99 else encode(each.event)
            write(LogLine.of(each.seq, each.time_ms * 1_000_000 + 12_345, subject, {"Nats-Msg-Id": "i"}, body))
    out = tmp_path / f"copy.jsonl{ending}"
    done = copy_log(source, out)
    one, two = replay(LogFile(source)), replay(LogFile(out))
    assert done.events == one.events == two.events
    assert one.poison["body"] > 1
    assert one.gaps == 1
    assert one.fleet.digest() == two.fleet.digest()
    assert list(LogFile(source)) == list(LogFile(out))


def test_a_copy_of_what_is_no_log_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "log.jsonl"
    with open_writer(source) as write:
        for seq in (2, 1):
            write(LogLine.of(seq, 1_790_000_000_000_000_000, "sickbay.policy", None, b"{}"))
    with pytest.raises(LogFileError, match="rising order"):
        copy_log(source, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_compressed_source_and_a_csv_of_the_spend_table_are_read_alike(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (CASES / "litellm_spend.jsonl").read_text().splitlines()[:4]]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    for row in rows:
        writer.writerow({k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()})
    table, packed = tmp_path / "spend.csv", tmp_path / "spend.jsonl.gz"
    table.write_text(text.getvalue())
    packed.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    outs = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for source, out in zip((table, packed), outs, strict=True):
        import_file("litellm", source, out, setup_of("litellm_spend.jsonl"))
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert len(outs[0].read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "events", "rejected"),
    [
        ('[{"at":1790000000,"provider":"h","model":"m","status":200}]', 1, 0),
        ('[\n {"at":1790000000,"provider":"h","model":"m","status":200},\n {"at":', 1, 1),
        ('{"at":1790000000,"provider":"h","model":"m","status":200}\nnot json\n[]\n{"at":1790000001}\n', 1, 2),
        ('{\n "at": 1790000000,\n "provider": "h", "model": "m", "status": 200\n}', 1, 0),
        ('{"broken\n{"at":1790000000,"provider":"h","model":"m","status":200}\n', 1, 1),
        ("at;provider;model;status\n1790000000;h;m;200\n", 1, 0),
        ('at,provider,model,status\n1790000000,h,m,200,extra\n1790000000,h,m,200\n"1790000000,h', 1, 2),
        ("\ufeffat\tprovider\tmodel\tstatus\n1790000000\th\tm\t503\n", 1, 0),
        ('{"at":1790000000,"provider":"h","model":"m"}', 0, 1),
        ('{"at":1790000000,"provider":"h","model":"m","status":200,"took_ms":1e12}', 0, 1),
        ('{"at":1790000000,"provider":"h","model":"' + "m" * 300 + '","status":200}', 0, 1),
        ('{"at":1790000000,"provider":"h","model":"m","kind":"weather"}', 0, 1),
        ('{"at":1790000000,"provider":"h","model":"m","kind":"overloaded","rank":1,"route":"brief"}', 1, 0),
    ],
)
def test_whole_rows_are_read_around_broken_ones(text: str, events: int, rejected: int, tmp_path: Path) -> None:
    source = tmp_path / "rows"
    source.write_text(text, encoding="utf-8")
    done = import_file("jsonl", source, tmp_path / "out.jsonl", read_setup([]))
    assert (done.events, sum(done.rejected.values())) == (events, rejected), done


def test_a_line_that_is_too_long_is_refused_and_the_next_one_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    from sickbay.importers import source as reader

    monkeypatch.setattr(reader, "LINE_BYTES_MAX", 200)
    good = '{"at":1790000000,"provider":"h","model":"m","status":200}'
    (tmp_path / "rows").write_text(good + "\n" + "{" + "x" * 1000 + "\n" + good + "\n")
    done = import_file("jsonl", tmp_path / "rows", None, read_setup([]))
    assert (done.events, dict(done.rejected)) == (2, {"row": 1})


@pytest.mark.parametrize(
    "data",
    [gzip.compress(b'{"at":1}' * 5_000, mtime=0)[:-30], b"\x28\xb5\x2f\xfd nonsense"],
    ids=["cut gzip", "no zstd"],
)
def test_damaged_compression_is_said_in_one_line(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(data)
    done = sickbay("import", "jsonl", str(tmp_path / "rows"), "-o", str(tmp_path / "out.jsonl"))
    assert done.returncode == 1
    assert "unexpected" not in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-11-23T10:00:00.123456789Z", 1_795_428_000_123),
        ("2026-11-23 11:00:00,123+01:00", 1_795_428_000_123),
        ("2026-11-23 11:00:00.123", 1_795_428_000_123),
        ("2026-11-23 10:00:00.123 UTC", 1_795_428_000_123),
        ("[23/Nov/2026:11:00:00 +0100]", 1_795_428_000_000),
        (1_795_428_000, 1_795_428_000_000),
        (1_795_428_000.123, 1_795_428_000_123),
        ("1795428000.123", 1_795_428_000_123),
        (1_795_428_000_123, 1_795_428_000_123),
        (1_795_428_000_123_456, 1_795_428_000_123),
        ("1795428000123456789", 1_795_428_000_123),
    ],
)
def test_times_are_read_in_every_usual_form(value: Any, expected: int) -> None:
    assert time_ms(value, ZoneInfo("Europe/Berlin")) == expected


@pytest.mark.parametrize(
    "value", ["", None, "soon", True, float("nan"), 12, "1999-01-01T00:00:00Z", -5, "23/Foo/2026:1"]
)
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(RowRefused, match="at"):
        time_ms(value)


def test_lengths_and_statuses_are_read_with_their_units() -> None:
    assert [duration_ms(v, 1000.0, "f") for v in (1.5, "1.5", "30s", "250 ms", "2m", "900us", "-", "", None)] == [
        1500, 1500, 30_000, 250, 120_000, 0.9, None, None, None,
    ]  # fmt: skip
    assert [status_value(v) for v in (404, "404", "502, 200", "502 : 503", "-", "000", 0, None, "404.0")] == [
        404, 404, 200, 503, None, None, None, None, 404,
    ]  # fmt: skip
    lengths: list[Any] = ["fast", "5 parsecs", True, [1]]
    for wrong in lengths:
        with pytest.raises(RowRefused):
            duration_ms(wrong, 1.0, "f")
    statuses: list[Any] = ["teapot", 99, "600", True]
    for wrong in statuses:
        with pytest.raises(RowRefused):
            status_value(wrong)


def test_the_providers_own_json_is_found_in_a_librarys_sentence() -> None:
    assert json.loads(inner("Error code: 404 - {'error': {'message': \"it's gone\", 'param': None}}")) == {
        "error": {"message": "it's gone", "param": None}
    }
    assert json.loads(inner('litellm.X: YException - {"error": 1} more')) == {"error": 1}
    for text in ("plain", "{}", "a {b", "x {__import__('os')}", "deep " + "{" * 5000 + "}" * 5000):
        assert inner(text) == text


def test_a_map_names_columns_paths_patterns_and_constants(tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text(
        '[fields]\nat = "when"\nmodel = {column = "request.path", match = "/m/([^/]+)"}\nbody = ["a", "b"]\n'
        '[set]\nreplica = "r9"\n[rename]\nacme = "api.acme.example"\n'
    )
    setup = read_setup([str(tmp_path / "map.toml"), "status=answer.code"], constants=["provider=acme"])
    call = setup.fields.call(
        {"when": 1_790_000_000, "request": {"path": "/v1/m/big/x"}, "answer": {"code": 503}}, setup
    )
    assert (call.model, call.provider, call.status, call.replica) == ("big", "api.acme.example", 503, "r9")
    with pytest.raises(InvalidValue, match="fields"):
        (tmp_path / "bad.toml").write_text("[columns]\nx = 1\n")
        read_setup([str(tmp_path / "bad.toml")])
    assert set(USUAL) >= {"at", "provider", "model", "replica", "status", "body", "took_ms", "took_s", "kind"}


def test_a_constant_provider_is_named_as_a_url_or_a_label_would_be() -> None:
    setup = read_setup([], constants=["provider=https://OpenRouter.ai/api/v1#team-a"])
    call = setup.fields.call({"at": 1_790_000_000, "model": "m", "status": 200}, setup)
    assert call.provider == "openrouter.ai#team-a"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["startTime", "endTime", "metadata", "model", "kwargs", "standard_logging_object", "error_information",
         "resourceSpans", "scopeSpans", "spans", "attributes", "key", "value", "stringValue", "at", "provider",
         "status", "body", "took_s", "response", "choices", "events", "cache_hit", "hidden_params", "error_class"]
    ), inner, max_size=6),
    max_leaves=30,
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ANYTHING, max_size=6), form=st.sampled_from(sorted(FORMATS)))
@example(
    rows=[{"resourceSpans": [{"scopeSpans": [{"spans": [None, {"attributes": [{"key": "gen_ai.x"}]}]}]}]}], form="otel"
)
@example(rows=[{"startTime": 1_790_000_000, "model": "a/b", "error_information": {"error_class": 5}}], form="litellm")
def test_no_content_of_a_file_is_more_than_a_reject(rows: list[Any], form: str, tmp_path: Path) -> None:
    source = tmp_path / "rows"
    source.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    done = import_file(form, source, None, read_setup([]))
    assert done.rows == done.events + sum(done.passed.values()) + sum(done.rejected.values())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400), form=st.sampled_from(sorted(FORMATS)))
def test_no_bytes_break_an_import(data: bytes, form: str, tmp_path: Path) -> None:
    source = tmp_path / "rows"
    source.write_bytes(data.replace(b"\x1f\x8b", b"").replace(b"\x28\xb5\x2f\xfd", b""))
    done = import_file(form, source, None, read_setup([], template=NGINX if form == "nginx" else None))
    assert done.rows == done.events + sum(done.passed.values()) + sum(done.rejected.values())


def test_every_imported_event_is_read_back_by_the_codec(tmp_path: Path) -> None:
    for form, name, *_ in EXPECTED:
        out = tmp_path / f"{name}.out"
        import_file(form, CASES / name, out, setup_of(name))
        done = replay(LogFile(out))
        assert not done.poison
        assert done.fleet.repeated == 0
        with pytest.raises(Poison):
            decode("sickbay.nonsense", b"{}")
