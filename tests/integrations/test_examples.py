"""Every file of examples/ runs as it stands, against a provider on loopback; without its library it is passed over."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fake_provider import FakeProvider, fake_provider
from paths import ROOT
from shown import blocks
from waiting import patience

EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
NEEDS = {
    "openai_sdk": "openai",
    "anthropic_sdk": "anthropic",
    "own_chain": "openai",
    "fastapi_stream": "fastapi",
    "pydantic_ai_fallback": "pydantic_ai",
    "langchain_fallbacks": "langchain_openai",
}


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with fake_provider() as running:
        yield running


def run(name: str, provider: FakeProvider, *command: str, **settings: str) -> list[str]:
    """What an example prints. No services run: it learns for itself."""
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SICKBAY_")}
    environment |= {
        "OPENAI_BASE_URL": f"{provider.url}/v1",
        "OPENAI_API_KEY": "k",
        "ANTHROPIC_BASE_URL": provider.url,
        "ANTHROPIC_API_KEY": "k",
        "SICKBAY_NATS": "nats://127.0.0.1:9",
        "SICKBAY_REPLICA": "example",
    }
    done = subprocess.run(
        [sys.executable, *(command or [f"{name}.py"])],
        cwd=EXAMPLES,
        env=environment | settings,
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_example_has_its_test() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(NEEDS)


def test_the_page_names_every_example_and_what_it_shows_runs(provider: FakeProvider) -> None:
    assert [path.name for path in EXAMPLES.glob("*.py") if f"examples/{path.name}" not in PAGE] == []
    said = [run("openai_sdk", provider, "-c", code) for code in blocks("python", PAGE)]
    assert said == [["Hello there"], ["ok True"]]


def test_openai_sdk(provider: FakeProvider) -> None:
    assert run("openai_sdk", provider, MODEL="good") == ["answered: Hello there"] * 4
    said = run("openai_sdk", provider, MODEL="dead-1")
    assert said[:2] == ["failed: 404 model_not_found"] * 2
    assert provider.hits["dead-1"] == 4 - said.count("failed: 503 quarantined") < 4


def test_anthropic_sdk(provider: FakeProvider) -> None:
    assert run("anthropic_sdk", provider, MODEL="good") == ["answered: Hello there"] * 4
    said = run("anthropic_sdk", provider, MODEL="dead-1")
    assert said[:2] == ["failed: 404 by the provider"] * 2
    assert provider.hits["dead-1"] == 4 - said.count("failed: 503 held") < 4


def test_own_chain(provider: FakeProvider) -> None:
    urls = {"FIRST_URL": f"{provider.url}/v1", "SECOND_URL": f"{provider.url.replace('127.0.0.1', 'localhost')}/v1"}
    said = run("own_chain", provider, **urls, FIRST_MODEL="empty", SECOND_MODEL="good")
    assert said == ["good answered: Hello there", "good streamed: Hello there"]
    assert provider.hits == {"empty": 2, "good": 2}


def test_fastapi_stream(provider: FakeProvider) -> None:
    code = """
from fastapi.testclient import TestClient
import fastapi_stream
with TestClient(fastapi_stream.app) as client:
    for _ in range(3):
        answer = client.get("/hello")
        print(answer.status_code, answer.headers["x-model"], answer.text)
"""
    assert run("fastapi_stream", provider, "-c", code, MODELS="dead-1 good") == ["200 good Hello there"] * 3
    assert provider.hits["good"] == 3 > provider.hits["dead-1"]


@pytest.mark.parametrize("name", ["pydantic_ai_fallback", "langchain_fallbacks"])
def test_a_framework_fails_over_by_itself(provider: FakeProvider, name: str) -> None:
    assert run(name, provider, MODELS="dead-1 good") == ["answered: Hello there"] * 4
    assert provider.hits["good"] == 4 > provider.hits["dead-1"]
