"""What an outsider wrote is shown to people and does nothing (`harmless`)."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay_events.harmless import Place, harmless

PLACES: tuple[Place, ...] = ("line", "csv", "chat")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("z-ai/glm-5.3:free", "z-ai/glm-5.3:free"),
        ("größer 模型 🦙", "größer 模型 🦙"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("gpt\u202egnp.exe", "gpt\\u202egnp.exe"),
        ("a\u2066b\u2069\u200f\u061c", "a\\u2066b\\u2069\\u200f\\u061c"),
        ("in\u200bvisible\ufeff\u00ad", "in\\u200bvisible\\ufeff\\xad"),
        ("a\u2028b\u2029\x85c", "a\\u2028b\\u2029\\x85c"),
        ("a\u00a0b\u3000c", "a b c"),
        ("\ud83d\x00", "\\ud83d\\x00"),
        ("a\\nb", "a\\nb"),
        (7, "7"),
        (None, "None"),
    ],
)
def test_on_a_line_nothing_moves_or_hides(text: Any, expected: str) -> None:
    assert harmless(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("  =1+1", "'  =1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-2+3", "'-2+3"),
        ("\uff1d1", "'\uff1d1"),
        ("-2.5", "-2.5"),
        ("+7", "+7"),
        ("a=b", "a=b"),
        ("\t=1", "\\t=1"),
    ],
)
def test_in_a_table_nothing_is_a_formula(text: str, expected: str) -> None:
    assert harmless(text, "csv") == expected


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("@here look", "@"),
        ("<!channel> <@U024BE7LH>", "<"),
        ("[click](https://evil.test/x)", "]("),
        ("see https://evil.test", "://"),
        ("HTTP://evil.test", "://"),
        ("www.evil.test", "www."),
        ("mailto:a.b.test", "mailto:"),
        ("[a]: https://evil.test", "]:"),
        ("`rm`", "`"),
    ],
)
def test_in_a_chat_nobody_is_called_and_nothing_leads_elsewhere(text: str, gone: str) -> None:
    assert gone not in harmless(text, "chat")


def test_names_stay_readable_in_a_chat() -> None:
    assert harmless("openrouter.ai#team-a z-ai/glm-5.3:free", "chat") == "openrouter.ai#team-a z-ai/glm-5.3:free"


@given(st.text(), st.sampled_from(PLACES), st.none() | st.integers(0, 50))
def test_any_text_is_one_printable_line(text: str, place: Place, limit: int | None) -> None:
    shown = harmless(text, place, limit)
    assert shown.isprintable()
    assert all(unicodedata.category(one) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for one in shown)
    assert limit is None or len(shown) <= limit
    assert harmless(shown) == shown
