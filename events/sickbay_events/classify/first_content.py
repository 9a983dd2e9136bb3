"""Where the first content of a stream stands in its bytes, whatever the API; an empty role chunk is none.

Known streams: chat completions, completions, responses, messages, Gemini, Ollama, Cohere, Bedrock (Converse, and
Invoke, whose frames hold base64), DashScope, Workers AI, TGI, llama.cpp.
"""

from __future__ import annotations

import binascii
import re
from typing import Final

_CONTENT: Final = re.compile(
    # A field of text that is not empty; `text` inside `thinking` and the pieces of a tool's arguments are of them.
    rb'"(?:content|text|delta|response|generated_text|generation|completion|outputText|reasoning|reasoning_content|'
    rb'thinking|refusal|partial_json|arguments|b64_json|transcript)"\s*:\s*"[^"]'
    # A tool call begins, by its name.
    rb'|"tool_calls"\s*:\s*\[\s*\{|"(?:function_call|functionCall|toolUse|inlineData)"\s*:\s*\{'
    rb'|"type"\s*:\s*"(?:\w*tool_use|\w*tool_call|function_call|\w+_call)"'
)
_FRAME: Final = re.compile(rb'"bytes"\s*:\s*"([A-Za-z0-9+/]{8,65536}={0,2})"')
"""One event of Bedrock's Invoke: the model's own JSON in base64."""
OVERLAP: Final = 96
"""No mark of content is longer than so many bytes, so that a search in pieces needs so many of the piece before."""


def holds_content(piece: bytes | bytearray) -> bool:
    """Whether these bytes of a stream hold content: text, reasoning, a refusal or a tool call."""
    if _CONTENT.search(piece) is not None:
        return True
    return b'"bytes"' in piece and any(_CONTENT.search(_decoded(found[1])) for found in _FRAME.finditer(piece))


def _decoded(text: bytes) -> bytes:
    try:
        return binascii.a2b_base64(text)
    except binascii.Error:
        return b""
