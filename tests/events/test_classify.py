"""What an answer says and about whom: each rule by cases of our own, and what must hold for every input."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import json
import math
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classify_answers import CASES, ERROR_CASES, HABIT_CASES, HOSTILE, Case
from sickbay_events.classify import classify, family_of, judge_exchange
from sickbay_events.classify.answer import CallFacts
from sickbay_events.classify.provider_rules import PROVIDER_RULES
from sickbay_events.classify.rules import ERRORS
from sickbay_events.kinds import KINDS
from sickbay_events.verdict import Verdict
from waiting import patience

SCOPES = {"host", "credential", "model", "none"}


def ask(case: dict[str, Any], body: bytes | None = None, **headers: str) -> Verdict:
    sent = case["body"] if isinstance(case["body"], str) else json.dumps(case["body"], ensure_ascii=False)
    return classify(
        status=case["status"],
        headers=case.get("headers", {"content-type": "application/json"}) | headers,
        body=sent.encode() if body is None else body,
        requested_model=case["model"],
        provider=case["provider"],
    )


def error(
    status: int, body: Any, *, model: str = "m-9", provider: str = "", headers: dict[str, str] | None = None
) -> Verdict:
    sent = body if isinstance(body, str | bytes) else json.dumps(body)
    return classify(status=status, headers=headers or {}, body=sent, requested_model=model, provider=provider)


@pytest.mark.parametrize("case", ERROR_CASES, ids=lambda case: case["rule"])
def test_an_error_answer_is_what_its_rule_says(case: dict[str, Any]) -> None:
    verdict = ask(case)
    assert verdict.kind == case["kind"]
    assert verdict.scope == case.get("scope", KINDS[case["kind"]].scope)
    assert verdict.retry_after_s == case.get("wait")
    if "signature" in case:
        assert verdict.signature == case["signature"]


@pytest.mark.parametrize(
    "number", range(len(HABIT_CASES)), ids=lambda n: f"{n}-{HABIT_CASES[n]['provider']}-{HABIT_CASES[n]['status']}"
)
def test_a_providers_documented_codes_mean_what_it_says(number: int) -> None:
    case = HABIT_CASES[number]
    plain = isinstance(case["body"], str)
    content_type = "application/json" if not plain else "text/html" if case["body"].startswith("<") else "text/plain"
    verdict = ask(case | {"headers": {"content-type": content_type}})
    assert verdict.kind == case["kind"], case["body"]
    assert verdict.scope == case.get("scope", verdict.scope)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_a_2xx_is_opened(case: Case) -> None:
    verdict = classify(
        status=200,
        headers={"Content-Type": case.content_type},
        body=case.body,
        requested_model="m",
        provider=case.provider,
    )
    assert verdict.kind == case.kind, verdict
    assert verdict.checkable is case.checkable
    if case.signature:
        assert verdict.signature == case.signature


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.content_type.startswith("application/json") and case.body],
    ids=lambda case: case.says,
)
def test_a_2xx_reads_alike_as_text_and_in_every_charset(case: Case) -> None:
    """The same answer as str, with a byte-order mark, and in UTF-16 is judged alike (Rule 3)."""
    text = case.body.decode()
    for body, kind in (
        (text, ""),
        (b"\xef\xbb\xbf" + case.body, ""),
        (text.encode("utf-16"), "; charset=utf-16"),
        (text.encode("utf-16-le"), ""),
    ):
        verdict = classify(
            status=200,
            headers={"content-type": "application/json" + kind},
            body=body,
            requested_model="m",
            provider=case.provider,
        )
        assert (verdict.kind, verdict.checkable) == (case.kind, case.checkable)


def test_every_family_with_rows_has_a_case() -> None:
    covered = {family_of(case["provider"]) for case in ERROR_CASES}
    assert sorted(set(PROVIDER_RULES) - covered) == []


@pytest.mark.parametrize(
    "case",
    [case for case in ERROR_CASES if isinstance(case["body"], dict) and case["kind"] not in ("unknown",)],
    ids=lambda case: case["rule"],
)
def test_a_body_cut_at_300_characters_is_still_classified(case: dict[str, Any]) -> None:
    """Where the cut leaves the evidence, the kind is the same; the model is never declared dead by the cut."""
    whole = json.dumps(case["body"], ensure_ascii=False)
    cut = whole[: max(len(whole) - 2, 1)][:300]
    verdict = ask(case, cut.encode())
    if len(whole) <= 300:
        assert verdict.kind == case["kind"]
    else:
        assert verdict.kind == case["kind"] or verdict.kind != "model_unavailable"


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        ("gbk", "模型不存在，请检查模型代码"),
        ("gb18030", "模型不存在"),
        ("utf-8", "模型不存在"),
        ("utf-16", "模型不存在"),
        ("big5", "模型不存在"),
    ],
)
def test_a_declared_charset_is_read(codec: str, text: str) -> None:
    body = json.dumps({"error": {"message": text}}, ensure_ascii=False).encode(codec, "replace")
    verdict = error(400, body, headers={"Content-Type": f"application/json; charset={codec}"})
    assert verdict.kind == "model_unavailable"


def test_latin_1_and_invalid_utf_8_are_read_as_far_as_they_go() -> None:
    body = '{"error":{"message":"Quota dépassé: insufficient balance"}}'.encode("latin-1")
    assert error(429, body).kind == "quota"
    assert error(429, body, headers={"content-type": "application/json; charset=ISO-8859-1"}).kind == "quota"
    assert error(404, b"\xff\xfe\xfa").kind in KINDS
    assert error(503, b'{"error":{"message":"overloaded \xff\xfe"}}').kind == "overloaded"


def test_a_model_counts_as_named_only_whole() -> None:
    for named, dead in (
        ("m-9", True), ("m-9-turbo", False), ("m-9.1", False), ("xm-9", False), ("vendor/m-9", True), ("m-9:free", False),
        ("m-90", False), ("M-9", True), ("m-9.", True),
    ):  # fmt: skip
        verdict = error(404, {"error": {"message": f"The model `{named}` does not exist", "code": "model_not_found"}})
        assert (verdict.kind == "model_unavailable") is dead, named
        if not dead:
            assert (verdict.kind, verdict.signature) == ("unknown", "other_model")


def test_a_word_in_the_models_own_name_is_no_sentence() -> None:
    for name in ("acme-moderation-2", "acme/guardrail-7b", "acme/overloaded-1", "m/minimax-2", "prompt-guard-9m"):
        gone = {"error": {"message": f"The model {name} does not exist."}}
        assert error(404, gone, model=name).kind == "model_unavailable", name
        limited = {"error": {"message": f"Rate limit exceeded for model {name}"}}
        assert error(429, limited, model=name).kind == "rate_limited", name
        refused = {"error": {"message": f"{name} does not support tools"}}
        assert error(400, refused, model=name).kind == "bad_request", name
    assert error(404, {"error": {"message": "acme/m-9 does not exist"}}, model="acme/m-9").kind == "model_unavailable"


def test_an_empty_requested_model_makes_every_missing_model_the_callers() -> None:
    for case in ERROR_CASES:
        if case["kind"] == "model_unavailable":
            assert ask(case | {"model": ""}).kind == "bad_request", case["rule"]


NOT_ABOUT_THE_MODEL = [
    "Item with id 'rs_9' not found.", "CachedContent not found (or permission denied)", "File 'file-9' not found",
    "404 page not found", "Assistant 'asst_9' not found", "Thread not found", "tool 'x' not found in request",
    "Function get_weather not found", "User not found.", "Vector store 'vs_9' not found", "Batch b-9 not found",
    "The requested resource was not found", "Not Found", "Unknown request URL: POST /v1/model", "Session not found",
    "no such file or directory", "Dataset 'd' does not exist", "Prompt template 'p' not found", "Invalid URL (GET /v1/models/x)",
    "The 'temperature' parameter is not supported with this model.", "Model m-9 does not support tools",
    "Image not found at url", "Project `proj` not found", "This model does not support image input",
    "response_format is not supported on this model", "Workspace does not exist", "Organization not found",
    "Invalid model parameters: temperature must be at most 2", "Container 'c' is not found", "Voice 'v' does not exist",
    "model m-9 is not supported for this request", "Model output was invalid", "Invalid model response",
    "Model tokenizer not found", "model config not found", "Model output is invalid", "model parameter not recognized",
    "Model file not found on disk, retrying", "The model m-9 is not available in streaming mode", "Model response not valid JSON",
    "model group not configured for fallbacks", "The engine is not ready", "Model permissions not configured",
    "The model m-9 is not supported when using tools", "model access not configured",
]  # fmt: skip


@pytest.mark.parametrize(
    "provider",
    ["", "openai", "anthropic", "google_gemini", "openrouter", "vllm", "mistral", "litellm", "xai", "moonshot"],
)
@pytest.mark.parametrize("status", [400, 404, 422, 500])
def test_what_is_not_about_the_model_never_declares_it_dead(provider: str, status: int) -> None:
    for text in NOT_ABOUT_THE_MODEL:
        for body in ({"error": {"message": text}}, {"error": text}, {"detail": text}, {"message": text}, text):
            verdict = error(status, body, provider=provider)
            assert verdict.kind != "model_unavailable", (text, body)


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize(
    "provider", ["api.openai.com", "anthropic", "groq", "bedrock", "dashscope", "mistral", "openrouter.ai#team-a"]
)
def test_a_strangers_401_403_404_says_nothing(provider: str, status: int) -> None:
    """Rule 3: a shape foreign to a known provider is the network in between."""
    for body in (
        "Access denied",
        "<html><body>Blocked by policy</body></html>",
        "Model m-9 not found",
        "<h1>404 Not Found</h1>nginx",
    ):
        verdict = error(status, body, provider=provider)
        assert (verdict.kind, verdict.scope, verdict.signature) == ("unknown", "none", "foreign_shape"), body


def test_a_page_for_browsers_or_a_proxys_login_tells_nothing_of_the_model() -> None:
    """Nor does it tell anything of the key."""
    page = "<html><title>Just a moment...</title></html>"
    for status, headers in ((403, {"CF-Mitigated": "challenge"}), (407, {}), (511, {})):
        verdict = error(status, page, headers=headers)
        assert (verdict.kind, verdict.signature) == ("unknown", "foreign_shape")


@pytest.mark.parametrize(
    ("provider", "family"),
    [
        ("api.x.ai", "xai"), ("xai", "xai"), ("openrouter.ai#team-a", "openrouter"), ("localhost:11434@box-7", "ollama"),
        ("127.0.0.1:1234", "lmstudio"), ("https://api.openai.com/v1", "openai"), ("acme.openai.azure.com", "azure_openai"),
        ("bedrock-runtime.eu-west-1.amazonaws.com", "bedrock"), ("s3.amazonaws.com", ""), ("dashscope-intl.aliyuncs.com", "dashscope"),
        ("notx.ai", ""), ("relay.example", ""), ("", ""), ("API.Groq.com:443", "groq"), ("europe-west4-aiplatform.googleapis.com", "vertex"),
        ("evil-openai.com", ""), ("api.z.ai", "zhipu"), ("Google", "google_gemini"),
    ],
)  # fmt: skip
def test_a_host_or_a_label_names_a_family(provider: str, family: str) -> None:
    assert family_of(provider) == family


@pytest.mark.parametrize(
    ("headers", "body", "wait", "said_in"),
    [
        ({"Retry-After": "7"}, {}, 7, "header"),
        ({"RETRY-AFTER": "7.5"}, {}, 7.5, "header"),
        ({"retry-after-ms": "250", "retry-after": "1"}, {}, 0.25, "header"),
        ({"retry-after": "0"}, {}, 0, "header"),
        ({"retry-after": "99999999"}, {}, 2_592_000, "header"),
        ({"retry-after": "-5"}, {}, None, None),
        ({"retry-after": "nan"}, {}, None, None),
        ({"retry-after": "soon"}, {}, None, None),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:30 GMT", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}, {}, 30, "header"),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}, {}, 0, "header"),
        ({"x-ratelimit-reset-requests": "1m30s", "x-ratelimit-remaining-requests": "0"}, {}, 90, "header"),
        ({"x-ratelimit-reset-requests": "1h", "x-ratelimit-remaining-requests": "12"}, {}, None, None),
        ({"x-ratelimit-reset-tokens": "6ms", "x-ratelimit-remaining-tokens": "0"}, {}, 0.006, "header"),
        ({"x-ratelimit-reset": "1796040060", "x-ratelimit-remaining": "0", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}, {}, 60, "header"),
        ({"x-ratelimit-reset": "1796040060000", "x-ratelimit-remaining": "0", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}, {}, 60, "header"),
        ({"x-ratelimit-reset": "1796040060000", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}, {}, None, None),
        ({"x-ratelimit-reset": "1796040060"}, {}, None, None),
        ({"ratelimit": 'limit=10, r=0, t=25'}, {}, 25, "header"),
        ({}, {"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]}}, 34.5, "body"),
        ({}, {"error": {"details": [{"retryDelay": {"seconds": 12, "nanos": 500000000}}]}}, 12.5, "body"),
        ({}, {"retry_after": 9, "detail": "slow"}, 9, "body"),
        ({}, {"error": {"message": "slow", "retry_after_ms": 1500}}, 1.5, "body"),
        ({}, {"error": {"message": "Please try again in 20s."}}, 20, "body"),
        ({}, {"error": {"message": "Please try again in 1h2m3.5s."}}, 3723.5, "body"),
        ({}, {"error": {"message": "try again in 350ms"}}, 0.35, "body"),
        ({}, {"error": {"message": "Please retry after 3 minutes."}}, 180, "body"),
        ({}, {"error": {"message": "Please wait 2 hours and 5 minutes"}}, 7500, "body"),
        ({}, {"error": {"message": "limit resets in ~5s"}}, 5, "body"),
        ({}, {"error": {"message": "请在 30 秒后重试"}}, 30, "body"),
        ({}, {"error": {"message": "60 requests per minute allowed"}}, None, None),
        ({}, {"error": {"message": "try again in a few minutes"}}, None, None),
        ({}, {"error": {"message": "resets at 2026-11-30 13:00:00"}}, None, None),
        ({"date": "Mon, 30 Nov 2026 12:00:00 GMT"}, {"error": {"message": "resets at 2026-11-30T13:00:00Z"}}, 3600, "body"),
    ],
)  # fmt: skip
def test_a_wait_is_read_wherever_it_is_said(
    headers: dict[str, str], body: Any, wait: float | None, said_in: str | None
) -> None:
    """Rule 4.2. Moments are counted from the answer's own Date header, since no clock is read."""
    verdict = error(429, body, headers=headers)
    assert verdict.retry_after_s == (None if wait is None else pytest.approx(wait))
    assert verdict.retry_after_from == said_in


def test_a_wait_of_what_no_wait_clears_is_not_told() -> None:
    assert (
        error(
            401, {"error": {"message": "invalid api key, try again in 15 minutes"}}, headers={"retry-after": "60"}
        ).retry_after_s
        is None
    )


def test_headers_of_any_kind_are_read() -> None:
    class Multi:
        pass

    for headers in (
        {"Retry-After": 5}, {b"Retry-After": b"5"}, {"retry-after": ["5", "6"]}, [("Retry-After", "5")], {"retry-after": "5", 7: object(), None: None},
    ):  # fmt: skip
        verdict = classify(status=429, headers=headers, body=b"", requested_model="m")  # type: ignore[arg-type]
        assert verdict.retry_after_s == 5, headers
    assert classify(status=429, headers=Multi(), body=b"", requested_model="m").kind == "rate_limited"  # type: ignore[arg-type]


def test_a_code_is_a_machine_code_and_never_holds_a_secret() -> None:
    for code in (
        "model_not_found",
        "Throttling.AllocationQuota",
        "RESOURCE_EXHAUSTED",
        "InternalError.Algo",
        "1113",
        "invalid_request_error",
    ):
        assert error(500, {"error": {"code": code, "message": "x"}}).code == code
    for secret in (
        "sk-proj-abcdefghijklmnopqrstuvwx", "AIzaSyA1234567890abcdefghijklmnopqrstuv", "AKIAIOSFODNN7EXAMPLE", "a" * 65,
        "0123456789abcdef0123456789abcdef", "free text with words", "eyJhbGciOiJIUzI1NiJ9", "token_abcdefghijklmnopqrstuv", "x\ny",
        "Ab3dE5gH7jK9mN1pQ3sT5vW7", "jane@example.com", "a" + "1" * 60 + "!", "sk_" + "a" * 20,
    ):  # fmt: skip
        verdict = error(500, {"error": {"code": secret, "message": "x"}})
        assert verdict.code is None, secret


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_a_transport_error_is_named(name: str) -> None:
    verdict = classify(status=None, headers={}, body=b"", requested_model="m", error=name)
    assert (verdict.kind, verdict.signature) == (ERRORS[name], name)


def test_a_reset_in_mid_answer_is_truncated_and_a_status_beats_the_transport() -> None:
    begun = b'data: {"choices":[{"delta":{"content":"Once"}}]}\n\n'
    for error_word in ("reset", "eof", "closed", "truncated"):
        verdict = classify(status=200, headers={}, body=begun, requested_model="m", error=error_word)
        assert verdict.kind == "truncated", error_word
    refused = b'{"error":{"code":"insufficient_quota"}}'
    assert classify(status=429, headers={}, body=refused, requested_model="m", error="reset").kind == "quota"


def check(verdict: Verdict) -> None:
    assert verdict.kind in KINDS
    assert verdict.scope in SCOPES
    assert verdict.code is None or len(verdict.code) <= 64
    assert verdict.retry_after_s is None or 0 <= verdict.retry_after_s <= 2_592_000
    assert (verdict.retry_after_s is None) == (verdict.retry_after_from is None)
    assert verdict.confidence in ("high", "low")


def _mutations(chance: random.Random, count: int) -> list[tuple[int | None, bytes]]:
    seeds = [
        (case["status"], (case["body"] if isinstance(case["body"], str) else json.dumps(case["body"])).encode())
        for case in ERROR_CASES
    ]
    seeds += [(200, case.body) for case in CASES]
    made: list[tuple[int | None, bytes]] = []
    for _ in range(count):
        status, body = chance.choice(seeds)
        data = bytearray(body)
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(len(data) + 1)
            how = chance.randrange(6)
            if how == 0:
                del data[at : at + chance.randint(1, 30)]
            elif how == 1:
                data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 8)))
            elif how == 2:
                data = data[:at]
            elif how == 3:
                data[at:at] = chance.choice(
                    [
                        b"{",
                        b"}",
                        b"[",
                        b'"',
                        b"\\",
                        b"null",
                        b"1e999",
                        b"\\ud800",
                        b"\xef\xbf\xbd",
                        b"<|im_end|>",
                        b"\x00",
                    ]
                )
            elif how == 4:
                data += data[at : at + 200]
            elif data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
        made.append((chance.choice([status, status, 200, 404, 429, None, 0, -1, 999]), bytes(data)))
    return made


def test_5000_broken_answers_never_raise() -> None:
    """Mutations of every case (seed 20261130), through the function without its safety net."""
    chance = random.Random(20261130)
    types = ["application/json", "text/event-stream", "text/html; charset=gbk", "x; charset=utf-16", "x; charset=idna", "", "application/json; charset=\"\"", "a; charset=unicode_escape"]  # fmt: skip
    for status, body in _mutations(chance, 5000):
        headers = {"content-type": chance.choice(types), "retry-after": chance.choice(["5", "x", "", "1e400", "-1"])}
        provider = chance.choice([*PROVIDER_RULES, "", "relay.example"])
        verdict = judge_exchange(
            status, headers, body, CallFacts(chance.choice(["m", "", "gpt-9"]), family_of(provider))
        )
        check(verdict)


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["error", "code", "type", "message", "detail", "choices", "delta", "content", "status", "output", "candidates", "data", "metadata", "raw", "base_resp", "retry_after"]), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    status=st.none() | st.integers(-1, 1000),
    value=_json_values,
    headers=st.dictionaries(
        st.text(max_size=20), st.text(max_size=30) | st.binary(max_size=8) | st.none() | st.integers(), max_size=5
    ),
    model=st.text(max_size=20),
    provider=st.sampled_from([*sorted(PROVIDER_RULES), "", "relay.example"]),
)
def test_any_json_in_any_status_gets_a_kind(
    status: int | None, value: Any, headers: dict[str, Any], model: str, provider: str
) -> None:
    check(judge_exchange(status, headers, json.dumps(value), CallFacts(model, provider, stream=True)))


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=400) | st.text(max_size=400), kind=st.text(max_size=30))
def test_any_bytes_get_a_kind(body: bytes | str, kind: str) -> None:
    for status in (200, 404, 429):
        check(judge_exchange(status, {"content-type": kind}, body, CallFacts("m", "openai")))


@pytest.mark.parametrize("garbage", [None, 7, object(), [], {}, b"\x00" * 10, float("nan"), True])
def test_garbage_in_the_place_of_any_argument_is_unknown_at_worst(garbage: Any) -> None:
    good: dict[str, Any] = {
        "status": 404,
        "headers": {},
        "body": b"{}",
        "requested_model": "m",
        "provider": "openai",
        "error": None,
    }
    for name in good:
        check(classify(**(good | {name: garbage})))


def test_a_body_of_10_mb_is_read_at_its_ends_only() -> None:
    long_text = "word " * 2_000_000
    body = b'{"choices":[{"message":{"content":"' + long_text.encode() + b'"},"finish_reason":"stop"}]}'
    begun = time.perf_counter()
    verdict = classify(status=200, headers={}, body=body, requested_model="m")
    assert time.perf_counter() - begun < patience(1)
    assert verdict.kind == "ok"
    stream = b"".join(b'data: {"choices":[{"delta":{"content":"%d "}}]}\n\n' % number for number in range(200_000))
    assert (
        classify(status=200, headers={"content-type": "text/event-stream"}, body=stream, requested_model="m").kind
        == "truncated"
    )
    assert (
        classify(
            status=200,
            headers={"content-type": "text/event-stream"},
            body=stream + b"data: [DONE]\n\n",
            requested_model="m",
        ).kind
        == "ok"
    )
    late = stream + b'data: {"error":{"message":"overloaded","code":529}}\n\n'
    assert (
        classify(status=200, headers={"content-type": "text/event-stream"}, body=late, requested_model="m").kind
        == "overloaded"
    )
    assert classify(status=500, headers={}, body=b"x" * 10_000_000, requested_model="m").kind == "server_error"


@pytest.mark.parametrize("name", sorted(HOSTILE))
@pytest.mark.parametrize("status", [200, 404, 429])
def test_no_64_kib_take_long(name: str, status: int) -> None:
    """A guard against a pattern that takes quadratic time: some seconds. How fast it is stands in the bench."""
    best = math.inf
    for _ in range(3):
        begun = time.perf_counter()
        classify(
            status=status,
            headers={"content-type": "text/event-stream"} if "event" in name else {},
            body=HOSTILE[name],
            requested_model="m",
        )
        best = min(best, time.perf_counter() - begun)
    assert best < patience(1)
