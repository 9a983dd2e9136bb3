"""What is kept of a provider's error text holds no key, token, address or person."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import random
import string
import time

import pytest

from sickbay_events.redact import redact
from waiting import patience

SECRETS = [
    "sk-proj-abcDEF1234567890abcDEF1234567890",
    "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWx-1234_AA",
    "sk-or-v1-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "gsk_AbCd1234EfGh5678IjKl9012MnOp3456",
    "xai-AbCd1234EfGh5678IjKl9012MnOp3456QrSt",
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "nvapi-Abc_1234567890-abcdefghijklmnop",
    "pplx-0123456789abcdef0123456789abcdef",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "ya29.a0AfH6SMBx-1234567890abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "dapi0123456789abcdef0123456789abcdef",
    "0123456789abcdef0123456789abcdef",
    "r8_AbCdEfGhIjKlMnOpQrStUvWxYz0123456",
    "jane.doe@example.com",
    "203.0.113.77",
    "2001:db8:85a3::8a2e:370:7334",
    "org-AbCdEf0123456789",
    "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "frame",
    [
        "{}",
        "Incorrect API key provided: {}.",
        '{{"error":{{"message":"bad token \'{}\' given"}}}}',
        "x={} y",
        "(key {})",
    ],
)
def test_a_secret_leaves_no_trace_in_any_sentence(secret: str, frame: str) -> None:
    kept = redact(frame.format(secret), limit=4000)
    assert secret not in kept
    assert not any(secret[at : at + 10] in kept for at in range(max(1, len(secret) - 9)))


@pytest.mark.parametrize(
    "text",
    [
        "The model `gpt-4o-mini-2024-07-18` does not exist or you do not have access to it.",
        "model 'meta-llama/Llama-3.3-70B-Instruct-Turbo' not found",
        "claude-3-5-sonnet-20241022 is overloaded",
        "Rate limit reached on tokens per min (TPM): Limit 30000, Used 18928, Requested 11159. Please try again in 174ms.",
        "This model's maximum context length is 131072 tokens.",
        "Throttling.AllocationQuota: quota exceeded at 12:30:45",
        "模型不存在，请检查模型代码。",
        "HTTP/1.1 version 2.0.1",
    ],
)
def test_an_ordinary_sentence_is_kept_whole(text: str) -> None:
    assert redact(text) == text


def test_a_header_value_goes_whatever_its_form() -> None:
    for text in (
        "Authorization: Bearer abc.def-ghi",
        "api_key=hunter2hunter2",
        "password: correct-horse",
        "bearer tok_short1",
    ):
        kept = redact(text)
        assert "hunter" not in kept
        assert "abc.def" not in kept
        assert "horse" not in kept
        assert "tok_short1" not in kept


def test_url_credentials_go_and_the_host_stays() -> None:
    kept = redact("connect to https://admin:s3cr3t@gate.example/v1 failed")
    assert "s3cr3t" not in kept
    assert "gate.example" in kept


def test_a_secret_across_the_limit_does_not_survive_by_half() -> None:
    text = "x" * 0 + "word " * 38 + "sk-proj-abcDEF1234567890abcDEF1234567890"
    assert "sk-proj" not in redact(text, limit=200)
    assert len(redact(text, limit=200)) <= 200


def test_the_limit_holds_and_lines_become_one() -> None:
    assert redact("a\nb\tc\x00d", limit=200) == "a b c d"
    assert len(redact("word " * 1000, limit=200)) == 200
    assert redact("abc", limit=0) == ""


def test_bytes_of_any_kind_are_taken() -> None:
    assert redact(b"\xff\xfe plain") == "\ufffd\ufffd plain"
    assert "AIza" not in redact(b"key AIzaSyA1234567890abcdefghijklmnopqrstuv")


def test_no_input_takes_long() -> None:
    """A hostile body costs no more than an ordinary one: no pattern is quadratic on these."""
    hostile = ["a@" * 50_000, "a." * 50_000, "1.1.1." * 20_000, ":" * 100_000, "sk-" * 30_000, "-----BEGIN A" * 9_000,
               "key=" * 30_000, "://a:" * 20_000, "a:b:" * 20_000, "eyJa." * 20_000, " " * 100_000]  # fmt: skip
    for text in hostile:
        begun = time.perf_counter()
        redact(text)
        assert time.perf_counter() - begun < patience(1), text[:20]


def test_random_keys_do_not_get_through() -> None:
    """Of 2,000 random keys of 32 to 48 characters, none is kept (seed 20261130)."""
    chance = random.Random(20261130)
    for _ in range(2000):
        key = "".join(chance.choices(string.ascii_letters + string.digits, k=chance.randint(32, 48)))
        assert key not in redact(f"invalid key {key} given")
