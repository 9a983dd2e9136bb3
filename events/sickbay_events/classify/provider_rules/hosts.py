"""Habits of those who serve other people's models: rows by family; the first that fits decides."""

# ruff: noqa: E501 - one habit, one line
from __future__ import annotations

from typing import Final

from ..rules import MISSING, THERE, Rule, rule

HOSTS: Final[dict[str, tuple[Rule, ...]]] = {
    "groq": (
        rule("context_length", "rate_limit_exceeded", "request too large", at=(413,)),
        rule("rate_limited", "rate_limit_exceeded"),
        rule("overloaded", "", "over capacity", at=(498, 503, 429)),
        rule("permission_model", "model_terms_required"),
        # Documented for a spend limit that has been reached, and for nothing else.
        rule("quota", "blocked_api_access"),
        rule("auth", "organization_restricted"),
    ),
    "together": (
        rule("model_unavailable", "model_not_available model_not_found dedicated_endpoint_not_running", never=THERE),
        rule("model_unavailable", "", "unable to access non-serverless model | dedicated endpoint & not running"),
        rule("quota", "", "credit limit exceeded | exceeded your & credit"),
        rule("rate_limited", "dynamic_request_limited dynamic_token_limited"),
        rule("overloaded", "", "overcapacity"),
        rule("context_length", "", "tokens & must be <=  | input & tokens + "),
    ),
    "fireworks": (
        rule("overloaded", "", "first token before the given deadline"),
        rule("quota", "", "suspended", at=(412, 403, 402)),
        rule("quota", "precondition_failed"),
        rule("model_unavailable", "not_found", "model not found, inaccessible"),
        rule("model_unavailable", "not_found", MISSING, never=THERE),
        rule("overloaded", "", "scaled to zero | scaling up | deployment overloaded"),
        rule("auth", "unauthorized forbidden"),
        rule("rate_limited", "", "rate limit exceeded | too many requests", scope="credential"),
    ),
    "huggingface": (
        rule("wrong_endpoint", "", "api-inference.huggingface.co & no longer supported | please use https://router"),
        rule("quota", "", "monthly included credits | pre-paid credits | exceeded your gpu quota"),
        rule("permission_model", "", "gated repo | is gated | gated model | is restricted | pro subscription | awaiting a review", never="api key"),
        rule("model_unavailable", "", "not found", at=(404,), never="the | for | was | with | using | this | that | page | url | file | item | response | resource | memory | job | function | error code | path | ion not | ead not | ect not | issuer | index | entry | batch | registry | route | expired | new users | routing | assistant | agent | of model"),
        rule("wrong_endpoint", "", "is not supported for task | not a chat model"),
        rule("auth", "", "invalid username or password | inference providers on behalf | invalid credentials | sufficient permissions"),
        rule("model_unavailable", "", "not supported by any provider | is not supported by provider | model & no longer supported"),
        rule("overloaded", "", "currently loading | still loading | too busy"),
        rule("model_unavailable", "", "too large to be loaded"),
    ),
    "nvidia_nim": (
        rule("overloaded", "", "degraded function | resourceexhausted | worker local total request limit | workers are busy"),
        rule("model_unavailable", "", "specified function & is not found"),
        rule("permission_model", "", "function & not found for account | function & not found"),
        rule("model_unavailable", "", "reached its end of life | end of life | no longer available", never=THERE),
        rule("quota", "", "credits expired | cloud credits"),
        # Its answer to an id that it does not know.
        rule("model_unavailable", "", "404 page not found", at=(404,)),
        rule("wrong_endpoint", "", "page not found"),
    ),
    "perplexity": (
        rule("model_unavailable", "invalid_model", never=THERE),
        rule("auth", "", "401 authorization required", at=(401,)),
        rule("quota", "", "exceeded your current quota | insufficient_quota"),
    ),
    "cerebras": (
        rule("rate_limited", "request_quota_exceeded token_quota_exceeded", "minute | second | per hour"),
        rule("quota", "request_quota_exceeded token_quota_exceeded", "day | daily"),
        rule("rate_limited", "request_quota_exceeded token_quota_exceeded"),
        rule("overloaded", "queue_exceeded"),
        rule("malformed_output", "json_validate_failed"),
        rule("auth", "wrong_api_key"),
    ),
    "sambanova": (
        rule("model_unavailable", "", "requested model is not available", never=THERE),
        rule("rate_limited", "", "rate limit exceeded"),
        rule("overloaded", "", "model is busy | unexpected_error & busy"),
    ),
    "replicate": (
        rule("rate_limited", "", "was throttled", scope="credential"),
        rule("quota", "", "free time limit | billing | insufficient credit", at=(402,)),
        rule("auth", "", "unauthenticated | valid authentication token"),
        rule("model_unavailable", "", "requested resource could not be found | version does not exist", at=(404, 422)),
        rule("model_unavailable", "", "invalid version or not permitted", at=(422,)),
        rule("content_filter", "", "nsfw | flagged as sensitive"),
    ),
    "cloudflare": (
        rule("model_unavailable", "5007 3042"),
        rule("permission_model", "5018 3041 5016 5035"),
        rule("context_length", "5004 5005 5006 3003 3010 3030", "context length | maximum context | too long"),
        rule("auth", "9109 10000 10001 9106 9103 9107 6003 6111 2009 3023"),
        rule("quota", "4006 3036"),
        rule("overloaded", "3040"),
        rule("rate_limited", "2003 971 10013", scope="credential"),
        rule("content_filter", "2016 2017"),
        rule("content_filter", "3030", "nsfw | flagged | prohibited | moderat"),
        rule("timeout", "3007 3046"),
        rule("context_length", "5021 3006", never="bytes"),
        rule("wrong_endpoint", "2001 7000 7001 7003 5019"),
        rule("bad_request", "5004 5005 5006 3003 3010 3030 3039 8001 8002 8004 8007 2002 2005 2008 2014"),
        rule("server_error", "3043 3044 2010 1031"),
        rule("cancelled", "3008"),
    ),
    "featherless": (
        rule("overloaded", "model_not_ready completion_error_cold"),
        rule("rate_limited", "concurrency_limit_exceeded", scope="credential"),
    ),
    "databricks": (
        rule("permission_model", "permission_denied", "endpoint | model"),
        rule("quota", "", "rate limit of 0 | spending limit"),
        rule("rate_limited", "request_limit_exceeded"),
        rule("model_unavailable", "resource_does_not_exist endpoint_not_found"),
        rule("overloaded", "temporarily_unavailable"),
        rule("context_length", "bad_request", "max_tokens & exceed | context"),
    ),
    "watsonx": (
        rule("model_unavailable", "model_not_supported model_no_support_for_function", never=THERE),
        rule("quota", "token_quota_reached"),
        rule("rate_limited", "rate_limit_reached_requests consumption_limit_reached"),
        rule("auth", "authentication_token_expired authentication_token_not_valid authorization_rejected no_associated_service_instance_error"),
        rule("overloaded", "downstream_request_failed_overloaded model_not_ready"),
        rule("server_error", "downstream_request_failed"),
    ),
    "novita": (
        rule("model_unavailable", "model_not_found invalid_model_name model_not_available", never=THERE),
        rule("quota", "not_enough_balance insufficient_balance"),
        rule("auth", "invalid_api_key failed_to_auth"),
        rule("rate_limited", "rate_limit_exceeded"),
        rule("overloaded", "service_not_available"),
    ),
    "deepinfra": (
        rule("model_unavailable", "", "model is not available | model not available", never=f"{THERE} | api version"),
        rule("overloaded", "", "model busy | busy, retry later"),
        rule("quota", "", "inference prohibited | balance"),
    ),
    "neuralwatt": (rule("overloaded", "", "admission"),),
}  # fmt: skip
