"""Judge the text of an answer: is it there, was it cut at a cap, is it damaged, and whose damage is it?"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ..kinds import KINDS, Kind, ScopeName
from ..verdict import Verdict
from . import damage
from .envelope import HEAD_BYTES, TAIL_BYTES, charset_of, text_codec

FINISH: Final[dict[str, Kind]] = {
    # What a stop reason says by itself, whatever the text. Reasons not named here say nothing against an answer.
    "content_filter": "content_filter",
    "content_filtered": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "spii": "content_filter",
    "image_safety": "content_filter",
    "model_armor": "content_filter",
    "refusal": "content_filter",
    "sensitive": "content_filter",
    "guardrail_intervened": "content_filter",
    "error_toxic": "content_filter",
    "malformed_function_call": "malformed_output",
    "unexpected_tool_call": "malformed_output",
    "malformed_model_output": "malformed_output",
    "malformed_tool_use": "malformed_output",
    "error": "server_error",
    "network_error": "server_error",
    "model_error": "server_error",
    "failed": "server_error",
    "insufficient_system_resource": "overloaded",
    "abort": "truncated",
    "cancelled": "cancelled",
}
CAPPED: Final = frozenset(
    (
        "length",
        "max_tokens",
        "max_output_tokens",
        "max_length",
        "max_new_tokens",
        "token_limit",
        "max_completion_tokens",
    )
)
WINDOW: Final = frozenset(("model_length", "model_context_window_exceeded"))
"""The model's window was full: no cap that a caller sets. Without a word of answer the prompt was too long."""
_THINK: Final = re.compile(r"<(think|thinking|thought|reasoning)>(.*?)(?:</\1>|\Z)", re.S | re.I)
_FENCE: Final = re.compile(r"\A```[\w+\-]{0,20}\s*(?:```)?\s*\Z")
_INVISIBLE: Final = str.maketrans("", "", "\u200b\u200c\u200d\u2060\ufeff\u00ad")


def judge_output(
    text: str,
    *,
    finish_reason: str | None,
    has_tool_calls: bool = False,
    reasoning_text: str = "",
    refusal: str = "",
    prompt_ascii: bool | None = None,
    client_capped: bool | None = None,
    raw: bytes | None = None,
    content_type: str = "",
    complete: bool | None = None,
) -> Verdict:
    """Judge the text of one answer (Rule 3). Never raises; reads at most 64 KiB of text and of bytes.

    `complete` False says that the text is of a stream that had no end mark: without a finish reason either it was
    cut off, so it is `truncated`. True says that it was whole, None that nothing is known.

    `raw` is the body as received and `content_type` its header: with them, damage that is not in the bytes is
    `own_decoding`. `prompt_ascii` says whether the prompt was pure ASCII (None: not known), `client_capped` whether
    the caller set a limit on the output (None: not known).
    """
    try:
        source = DamageEvidence(
            prompt_ascii=prompt_ascii is True,
            raw=bytes(raw) if isinstance(raw, bytes | bytearray) else None,
            content_type=content_type if isinstance(content_type, str) else "",
        )
        return judge_text(
            _bounded(text),
            str(finish_reason or "").lower(),
            source,
            has_tool_calls=bool(has_tool_calls),
            reasoning=_bounded(reasoning_text),
            refusal=_bounded(refusal),
            client_capped=client_capped,
            is_cut=complete is False and not finish_reason,
        )
    except Exception:  # noqa: BLE001 - total by contract: what nobody foresaw is "cannot tell", and changes nothing
        return Verdict(kind="unknown", scope="none", checkable=False, confidence="low")


def _bounded(text: object) -> str:
    if not isinstance(text, str):
        return ""
    return text if len(text) <= HEAD_BYTES + TAIL_BYTES else text[:HEAD_BYTES] + "\n" + text[-TAIL_BYTES:]


class DamageEvidence(NamedTuple):
    """What shows whose damage a damage is."""

    prompt_ascii: bool
    raw: bytes | None
    content_type: str


def judge_text(
    text: str,
    finish: str,
    source: DamageEvidence,
    *,
    has_tool_calls: bool,
    reasoning: str,
    refusal: str,
    client_capped: bool | None,
    is_cut: bool = False,
) -> Verdict:
    """`judge_output` without its safety net; `finish` in lower case."""
    if refusal.strip():
        return _says("content_filter", signature="refusal")
    if finish in FINISH:
        return _says(FINISH[finish], signature=f"finish_{finish}")
    visible, hidden = _without_reasoning(text)
    if finish in WINDOW and not visible and not has_tool_calls:
        return _says("context_length", signature=f"finish_{finish}")
    capped = (finish in CAPPED and client_capped is not False) or finish in WINDOW
    if not visible:
        if has_tool_calls:
            return _says("ok", checkable=False, signature="tool_calls")
        if capped:
            return _says("ok", checkable=False, signature="capped")
        if reasoning.strip() or hidden:
            return _says("empty_output", signature="reasoning_only")
        return _says("empty_output")
    damaged = _damage(visible, source)
    if damaged is not None:
        return damaged
    if is_cut:
        return _says("truncated", signature="no_end_of_stream")
    if capped:
        return _says("ok", checkable=False, signature="capped")
    if source.prompt_ascii and damage.other_script(visible):
        return _says("ok", signature="non_ascii_unprompted", low=True)
    return _says("ok")


def _without_reasoning(text: str) -> tuple[str, bool]:
    """The text without reasoning tags and empty fences, and whether there was reasoning in it."""
    visible = text.strip()
    if len(visible) < 64 and not visible.isascii():
        visible = visible.translate(_INVISIBLE).strip()
    hidden = False
    if "<t" in visible[:64].lower() or "<r" in visible[:64].lower():
        stripped = _THINK.sub("", visible).strip()
        hidden = stripped != visible
        # A lone closing tag is what is left where a server kept the opening one to itself.
        visible = stripped
    elif visible.endswith(("</think>", "</thinking>")):
        visible, hidden = "", True
    if visible.startswith("```") and len(visible) < 64 and _FENCE.match(visible):
        visible = ""
    return visible, hidden


def _damage(text: str, source: DamageEvidence) -> Verdict | None:
    if not text.isascii():
        runs = damage.double_encoded(text)
        if runs >= 2 or (runs and runs * 200 >= len(text)):
            return _encoding("double_encoded", source)
        if damage.replacement_char(text):
            return _encoding("replacement_char", source)
    if damage.control_token(text) is not None:
        return _mangled("control_token", "model", source)
    if damage.loop(text):
        return _mangled("loop", "model", source, low=True)
    return None


def _encoding(signature: str, source: DamageEvidence) -> Verdict:
    """Blame the pipe first: what the bytes do not show, the router did itself (Rule 3)."""
    if source.raw is not None and not _in_bytes(signature, source.raw, source.content_type):
        return Verdict(kind="mangled_output", scope="none", signature="own_decoding", attributable=False)
    return _mangled(signature, "host", source)


def _mangled(signature: str, scope: ScopeName, source: DamageEvidence, *, low: bool = False) -> Verdict:
    return Verdict(
        kind="mangled_output",
        scope=scope,
        signature=signature,
        attributable=source.prompt_ascii,
        confidence="low" if low else "high",
    )


def _in_bytes(signature: str, raw: bytes, content_type: str) -> bool:
    codec = text_codec(charset_of(content_type))
    if len(raw) <= HEAD_BYTES + TAIL_BYTES:
        sent = damage.as_sent(raw, codec)
    else:
        # What the seam itself breaks is no damage.
        head, tail = damage.as_sent(raw[:HEAD_BYTES], codec), damage.as_sent(raw[-TAIL_BYTES:], codec)
        sent = head.rstrip("\ufffd") + "\n" + tail.lstrip("\ufffd")
    return damage.double_encoded(sent) > 0 if signature == "double_encoded" else damage.has_replaced(sent)


def _says(kind: Kind, *, checkable: bool = True, signature: str | None = None, low: bool = False) -> Verdict:
    return Verdict(
        kind=kind,
        scope=KINDS[kind].scope,
        signature=signature,
        checkable=checkable,
        confidence="low" if low else "high",
    )
