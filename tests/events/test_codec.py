"""The codec (Rule 2): every event there and back, and everything unreadable is poison with a reason."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sickbay_events import (
    KINDS,
    CallAnswered,
    CallOutcome,
    CallsRefused,
    DerivedEvent,
    Event,
    HealthChanged,
    Lease,
    Override,
    Poison,
    Policy,
    PolicyChanged,
    ProbeResult,
    Released,
    Scope,
    Skipped,
    Target,
    TargetHeld,
    WarningRaised,
    decode,
    derived_subject,
    encode,
    outcome_subject,
    override_subject,
    probe_subject,
    read_subject,
)
from sickbay_events.codec import POLICY_SUBJECT, decode_outcomes, derived_id, encode_derived
from sickbay_events.outcome import DAY_MS

TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
OUTCOME = outcome_subject("router-1", TARGET)
PROBE = probe_subject("router-1", TARGET)
OVERRIDE = override_subject(Scope("openrouter.ai"))

TEXT = st.none() | st.text(max_size=20)
DURATION = st.none() | st.integers(0, DAY_MS) | st.floats(0, DAY_MS)
NUMBER = st.integers(-(2**53), 2**53)
COMMON = {"id": TEXT, "at": TEXT}
TRIAL = st.none() | st.lists(st.builds(Lease, rule=st.text(max_size=9), began_seq=NUMBER), max_size=3)
SKIPPED = st.none() | st.lists(st.builds(Skipped, *[st.text(max_size=9)] * 3), max_size=2)
FIELDS: dict[type[Event], dict[str, st.SearchStrategy[Any]]] = {
    CallOutcome: {
        "kind": st.sampled_from(list(KINDS)),
        "status": st.none() | st.integers(0, 999),
        "took_ms": DURATION,
        "ttft_ms": DURATION,
        "queued_ms": DURATION,
        "limit_ms": DURATION,
        "scope": st.sampled_from([None, "host", "credential", "model", "none"]),
        "seen_seq": st.none() | NUMBER,
        "trial": TRIAL,
        "forced": st.booleans(),
        "route": TEXT,
        "rank": NUMBER,
        "skipped": SKIPPED,
        "retry_after_s": st.none() | st.floats(0, 1e9),
        "retry_after_from": st.sampled_from([None, "header", "body"]),
        "signature": TEXT,
        "checkable": st.booleans(),
        "attributable": st.booleans(),
        "stream": st.booleans(),
        "charset": TEXT,
        "code": TEXT,
        "request_hash": TEXT,
        "detail": TEXT,
    },
    CallAnswered: {"ttft_ms": DURATION, "queued_ms": DURATION, "seen_seq": st.none() | NUMBER, "trial": TRIAL},
    CallsRefused: {
        "count": st.integers(1, 2**53),
        "rule": st.text(max_size=9),
        "minute": TEXT,
        "alone_until_ms": st.none() | st.integers(0, 2**53),
    },
    ProbeResult: {
        "level": st.sampled_from(["liveness", "readiness"]),
        "ok": st.booleans(),
        "kind": st.sampled_from(list(KINDS)),
        "status": st.none() | st.integers(0, 999),
        "took_ms": DURATION,
        "limit_ms": DURATION,
        "queued_ms": DURATION,
        "usage": st.booleans(),
        "signature": TEXT,
        "trial": TRIAL,
        "seen_seq": st.none() | NUMBER,
        "interval_s": st.none() | st.floats(0, 1e6),
    },
    Override: {
        "action": st.sampled_from(["hold", "allow", "clear"]),
        "reason": st.text(min_size=1, max_size=20),
        "actor": st.text(min_size=1, max_size=20),
        "until": st.just("2026-11-30T12:00:00Z"),
    },
    PolicyChanged: {"policy": st.just(Policy().to_data()), "actor": st.text(max_size=9), "reason": st.text(max_size=9)},
}
SUBJECT_OF = {ProbeResult: PROBE, Override: OVERRIDE, PolicyChanged: POLICY_SUBJECT}


def events(event: type[Event]) -> st.SearchStrategy[Any]:
    return st.builds(event, **FIELDS[event], id=TEXT, at=TEXT)


OUTCOMES = events(CallOutcome)
ANSWERS = events(CallAnswered)
REFUSALS = events(CallsRefused)


@pytest.mark.parametrize("event", FIELDS, ids=lambda event: event.__name__)
def test_every_event_comes_back_from_its_bytes(event: type[Event]) -> None:
    @settings(max_examples=100, deadline=None)
    @given(events(event))
    def comes_back(sent: Event) -> None:
        data = encode(sent)
        assert b"\n" not in data, "one line, so that a person can read it"
        assert decode(SUBJECT_OF.get(event, OUTCOME), data) == sent

    comes_back()


@pytest.mark.parametrize("event", FIELDS, ids=lambda event: event.__name__)
def test_every_field_of_an_event_is_drawn_by_the_test_above(event: type[Event]) -> None:
    """A field that is added later must be added above too, or its round trip is not shown."""
    assert set(event.__struct_fields__) - set(FIELDS[event]) - {"id", "at"} <= {"type", "v"}


def test_an_outcome_needs_nothing_but_its_kind() -> None:
    event = decode(OUTCOME, b'{"kind":"model_unavailable"}')
    assert event == CallOutcome(kind="model_unavailable")
    assert event.checkable, "a raw publisher's share is bad / all, which errs towards calling"
    assert not event.attributable
    assert encode(event) == b'{"kind":"model_unavailable"}', "what has its default is left out"


def test_the_subject_names_replica_and_scope() -> None:
    assert OUTCOME == "sickbay.outcome.router-1.openrouter=2Eai.team-a.z-ai/glm-5=2E3"
    assert read_subject(OUTCOME) == ("outcome", "router-1", TARGET, None)
    assert read_subject(PROBE) == ("probe", "router-1", TARGET, None)
    assert read_subject(OVERRIDE) == ("override", "", None, Scope("openrouter.ai"))
    assert read_subject(POLICY_SUBJECT) == ("policy", "", None, None)


@pytest.mark.parametrize("type_", ["outcome", "answered", "refused"])
def test_the_type_says_which_event_and_unknown_fields_do_no_harm(type_: str) -> None:
    body = {"type": type_, "kind": "ok", "count": 3, "rule": "breaker", "v": 1, "later": {"a": [1, 2]}}
    event = decode(OUTCOME, json.dumps(body).encode())
    assert type(event) is {"outcome": CallOutcome, "answered": CallAnswered, "refused": CallsRefused}[type_]


# Not JSON's limits but ours: a number no decoder holds, in a field nobody reads, is still no harm.
@pytest.mark.parametrize("value", [b"1e999", b"9" * 5000, b'"\xff"', b"null", b"[[{}]]"])
def test_an_unknown_field_does_no_harm_whatever_it_holds(value: bytes) -> None:
    for body in (b'{"kind":"ok","later":%s}' % value, b'{"type":"answered","later":%s}' % value):
        assert not isinstance(decode(OUTCOME, body), Poison)
        assert decode_outcomes([body, b'{"kind":"ok"}']) == [decode(OUTCOME, body), CallOutcome(kind="ok")]


POISON: list[tuple[str, str, bytes]] = [
    ("type", OUTCOME, b'{"type":"someday","kind":"ok"}'),
    ("type", OUTCOME, b'{"type":7,"kind":"ok"}'),
    ("type", OUTCOME, b'{"type":null,"kind":"ok"}'),
    ("type", PROBE, b'{"type":"outcome","level":"liveness","ok":true}'),
    ("type", OVERRIDE, b'{"type":"probe","action":"clear","reason":"r","actor":"a"}'),
    ("kind", OUTCOME, b'{"kind":"someday"}'),
    ("kind", OUTCOME, b'{"kind":null}'),
    ("kind", OUTCOME, b'{"kind":["ok"]}'),
    ("kind", OUTCOME, b"{}"),
    ("kind", PROBE, b'{"level":"liveness","ok":true,"kind":"someday"}'),
    ("version", OUTCOME, b'{"kind":"ok","v":2}'),
    ("version", OUTCOME, b'{"kind":"not yet known","v":2,"took_ms":-1}'),
    ("version", OUTCOME, b'{"type":"not yet known","v":3}'),
    ("version", PROBE, b'{"v":2}'),
    ("version", OVERRIDE, b'{"v":2}'),
    ("version", POLICY_SUBJECT, b'{"v":2}'),
    ("body", OUTCOME, b""),
    ("body", OUTCOME, b"   "),
    ("body", OUTCOME, b"ok"),
    ("body", OUTCOME, b"[]"),
    ("body", OUTCOME, b"null"),
    ("body", OUTCOME, b'{"kind":"ok"'),
    ("body", OUTCOME, b'{"kind":"ok"}{"kind":"ok"}'),
    ("body", OUTCOME, b'{"kind":"ok","status":"200"}'),
    ("body", OUTCOME, b'{"kind":"ok","status":9007199254740993}'),
    ("body", OUTCOME, b'{"kind":"ok","retry_after_s":1e999}'),
    ("body", OUTCOME, b'{"kind":"ok","code":"\xff"}'),
    ("body", OUTCOME, b'{"kind":"ok","trial":[{"rule":"breaker"}]}'),
    ("body", OUTCOME, b'{"kind":"ok","later":%s%s}' % (b"[" * 100_000, b"]" * 100_000)),
    ("body", OUTCOME, b'{"kind":"ok","v":0}'),
    ("body", OUTCOME, b'{"kind":"ok","v":true}'),
    ("body", OUTCOME, b'{"type":"refused","rule":"breaker","count":0}'),
    ("body", PROBE, b'{"level":"liveness"}'),
    ("duration", OUTCOME, b'{"kind":"ok","took_ms":-1}'),
    ("duration", OUTCOME, b'{"kind":"ok","ttft_ms":86400001}'),
    ("duration", OUTCOME, b'{"kind":"ok","queued_ms":86400000.5}'),
    ("duration", OUTCOME, b'{"kind":"ok","limit_ms":1e300}'),
    ("duration", OUTCOME, b'{"type":"answered","ttft_ms":-0.1}'),
    ("duration", PROBE, b'{"level":"liveness","ok":true,"took_ms":-1}'),
    ("override", OVERRIDE, b'{"action":"hold","reason":"r","actor":"a"}'),
    ("override", OVERRIDE, b'{"action":"allow","reason":"r","actor":"a","until":"tomorrow"}'),
    ("override", OVERRIDE, b'{"action":"hold","reason":"r","actor":"a","until":"2026-11-30T12:00:00"}'),
    ("override", OVERRIDE, b'{"action":"clear","actor":"a"}'),
    ("override", OVERRIDE, b'{"action":"clear","reason":"","actor":"a"}'),
    ("override", OVERRIDE, b'{"action":"clear","reason":"r"}'),
    ("override", OVERRIDE, b'{"action":"someday","reason":"r","actor":"a"}'),
    ("policy", POLICY_SUBJECT, b"{}"),
    ("policy", POLICY_SUBJECT, b'{"policy":[]}'),
    ("policy", POLICY_SUBJECT, b'{"policy":{"rejections":{"threshold":0}}}'),
    ("policy", POLICY_SUBJECT, b'{"policy":{"someday":{}}}'),
    ("subject", "sickbay.outcome.r.h.m", b'{"kind":"ok"}'),
    ("subject", "sickbay.outcome.r.h.=.m.x", b'{"kind":"ok"}'),
    ("subject", "sickbay.outcome.r.=.=.m", b'{"kind":"ok"}'),
    ("subject", "sickbay.outcome.r.h.=.=", b'{"kind":"ok"}'),
    ("subject", "sickbay.outcome.r.h.=.=6d", b'{"kind":"ok"}'),
    ("subject", "sickbay.outcome.r.h=23a.=.m", b'{"kind":"ok"}'),
    ("subject", "sickbay.outcome", b'{"kind":"ok"}'),
    ("subject", "sickbay.someday.r.h.=.m", b'{"kind":"ok"}'),
    ("subject", "other.outcome.r.h.=.m", b'{"kind":"ok"}'),
    ("subject", "sickbay.override", b"{}"),
    ("subject", "sickbay.policy.x", b"{}"),
    ("subject", "", b"{}"),
]


@pytest.mark.parametrize(("reason", "subject", "data"), POISON, ids=lambda value: str(value)[:40])
def test_poison_says_why(reason: str, subject: str, data: bytes) -> None:
    with pytest.raises(Poison) as caught:
        decode(subject, data)
    assert caught.value.reason == reason
    assert caught.value.why
    assert len(caught.value.why) < 2_000, "a dead letter's reason stays short, whatever came"


def test_the_edges_of_a_duration_are_accepted() -> None:
    body = b'{"kind":"ok","took_ms":0,"ttft_ms":86400000,"queued_ms":0.0,"limit_ms":null}'
    assert decode(OUTCOME, body) == CallOutcome(kind="ok", took_ms=0, ttft_ms=DAY_MS, queued_ms=0.0)


def test_a_clear_needs_no_end() -> None:
    event = decode(OVERRIDE, b'{"action":"clear","reason":"fixed","actor":"ops"}')
    assert event == Override(action="clear", reason="fixed", actor="ops")


def _alone(data: bytes) -> Event | tuple[str, str]:
    try:
        return decode(OUTCOME, data)
    except Poison as poison:
        return poison.reason, poison.why


def _together(payloads: list[bytes]) -> list[Any]:
    return [(event.reason, event.why) if isinstance(event, Poison) else event for event in decode_outcomes(payloads)]


PAYLOADS = st.one_of(
    OUTCOMES.map(encode),
    (ANSWERS | REFUSALS).map(encode),
    st.sampled_from([data for _, subject, data in POISON if subject == OUTCOME and len(data) < 1_000]),
    st.sampled_from([b"", b" ", b"\t", b"\r", b"\n", b"{", b"}", b'{"kind":"ok",', b'"status":3}', b'{"kind":"ok"}\n']),
    st.sampled_from([b'{"kind":"ok"} {"kind":"ok"}', b'{"a":{}', b'{"a":[{}', b'{"kind":\n"ok"}', b' {"kind":"ok"}']),
    st.binary(max_size=30),
)


@settings(max_examples=250, deadline=None)
@given(st.lists(PAYLOADS, max_size=6))
@example([b'{"kind":"ok",', b'"status":3}{"kind":"ok"}'])  # Two halves and a whole: as many events as payloads.
@example([b" ", b'{"kind":"ok"}{"kind":"timeout"}'])
@example([b'{"a":{}', b'{"kind":"ok"}'])
@example([b'{"kind":"ok"}'] * 3)
def test_decoding_many_is_decoding_one_by_one(payloads: list[bytes]) -> None:
    """An event at its neighbour's sequence would be folded for the wrong target."""
    assert _together(payloads) == [_alone(data) for data in payloads]


def test_a_payload_nested_too_deep_is_poison_and_its_neighbours_are_read() -> None:
    deep = b'{"kind":"ok","later":%s%s}' % (b"[" * 100_000, b"]" * 100_000)
    first, middle, last = decode_outcomes([b'{"kind":"ok"}', deep, b'{"kind":"timeout"}'])
    assert (first, last) == (CallOutcome(kind="ok"), CallOutcome(kind="timeout"))
    assert isinstance(middle, Poison)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = sorted({name for fields in FIELDS.values() for name in fields} | {"type", "v", "id", "at"})
WORD = st.sampled_from(["ok", "outcome", "answered", 1, "hold", "liveness"])
NEARLY = st.dictionaries(st.sampled_from(NAMES), JSON | WORD, max_size=8)
SUBJECTS = st.sampled_from([OUTCOME, PROBE, OVERRIDE, POLICY_SUBJECT]) | st.text(st.characters(), max_size=40)


@settings(max_examples=500, deadline=None)
@given(SUBJECTS, st.binary(max_size=60) | NEARLY.map(lambda body: json.dumps(body).encode()))
def test_nothing_that_arrives_raises_anything_but_poison(subject: str, data: bytes) -> None:
    try:
        event = decode(subject, data)
    except Poison as poison:
        assert poison.reason
    else:
        assert decode(subject, encode(event)) == event


CAUSE: dict[str, Any] = {"cause_seq": 7, "time_ms": 1_000}
DERIVED: list[DerivedEvent] = [
    TargetHeld(scope=TARGET.scope, rule="quarantine", began_seq=7, end_ms=601_000, numbers={"strikes": 2}, **CAUSE),
    Released(scope=TARGET.scope, rule="throttle", began_seq=5, end_ms=9, by="success", **CAUSE),
    HealthChanged(scope=TARGET.scope, rule="health", old="healthy", new="quarantined", **CAUSE),
    WarningRaised(scope=Scope("openrouter.ai"), rule="pipeline_suspect", replica="r1", **CAUSE),
]


@pytest.mark.parametrize("event", DERIVED, ids=lambda event: type(event).__name__)
def test_a_derived_event_reads_well_and_has_one_id_per_cause(event: DerivedEvent) -> None:
    body = json.loads(encode_derived(event, "log-1"))
    assert body["provider"] == event.scope.provider
    assert body["id"] == derived_id(event, "log-1") != derived_id(event, "log-2")
    assert body["at"].endswith("Z")
    assert derived_subject(event) == f"sickbay.{body['type']}.{event.scope.key}"
    assert msgspec.json.decode(encode_derived(event, "log-1")) == body


def test_events_of_one_cause_have_different_ids() -> None:
    ids = [derived_id(event, "log-1") for event in DERIVED]
    assert len(set(ids)) == len(ids)
