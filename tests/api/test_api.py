"""The HTTP interface: who may do what, what each path answers, and what it says of a request that is wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_rig import TARGET, TOKENS, House, by, token_of, write_tokens
from sickbay.api.openapi import OPERATIONS
from sickbay.api.tokens import digest_of, make_token, read_tokens
from sickbay.bus.connect import connect_client
from sickbay.invalid import InvalidValue
from sickbay_events import Target, rfc3339
from waiting import patience, until_sync

PROBLEM = "application/problem+json"
ACT = {**TARGET, "reason": "tests", "for_s": 60}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("http")) as running:
        yield running


def ask(house: House, method: str, path: str, **more: Any) -> httpx.Response:
    """One request that its path takes, but for the token."""
    bodies = {"/v1/outcomes": {**TARGET, "kind": "ok"}, "/v1/hold": ACT, "/v1/allow": ACT}
    bodies["/v1/clear"] = {**TARGET, "reason": "tests"}
    if method == "post":
        more["json"] = bodies[path]
    if path in ("/v1/decide", "/v1/explain"):
        more["params"] = TARGET
    with house.http.stream(method.upper(), path, **more) as found:
        if path != "/v1/watch":
            found.read()
        return found


@pytest.mark.parametrize("row", [row for row in OPERATIONS if row.roles], ids=lambda row: f"{row.method} {row.path}")
def test_a_path_wants_one_of_its_roles_and_no_other(house: House, row: Any) -> None:
    """401 for who has no token that is known, 403 for who has other roles, and an answer for the rest."""
    for name, (roles, _) in TOKENS.items():
        found = ask(house, row.method, row.path, headers=by(name))
        assert found.status_code == (200 if set(roles) & set(row.roles) else 403), name
    unknown = ask(house, row.method, row.path, headers={"Authorization": "Bearer sbk_unknown"})
    basic = ask(house, row.method, row.path, headers={"Authorization": f"Basic {token_of('ana')}"})
    assert (unknown.status_code, basic.status_code) == (401, 401)
    assert unknown.headers["www-authenticate"].startswith("Bearer")
    without = ask(house, row.method, row.path)
    assert without.status_code == (200 if "read" in row.roles else 401)
    foreign = ask(house, row.method, row.path, headers={"Host": "rebound.example"})
    assert foreign.status_code == (403 if "read" in row.roles else 401)


def test_who_asks_through_a_proxy_of_this_machine_is_not_of_this_machine(house: House) -> None:
    """What a proxy hands on comes from anywhere, whatever its Host header says."""
    for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
        found = house.http.get("/v1/status", headers={name: "203.0.113.9"})
        assert found.status_code == 403, name
    assert house.http.get("/v1/status", headers={**by("rita"), "X-Forwarded-For": "203.0.113.9"}).status_code == 200


@pytest.mark.parametrize("host", ["localhost:evil.example", "127.0.0.1:99@evil", "127.0.0.1:80:80", "[::1", "x@[::1]"])
def test_a_host_header_that_is_none_is_not_this_machine(house: House, host: str) -> None:
    """Only a name or an address with a port, whole: what begins like this machine's is not enough."""
    assert house.http.get("/v1/status", headers={"Host": host}).status_code in (400, 403)


@pytest.mark.parametrize(
    "head", [b"GET /v1/status\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"]
)
def test_what_is_no_http_is_a_problem_document_too(house: House, head: bytes) -> None:
    """What the server refuses before any path has the one form of errors."""
    answer = exchange(house, head)
    assert answer.startswith(b"HTTP/1.1 400 ") and PROBLEM.encode() in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "urn:sickbay:problem:bad-request"


def test_half_a_head_is_not_waited_for(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who says nothing, or half of a request, is hung up on; who comes back on a connection has to finish as well."""
    monkeypatch.setattr("sickbay.api.protocol.HEAD_S", 0.2)
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    for head, answers in ((b"", 0), (b"GET /v1/st", 0), (whole + b"GET /v1/st", 1)):
        assert exchange(house, head).count(b"HTTP/1.1 200") == answers


def exchange(house: House, data: bytes) -> bytes:
    """What comes back until the server hangs up."""
    with socket.create_connection(("127.0.0.1", house.port), timeout=patience(10)) as made:
        made.sendall(data)
        return b"".join(iter(lambda: made.recv(65_536), b""))


def test_every_path_is_documented_and_every_answer_is_armored(house: House) -> None:
    """What is routed is in the document but for the page, and each answer says what a browser may not do with it."""
    routed = {
        (method.lower(), route.path)
        for route in house.api.asgi._app.routes  # type: ignore[attr-defined]
        for method in route.methods
        if method != "OPTIONS" and not route.path.startswith("/page/") and route.path != "/"
    }
    assert routed == {(row.method, row.path) for row in OPERATIONS}
    for path in ("/healthz", "/v1/status", "/nothing", "/", "/v1/session"):
        found = house.http.get(path)
        assert found.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in found.headers["content-security-policy"]
        assert found.headers["cache-control"], path
    assert house.http.get("/v1/session").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path", "status", "more"),
    [
        ("GET", "/v1/nothing", 404, {}),
        ("GET", "/v1/%00%ff", 404, {}),
        ("PUT", "/v1/hold", 405, {}),
        ("DELETE", "/v1/status", 405, {}),
        ("POST", "/v1/hold", 415, {"content": b"x"}),
        ("POST", "/v1/hold", 415, {"content": b"{}", "headers": {"content-type": "application/xml"}}),
        ("POST", "/v1/hold", 415, {"json": ACT, "headers": {"content-encoding": "gzip"}}),
        ("POST", "/v1/hold", 413, {"content": b" " * 1_100_000, "headers": {"content-type": "application/json"}}),
        ("POST", "/v1/hold", 400, {"content": b"{", "headers": {"content-type": "application/json"}}),
        ("POST", "/v1/hold", 422, {"content": b"[" * 100_000, "headers": {"content-type": "application/json"}}),
        ("POST", "/v1/hold", 422, {"json": []}),
        ("POST", "/v1/session", 401, {"json": {"token": "sbk_unknown"}}),
    ],
)
def test_what_is_wrong_is_a_problem_document(
    house: House, method: str, path: str, status: int, more: dict[str, Any]
) -> None:
    """Every error has the one form, the routing's own included."""
    found = house.http.request(method, path, **{**more, "headers": {**by("ana"), **more.get("headers", {})}})
    body = found.json()
    assert (found.status_code, found.headers["content-type"]) == (status, PROBLEM)
    assert body["status"] == status and body["title"] and body["detail"] and body["type"].startswith("urn:sickbay:")
    if status == 405:
        assert "OPTIONS" in found.headers["allow"]


@pytest.mark.parametrize(
    ("path", "query", "field", "accepted"),
    [
        ("/v1/decide", "provider=h", "model", "required"),
        ("/v1/decide", "provider=h&model=m&modle=x", "modle", "provider, model, replica"),
        ("/v1/decide", "provider=h&model=m&model=n", "model", "once"),
        ("/v1/decide", f"provider=h&model={'é' * 200}", "model", "256 bytes"),
        ("/v1/status", "limit=0", "limit", "int >= 1"),
        ("/v1/status", "limit=many", "limit", "int"),
        ("/v1/status", "all=perhaps", "all", "bool"),
        ("/v1/status", "model=m", "model", "provider"),
        ("/v1/explain", "provider=", "provider", "a host or a label"),
        ("/v1/explain", f"provider={'é' * 200}", "provider", "256 bytes"),
        ("/v1/status", f"provider=h&model={'é' * 200}", "model", "256 bytes"),
        ("/v1/history", f"provider={'é' * 200}", "provider", "256 bytes"),
        ("/v1/history", "from=yesterday", "from", "RFC 3339"),
        ("/v1/history", "from=2026-11-30T12:00:00Z&to=2026-11-30T11:00:00Z", "from", "not after"),
        ("/v1/watch", "x=1", "x", "no parameter"),
    ],
)
def test_a_bad_parameter_is_named_with_what_would_be_accepted(
    house: House, path: str, query: str, field: str, accepted: str
) -> None:
    """422, the parameter, and the form that is right."""
    found = house.http.get(f"{path}?{query}")
    assert found.status_code == 422, found.text
    assert found.json()["field"] == field and accepted in found.json()["accepted"]
    assert "é" not in found.text, "what was sent is said again"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"for_s": None}, "until"),
        ({"for_s": -1}, "for_s"),
        ({"for_s": 1e9}, "for_s"),
        ({"until": "2026-12-01T00:00:00Z"}, "until"),
        ({"for_s": None, "until": "2001-01-01T00:00:00Z"}, "until"),
        ({"reason": "  "}, "reason"),
        ({"provider": ""}, "provider"),
        ({"actor": "somebody else"}, "actor"),
        ({"model": "m" * 257}, "model"),
    ],
)
def test_an_act_that_makes_no_sense_is_refused_by_its_field(house: House, change: dict[str, Any], field: str) -> None:
    """Nobody holds without an end, without a reason, or in another one's name."""
    found = house.http.post("/v1/hold", json={**ACT, **change}, headers=by("ana"))
    assert found.status_code == 422 and found.json()["field"] == field, found.text


def test_an_act_is_signed_by_its_token_and_undone(house: House) -> None:
    """A hold denies until it is cleared; the log says who did it, whatever the body says."""
    house.held("signed")
    said = house.decide("signed")
    assert (said["reason"], said["rule"]) == ("held_by_operator", "operator") and 0 < said["retry_in_s"] <= 60
    scope = next(one for one in house.http.get("/v1/status").json()["scopes"] if one["model"] == "signed")
    assert (scope["operator"]["actor"], scope["operator"]["reason"]) == ("ana", "tests")
    assert house.act("clear", provider="openrouter.ai", model="signed").status_code == 200
    until_sync(lambda: house.decide("signed")["allowed"], "it is released")
    assert house.act("allow", provider="https://openrouter.ai/api/v1", model="signed", for_s=5).status_code == 200
    until_sync(lambda: house.decide("signed")["reason"] == "allowed_by_operator", "it is allowed")


def test_an_act_under_a_key_is_done_once(house: House) -> None:
    """Sent again under the same Idempotency-Key it is the same act; of another one, or another act, it is no repeat."""
    act = {**ACT, "model": "once"}

    def hold(who: str = "ana", key: str = "act-1", **change: Any) -> httpx.Response:
        return house.http.post("/v1/hold", json={**act, **change}, headers={**by(who), "Idempotency-Key": key})

    first, again, other, later = hold().json(), hold().json(), hold(reason="another").json(), hold(key="act-2").json()
    assert (first["duplicate"], again["duplicate"], again["seq"]) == (False, True, first["seq"])
    assert [other["duplicate"], later["duplicate"]] == [False, False] and other["seq"] < later["seq"]
    for bad in ("", "two words", "x" * 129):
        assert hold(key=bad).json()["field"] == "Idempotency-Key"


def test_a_past_time_is_found_behind_whatever_came_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More transitions after it than are read at once do not hide those of the time that is asked for."""
    monkeypatch.setattr("sickbay.log.transitions.SCANNED_MAX", 10)
    began_ms = time.time_ns() // 1_000_000
    # Told a second apart, so that each is stored before the time that it is told of, however slow the machine is.
    times_ms = [began_ms + 1_000 * n for n in range(60)]

    async def tell(url: str) -> None:
        client = await connect_client(url)
        for time_ms in times_ms:
            fact = {"type": "warning", "rule": "tests", "time_ms": time_ms, "at": rfc3339(time_ms)}
            await client.request("sickbay.warning.past.=.m", json.dumps(fact).encode(), timeout=patience(5))
        await client.close()

    with House(tmp_path) as own:
        asyncio.run(tell(own.nats.url))
        asked = {"from": rfc3339(began_ms), "to": rfc3339(times_ms[20]), "limit": "5"}
        scopes: tuple[dict[str, str], ...] = ({}, {"provider": "past", "model": "m"})
        for scope in scopes:
            found = own.http.get("/v1/history", params={**asked, **scope}).json()
            assert [one["time_ms"] for one in found["transitions"]] == times_ms[16:21]
            assert found["complete"] is False
            assert found["known_from"] == rfc3339(times_ms[16])


def test_what_is_no_derived_event_among_them_is_passed(house: House) -> None:
    """Whoever may write into the transitions by hand can write anything: history and overview go on without it."""

    async def put() -> None:
        client = await connect_client(house.nats.url)
        for body in (b"hello", b"[]", b"{}", b'{"time_ms": "soon"}', b'{"time_ms": 9}'):
            await client.request("sickbay.warning.by-hand.=.m", body, timeout=patience(5))
        await client.close()

    asyncio.run(put())
    assert house.http.get("/v1/overview").status_code == 200
    found = house.http.get("/v1/history", params={"provider": "by-hand", "model": "m"})
    assert found.status_code == 200 and found.json()["transitions"] == []


def test_a_decision_is_kept_no_longer_than_it_stands(house: House) -> None:
    """max-age is under the time that is left; the tag changes when time alone changes the answer."""
    house.held("soon", for_s=2.5)
    query = {"provider": "openrouter.ai", "model": "soon"}
    first = house.http.get("/v1/decide", params=query)
    assert first.headers["cache-control"] == "private, max-age=1" and first.json()["retry_in_s"] > 1
    ages: list[tuple[float, str]] = []

    def is_free() -> bool:
        found = house.http.get("/v1/decide", params=query, headers={"If-None-Match": first.headers["etag"]})
        if found.status_code == 200:
            ages.append((found.json()["retry_in_s"], found.headers["cache-control"]))
            return bool(found.json()["allowed"])
        return False

    until_sync(is_free, "the hold is over by time alone")
    assert [said for left, said in ages if 0 < left < 1] and all(
        said == "private, max-age=0" for left, said in ages if 0 < left < 1
    )


def test_what_has_not_changed_is_answered_304(house: House) -> None:
    """Status and explain by their tag, until something happens; the sequence stands in the tag."""
    for path in ("/v1/status", "/v1/explain?provider=openrouter.ai&model=tagged"):
        first = house.http.get(path)
        assert first.headers["etag"].startswith(f'W/"{first.json()["seq"]}-')
        again = house.http.get(path, headers={"If-None-Match": f'"x", {first.headers["etag"]}'})
        assert again.status_code == 304 and again.content == b"" and again.headers["etag"] == first.headers["etag"]
        house.report({"provider": "openrouter.ai", "model": "tagged", "kind": "ok"})
        known = {"If-None-Match": first.headers["etag"]}
        until_sync(partial(_is_new, house, path, known), "it has changed")


def _is_new(house: House, path: str, known: dict[str, str]) -> bool:
    return house.http.get(path, headers=known).status_code == 200


def test_the_log_decides_for_http_as_for_everybody(house: House) -> None:
    """Two replicas' rejections quarantine a model for those who ask by HTTP; the answer's seq goes back as seen_seq
    (Rule 4, After)."""
    rejected = {"provider": "openrouter.ai", "model": "gone", "kind": "model_unavailable", "status": 404}
    for who in ("edge", "rob"):
        seen = house.decide("gone")["seq"]
        assert house.report({**rejected, "seen_seq": seen}, who=who).json()["accepted"] == 1
    until_sync(lambda: house.decide("gone")["reason"] == "quarantined", "two witnesses hold it")
    explained = house.http.get("/v1/explain", params={"provider": "openrouter.ai", "model": "gone"}).json()
    assert explained["decision"]["reason"] == "quarantined"
    told = house.http.get("/v1/history", params={"provider": "openrouter.ai", "model": "gone"}).json()
    assert [one["rule"] for one in told["transitions"] if one["type"] == "held"] == ["quarantine"]
    assert told["complete"] is False and told["known_from"] <= told["to"]
    one = house.http.get("/v1/history", params={"limit": 1}).json()
    assert len(one["transitions"]) == 1 and one["known_from"] == one["transitions"][0]["at"]
    health = {one["model"]: one["health"] for one in house.http.get("/v1/overview").json()["health"]}
    until_sync(lambda: house.http.get("/v1/overview").json()["health"] != [], "the overview is made")
    assert health.get("gone", "quarantined") == "quarantined"


def test_a_loopback_provider_is_the_callers_own(house: House) -> None:
    """What one box reports of its localhost says nothing of another's: the name has the replica in it."""
    item = {"provider": "http://localhost:11434/v1", "model": "llama", "kind": "model_unavailable"}
    assert house.report(item, item, who="edge").json()["accepted"] == 2
    target = Target("localhost:11434@edge-1", "llama")
    until_sync(
        lambda: any(subject.endswith(target.key) for subject, _ in house.log()), "it is reported under its machine"
    )
    asked = {"provider": "localhost:11434", "model": "llama"}
    until_sync(
        lambda: not house.http.get("/v1/decide", params=asked, headers=by("edge")).json()["allowed"],
        "its own is held, by the only witness there is",
    )
    assert house.http.get("/v1/decide", params=asked, headers=by("rita")).json()["allowed"]


def test_an_empty_target_is_none(house: House) -> None:
    """Asking about it is allowed and says so (Rule 1)."""
    found = house.http.get("/v1/decide", params={"provider": "", "model": "m"}).json()
    assert (found["allowed"], found["reason"]) == (True, "no_target")


def test_head_and_options_are_answered(house: House) -> None:
    """HEAD has the headers and no body, OPTIONS the methods."""
    head, full = house.http.head("/v1/status"), house.http.get("/v1/status")
    assert head.status_code == 200 and head.content == b"" and head.headers.keys() == full.headers.keys()
    allowed = house.http.options("/v1/hold")
    assert allowed.status_code == 204 and "POST" in allowed.headers["allow"]
    assert house.http.head("/v1/watch").status_code == 200


def test_a_cookie_stands_for_a_token_and_acts_from_this_origin_only(house: House) -> None:
    """Signing in sets an HttpOnly, SameSite=Strict cookie; an act by it from elsewhere, or from nowhere, is refused."""
    with httpx.Client(base_url=house.url) as browser:
        assert browser.get("/v1/session").json() == {
            "name": "anonymous", "roles": ["read"], "anonymous": True, "replica": ""
        }  # fmt: skip
        done = browser.post("/v1/session", json={"token": token_of("ana")}, headers={"Origin": house.url})
        said = done.headers["set-cookie"]
        assert done.status_code == 204 and all(word in said.lower() for word in ("httponly", "samesite=strict"))
        assert "secure" not in said.lower()
        assert browser.get("/v1/session").json()["name"] == "ana"
        act = {"json": {**ACT, "model": "cookie"}}
        for headers in ({}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": f"{house.url}0"}):
            refused = browser.post("/v1/hold", **act, headers=headers)  # type: ignore[arg-type]
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:sickbay:problem:foreign-origin")
        assert browser.post("/v1/hold", **act, headers={"Origin": house.url}).status_code == 200  # type: ignore[arg-type]
        assert browser.request("DELETE", "/v1/session", headers={"Origin": "http://evil.example"}).status_code == 403
        assert browser.delete("/v1/session", headers={"Origin": house.url}).status_code == 204
        assert browser.get("/v1/session").json()["anonymous"]
        # A proxy on this machine that ends TLS says so; then the cookie is for TLS only.
        forwarded = {"Origin": house.url, "X-Forwarded-Proto": "https"}
        done = browser.post("/v1/session", json={"token": token_of("ana")}, headers=forwarded)
        assert "secure" in done.headers["set-cookie"].lower()
    foreign = house.http.post("/v1/session", json={"token": token_of("ana")}, headers={"Origin": "http://evil.example"})
    assert foreign.status_code == 403


def test_no_token_is_ever_logged(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """Neither known ones nor unknown ones, in whatever place they come."""
    with caplog.at_level(logging.DEBUG):
        for where in ({"Authorization": "Bearer sbk_wrong-secret"}, {"Cookie": "sickbay_session=sbk_wrong-secret"}):
            house.http.get("/v1/status", headers=where)
        house.http.post("/v1/session", json={"token": "sbk_wrong-secret"})
        house.http.get("/v1/status", params={"token": "sbk_wrong-secret"})
        house.act("clear", provider="openrouter.ai", model="logged")
    assert "by ana" in caplog.text, "the log of the interface is not heard here"
    ours = "\n".join(
        record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))
    )
    assert "sbk_" not in ours


def test_tokens_are_read_again_when_their_file_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is taken out of the file is out within a second; a file that is broken changes nothing."""
    with House(tmp_path) as house:
        assert house.http.get("/v1/session", headers=by("rita")).status_code == 200
        house.tokens.write_text("[[token]]\nname = 3\n")

        def is_said() -> bool:
            """Each request looks, once the look before is a second old; the old tokens hold all the while."""
            assert house.http.get("/v1/session", headers=by("rita")).status_code == 200
            return any("stay so" in record.message for record in caplog.records)

        until_sync(is_said, "the broken file is said")
        write_tokens(house.tokens, {"ana": (["read"], "")})
        until_sync(lambda: house.http.get("/v1/session", headers=by("rita")).status_code == 401, "she is out")
        assert house.http.get("/v1/session", headers=by("ana")).json()["roles"] == ["read"]
        house.tokens.unlink()
        monkeypatch.setattr("sickbay.api.tokens.LOOK_EVERY_S", 0.0)

        def times_said() -> int:
            assert house.http.get("/v1/session", headers=by("ana")).status_code == 200
            return sum("stay so" in record.message for record in caplog.records)

        until_sync(lambda: times_said() == 2, "one for the broken file, and one for none")
        assert [times_said() for _ in range(3)] == [2] * 3, "each request looks now: both are said once"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[token]", "TOML"),
        ("[[tokens]]\n", "tokens"),
        ('[[token]]\nname = "a"\nroles = ["root"]\nsha256 = "%64s"\n', "token[...].roles"),
        ('[[token]]\nname = "a"\nroles = ["read"]\n', "either sha256 or value_ref"),
        ('[[token]]\nname = "a"\nroles = ["read"]\nsha256 = "sbk_the-token-itself"\n', "token[...].sha256"),
        ('[[token]]\nname = "a"\nroles = ["read"]\nvalue_ref = "env:NO_SUCH"\n', "NO_SUCH"),
        ('[[token]]\nname = "a"\nroles = ["read"]\nvalue_ref = "env:SHORT"\n', "20 characters"),
        ('[[token]]\nname = "a"\nroles = ["read"]\nvalue_ref = "env:LONG"\nsha256 = "%64s"\n', "either"),
        ('[[token]]\nname = "a"\nroles = ["read"]\nvalue_ref = "env:LONG"\n' * 2, "token[1] 'a' of"),
    ],
)
def test_a_file_of_tokens_that_cannot_be_used_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """It names the key and the form, and no token."""
    path = tmp_path / "tokens.toml"
    path.write_text(text.replace("%64s", "0" * 64))
    with pytest.raises(InvalidValue) as refused:
        read_tokens(path, {"SHORT": "x" * 19, "LONG": "x" * 20})
    assert says in str(refused.value).replace("[0]", "[...]") and "sbk_" not in str(refused.value)


def test_a_token_by_reference_is_the_variables_value(tmp_path: Path) -> None:
    """The file then holds neither the token nor its digest."""
    made = make_token()
    path = tmp_path / "tokens.toml"
    path.write_text('[[token]]\nname = "a"\nroles = ["read"]\nvalue_ref = "env:LONG"\n')
    assert read_tokens(path, {"LONG": made})[0].digest == digest_of(made)
    assert len(made) > 40


def test_health_and_readiness_are_two_things(house: House) -> None:
    """Alive is one word; ready says how old the view is. Both are open to who checks them."""
    alive, ready = house.http.get("/healthz", headers={"Host": "pod"}), house.http.get("/readyz", headers={"Host": "x"})
    assert alive.json()["ok"] is True and ready.json()["ready"] is True
    assert ready.json()["age_s"] < 3 and ready.json()["source"] == "cluster"
    assert "sickbay_build_info" in house.http.get("/metrics").text
    assert json.loads(house.http.get("/openapi.json").content)["openapi"] == "3.1.0"
