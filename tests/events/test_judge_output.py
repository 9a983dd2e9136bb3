"""The text of an answer: there or not, damaged or not, and whose damage it is (Rule 3)."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay_events.classify import judge_output
from sickbay_events.classify.output import DamageEvidence, judge_text
from sickbay_events.kinds import KINDS
from waiting import patience

CORRECT = {
    "Portuguese": "A missão da organização é garantir que não haja exclusão: «são coisas às quais não atenção»… AMANHÃ, disse o capitão — coração, pão, irmã.",
    "Portuguese capitals": "OPERAÇÃO CONCLUÍDA. NÃO HÁ EXCEÇÕES À REGRA. “AMANHÔ, disse ele. MAÇÃ… e AVÓ”.",
    "French": "« Où êtes-vous allés cet été\u00a0? » demanda-t-il\u00a0; « à\u00a0« Noël\u00a0», déjà\u00a0… » L’œuvre naïve coûta cinq cents\u00a0€.",
    "French with tight marks": "Il but son café\u00a0» puis le thé\u00a0»; la fiancé…» et l’été”\u00a0fini. À\u00a0«Paris» — voilà…",
    "German": "„Groß“ und „Spaß“ — die Straße heißt »Maß«. Die Umlaute „Ä“, „Ö“ und „Ü“ sowie „ß“… Das ist ‚nötig‘.",
    "Spanish": "¿Qué pasó? «¡Años después!» —dijo—. La niña comió piñas; CAFÉ”, SÍ…",
    "Romanian": "Știința și învățământul: țară, oraș, mâine, român. Literele „Ă”, „”, „Δ și „Ș”.",
    "Japanese": "これは日本語の文章です。東京は日本の首都であり、人口が多い。「ありがとう」ございます。",
    "Russian": "Это правильный русский текст, в котором нет ошибок: «ёлка», «подъезд».",
    "Chinese": "这是一个正确的中文回答。模型工作正常，没有乱码。",
    "Arabic": "هذا نص عربي صحيح، بلا أي خطأ في الترميز. شكراً جزيلاً!",
    "Hebrew": "זהו טקסט תקין בעברית, ללא שגיאות קידוד.",
    "Greek": "Αυτό είναι σωστό κείμενο στα ελληνικά.",
    "Hindi": "यह हिंदी में एक सही वाक्य है।",
    "Korean": "이것은 올바른 한국어 문장입니다.",
    "Polish": "Zażółć gęślą jaźń — „cytat”, źdźbło.",
    "Turkish": "Şişli’de ılık bir öğleden sonra; çiğ köfte, ÜĞÜŞÖÇ.",
    "Vietnamese": "Tiếng Việt có nhiều dấu: được, những, nghĩa, Ấn Độ, Êđê “Ê”.",
    "Icelandic": "Það er ágætt, við förum í bæinn; „góðan dag“.",
    "emoji": "Great job! 🎉👩‍👩‍👧‍👦 🇵🇹 ✨ — done… ☕️ 👍🏽",
    "mathematics": "∀x ∈ ℝ: x² ≥ 0, α ≠ β, ½ × ¼ = ⅛ ± 5° → ∞",
    "French short": "à « »",
    "letters alone": "É…» À\u00a0« ß“ Ö… Ñ” ñ»",
}


def judge(text: str, **more: Any) -> Any:
    return judge_output(text, finish_reason=more.pop("finish_reason", "stop"), **more)


@pytest.mark.parametrize("language", sorted(CORRECT))
@pytest.mark.parametrize("times", [1, 7])
def test_correct_text_of_any_language_gives_no_verdict(language: str, times: int) -> None:
    """Rule 3: correct Portuguese, French, Romanian, Japanese, Russian and emoji give no verdict, short or long."""
    text = "\n".join(f"{number}. {CORRECT[language]}" for number in range(times))
    verdict = judge(text)
    assert (verdict.kind, verdict.signature, verdict.checkable) == ("ok", None, True)


TWICE = [
    language
    for language in CORRECT
    if language not in ("mathematics", "French short", "letters alone", "French with tight marks")
]


@pytest.mark.parametrize("language", TWICE)
@pytest.mark.parametrize("codec", ["latin-1", "cp1252"])
def test_the_same_text_encoded_twice_is_damage(language: str, codec: str) -> None:
    """Each language, read as latin-1 or cp1252 (with its five holes passed through, as browsers do)."""
    data = CORRECT[language].encode()
    text = data.decode("latin-1") if codec == "latin-1" else "".join(_cp1252(byte) for byte in data)
    verdict = judge(text)
    assert (verdict.kind, verdict.scope, verdict.signature) == ("mangled_output", "host", "double_encoded")
    assert verdict.confidence == "high"


def _cp1252(byte: int) -> str:
    try:
        return bytes([byte]).decode("cp1252")
    except UnicodeDecodeError:
        return chr(byte)


def test_double_encoding_counts_from_two_runs_or_one_in_200_characters() -> None:
    filler = "plain words go on and on here " * 20
    assert judge("It costs 5 â‚¬.").signature == "double_encoded"
    assert judge(filler + "cafÃ© here").kind == "ok"
    assert judge(filler + "cafÃ© and thÃ© here").signature == "double_encoded"


def test_a_replacement_character_is_damage_unless_the_text_is_about_it() -> None:
    assert judge("The caf\ufffd is open").signature == "replacement_char"
    assert judge("na\ufffd\ufffdve").scope == "host"
    assert judge("U+FFFD (\ufffd) is the replacement character.").kind == "ok"
    assert judge("In Python, '\\ufffd' prints \ufffd.").kind == "ok"
    assert judge("The replacement character appears in caf\ufffd when bytes are lost.").signature == "replacement_char"


def test_bytes_lost_on_the_way_are_damage_in_whatever_shape_they_come() -> None:
    """U+FFFD read as GBK, and code points that no character has: nobody writes them, but in a text about them."""
    assert judge("锟斤拷锟斤拷，您好").signature == "replacement_char"
    assert judge("￤￶￼").signature == "replacement_char"
    assert judge("UTF-8 里的 U+FFFD 按 GBK 显示成锟斤拷，这就是乱码。").kind == "ok"
    assert judge("半角｡ and ￡5 ￥6").kind == "ok"


def test_double_encoding_is_no_damage_where_it_is_the_subject() -> None:
    """A text about encodings shows wrong and right side by side, or the wrong one alone; damage eats into words."""
    assert judge("Ã© is what é looks like when UTF-8 is read as Latin-1.").kind == "ok"
    assert judge('Wrong: "cafÃ©". Right: "café". The charset was missing.').kind == "ok"
    assert judge("The encoding â€™ stands for a quote.").kind == "ok"
    assert judge("The encoding of the cafÃ© page is broken.").signature == "double_encoded"
    assert judge("Il cafÃ© â€™ e").signature == "double_encoded"


@pytest.mark.parametrize(
    "text",
    [
        "Sure!<|im_end|>", "<|im_start|>assistant\nHello", "Hello<|eot_id|>", "[INST] Hi [/INST] Hello", "Done.</s>", "apple<eos>",
        "<start_of_turn>model\nHi<end_of_turn>", "<|start_header_id|>assistant<|end_header_id|>\n\nHi", "Hi<｜end▁of▁sentence｜>",
        "Hello <|im_end|>\n<|im_start|>user\nAnd you?", "<|channel|>final<|message|>Hi", "ok<|endoftext|>Human: next",
        "A photo.<|im_assistant|>", "I will look.<channel|>", "<|START_RESPONSE|>Hi<|END_RESPONSE|>", "A cat.<end_of_utterance>",
        "Office:<unused6226><unused6226> a desk", "analysisThe user greets. Answer kindly.assistantfinalHello!",
        "HelloĠworld,ĠhowĠareĠyou", "▁Hello▁world,▁how▁are▁you",
    ],
)  # fmt: skip
def test_a_leaked_mark_of_the_chat_template_is_the_models(text: str) -> None:
    verdict = judge(text)
    assert (verdict.kind, verdict.scope, verdict.signature) == ("mangled_output", "model", "control_token")


@pytest.mark.parametrize(
    "text",
    [
        "ChatML wraps turns in `<|im_start|>` and `<|im_end|>`.",
        "In F# write list |> List.map f, in Elm f <| x; R has x |> f() and Elixir value |> String.trim().",
        "Kif titqiegħed? Ġimgħa t-tajba, Ġorġ! Iċ-Ċittadella hija sabiħa, Ġanni.",
        "Load: ▁▂▃▄▅▆▇█ and ▁▁▂▃▁",
        "The analysis assistant finally answered; assistantfinalists are not a word.",
        "`Ġ` stands for a blank in byte-level tokenizers: `HelloĠworldĠ`.",
        "The template is:\n```\n<|im_start|>user\n{prompt}<|im_end|>\n```\nUse it as is.",
        'Llama uses "[INST]" and "[/INST]" around instructions.',
        "The <|endoftext|> token separates documents in the training data of GPT models.",
        "Use <s>strikethrough</s> in HTML for old prices, and go on.",
        "<s> strikes text through in HTML, as in <s>10</s> 8, and ends with </s>",
        "A Spring bean has <T> generics; compare a <b> c.",
        "Write [INST] before each instruction: it is a special marker of the format.",
    ],
)
def test_a_text_that_discusses_such_marks_is_an_answer(text: str) -> None:
    assert judge(text).kind == "ok"


@pytest.mark.parametrize(
    "text",
    [
        "G" * 64,
        "!" * 200,
        "the " * 40,
        "I am sorry. " * 40,
        "Once upon a time there was a fox. " + "and then it ran, " * 60,
        "哈" * 100,
        "0.1 and " * 60,
    ],
)
def test_a_loop_is_the_models(text: str) -> None:
    verdict = judge(text, finish_reason="length")
    assert (verdict.kind, verdict.scope, verdict.signature) == ("mangled_output", "model", "loop")


@pytest.mark.parametrize(
    "text",
    [
        "-" * 120, "=" * 80 + "\nTitle\n" + "=" * 80, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", "ha ha ha ha!",
        "[" + ", ".join(["0"] * 200) + "]", "\n".join(f"| {n} | item {n} | {n * 7 % 13} |" for n in range(120)),
        "Row, row, row your boat, gently down the stream. Merrily, merrily, merrily, merrily, life is but a dream.",
        "Aaaaaaaaaaaaaaaah! That was close.", "....................................................................",
        "\n".join(f"{n}. Check the cable." for n in range(1, 40)),
    ],
)  # fmt: skip
def test_a_repetition_with_a_reason_is_an_answer(text: str) -> None:
    assert judge(text).kind == "ok"


def test_reasoning_without_an_answer() -> None:
    for text, reasoning in (
        ("", "I think"),
        ("<think>I think</think>", ""),
        ("<think>I think", ""),
        ("<thinking>x</thinking>\n\n", ""),
    ):
        verdict = judge(text, reasoning_text=reasoning)
        assert (verdict.kind, verdict.signature) == ("empty_output", "reasoning_only")
    assert judge("<think>I think</think>Lisbon.").kind == "ok"
    assert judge("<think></think>").kind == "empty_output"


def test_a_stop_at_a_cap_proves_nothing_unless_the_caller_set_none() -> None:
    for reason in ("length", "MAX_TOKENS", "max_output_tokens", "max_tokens"):
        for text in ("", "Once upon"):
            verdict = judge(text, finish_reason=reason)
            assert (verdict.kind, verdict.checkable) == ("ok", False)
            assert judge(text, finish_reason=reason, client_capped=True).checkable is False
        assert judge("", finish_reason=reason, client_capped=False).kind == "empty_output"
        assert judge("Once upon", finish_reason=reason, client_capped=False).checkable is True
        assert judge("", finish_reason=reason, client_capped=False, reasoning_text="x").signature == "reasoning_only"


def test_tool_calls_without_text_prove_nothing_and_with_text_are_judged() -> None:
    verdict = judge("", has_tool_calls=True, finish_reason="tool_calls")
    assert (verdict.kind, verdict.checkable) == ("ok", False)
    assert judge("caf\ufffd", has_tool_calls=True).kind == "mangled_output"
    assert judge("Let me look.", has_tool_calls=True).checkable is True


def test_a_refusal_and_a_filter_are_content_filter() -> None:
    assert judge("", refusal="I cannot help").kind == "content_filter"
    for reason in ("content_filter", "SAFETY", "RECITATION", "PROHIBITED_CONTENT", "refusal", "sensitive"):
        assert judge("half an ans", finish_reason=reason).kind == "content_filter"


def test_damage_not_in_the_bytes_is_the_routers_own_decoding() -> None:
    """Rule 3, blame the pipe first: UTF-8 bytes that the router read as latin-1 or cut in the middle."""
    answer = "O café não é tão caro"
    raw = json.dumps({"choices": [{"message": {"content": answer}}]}, ensure_ascii=False).encode()
    for text in (answer.encode().decode("latin-1"), "O caf\ufffd\ufffd não é tão caro"):
        for kind in ("application/json", "", "application/json; charset=utf-8"):
            verdict = judge(text, raw=raw, content_type=kind, prompt_ascii=True)
            assert (verdict.kind, verdict.signature, verdict.attributable) == ("mangled_output", "own_decoding", False)


def test_damage_in_the_bytes_is_the_hosts() -> None:
    twice = "O cafÃ© nÃ£o Ã© caro"
    for raw in (
        json.dumps({"content": twice}, ensure_ascii=False).encode(),
        json.dumps({"content": twice}).encode(),  # as \u escapes
    ):
        verdict = judge(twice, raw=raw, content_type="application/json", prompt_ascii=True)
        assert (verdict.signature, verdict.scope, verdict.attributable) == ("double_encoded", "host", True)
    lost = "O caf\ufffd"
    for raw in (json.dumps({"content": lost}).encode(), lost.encode(), b'{"content":"O caf\xe9"}'):
        assert judge(lost, raw=raw, prompt_ascii=True).attributable is True
    # The header says latin-1 and the bytes are latin-1: a router that read them as UTF-8 did the damage.
    verdict = judge(
        lost, raw="O café".encode("latin-1"), content_type="text/plain; charset=ISO-8859-1", prompt_ascii=True
    )
    assert verdict.signature == "own_decoding"


@pytest.mark.parametrize("prompt_ascii", [None, False])
def test_damage_is_attributable_only_if_the_prompt_was_ascii(prompt_ascii: bool | None) -> None:
    """A model that echoes what it was given behaves correctly."""
    for text in ("O cafÃ© nÃ£o Ã© caro", "caf\ufffd", "Hi<|im_end|>"):
        assert judge(text, prompt_ascii=prompt_ascii).attributable is False
        assert judge(text, prompt_ascii=True).attributable is True


def test_an_ascii_prompt_answered_in_another_script_is_ok_for_warnings_only() -> None:
    for language in ("Japanese", "Russian", "Chinese", "Arabic"):
        verdict = judge(CORRECT[language], prompt_ascii=True)
        assert (verdict.kind, verdict.signature, verdict.confidence) == ("ok", "non_ascii_unprompted", "low")
        assert judge(CORRECT[language], prompt_ascii=False).signature is None
    for language in ("Portuguese", "French", "Romanian", "emoji", "Vietnamese"):
        assert judge(CORRECT[language], prompt_ascii=True).signature is None
    assert judge("The word is Москва, in Latin letters Moskva, the capital.", prompt_ascii=True).signature is None


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(max_size=400), finish=st.none() | st.text(max_size=12), reasoning=st.text(max_size=20),
    raw=st.none() | st.binary(max_size=100), kind=st.text(max_size=30), tools=st.booleans(), ascii_=st.none() | st.booleans(),
)  # fmt: skip
def test_any_text_gets_a_kind(
    text: str, finish: str | None, reasoning: str, raw: bytes | None, kind: str, tools: bool, ascii_: bool | None
) -> None:
    source = DamageEvidence(prompt_ascii=ascii_ is True, raw=raw, content_type=kind)
    verdict = judge_text(
        text, (finish or "").lower(), source, has_tool_calls=tools, reasoning=reasoning, refusal="", client_capped=None
    )
    assert verdict.kind in KINDS


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet=st.characters(codec="utf-8", categories=["L", "Zs", "Nd"]), min_size=1, max_size=60).filter(
        lambda t: t.strip() and not t.isascii()
    )
)
def test_text_of_letters_is_never_called_encoded_twice_unless_it_is(text: str) -> None:
    """Letters, digits and blanks alone: whatever is called damage does decode to something shorter."""
    verdict = judge(text)
    if verdict.signature == "double_encoded":
        assert any(0xC2 <= ord(c) <= 0xF4 for c in text)


@pytest.mark.parametrize("garbage", [None, 7, b"bytes", [], object()])
def test_garbage_in_the_place_of_any_argument_is_judged(garbage: Any) -> None:
    names = (
        "text",
        "finish_reason",
        "has_tool_calls",
        "reasoning_text",
        "refusal",
        "prompt_ascii",
        "client_capped",
        "raw",
        "content_type",
    )
    for name in names:
        arguments: dict[str, Any] = {"text": "Hi", "finish_reason": "stop"}
        arguments[name] = garbage
        assert judge_output(**arguments).kind in KINDS
    assert judge("\ud800\udfff lone").kind in KINDS


@pytest.mark.parametrize("text", ["é" * 65536, "Ã©" * 40000, "\ufffd " * 40000, "<|im_end|> token " * 5000, "ab" * 50000, "`" * 65536, "<think>" * 10000, "à\u00a0« " * 20000])  # fmt: skip
def test_64_kib_of_text_do_not_hang_it(text: str) -> None:
    """Some 5 ms each; what takes quadratic time would take minutes. How fast it is stands in the bench."""
    best = math.inf
    for _ in range(3):
        begun = time.perf_counter()
        judge(text)
        best = min(best, time.perf_counter() - begun)
    assert best < patience(1)
