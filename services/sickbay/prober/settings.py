"""What a prober is told: targets, requests, limits; from the services' own file, not from the log's policy.

    [probe]
    interval_s = 300

    [[probe.target]]
    model = "z-ai/glm-5.3"
    base_url = "https://openrouter.ai/api/v1"
    headers = { Authorization = "Bearer env:OPENROUTER_API_KEY" }

Secrets stand in it as references to environment variables. Nothing here touches the network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Meta

from sickbay_events import NameRefused, Target, provider_of
from sickbay_events.names import at_machine, checked_key
from sickbay_events.redact import MARK, looks_secret

from ..invalid import InvalidValue
from ..tomlfile import REFERENCE, read_table

Family: TypeAlias = Literal["openai-chat", "anthropic", "gemini", "ollama"]
Level: TypeAlias = Literal["readiness", "liveness"]
Interval: TypeAlias = Annotated[float, Meta(ge=1, le=86_400)]
Limit: TypeAlias = Annotated[float, Meta(ge=0.1, le=120)]

PROMPT: Final = "Reply with the word OK."
TOKENS_MAX: Final = 16
TARGETS_MAX: Final = 1_000
_SECRET_HEADERS: Final = frozenset(
    ("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-goog-api-key")
)
_PATHS: Final[dict[Family, str]] = {
    "openai-chat": "/chat/completions",
    "anthropic": "/messages",
    "gemini": "/models/{model}:generateContent",
    "ollama": "/api/chat",
}
_OWN_HEADERS: Final[dict[Family, dict[str, str]]] = {"anthropic": {"anthropic-version": "2023-06-01"}}


class ProbeTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One target to probe, and how."""

    model: Annotated[str, Meta(min_length=1)]
    base_url: str
    """As clients of that API have it: `https://api.openai.com/v1`, `http://localhost:11434`."""
    provider: str = ""
    """As routers name it; empty: the host of `base_url`."""
    family: Family = "openai-chat"
    """Which request asks for a tiny answer."""
    level: Level = "readiness"
    """`liveness` asks the origin for anything at all, without headers of yours, and costs no tokens."""
    headers: dict[str, str] = {}
    """`env:NAME` in a value stands for that environment variable."""
    body: dict[str, Any] = {}
    """Fields that the request has beside the family's own, or in their place."""
    interval_s: Interval | None = None
    limit_s: Limit | None = None


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file as a whole."""

    target: Annotated[list[ProbeTarget], Meta(max_length=TARGETS_MAX)] = []
    interval_s: Interval = 300.0
    """A target is probed if nothing was heard of it for so long: no call, no probe."""
    limit_s: Limit = 20.0
    """The time that one probe may take."""
    per_hour: Annotated[int, Meta(ge=1, le=100_000)] = 120
    """Probes of all targets together that this process may make in an hour."""


class Probe(NamedTuple):
    """One target as it is probed."""

    target: Target
    level: Level
    interval_s: float
    limit_s: float
    live: Request
    """The request that only an origin need answer."""
    ready: Request


class Request(NamedTuple):
    """One HTTP request. `headers` may hold secrets: it is never shown."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes


def read_probes(
    text: str, *, machine: str = "", environ: Mapping[str, str] | None = None
) -> tuple[ProbeSettings, list[Probe]]:
    """A probes' file, every value of it checked. `machine` is added to loopback providers, as routers do.

    Raises `InvalidValue`; for text that is no TOML its key is `(file)`.
    """
    found = read_table(text, "probe", ProbeSettings, "[[probe.target]]")
    made = [made_probe(one, found, f"probe.target[{at}]", machine, environ) for at, one in enumerate(found.target)]
    seen: set[Target] = set()
    for at, probe in enumerate(made):
        if probe.target in seen:
            raise InvalidValue(
                f"probe.target[{at}]", f"{probe.target.provider} {probe.target.model}", "each target once"
            )
        seen.add(probe.target)
    return found, made


def made_probe(
    one: ProbeTarget, probes: ProbeSettings, path: str = "", machine: str = "", environ: Mapping[str, str] | None = None
) -> Probe:
    """A target with its requests made. Raises `InvalidValue` naming the field, under `path`."""
    path = f"{path}." if path else ""
    url = urlsplit(one.base_url)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise InvalidValue(f"{path}base_url", one.base_url, "a URL such as https://openrouter.ai/api/v1")
    if "@" in url.netloc:
        raise InvalidValue(f"{path}base_url", MARK, "a URL without user and password")
    headers = {**_OWN_HEADERS.get(one.family, {}), **_resolved(one.headers, f"{path}headers", environ)}
    try:
        target = Target(at_machine(one.provider or provider_of(one.base_url), machine), one.model)
        _ = checked_key(target.provider, target.model)
    except NameRefused as error:
        raise InvalidValue(f"{path}{error.field}", error.value[:80], error.accepted) from error
    base = one.base_url.rstrip("/")
    path_of = _PATHS[one.family].replace("{model}", quote(one.model, safe=""))
    body = json.dumps(_body(one)).encode()
    return Probe(
        target=target,
        level=one.level,
        interval_s=one.interval_s or probes.interval_s,
        limit_s=one.limit_s or probes.limit_s,
        live=Request("GET", base, {}, b""),
        ready=Request("POST", base + path_of, {"Content-Type": "application/json", **headers}, body),
    )


def _body(one: ProbeTarget) -> dict[str, Any]:
    """The family's smallest request for an answer."""
    turn = {"role": "user", "content": PROMPT}
    made: dict[str, Any]
    if one.family == "gemini":
        made = {
            "contents": [{"role": "user", "parts": [{"text": PROMPT}]}],
            "generationConfig": {"maxOutputTokens": TOKENS_MAX},
        }
    elif one.family == "ollama":
        made = {"model": one.model, "messages": [turn], "stream": False, "options": {"num_predict": TOKENS_MAX}}
    else:
        made = {"model": one.model, "messages": [turn], "max_tokens": TOKENS_MAX}
        if "max_completion_tokens" in one.body:
            del made["max_tokens"]  # some models take only one of the two
    return {**made, **one.body}


def _resolved(headers: Mapping[str, str], path: str, environ: Mapping[str, str] | None) -> dict[str, str]:
    """Headers with their references replaced. A value in clear that is a secret is refused, and not repeated."""
    known = os.environ if environ is None else environ
    made: dict[str, str] = {}
    for name, value in headers.items():
        is_reference = REFERENCE.search(value) is not None
        if not is_reference and (name.lower() in _SECRET_HEADERS or looks_secret(value)):
            raise InvalidValue(f"{path}.{name}", MARK, "a reference such as 'Bearer env:NAME', never the secret itself")
        for missing in (found for found in REFERENCE.findall(value) if not known.get(found)):
            raise InvalidValue(f"{path}.{name}", f"env:{missing}", "the name of an environment variable that is set")
        made[name] = REFERENCE.sub(lambda found: known[found[1]], value)
        try:
            made[name].encode("latin-1")
        except UnicodeEncodeError:
            raise InvalidValue(f"{path}.{name}", MARK, "characters that an HTTP header may have") from None
        if any(ord(character) < 32 for character in name + made[name]):
            raise InvalidValue(f"{path}.{name}", MARK, "one line")
    return made


def has_usage(body: bytes) -> bool:
    """Whether an answer says how many tokens it cost: only an upstream that generates can count them."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(data, dict):
        return False
    counts = [data.get(name) for name in ("eval_count", "prompt_eval_count")]
    for name in ("usage", "usageMetadata"):
        if isinstance(data.get(name), dict):
            counts += data[name].values()
    return any(isinstance(count, int) and not isinstance(count, bool) and count > 0 for count in counts)
