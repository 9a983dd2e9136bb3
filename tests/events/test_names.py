"""Names, tokens and scope keys (Rule 1): one spelling each, both ways, for any string."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sickbay_events import NameRefused, Scope, Target, TokenRefused, provider_of, token, untoken
from sickbay_events.codec import outcome_subject, override_subject, probe_subject
from sickbay_events.names import NAME_BYTES_MAX, at_machine

FUZZ = settings(max_examples=400, deadline=None)
# Surrogates too: a name read from a broken source must not bring the reporter down.
ANY_TEXT = st.text(st.characters(), max_size=90).filter(lambda text: len(_raw(text)) <= NAME_BYTES_MAX)
NAME = ANY_TEXT.filter(bool)
HOST = NAME.filter(lambda text: "#" not in text)
NEARLY_A_URL = st.from_regex(r"[a-z]{0,6}:?/{0,3}[\[\]:@#?%.a-z0-9-]{0,30}", fullmatch=True)
PLAIN_TOKEN = re.compile(r"(?:=|(?:[A-Za-z0-9_/-]|=[0-9A-F]{2})+)\Z")


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


EXAMPLES = {
    "z-ai/glm-5.3-flash": "z-ai/glm-5=2E3-flash",
    "ft:gpt-4o:acme": "ft=3Agpt-4o=3Aacme",
    "": "=",
    "=": "=3D",
    "openrouter.ai": "openrouter=2Eai",
    "anthropic.claude-3-5-sonnet-20241022-v2:0": "anthropic=2Eclaude-3-5-sonnet-20241022-v2=3A0",
    "meta llama": "meta=20llama",
    "ünï": "=C3=BCn=C3=AF",
    "🦙": "=F0=9F=A6=99",
    "a\nb\0": "a=0Ab=00",
    "*.>": "=2A=2E=3E",
    "localhost:11434@box-7": "localhost=3A11434=40box-7",
}


@pytest.mark.parametrize(("name", "expected"), EXAMPLES.items())
def test_a_token_is_spelled_as_the_wire_contract_says(name: str, expected: str) -> None:
    assert token(name) == expected
    assert untoken(expected) == name


@FUZZ
@given(ANY_TEXT)
@example("\ud83d\ude00")  # Two surrogates are another name than the emoji they would make in UTF-16.
@example("=00")
def test_every_name_comes_back_from_its_token(name: str) -> None:
    assert untoken(token(name)) == name
    assert PLAIN_TOKEN.match(token(name)), "a token is safe in a subject and in a KV key"


@FUZZ
@given(ANY_TEXT, ANY_TEXT)
def test_two_names_never_share_a_token(one: str, other: str) -> None:
    assert (token(one) == token(other)) == (one == other)


@FUZZ
@given(st.one_of(ANY_TEXT, st.from_regex(r"(?:=[0-9A-Fa-f]{0,3}|[a-z=]){0,8}", fullmatch=True)))
@example("=61")
@example("=c3=bc")
@example("=C3")
@example("==")
@example("=0")
@example("a.b")
@example("a=")
@example("")
def test_what_is_not_the_one_spelling_of_a_name_is_refused(text: str) -> None:
    try:
        name = untoken(text)
    except TokenRefused as error:
        assert error.token == text
        assert error.why
    else:
        assert token(name) == text


@pytest.mark.parametrize(
    "text", ["=61", "=c3=bc", "=C3", "==", "=0", "a.b", "a=", "", "ü", "a b", "=ED=B0", "=F8=88=80=80=80"]
)
def test_a_second_spelling_of_a_name_is_refused(text: str) -> None:
    with pytest.raises(TokenRefused):
        untoken(text)


def test_a_name_has_at_most_256_bytes() -> None:
    """A longer one is refused, and the refusal shows the accepted form."""
    longest = "ü" * 128
    assert untoken(token(longest)) == longest
    with pytest.raises(NameRefused, match=r"at most 256 bytes of UTF-8, this one has 257") as caught:
        token(longest + "a")
    assert caught.value.field == "name"
    with pytest.raises(TokenRefused):
        untoken("a" * 257)


PROVIDERS = {
    "https://OpenRouter.ai/api/v1": "openrouter.ai",
    "https://openrouter.ai:443/api/v1?x=1": "openrouter.ai",
    "https://user:secret@api.openai.com/v1": "api.openai.com",
    "https://api.example.com:8443": "api.example.com:8443",
    "http://gateway.local/v1": "gateway.local:80",
    "http://gateway.local:443/v1": "gateway.local",
    "http://localhost:11434/v1": "localhost:11434",
    "http://[::1]:8080/v1": "[::1]:8080",
    "  https://api.x.ai/v1\n": "api.x.ai",
    "HTTPS://API.X.AI": "api.x.ai",
    "api.example.com/v1": "api.example.com",
    "API.EXAMPLE.COM": "api.example.com",
    "api.example.com:443": "api.example.com",
    "https://api.example.com./v1": "api.example.com",
    "api.example.com.:8443/v1": "api.example.com:8443",
    "GPU-1:11434": "gpu-1:11434",
    "http://[2001:DB8:0:0:0:0:0:1]:8000/v1": "[2001:db8::1]:8000",
    "[2001:DB8::1]:8000": "[2001:db8::1]:8000",
    "2001:db8::0:1": "[2001:db8::1]",
    "http://[::ffff:10.0.0.7]:8000": "10.0.0.7:8000",
    "https://münchen.example/v1": "xn--mnchen-3ya.example",
    "MÜNCHEN.example": "xn--mnchen-3ya.example",
    "https://xn--mnchen-3ya.example": "xn--mnchen-3ya.example",
    "https://straße。example/": "xn--strae-oqa.example",
    "https://api.example.com/v1#team-a": "api.example.com#team-a",
    "api.example.com/v1#team-a": "api.example.com#team-a",
    "https://api.example.com/v1?api-version=2024-10-21#eu": "api.example.com#eu",
    "https://api.example.com/v1#": "api.example.com",
    "openrouter.ai": "openrouter.ai",
    "openrouter.ai#team-a": "openrouter.ai#team-a",
    "xai": "xai",
    "My Label": "My Label",
    "": "",
}


@pytest.mark.parametrize(("url", "expected"), PROVIDERS.items())
def test_a_provider_is_named_by_the_host_of_its_url(url: str, expected: str) -> None:
    assert provider_of(url) == expected


@pytest.mark.parametrize(
    "url",
    ["https://", "http://[::1", "https://api.x.ai:99999/v1", "api.x.ai:99999", "https://a b.test", "https://[zz::]/", "https://..."],
)  # fmt: skip
def test_a_url_without_a_usable_host_is_refused_with_the_accepted_form(url: str) -> None:
    with pytest.raises(NameRefused, match="a host such as") as caught:
        provider_of(url)
    assert caught.value.field == "provider"


KEY = "sk-proj-" + "a1B2c3D4e5F6g7H8"


@pytest.mark.parametrize(
    "url",
    [
        f"https://api.example.com/v1?key={KEY}", "https://api.example.com/v1?api_key=short", "api.example.com/v1?token=x",
        "https://api.example.com/?a=1&access_token=zz", f"https://api.example.com/v1#{KEY}", f"openrouter.ai#{KEY}", KEY,
        f"https://{KEY}.example.com/",
    ],
)  # fmt: skip
def test_what_looks_like_a_key_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(NameRefused) as caught:
        provider_of(url)
    assert KEY not in str(caught.value)
    assert "short" not in str(caught.value)
    assert caught.value.value == "[redacted]"


@pytest.mark.parametrize("target", [Target("api.test", KEY), Target(f"api.test#{KEY}", "m"), Target(KEY, "m")])
def test_no_key_gets_into_a_subject(target: Target) -> None:
    with pytest.raises(NameRefused) as caught:
        outcome_subject("r", target)
    assert KEY not in str(caught.value)
    with pytest.raises(NameRefused):
        probe_subject("r", target)
    with pytest.raises(NameRefused):
        override_subject(target.scope)
    assert Target.of_key(target.key) == target, "a log that holds such a name is still read"


@pytest.mark.parametrize(
    "model",
    [
        "accounts/fireworks/models/llama-v3p1-405b-instruct", "anthropic.claude-3-5-sonnet-20241022-v2:0",
        "ft:gpt-4o-2024-08-06:acme-research:classifier:AbCdEf12", "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8",
        "projects/123456789012/locations/us-central1/endpoints/4567890123456789012", "text-embedding-3-large",
        "key-value-extractor-longest", "3f0a1b2c4d5e6f708192a3b4c5d6e7f8",
    ],
)  # fmt: skip
def test_names_of_models_are_no_keys(model: str) -> None:
    assert outcome_subject("r", Target("api.test", model)).startswith("sickbay.outcome.r.api=2Etest.=.")


@pytest.mark.parametrize(
    ("url", "expected"),
    {
        "http://host.docker.internal:11434/v1": "host.docker.internal:11434@box-7",
        "http://gateway.docker.internal:11434": "gateway.docker.internal:11434@box-7",
        "host.containers.internal:11434": "host.containers.internal:11434@box-7",
        "http://0.0.0.0:8000/v1": "0.0.0.0:8000@box-7",
        "http://[::ffff:127.0.0.1]:8000/v1": "127.0.0.1:8000@box-7",
        "http://[0:0:0:0:0:0:0:1]:8000": "[::1]:8000@box-7",
        "http://[::]:8000/v1": "[::]:8000@box-7",
        "http://LocalHost.:1234": "localhost:1234@box-7",
        "http://ollama.localhost:1234": "ollama.localhost:1234@box-7",
        "http://host.lima.internal:1234#gpu": "host.lima.internal:1234@box-7#gpu",
        "http://docker.internal.example.com": "docker.internal.example.com:80",
        "http://10.0.0.0:8000": "10.0.0.0:8000",
        "http://localhost:11434/v1": "localhost:11434@box-7",
        "http://127.0.0.1:11434": "127.0.0.1:11434@box-7",
        "http://[::1]:11434": "[::1]:11434@box-7",
        "localhost:11434#gpu": "localhost:11434@box-7#gpu",
        "localhost": "localhost@box-7",
        "http://localhost.example.com/": "localhost.example.com:80",
        "https://127.0.0.1.example.com/": "127.0.0.1.example.com",
        "https://api.x.ai": "api.x.ai",
    }.items(),
)
def test_a_loopback_host_is_another_provider_on_every_machine(url: str, expected: str) -> None:
    assert provider_of(url, machine="box-7") == expected
    assert provider_of(expected, machine="box-7") == expected, "naming twice changes nothing"


@FUZZ
@given(
    st.text(st.characters(), max_size=60)
    | st.from_regex(r"[a-z]{0,6}:?/{0,3}[\[\]:@#?%.a-z0-9-]{0,30}", fullmatch=True)
)
def test_a_provider_has_one_name_or_is_refused_and_naming_its_name_changes_nothing(url: str) -> None:
    try:
        name = provider_of(url, "box-7")
    except NameRefused:
        assert at_machine(url, "box-7") == url
    else:
        assert provider_of(name, "box-7") == name
        assert at_machine(url, "box-7") == name


@FUZZ
@given(HOST, st.none() | ANY_TEXT, st.none() | NAME)
def test_a_scope_comes_back_from_its_key_and_the_depth_says_which_it_is(
    host: str, alias: str | None, model: str | None
) -> None:
    scope = Scope(host, alias, None if alias is None else model)
    assert Scope.of_key(scope.key) == scope
    assert scope.key.count(".") == ("host", "credential", "model").index(scope.name)


@FUZZ
@given(HOST, ANY_TEXT, NAME)
def test_a_target_comes_back_from_its_key_and_its_three_scopes_nest(host: str, alias: str, model: str) -> None:
    target = Target(f"{host}#{alias}" if alias else host, model)
    assert Target.of_key(target.key) == target
    host_key, credential_key, model_key = target.keys
    assert (Scope(host).key, Scope(host, alias).key, target.scope.key) == target.keys
    assert credential_key.startswith(host_key + ".")
    assert model_key.startswith(credential_key + ".")
    assert target.key == model_key


def test_scope_keys_are_those_of_the_wire_contract() -> None:
    assert Target("openrouter.ai", "z-ai/glm-5.3").keys == (
        "openrouter=2Eai",
        "openrouter=2Eai.=",
        "openrouter=2Eai.=.z-ai/glm-5=2E3",
    )
    assert Target("openrouter.ai#team-a", "z-ai/glm-5.3").key == "openrouter=2Eai.team-a.z-ai/glm-5=2E3"
    assert Scope("openrouter.ai", "team-a").provider == "openrouter.ai#team-a"


# `h=23a.=.m` would name the target `h#a` / m by a second key: the alias has its own token.
@pytest.mark.parametrize("key", ["", "=", "=.a.b", "a.b.=", "a.b.c.d", "a..c", "h=23a", "h=23a.=.m", "a.b.c "])
def test_a_key_that_no_scope_has_is_refused(key: str) -> None:
    with pytest.raises(TokenRefused):
        Scope.of_key(key)


def test_a_credential_or_a_host_is_no_target() -> None:
    with pytest.raises(TokenRefused, match="three tokens"):
        Target.of_key("openrouter=2Eai.=")


@pytest.mark.parametrize("target", [Target("", "m"), Target("h", ""), Target("#team-a", "m"), Target("", "")])
def test_an_empty_provider_or_model_is_no_target(target: Target) -> None:
    assert target.is_empty


def test_only_a_provider_without_a_machine_gets_one() -> None:
    assert at_machine("localhost:1@box-1", "box-2") == "localhost:1@box-1"
    assert at_machine("localhost:1", "") == "localhost:1"
