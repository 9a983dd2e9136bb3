"""The OpenAPI document is true: a fuzzer made of it finds no answer that it does not describe, and no fault."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from http_rig import House, by
from sickbay.api.ingest import Outcome
from sickbay.api.openapi import OPERATIONS, openapi_document
from sickbay.api.shapes import EXAMPLES
from sickbay_events import CallOutcome, Decision
from waiting import patience

EXAMPLES_EACH = int(os.environ.get("SICKBAY_FUZZ_EXAMPLES", "12"))
"""Requests for each operation and mode; more of them in the environment for a long run."""
SEED = int(os.environ.get("SICKBAY_FUZZ_SEED", "1"))
ENDLESS = "/v1/watch"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    # Nobody may read without a token here, so that the fuzzer sees what a document without `security` would hide.
    with House(tmp_path_factory.mktemp("http"), http_anonymous="none") as running:
        yield running


@pytest.fixture(scope="module")
def schema(house: House) -> Any:
    found = schemathesis.openapi.from_dict(openapi_document())
    found.config.update(base_url=house.url)
    return found


@pytest.mark.filterwarnings("default")  # a warning of the fuzzer's own libraries is none of ours
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("row", [row for row in OPERATIONS if row.path != ENDLESS], ids=lambda row: row.name)
def test_no_request_is_answered_otherwise_than_the_document_says(schema: Any, row: Any, mode: GenerationMode) -> None:
    """Good requests and bad ones: no fault, no undocumented status, type, header or member, no bad one taken."""
    if mode is GenerationMode.NEGATIVE and row.query is None and not row.body:
        return  # there is nothing in it that could be wrong
    operation = schema[row.path][row.method.upper()]
    who = "ana" if "operate" in row.roles or "read" in row.roles else "edge"
    headers = by(who) if row.roles else {}

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES_EACH,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def fuzz(case: schemathesis.Case[Any]) -> None:
        # What a schema cannot say is refused by its field: a name's bytes, an end that is given twice, an empty reason.
        case.call_and_validate(headers=headers, timeout=patience(15), excluded_checks=[positive_data_acceptance])

    fuzz()


def test_the_fuzzer_would_find_a_fault(house: House) -> None:
    """A document that promises something else is found out: the checks above can fail."""
    wrong = openapi_document() | {}
    wrong = msgspec.json.decode(msgspec.json.encode(wrong))
    wrong["components"]["schemas"]["Session"]["properties"]["name"] = {"type": "integer"}
    schema = schemathesis.openapi.from_dict(wrong)
    schema.config.update(base_url=house.url)
    with pytest.raises(BaseExceptionGroup, match=r"(?s)failure"):
        schema["/v1/session"]["GET"].Case().call_and_validate(timeout=patience(15))


def test_every_example_is_taken_and_every_answer_like_its_example(house: House) -> None:
    """What the document shows can be sent as it stands."""
    for action in ("hold", "allow", "clear"):
        assert house.http.post(f"/v1/{action}", json=EXAMPLES[action], headers=by("ana")).status_code == 200
    for name, count in (("outcome", 1), ("batch", 2)):
        found = house.http.post("/v1/outcomes", json=EXAMPLES[name], headers=by("edge"))
        assert found.json()["accepted"] == count and found.json().keys() == EXAMPLES["Taken"].keys()
    decided = house.http.get("/v1/decide", params={"provider": "h", "model": "m"}, headers=by("edge")).json()
    assert decided.keys() == EXAMPLES["Decision"].keys() == set(Decision.__struct_fields__)


def test_an_item_has_every_field_of_an_outcome() -> None:
    """A field that routers gain is a field here too."""
    assert set(Outcome.__struct_fields__) == {"provider", "model", *CallOutcome.__struct_fields__}
    assert set(openapi_document()["components"]["schemas"]["Outcome"]["properties"]) == set(Outcome.__struct_fields__)
