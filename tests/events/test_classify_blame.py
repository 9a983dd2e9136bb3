"""Never blame the wrong one: for each kind of answer that is easily misjudged, inputs and their neighbours."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import json
from typing import Any

import pytest

from sickbay_events.classify import classify
from sickbay_events.kinds import KINDS
from sickbay_events.verdict import Verdict

Row = tuple[str, int, Any, str]
"""Family or host, status, body (text, or a sentence in `{"error": {...}}` as a dict), kind; `kind/scope` where it differs."""


def says(message: str, code: Any = None, type_: str | None = None) -> dict[str, Any]:
    error = {"message": message, "code": code, "type": type_}
    return {"error": {name: value for name, value in error.items() if value is not None}}


def claude(type_: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": type_, "message": message}, "request_id": "req_0"}


def google(code: int, message: str, status: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status}}


def judge(provider: str, status: int, body: Any, headers: dict[str, str] | None = None, **facts: Any) -> Verdict:
    plain = isinstance(body, str)
    kind = "application/json" if not plain else "text/html" if body.startswith("<") else "text/plain"
    sent = body if plain else json.dumps(body, ensure_ascii=False)
    return classify(
        status=status,
        headers=headers if headers is not None else {"content-type": kind},
        body=sent.encode(),
        requested_model="acme/m-9",
        provider=provider,
        **facts,
    )


def check(rows: list[Row]) -> None:
    wrong = []
    for provider, status, body, wanted in rows:
        kind, _, scope = wanted.partition("/")
        verdict = judge(provider, status, body)
        if (verdict.kind, verdict.scope) != (kind, scope or KINDS[verdict.kind].scope):
            wrong.append(f"{provider} {status} {body}: {verdict.kind}/{verdict.scope}, wanted {wanted}")
    assert not wrong, "\n".join(wrong)


def test_a_resource_of_another_kind_that_is_not_there_says_nothing_about_the_model() -> None:
    check([
        ("anthropic", 404, claude("not_found_error", "Upload upl_011CN not found."), "bad_request"),
        ("anthropic", 404, claude("not_found_error", "No message batch found with id msgbatch_01."), "bad_request"),
        ("anthropic", 404, claude("not_found_error", "The document 'doc_7' does not exist"), "bad_request"),
        ("anthropic", 404, claude("not_found_error", "Could not find file file_9Ab"), "bad_request"),
        ("google_gemini", 404, google(404, "The file files/k3x9 does not exist.", "NOT_FOUND"), "bad_request"),
        ("google_gemini", 404, google(404, "Cached content cachedContents/7f was not found", "NOT_FOUND"), "bad_request"),
        ("google_gemini", 404, google(404, "Unable to find operation operations/op-1", "NOT_FOUND"), "bad_request"),
        ("vertex", 404, google(404, "Batch batches/b1 could not be found", "NOT_FOUND"), "bad_request"),
        ("openai", 404, says("No thread found with id 'thread_x'.", type_="invalid_request_error"), "bad_request"),
        ("relay.test", 404, {"detail": "Conversation c-1 not found"}, "bad_request"),
        ("relay.test", 410, {"message": "Upload u-7 has expired", "code": "gone"}, "bad_request"),
        # Its neighbours: the model, and the route.
        ("anthropic", 404, claude("not_found_error", "model: acme/m-9"), "model_unavailable"),
        ("google_gemini", 404, google(404, "models/acme/m-9 is not found for API version v1beta", "NOT_FOUND"), "model_unavailable"),
        ("google_gemini", 404, google(404, "Requested entity was not found.", "NOT_FOUND"), "model_unavailable"),
        ("relay.test", 404, says("The model `acme/m-9` does not exist"), "model_unavailable"),
        ("anthropic", 404, claude("not_found_error", "Not found"), "wrong_endpoint"),
        ("relay.test", 404, {"detail": "Not Found"}, "wrong_endpoint"),
    ])  # fmt: skip


def test_a_feature_that_is_given_up_is_neither_a_route_nor_a_model() -> None:
    check([
        ("xai", 410, {"code": "gone", "error": "Web search parameters are deprecated. Please switch to the Agent Tools API."}, "bad_request"),
        ("relay.test", 410, says("Live grounding has been retired, use the search tool instead"), "bad_request"),
        ("cohere", 404, {"message": "connectors are no longer supported. Use the tools parameter."}, "bad_request"),
        ("relay.test", 410, says("The functions field was removed; migrate to the tools API"), "bad_request"),
        ("relay.test", 410, says("The model acme/m-9 has been retired, see the list of models"), "model_unavailable"),
        ("relay.test", 410, says("This endpoint is deprecated. Use the chat API"), "wrong_endpoint"),
        ("relay.test", 410, says("The v1 API has been removed; switch to the v2 API"), "wrong_endpoint"),
    ])  # fmt: skip


def test_a_sentence_about_the_request_outranks_a_vague_code_for_unavailability() -> None:
    check([
        ("dashscope", 500, {"code": "ServiceUnavailableError", "message": "Role must be user or assistant"}, "bad_request"),
        ("dashscope", 503, {"code": "ModelServingError", "message": "content length must be greater than 0"}, "bad_request"),
        ("relay.test", 503, says("messages must alternate between user and assistant", "service_unavailable"), "bad_request"),
        ("relay.test", 500, says("tool_choice should be one of auto, none", "internal_error"), "bad_request"),
        ("google_gemini", 503, google(503, "The field contents is required and may not be empty", "UNAVAILABLE"), "bad_request"),
        ("relay.test", 500, says("messages[2]: content cannot be empty", type_="invalid_request_error"), "bad_request"),
        ("opencode_zen", 500, says("Messages with role 'tool' must follow an assistant message", type_="invalid_request"), "bad_request"),
        ("anthropic", 500, claude("invalid_request_error", "messages: roles must alternate"), "bad_request"),
        ("relay.test", 503, says("The server must be restarted", "service_unavailable"), "overloaded"),
        ("relay.test", 500, says("Internal error", "internal_error"), "server_error"),
        ("dashscope", 503, {"code": "ModelServingError", "message": "the service is too busy"}, "overloaded"),
        ("relay.test", 500, says("upstream went away", type_="invalid_request_error"), "server_error"),
        ("relay.test", 503, says("No message could be handled just now", "unavailable"), "overloaded"),
    ])  # fmt: skip


def test_a_refused_model_parameter_is_a_missing_model_and_its_wrong_type_is_not() -> None:
    rows = [
        ("volcengine", 400, says("The parameter `model` specified in the request is invalid", "InvalidParameter"), "model_unavailable"),
        ("relay.test", 400, says("parameter 'model' is not valid", type_="invalid_request_error"), "model_unavailable"),
        ("relay.test", 422, {"detail": "Invalid value for 'model'"}, "model_unavailable"),
    ]  # fmt: skip
    check(rows)
    for provider, status, body, _ in rows:
        assert judge(provider, status, body).confidence == "low"
    check([
        ("relay.test", 400, says("parameter 'model' is invalid: must be a string"), "bad_request"),
        ("relay.test", 400, says("The parameter `model_kwargs` is invalid"), "bad_request"),
        ("relay.test", 400, says("The parameter `temperature` is invalid for this model"), "bad_request"),
    ])  # fmt: skip


def test_a_habit_counts_at_its_own_host_only() -> None:
    check([
        ("nvidia_nim", 404, "404 page not found", "model_unavailable"),
        ("integrate.api.nvidia.com", 404, "404 page not found\n", "model_unavailable"),
        ("relay.test", 404, "404 page not found", "wrong_endpoint"),
        ("ollama", 404, "404 page not found", "wrong_endpoint"),
        ("cerebras", 400, "", "context_length"),
        ("relay.test", 400, "", "bad_request"),
        ("groq", 400, "", "bad_request"),
    ])  # fmt: skip


def test_a_model_that_one_dialect_does_not_serve_is_on_another_path() -> None:
    check([
        ("dashscope", 404, says("Unsupported model `acme/m-9` for OpenAI compatibility mode.", "model_not_supported"), "wrong_endpoint"),
        ("relay.test", 400, says("acme/m-9 is not supported in compatible mode"), "wrong_endpoint"),
        ("relay.test", 400, says("Unsupported model for the OpenAI-compatible endpoint", "unsupported_model"), "wrong_endpoint"),
        ("relay.test", 400, says("Unsupported model `acme/m-9`", "unsupported_model"), "model_unavailable"),
    ])  # fmt: skip


def test_whose_permission_is_missing() -> None:
    check([
        ("nvidia_nim", 403, {"status": 403, "title": "Forbidden", "detail": "Authorization failed"}, "auth"),
        ("relay.test", 403, says("Authorization failed"), "auth"),
        ("nvidia_nim", 403, {"status": 403, "title": "Forbidden", "detail": "Function 'f-1' is private and not shared with account 'a'"}, "permission_model"),
        ("relay.test", 403, says("This model is not shared with your account"), "permission_model"),
        ("relay.test", 403, says("missing resource entry in the key for acme/m-9"), "permission_model"),
        ("relay.test", 401, says("You must be signed in to use this model", "MODEL_LOGIN_REQUIRED"), "permission_model"),
        ("kilo", 401, says("You need to sign in to use this model.", "PAID_MODEL_AUTH_REQUIRED"), "permission_model"),
        ("relay.test", 401, says("Log in to use this paid model"), "permission_model"),
        ("relay.test", 401, says("Please sign in", "unauthorized"), "auth"),
        ("relay.test", 401, says("Incorrect API key provided", "invalid_api_key"), "auth"),
        ("google_gemini", 429, google(429, "Acme M-9 doesn't have a free quota tier. Use another one.", "RESOURCE_EXHAUSTED"), "permission_model"),
        ("relay.test", 429, says("There is no free tier for this model"), "permission_model"),
        ("relay.test", 429, says("acme/m-9 is not available on the free tier"), "permission_model"),
        ("relay.test", 429, says("Free tier limit reached, try again in 20s"), "rate_limited"),
        ("gateway.test", 403, {"type": "model_blocked", "status_code": 403, "error": {"type": "model_blocked", "message": "no"}}, "permission_model"),
        ("gateway.test", 403, says("acme/m-9 is not in the allowlist of this key"), "permission_model"),
        ("gateway.test", 403, says("model acme/m-9 is not allowed for virtual key"), "permission_model"),
        ("gateway.test", 403, says("virtual key is blocked", "virtual_key_blocked"), "auth"),
        ("gateway.test", 403, says("You may not call acme/m-9", "forbidden"), "permission_model"),
    ])  # fmt: skip


def test_a_firewall_speaks_of_this_replicas_way_and_not_of_the_key() -> None:
    check([
        ("acme.openai.azure.com", 403, says("Access denied due to Virtual Network/Firewall rules.", "403"), "wrong_endpoint"),
        ("acme.openai.azure.com", 403, {"code": "PublicNetworkAccessDisabled", "message": "Public network access is disabled for this resource"}, "wrong_endpoint"),
        ("acme.openai.azure.com", 403, says("Public access is disabled. Please configure private endpoint.", "403"), "wrong_endpoint"),
        ("relay.test", 403, says("Request blocked by the network firewall policy"), "wrong_endpoint"),
        ("vertex", 403, google(403, "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: x", "PERMISSION_DENIED"), "wrong_endpoint"),
        ("relay.test", 403, says("Your IP address 203.0.113.9 is not in the allowed range of this network"), "wrong_endpoint"),
        ("acme.openai.azure.com", 401, says("Access denied due to invalid subscription key", "401"), "auth"),
    ])  # fmt: skip


def test_a_refusal_that_depends_on_the_size_of_the_request_is_the_callers() -> None:
    check([
        ("openrouter", 402, says("This request requires more credits, or fewer max_tokens. You requested up to 32000 tokens, but can only afford 812.", 402), "bad_request"),
        ("relay.test", 402, says("Insufficient credits for this request: lower max_tokens", "insufficient_credits"), "bad_request"),
        ("relay.test", 402, says("Balance covers 900 tokens; reduce max_tokens", "insufficient_balance"), "bad_request"),
        ("openrouter", 402, says("Insufficient credits. Add more", 402), "quota"),
        ("openrouter", 402, says("This request requires more credits. You can only afford 0.", 402), "quota"),
        ("groq", 413, says("Request too large for model: Limit 6000, Requested 9100, please reduce", "rate_limit_exceeded"), "context_length"),
        ("relay.test", 429, says("Token limit: 30,000, requested: 41,200", "rate_limit_exceeded"), "context_length"),
        ("relay.test", 429, says("tokens per minute: Limit 8000, Requested 9000"), "context_length"),
        ("groq", 429, says("Rate limit reached: Limit 6000, Used 5800, Requested 900", "rate_limit_exceeded"), "rate_limited"),
    ])  # fmt: skip


def test_memory_that_is_short_just_now_is_no_missing_model() -> None:
    check([
        ("gpu-1:11434", 500, {"error": "model requires more system memory (42.1 GiB) than is available (12.3 GiB)"}, "overloaded"),
        ("relay.test", 500, {"error": "not enough GPU memory to load the model"}, "overloaded"),
        ("lmstudio", 400, says("Failed to load model: insufficient system resources"), "overloaded"),
        ("ollama", 404, {"error": "model 'acme/m-9' not found, try pulling it first"}, "model_unavailable"),
    ])  # fmt: skip


def test_what_a_gateway_says_of_its_upstream() -> None:
    check([
        ("relay.test", 503, says("fetch failed", "service_unavailable"), "network"),
        ("relay.test", 502, {"error": "TypeError: fetch failed"}, "network"),
        ("relay.test", 503, "upstream connect error or disconnect/reset before headers. reset reason: connection failure", "network"),
        ("relay.test", 503, "upstream connect error or disconnect/reset before headers. reset reason: overflow", "overloaded"),
        ("relay.test", 400, says("Failed to fetch image from url"), "bad_request"),
        ("relay.test", 404, "<html><head><title>404: This page could not be found</title></head></html>", "wrong_endpoint"),
        ("openrouter", 404, "<!DOCTYPE html><h2>The page you are looking for doesn't exist</h2>", "wrong_endpoint"),
        ("openrouter", 404, "<h1>404 Not Found</h1>nginx", "unknown"),
    ])  # fmt: skip


def test_an_empty_401_is_a_weak_word_about_the_key() -> None:
    for provider in ("openai", "anthropic", "openrouter"):
        verdict = judge(provider, 401, "")
        assert (verdict.kind, verdict.confidence) == ("auth", "low"), provider
    assert judge("openai", 403, "").kind == "unknown", "an empty 403 is a stranger's"


def test_a_refused_prompt_is_malformed_or_against_a_policy() -> None:
    check([
        ("openai", 400, says("Invalid prompt: messages[1] has an unexpected role", "invalid_prompt"), "bad_request"),
        ("openai", 400, says("Could not parse the messages of your prompt", "invalid_prompt"), "bad_request"),
        ("openai", 400, says("Invalid prompt: your prompt was flagged as potentially violating our usage policy", "invalid_prompt"), "content_filter"),
        ("openai", 400, says("Your prompt was rejected for safety reasons", "invalid_prompt"), "content_filter"),
    ])  # fmt: skip


def stream(*frames: Any) -> str:
    return "".join(
        frame if isinstance(frame, str) else f"data: {json.dumps(frame, ensure_ascii=False)}\n\n" for frame in frames
    )


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


STREAMS: list[tuple[str, str, str]] = [
    (stream({"error": {"message": "Input validation error: `inputs` must have less than 4096 tokens. Given: 5111", "http_status_code": 422}}), "context_length", ""),
    (stream({"error": {"message": "prompt must have fewer than 8192 tokens", "code": 422}}), "context_length", ""),
    (stream({"error": {"message": "top_p must be less than 1", "code": 422}}), "bad_request", ""),
    (stream(piece("a"), {"error": {"message": "Worker local total request limit reached (16/16)", "code": 502, "metadata": {"error_type": "provider_unavailable"}}}), "overloaded", ""),
    (stream(piece("a"), {"error": {"message": "all workers busy, request limit reached", "code": 502}}), "overloaded", ""),
    (stream(piece("a"), {"error": {"message": "Upstream went away", "code": 502}}), "server_error", ""),
    (": ping\n\n: ping\n\n", "empty_output", "keep_alive_only"),
    (": PROCESSING\n\n", "empty_output", "keep_alive_only"),
    (stream(piece("\ufffd\ufffd\ufffd\ufffd \ufffd\ufffd\ufffd\ufffd"), piece("\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd")), "mangled_output", "replacement_char"),
    (stream(piece("Ã¤Ã¶ trÃ¨s Ã©levÃ© naÃ¯ve")), "mangled_output", "double_encoded"),
    (stream(piece("An answer that")), "truncated", "no_end_of_stream"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "kind", "signature"), STREAMS)
def test_a_stream_is_judged_by_what_it_says_and_how_it_ends(body: str, kind: str, signature: str) -> None:
    verdict = judge("relay.test", 200, body, {"content-type": "text/event-stream"}, stream=True)
    assert verdict.kind == kind
    if signature:
        assert verdict.signature == signature


@pytest.mark.parametrize("error", ["reset", "eof", "closed"])
def test_damage_outranks_a_connection_that_broke_after_it(error: str) -> None:
    sse = {"content-type": "text/event-stream"}
    garbage = "\ufffd" * 40
    assert judge("relay.test", 200, stream(piece(garbage)), sse, error=error).kind == "mangled_output"
    assert judge("relay.test", 200, "data: " + garbage, sse, error=error).kind == "mangled_output"
    assert judge("relay.test", 200, stream(piece("An answer")), sse, error=error).kind == "truncated"
    assert judge("relay.test", 200, "", sse, error=error).kind == "network"


def tool_call(arguments: str, finish: str) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": arguments}}
    return {"choices": [{"index": 0, "message": {"content": None, "tool_calls": [call]}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("body", "capped", "kind"),
    [
        (tool_call('{"query": "what is', "length"), False, "malformed_output"),
        (tool_call('{"query": "what is', "length"), True, "ok"),
        (tool_call('{"query": "what is', "length"), None, "ok"),
        (tool_call('{"query": "what is"}', "length"), False, "ok"),
        (tool_call('{"query": "what is"}', "tool_calls"), False, "ok"),
        ({"type": "message", "content": [{"type": "tool_use", "name": "find", "input": {"q": "x"}}], "stop_reason": "max_tokens"}, False, "ok"),
    ],
)  # fmt: skip
def test_cut_arguments_of_a_tool_call_are_a_fault_where_nobody_capped_them(
    body: Any, capped: bool | None, kind: str
) -> None:
    verdict = judge("relay.test", 200, body, client_capped=capped)
    assert verdict.kind == kind
    if kind == "ok":
        assert not verdict.checkable


def test_cut_arguments_are_put_together_from_a_stream() -> None:
    def part(arguments: str, finish: str | None = None) -> dict[str, Any]:
        return {
            "choices": [
                {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}, "finish_reason": finish}
            ]
        }

    sse = {"content-type": "text/event-stream"}
    cut = stream(part('{"que'), part('ry": "wh'), part("", "length"), "data: [DONE]\n\n")
    whole = stream(part('{"que'), part('ry": 1}'), part("", "length"), "data: [DONE]\n\n")
    assert judge("relay.test", 200, cut, sse, client_capped=False).kind == "malformed_output"
    assert judge("relay.test", 200, whole, sse, client_capped=False).kind == "ok"


@pytest.mark.parametrize(
    ("hooks", "kind"),
    [
        ({"before_request_hooks": [{"verdict": False, "id": "pii"}]}, "content_filter"),
        ({"before_request_hooks": [], "after_request_hooks": [{"verdict": False, "deny": True}]}, "content_filter"),
        ([{"verdict": True}, {"verdict": False}], "content_filter"),
        ({"before_request_hooks": [{"verdict": True}]}, "ok"),
        ({"after_request_hooks": [{"verdict": False, "deny": False}]}, "ok"),
    ],
)
def test_a_guardrails_own_text_is_no_answer(hooks: Any, kind: str) -> None:
    body = {
        "choices": [{"message": {"content": "This was stopped by a check."}, "finish_reason": "stop"}],
        "hook_results": hooks,
    }
    assert judge("gateway.test", 200, body).kind == kind


DATE = "Mon, 30 Nov 2026 12:00:00 GMT"
OPEN = {
    "date": DATE,
    "anthropic-ratelimit-unified-status": "allowed",
    "anthropic-ratelimit-unified-5h-status": "allowed",
    "anthropic-ratelimit-unified-5h-reset": "1796049000",
    "anthropic-ratelimit-unified-5h-utilization": "0.12",
    "anthropic-ratelimit-unified-7d-status": "allowed_warning",
    "anthropic-ratelimit-unified-7d-reset": "1796440000",
    "anthropic-ratelimit-unified-7d-utilization": "0.91",
    "anthropic-ratelimit-unified-reset": "1796049000",
    "anthropic-ratelimit-unified-overage-status": "rejected",
}
SPENT = OPEN | {"anthropic-ratelimit-unified-status": "rejected"}
SPENT_5H = SPENT | {"anthropic-ratelimit-unified-5h-status": "rejected"}
SPENT_7D = SPENT | {
    "anthropic-ratelimit-unified-7d-status": "rejected",
    "anthropic-ratelimit-unified-reset": "1796440000",
}
OVER, LIMITED = claude("overloaded_error", "Overloaded"), claude("rate_limit_error", "slow down")


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "wait"),
    [
        (529, OPEN, OVER, "overloaded", None),
        (500, OPEN, claude("api_error", "Internal server error"), "server_error", None),
        (429, OPEN, LIMITED, "rate_limited", None),
        (429, SPENT_5H, LIMITED, "quota", 9000),
        (429, SPENT_7D, LIMITED, "quota", 400_000),
        (429, SPENT, LIMITED, "quota", 9000),
        (529, SPENT_5H, OVER, "overloaded", None),
        (503, {"retry-after": "12"} | OPEN, OVER, "overloaded", 12),
        (429, {"x-ratelimit-reset-requests": "30s"}, says("slow down"), "rate_limited", None),
        (429, {"x-ratelimit-reset-requests": "30s", "x-ratelimit-remaining-requests": "0"}, says("slow down"), "rate_limited", 30),
        (429, {"x-window-ratelimit-reset": "30", "x-window-ratelimit-utilization": "1.0"}, says("slow down"), "rate_limited", 30),
        (429, {"x-window-ratelimit-reset": "30", "x-window-ratelimit-utilization": "0.99"}, says("slow down"), "rate_limited", None),
        (503, {"x-ratelimit-reset-requests": "30s", "x-ratelimit-remaining-requests": "0"}, says("overloaded"), "overloaded", None),
        (503, {}, says("overloaded") | {"retry_after": 8}, "overloaded", 8),
        (429, {}, {"error": {"message": "slow", "metadata": {"headers": {"X-RateLimit-Reset": 20, "X-RateLimit-Remaining": "0"}}}}, "rate_limited", 20),
        (429, {}, {"error": {"message": "slow", "metadata": {"headers": {"X-RateLimit-Reset": 20, "X-RateLimit-Remaining": "7"}}}}, "rate_limited", None),
        (429, {"x-ratelimit-reset": "3600", "x-ratelimit-remaining": "-1"}, says("slow down"), "rate_limited", None),
    ],
)  # fmt: skip
def test_a_window_says_when_only_if_it_is_spent_and_never_for_a_fault(
    status: int, headers: dict[str, str], body: Any, kind: str, wait: float | None
) -> None:
    verdict = judge("anthropic" if "type" in body else "relay.test", status, body, headers)
    assert (verdict.kind, verdict.retry_after_s) == (kind, wait)


def test_a_credential_is_blamed_only_where_no_model_tier_or_size_is_named() -> None:
    check([
        ("relay.test", 403, says("Access to model acme/m-9 denied", "forbidden"), "permission_model"),
        ("relay.test", 403, says("acme/m-9 needs the enterprise tier", "permission_denied"), "permission_model"),
        ("relay.test", 429, says("Daily quota for model acme/m-9 is used up: daily limit reached"), "quota/model"),
        ("relay.test", 429, says("Your account's rate limit for acme/m-9 is reached"), "rate_limited/model"),
        ("relay.test", 429, says("daily limit of the flex tier reached"), "quota/model"),
        ("relay.test", 402, says("Insufficient balance, please top up your account"), "quota/credential"),
        ("relay.test", 429, says("Your account's rate limit is reached"), "rate_limited/credential"),
        ("relay.test", 403, says("Your account is suspended"), "auth"),
        ("relay.test", 403, says("Forbidden", "forbidden"), "auth"),
    ])  # fmt: skip
