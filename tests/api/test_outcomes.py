"""Outcomes by HTTP: nothing that was accepted is lost, nothing counts twice, nothing foreign gets into the log."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from operator import gt
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_rig import TARGET, House, by
from sickbay.api.ingest import ITEMS_MAX
from sickbay.api.sender import ACK_S
from waiting import patience, until_sync

OK = {**TARGET, "kind": "ok"}
NDJSON = {"content-type": "application/x-ndjson"}
JSON = {"content-type": "application/json"}
KEY = "-".join(("sk", "abcdefghijklmnopqrstuvwx"))
SECRET_TEXT = "Dear model, my password is hunter2"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("http")) as running:
        yield running


def test_an_answer_means_that_the_log_has_it(house: House) -> None:
    """One object, an array and NDJSON: what is answered as accepted can be read in the log at once, under the token's
    replica."""
    headers = by("edge")
    one = house.http.post("/v1/outcomes", json={**OK, "id": "one-1", "took_ms": 12.4}, headers=headers)
    many = house.http.post("/v1/outcomes", json=[{**OK, "id": f"many-{n}"} for n in range(3)], headers=headers)
    lines = b'{"provider":"h","model":"m","kind":"ok","id":"line-1"}\n\r\n \n{"provider":"h","model":"m","kind":"ok"}'
    ndjson = house.http.post("/v1/outcomes", content=lines, headers={**headers, **NDJSON})
    assert [found.json() for found in (one, many, ndjson)] == [
        {"accepted": count, "duplicates": 0, "rejected": []} for count in (1, 3, 2)
    ]
    log = [(subject, body) for subject, body in house.log() if ".edge-1." in subject]
    ids = [body["id"] for _, body in log]
    assert ids[:5] == ["one-1", "many-0", "many-1", "many-2", "line-1"] and len(ids[5]) >= 16
    assert log[0] == (
        "sickbay.outcome.edge-1.openrouter=2Eai.=.z-ai/glm-5=2E3",
        {"kind": "ok", "id": "one-1", "took_ms": 12},
    )


def test_what_is_sent_again_counts_once_and_another_ones_id_is_not_ours(house: House) -> None:
    """Dedupe is by replica and id: nobody can have the log take another replica's outcome for a repeat."""
    assert house.report({**OK, "id": "same"}, who="edge").json()["duplicates"] == 0
    assert house.report({**OK, "id": "same"}, who="edge").json() == {"accepted": 1, "duplicates": 1, "rejected": []}
    assert house.report({**OK, "id": "same"}, who="rob").json()["duplicates"] == 0
    assert sum(body.get("id") == "same" for _, body in house.log()) == 2


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"kind": "fine"}, "kind", "one of ok, model_unavailable"),
        ({"kind": None}, "kind", "one of ok"),
        ({"provider": ""}, "provider", "not empty"),
        ({"model": ""}, "model", "not empty"),
        ({"provider": "localhost:11434@victim"}, "provider", "which is the token's"),
        ({"provider": "[::1]:11434@victim#team-a"}, "provider", "which is the token's"),
        ({"model": "é" * 129}, "model", "256 bytes"),
        ({"provider": 3}, "provider", "str"),
        ({"took_ms": -1}, "took_ms", ">= 0"),
        ({"took_ms": 86_400_001}, "took_ms", "<= 86400000"),
        ({"status": "200"}, "status", "int"),
        ({"status": 1.5}, "status", "int"),
        ({"scope": "planet"}, "scope", "host, credential, model or none"),
        ({"retry_after_s": -3}, "retry_after_s", "0 or more"),
        ({"id": "two words"}, "id", "printable ASCII"),
        ({"id": "line\n"}, "id", "printable ASCII"),
        ({"id": "x\r\nNats-Rollup: all"}, "id", "printable ASCII"),
        ({"id": ""}, "id", "printable ASCII"),
        ({"id": "x" * 129}, "id", "printable ASCII"),
        ({"replica": "another"}, "replica", "one of the fields"),
        ({"messages": [{"role": "user", "content": SECRET_TEXT}]}, "messages", "one of the fields"),
        ({"trial": [{"rule": "breaker"}]}, "trial[0].began_seq", "required"),
        ({"skipped": [{"provider": "h", "model": "m", "reason": 3}]}, "skipped[0].reason", "str"),
        ({"trial": [{"rule": SECRET_TEXT, "began_seq": 1}]}, "trial[0].rule", "quarantine"),
        ({"skipped": [{"provider": "h", "model": "m", "reason": SECRET_TEXT}]}, "skipped[0].reason", "one word"),
        ({"signature": SECRET_TEXT}, "signature", "without spaces"),
        ({"at": SECRET_TEXT}, "at", "RFC 3339"),
        ({"v": 2}, "v", ""),
        ({"type": "refused"}, "type", ""),
    ],
)
def test_a_bad_item_is_refused_by_its_field_and_harms_no_other(
    house: House, change: dict[str, Any], field: str, says: str
) -> None:
    """207: the good one is in the log, the bad one is named by its place, its field and what would be right."""
    found = house.report(OK, {**OK, **change}, OK)
    assert found.status_code == 207, found.text
    body = found.json()
    assert (body["accepted"], len(body["rejected"])) == (2, 1)
    rejected = body["rejected"][0]
    assert (rejected["index"], rejected["field"]) == (1, field) and says in rejected["error"]
    alone = house.report({**OK, **change})
    assert alone.status_code == 422 and alone.headers["content-type"] == "application/problem+json"
    assert alone.json()["rejected"][0]["field"] == field and alone.json()["accepted"] == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[1", 400), (b"[" * 200_000, 400), (b"\xff", 422), (b"", 422), (b"null", 422), (b"[]", 422),
        (json.dumps([OK] * (ITEMS_MAX + 1)).encode(), 413), (b" " * (1 << 20) + b"{}", 413),
        (json.dumps({**OK, "detail": "x" * 40_000}).encode(), 422),
    ],
)  # fmt: skip
def test_a_body_that_is_none_or_too_large_is_refused_whole(house: House, body: bytes, status: int) -> None:
    """Limits of body, items and item, each with its own status, and nothing stored."""
    before = len(house.log())
    found = house.http.post("/v1/outcomes", content=body, headers={**by("edge"), **JSON})
    assert found.status_code == status and found.headers["content-type"] == "application/problem+json", found.text
    assert len(house.log()) == before


def test_foreign_text_gets_neither_into_the_log_nor_into_a_log(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """A prompt in a field of its own is refused, one hidden inside a known object is left out, a key in a detail is
    taken out; nothing of it is written down."""
    hidden = {"provider": "h", "model": "m", "reason": "held", "prompt": SECRET_TEXT}
    assert house.report({**OK, "prompt": SECRET_TEXT}).status_code == 422
    assert house.report({**OK, "kind": SECRET_TEXT}).status_code == 422
    done = house.report({**OK, "id": "hidden", "skipped": [hidden], "detail": f"key {KEY} is bad"})
    assert done.json()["accepted"] == 1
    body = next(body for _, body in house.log() if body.get("id") == "hidden")
    assert body["skipped"] == [{"provider": "h", "model": "m", "reason": "held"}]
    assert KEY[:6] not in body["detail"] and "bad" in body["detail"]
    everything = json.dumps(house.log()) + caplog.text
    assert "hunter2" not in everything and KEY not in everything


def test_a_body_that_does_not_come_is_not_waited_for(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who promises a body and sends nothing gets 408 in bounded time."""
    monkeypatch.setattr("sickbay.api.questions.BODY_S", 0.2)

    http = HTTPConnection("127.0.0.1", house.port, timeout=patience(15))
    http.putrequest("POST", "/v1/outcomes")
    for name, value in {**by("edge"), **JSON, "Content-Length": "2"}.items():
        http.putheader(name, value)
    http.endheaders(b"[")
    assert http.getresponse().status == 408
    http.close()


def test_an_outage_is_said_at_once_and_what_was_not_stored_is_sent_again(tmp_path: Path) -> None:
    """503 with Retry-After, the items by place and id, in bounded time, whether NATS is dead or silent; decide goes on
    from what is known and says stale; after it all of it is stored once."""
    with House(tmp_path) as house:
        house.held("known")
        items = [{**OK, "id": f"outage-{n}"} for n in range(5)]
        house.nats.pause()
        began = time.monotonic()
        silent = house.report(*items)
        took_s = time.monotonic() - began
        assert silent.status_code == 503 and ACK_S - 0.5 < took_s < ACK_S + 2, took_s
        assert [one["id"] for one in silent.json()["not_stored"]] == [one["id"] for one in items]
        house.nats.resume()
        until_sync(lambda: house.http.get("/readyz").status_code == 200, "it is fresh again")
        house.nats.kill9()
        until_sync(lambda: house.api.desk.link.client is None, "the connection is lost")
        for path in ("/v1/outcomes", "/v1/hold"):
            began = time.monotonic()
            dead = house.report(*items) if path == "/v1/outcomes" else house.act("hold", **TARGET, for_s=60)
            assert dead.status_code == 503 and int(dead.headers["retry-after"]) >= 1
            assert time.monotonic() - began < patience(1.0)
        for path in ("/v1/status", "/v1/history", "/v1/overview"):
            assert house.http.get(path).status_code == 503
        until_sync(lambda: house.http.get("/readyz").status_code == 503, "it says that it is stale")
        ready, said = house.http.get("/readyz").json(), house.decide("known")
        assert ready["age_s"] > 0 and "NATS" in ready["why"] and house.http.get("/healthz").status_code == 200
        assert (said["allowed"], said["reason"]) == (False, "held_by_operator")
        house.nats.restart()
        again = until_sync(lambda: _stored(house.report(*items)), "it is stored after the outage")
        assert again["accepted"] == 5
        until_sync(lambda: house.http.get("/readyz").status_code == 200, "it is fresh again")
        counted = Counter(body["id"] for _, body in house.log() if "id" in body)
        assert {one["id"]: counted[one["id"]] for one in items} == {one["id"]: 1 for one in items}


def _stored(found: httpx.Response) -> Any:
    return found.json() if found.status_code == 200 else None


def test_nothing_accepted_is_lost_while_nats_dies_and_comes_back(tmp_path: Path) -> None:
    """Four senders go on through three kills, each repeating a batch under its ids until it is accepted: in the end the
    log has every id once."""
    with House(tmp_path) as house:
        over = threading.Event()
        accepted: list[list[str]] = [[] for _ in range(4)]
        refused: Counter[int] = Counter()

        def send(sender: int) -> None:
            with httpx.Client(base_url=house.url, timeout=patience(15)) as http:
                batch = 0
                while not over.is_set():
                    ids = [f"s{sender}-{batch}-{n}" for n in range(20)]
                    items = [{**OK, "id": one} for one in ids]
                    while True:
                        found = http.post("/v1/outcomes", json=items, headers=by("edge"))
                        if found.status_code == 200:
                            break
                        refused[found.status_code] += 1
                        time.sleep(0.02)
                    accepted[sender] += ids
                    batch += 1

        threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            before = [len(ids) for ids in accepted]
            until_sync(lambda old=before: all(map(gt, map(len, accepted), old)), "all send")  # type: ignore[misc]
            house.nats.kill9()
            house.nats.restart()
        until_sync(lambda: house.http.get("/readyz").status_code == 200, "it is fresh again")
        over.set()
        for thread in threads:
            thread.join(patience(20))
        wanted = Counter(one for ids in accepted for one in ids)
        assert Counter(body["id"] for _, body in house.log() if "id" in body) == wanted
        assert len(wanted) >= 240 and set(refused) <= {503}
