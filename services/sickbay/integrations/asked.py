"""What an HTTP request to a provider asks for: which model, as a stream or not, under which limits. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec

from sickbay_events import NameRefused, Target, provider_of

Dialect: TypeAlias = Literal["openai", "anthropic", "google", "bedrock"]
"""Whose shape an error of the provider has."""

_IN_PATH: Final = re.compile(
    r"/deployments/(?P<azure>[^/?]+)/|/model/(?P<bedrock>[^/?]+)/(?:converse|invoke)|/models/(?P<google>[^/:?]+):\w"
)
_STREAM_PATH: Final = re.compile(r":stream\w+\Z|/converse-stream\Z|/invoke-with-response-stream\Z")
_NO_GENERATION: Final = re.compile(
    r"(?:/count_tokens|:countTokens|/tokenize|/detokenize|/batches|/files|/fine_tuning/jobs)\Z"
)
"""Routes that name a model and do not call it: their success says nothing about it."""
BODY_BYTES_MAX: Final = 64 * 1024 * 1024


class ModelRequest(NamedTuple):
    """A request that calls a model."""

    target: Target
    is_stream: bool
    client_capped: bool
    """Whether it caps the length of the answer."""
    prompt_ascii: bool
    dialect: Dialect


class _Body(msgspec.Struct):
    """The fields of all dialects; everything else is passed over, and nothing of it is kept."""

    model: Any = None
    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    generation_config: Any = msgspec.field(default=None, name="generationConfig")
    inference_config: Any = msgspec.field(default=None, name="inferenceConfig")

    @property
    def is_capped(self) -> bool:
        inside = (_of(self.generation_config, "maxOutputTokens"), _of(self.inference_config, "maxTokens"))
        return any((self.max_tokens, self.max_completion_tokens, self.max_output_tokens, *inside))


def read_request(origin: str, alias: str, path: str, body: bytes) -> ModelRequest | None:
    """Read a POST. None if it calls no model, or none that is known; then it is let pass.

    origin   scheme, host and port: nothing of a path or a query, which may hold a key
    alias    of the credential, empty if there is only one
    path     as sent, percent-encoded, without the query
    body     JSON
    """
    if len(body) > BODY_BYTES_MAX or _NO_GENERATION.search(path):
        return None
    try:
        said = _decoder.decode(body)
    except (ValueError, RecursionError):
        return None
    found = _IN_PATH.search(path)
    model = said.model
    if found is not None:
        # A deployment's name is the target; elsewhere a model in the body is the more exact one.
        in_path = unquote(found["azure"] or found["bedrock"] or found["google"])
        model = in_path if found["azure"] or not isinstance(model, str) else model
    provider = _provider(origin, alias)
    if not isinstance(model, str) or not model or not provider:
        return None
    return ModelRequest(
        Target(provider, model),
        is_stream=said.stream is True or _STREAM_PATH.search(path) is not None,
        client_capped=said.is_capped,
        prompt_ascii=body.isascii() and b"\\u" not in body,
        dialect=_dialect(path, found),
    )


_decoder: Final = msgspec.json.Decoder(_Body)


@lru_cache(maxsize=1024)
def _provider(origin: str, alias: str) -> str:
    try:
        return provider_of(f"{origin}#{alias}" if alias else origin)
    except NameRefused:
        return ""


def _dialect(path: str, found: re.Match[str] | None) -> Dialect:
    if path.endswith("/messages"):
        return "anthropic"
    if found is not None and found["google"]:
        return "google"
    return "bedrock" if found is not None and found["bedrock"] else "openai"


def _of(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, dict) else None
