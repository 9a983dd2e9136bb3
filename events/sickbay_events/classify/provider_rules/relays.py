"""Habits of gateways that pass on what upstreams say: rows by family; the first that fits decides."""

# ruff: noqa: E501 - one habit, one line
from __future__ import annotations

from typing import Final

from ..rules import MISSING, THERE, Rule, rule

RELAYS: Final[dict[str, tuple[Rule, ...]]] = {
    "openrouter": (
        rule("quota", "", "free-models-per-day | key limit exceeded | requires more credits | never purchased credits"),
        rule("rate_limited", "", "free-models-per-min", scope="credential"),
        rule("rate_limited", "", "rate-limited upstream | rate limited upstream"),
        rule("bad_request", "", "no endpoints found & filter by tool | no endpoints found & filter by parameter"),
        rule("bad_request", "", "no endpoints found & filter by modalit | no endpoints found & filter by context"),
        # Endpoints there were; the caller's own filters left none.
        rule("permission_model", "", "no endpoints found & filter by | removed during routing"),
        rule("permission_model", "", "matching your data policy | matching your guardrail | no allowed providers | requiring a key"),
        rule("permission_model", "", "all providers have been ignored | is not available in your region"),
        rule("bad_request", "", "support tool use | support image input | support audio input | that support | requested parameters"),
        rule("model_unavailable", "", "unavailable for free | no endpoints found for | is not a valid model id | is no longer available", never=THERE),
        rule("overloaded", "", "no instances available | no available provider | no available model provider"),
        rule("content_filter", "", "was flagged | moderation | prompt injection", at=(200, 400, 403)),
        rule("auth", "", "user not found | no auth credentials | no cookie auth"),
        rule("overloaded", "502", "no allowed | overloaded"),
        rule("overloaded", "503", never=f"{MISSING} | no available channel | 无可用渠道"),
    ),
    "vercel_gateway": (
        rule("model_unavailable", "model_not_found", never=THERE),
        rule("permission_model", "", "blocked by routing rule | not available on & plan | restricted model"),
        rule("rate_limited", "", "rate limits in place", scope="credential"),
        rule("quota", "", "free credits | add credits | credit card on file"),
    ),
    "portkey": (
        rule("permission_model", "", "not authorized to access model"),
        rule("content_filter", "hooks_failed"),
        rule("content_filter", "", at=(446,)),
        rule("bad_request", "", "header is required | x-portkey-"),
        rule("quota", "", "budget & exhausted | usage limit"),
        rule("model_unavailable", "", "is not allowed for this integration"),
    ),
    "litellm": (
        rule("overloaded", "", "no models available"),
        rule("bad_request", "", "model=none"),
        rule("quota", "", "exceeded budget for deployment | crossed budget", scope="model"),
        # A wait of a day is an allowance, whatever the upstream calls it.
        rule("quota", "", "retry after 86400", scope="model"),
        rule("quota", "budget_exceeded", ""),
        rule("quota", "", "budget has been exceeded | exceededbudget | over budget"),
        rule("rate_limited", "", "max parallel request | crossed tpm | rate limit exceeded for", never="deployment", scope="credential"),
        rule("rate_limited", "", "no deployments available & current_tpm | crossed & rate limit"),
        rule("overloaded", "", "no deployments available", at=(429, 503)),
        rule("permission_model", "key_model_access_denied team_model_access_denied user_model_access_denied"),
        rule("permission_model", "", "not allowed to access model | not allowed to call model | this key can only access"),
        rule("content_filter", "content_policy_violation", ""),
        rule("context_length", "", "contextwindowexceedederror"),
        rule("model_unavailable", "", "llm provider not provided | invalid model name | no healthy deployments & not found"),
        # Whatever the upstream did not find: the sentence says what, so that alone is no dead model.
        rule("model_unavailable", "", f"notfounderror & {MISSING} | notfounderror & model:", never="file | thread | batch | assistant | no handler found"),
        rule("auth", "token_not_found_in_db auth_error no_db_connection", never="model"),
        rule("auth", "", "litellm.authenticationerror"),
        rule("auth", "", "proxy server error & token | litellm virtual key | invalid proxy server token", at=(400, 401, 403)),
        rule("timeout", "", "litellm.timeout"),
        rule("overloaded", "", "litellm.serviceunavailableerror"),
        rule("permission_model", "", "aws-marketplace:"),
        rule("bad_request", "", "request param validation error"),
    ),
    "new_api": (
        rule("permission_model", "", "no access to model | model & not allowed for this token | 该令牌无权访问模型 | 无权访问 | 无权使用"),
        rule("model_unavailable", "model_not_found", "no available channel | 无可用渠道 | 无可用"),
        rule("model_unavailable", "", "no available channel for model | 无可用渠道 | no available channels for model"),
        rule("quota", "insufficient_user_quota pre_consume_token_quota_failed", ""),
        rule("quota", "", "令牌额度 | 额度已用尽 | token quota"),
        rule("auth", "", "无效的令牌 | 令牌已过期 | 令牌状态 | 该令牌 | invalid token | 用户已被封禁"),
        rule("content_filter", "sensitive_words_detected", ""),
        rule("rate_limited", "", "您已达到 | 请求数限制 | 请求过于频繁", scope="credential"),
        rule("overloaded", "", "负载已饱和 | 负载已经达到上限"),
        rule("bad_request", "bad_response_status_code", at=(400, 422)),
        rule("server_error", "bad_response_status_code do_request_failed bad_response channel:no_available_key"),
        rule("wrong_endpoint", "", "invalid url"),
        rule("server_error", "", "bad response status code"),
    ),
    "opencode_zen": (
        rule("quota", "creditserror monthlylimiterror userlimiterror subscriptionusagelimiterror freeusagelimiterror gousagelimiterror"),
        rule("overloaded", "modelerror", "no provider available"),
        rule("wrong_endpoint", "modelerror", "supported for format"),
        rule("model_unavailable", "modelerror"),
        rule("auth", "autherror"),
    ),
}  # fmt: skip
