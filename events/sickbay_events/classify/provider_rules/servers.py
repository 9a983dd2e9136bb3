"""Habits of servers that one runs oneself: rows by family; the first that fits decides."""

# ruff: noqa: E501 - one habit, one line
from __future__ import annotations

from typing import Final

from ..rules import Rule, rule

SERVERS: Final[dict[str, tuple[Rule, ...]]] = {
    "tgi": (
        rule("overloaded", "overloaded"),
        rule("context_length", "validation", "tokens | max_new_tokens"),
        rule("server_error", "generation incomplete_generation"),
        rule("bad_request", "validation template_error"),
    ),
    "ollama": (
        rule("wrong_endpoint", "", "page not found"),
        rule("wrong_endpoint", "", "does not support chat | does not support generate | does not support embed | does not support completion"),
        rule("bad_request", "", "does not support"),
        rule("model_unavailable", "", "try pulling it"),
        rule("bad_request", "", "model is required | invalid model name"),
        # This host cannot load it, and will not be able to in a minute.
        rule("model_unavailable", "", "unable to load model | error loading model"),
        rule("server_error", "", "model runner has | runner process"),
        rule("overloaded", "", "server busy | loading model"),
        rule("quota", "", "usage limit"),
        rule("permission_model", "", "requires a subscription | this model requires", at=(403,)),
    ),
    "lmstudio": (
        rule("wrong_endpoint", "", "unexpected endpoint or method"),
        rule("model_unavailable", "", "model does not exist | no models loaded", never="not authorized | in request"),
        rule("overloaded", "", "failed to load model"),
        rule("model_unavailable", "", "multiple models are loaded | model unloaded", never="multiple"),
        rule("server_error", "", "model has crashed | model crashed | channel error"),
        rule("context_length", "", "context the overflows | context length"),
    ),
    "localai": (
        rule("model_unavailable", "", "could not load model"),
        rule("server_error", "", "rpc error"),
    ),
    "llamacpp": (
        rule("context_length", "exceed_context_size_error", ""),
        rule("overloaded", "unavailable_error", "loading model"),
        rule("overloaded", "unavailable_error"),
        rule("wrong_endpoint", "not_supported_error", "endpoint | embedding | rerank | infill | slots | metrics"),
        rule("wrong_endpoint", "not_found_error", "file not found | not found", never="model"),
        rule("bad_request", "", "image input is not supported | audio input is not supported | tools param requires"),
        rule("auth", "authentication_error"),
    ),
    "vllm": (
        rule("wrong_endpoint", "", "does not support & api | not found", at=(404,), never="model | lora | adapter"),
        rule("bad_request", "", "is not a multimodal | at most & may be provided"),
        rule("overloaded", "", "service is sleeping"),
    ),
    "sglang": (
        rule("overloaded", "no_available_workers all_circuits_open queue_full"),
        rule("context_length", "", "longer than the model's | requested token count"),
    ),
}  # fmt: skip
