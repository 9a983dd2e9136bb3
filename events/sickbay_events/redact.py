"""Take keys, tokens, addresses and people out of a provider's error text before any of it is kept."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

SCANNED_CHARS: Final = 4096
"""What is kept is short; no more than this is looked at."""

_SECRETS: Final = (
    # Whole private keys, then URLs with a user and password, then whatever a header or a field calls a secret.
    re.compile(r"-----BEGIN [A-Z ]{0,40}-----.{0,4096}?(?:-----END [A-Z ]{0,40}-----|\Z)", re.S),
    re.compile(r"(?<=://)[^\s/@:]{1,128}:[^\s/@]{1,128}(?=@)"),
    re.compile(r"\b(?:bearer|basic|token|apikey)\s+[A-Za-z0-9_\-.~+/=]{6,}", re.I),
    re.compile(
        r"(?<![A-Za-z])(?:x-)?(?:api[_\- ]?key|apikey|access[_\- ]?key(?:[_\- ]?id)?"
        r"|secret(?:[_\- ]?key|[_\- ]?access[_\- ]?key)?|access[_\- ]?token|refresh[_\- ]?token|auth[_\- ]?token"
        r"|password|passwd|authorization|credential|signature|key)"
        r"[\"']?(?:\s+(?:provided|is|was|id))?\s{0,2}[:=]\s{0,2}[\"'<]?(?!//)[^\s\"'<>,;]{4,}",
        re.I,
    ),
    re.compile(
        r"\b(?:sk|pk|rk|ak|ek|hf|gsk|xai|nvapi|pplx|csk|tgp|fw|r8|key|api|ghp|gho|ghu|ghs|ghr|glpat|github_pat|xox[abprs]"
        r"|dop|dapi|sess|pat|whsec|secret|token|jina|voyage|fc|tvly|cpk|rc|lsv2|AQVN|up|wx)[_\-][A-Za-z0-9_\-*]{8,}"
    ),
    re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA)[A-Z0-9]{12,}\b"),
    re.compile(r"\bAIza[A-Za-z0-9_\-]{20,}"),
    re.compile(r"\bya29\.[A-Za-z0-9_\-]{10,}"),
    re.compile(r"\beyJ[A-Za-z0-9_\-]{6,}(?:\.[A-Za-z0-9_\-]*){0,3}"),
    re.compile(r"\bdapi[0-9a-f]{20,}\b"),
)
_PATTERNS: Final = (
    *_SECRETS,
    # People and machines.
    re.compile(r"[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){1,6}"),
    re.compile(r"\barn:aws[a-z\-]{0,16}:[^\s\"']{1,200}"),
    re.compile(r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.]*\d)(?::\d{1,5})?"),
    re.compile(
        r"(?<![0-9A-Za-z:])(?:[0-9A-Fa-f]{1,4}:){1,7}(?:[0-9A-Fa-f]{1,4}:[0-9A-Fa-f]{1,4}:|:)(?:[0-9A-Fa-f]{1,4}:?){1,7}(?![0-9A-Za-z:])"
    ),
    re.compile(r"(?<![0-9A-Za-z:])::(?:[0-9A-Fa-f]{1,4}:){0,6}[0-9A-Fa-f]{1,4}(?![0-9A-Za-z:])"),
    re.compile(r"\b(?:org|proj|user|acct|team|workspace|wrk|req|asst|thread|cus|sub)[_\-][A-Za-z0-9]{8,}"),
    re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"),
)
_LONG: Final = re.compile(r"[A-Za-z0-9_+=~\-]{20,}")
_HEX: Final = re.compile(r"[0-9a-fA-F]{16,}")
MARK: Final = "[redacted]"
SECRET_WORD_MIN: Final = 16
"""The shortest run without a separator that is taken for a key."""


def redact(text: str | bytes, limit: int = 200) -> str:
    """The text without keys, tokens, e-mail and IP addresses and account ids, at most `limit` characters, on one line.

    Never raises. When in doubt it takes out more: a model id stays readable, a long run of mixed characters does not.
    """
    if isinstance(text, bytes):
        # A key at the cut must not survive by half, so the cut comes after the redaction.
        text = text[: SCANNED_CHARS * 4].decode("utf-8", "replace")
    elif not isinstance(text, str):
        return ""
    text = text[:SCANNED_CHARS]
    for pattern in _PATTERNS:
        text = pattern.sub(MARK, text)
    text = _LONG.sub(_if_random, text)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text[: max(0, limit)]


def looks_secret(text: str) -> bool:
    """Whether a name is more likely a key or token. When in doubt it is a name: long words are rare in names."""
    return any(
        max(len(word) for word in re.split(r"[-_\s:=/.]", found[0])) >= SECRET_WORD_MIN
        for pattern in _SECRETS
        for found in pattern.finditer(text[:SCANNED_CHARS])
    )


def _if_random(found: re.Match[str]) -> str:
    """A long run is a secret if it is hex, or mixes letters and digits as no name does."""
    run = found[0]
    if _HEX.search(run):
        return MARK
    switches = sum(1 for a, b in pairwise(run) if _class(a) != _class(b))
    longest_word = max(len(word) for word in re.split(r"[-_+=~]", run))
    if longest_word >= 20 and switches >= 4:
        return MARK
    return MARK if switches * 3 >= len(run) and longest_word >= 10 else run


def _class(character: str) -> str:
    return "d" if character.isdigit() else "u" if character.isupper() else "l" if character.islower() else "s"
