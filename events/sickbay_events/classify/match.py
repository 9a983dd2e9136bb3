"""Find the first row that fits an envelope: the family's rows, the general ones, the status at last."""

from __future__ import annotations

import re
from typing import Final

from ..kinds import KINDS, Kind, ScopeName
from ..verdict import Verdict
from . import families, models, rules
from . import provider_rules as provider_rules
from .envelope import Envelope
from .message_patterns import SENTENCES
from .retry_after import retry_after
from .rules import MISSING, Rule

_HINTED: Final = frozenset(kind for kind, row in KINDS.items() if row.group in ("throttle", "fault"))
"""Kinds for which a wait means something; elsewhere (a permission "in 15 minutes") it is a figure of speech."""
_RELAYS: Final = frozenset(("openrouter", "vercel_gateway", "kilo", "opencode_zen"))
"""Relays that call upstreams with accounts of their own."""
_STRANGER_STATUSES: Final = frozenset((401, 403, 404))
_PROXY_STATUSES: Final = frozenset((407, 511))
"""The network's own statuses: a proxy or a captive portal wants a login."""
_CHALLENGES: Final = frozenset(("cf-mitigated", "x-vercel-mitigated", "x-amzn-waf-action"))
"""Headers by which a front server says that its page wants to see a browser: of the same kind."""
_WANTS_BROWSER: Final = frozenset(("challenge", "captcha"))
_ABOUT_MODEL: Final = frozenset(("model_unavailable", "permission_model"))
CODE_CHARS_MAX: Final = 64
_MACHINE_CODE: Final = re.compile(
    r"[A-Za-z]{1,32}(?:[_.:\-/][A-Za-z]{1,32}|[_.:\-]\d{1,4}(?![A-Za-z0-9])|(?<=[A-Za-z])\d{1,4}(?![A-Za-z0-9]))*"
)
_SECRET: Final = re.compile(
    r"(?:sk|pk|rk|hf|gsk|xai|gh[pousr]|nvapi|key|api|tok|token|bearer|r8|csk|tgp|fw|pplx)[-_]"
    r"(?:(?:proj|ant|or|live|test|svcacct|v1|admin)[-_])?[A-Za-z0-9]{16,}|^(?:akia|aiza|eyj)",
    re.I,
)

_By = dict[str, tuple[tuple[int, Rule], ...]]


def _by_code(rows: tuple[Rule, ...]) -> _By:
    found: dict[str, list[tuple[int, Rule]]] = {}
    for order, row in enumerate(rows):
        for code in row.codes:
            found.setdefault(code, []).append((order, row))
    return {code: tuple(rows) for code, rows in found.items()}


_GENERAL: Final = _by_code(rules.CODES)
_WEAK: Final = _by_code(rules.WEAK_CODES)


def match(envelope: Envelope, requested_model: str, family: str) -> Verdict:
    """The verdict on an error answer."""
    if envelope.status in _PROXY_STATUSES or (
        not _CHALLENGES.isdisjoint(envelope.headers)
        and not _WANTS_BROWSER.isdisjoint(envelope.headers.get(name, "") for name in _CHALLENGES)
    ):
        return Verdict(kind="unknown", scope="none", signature="foreign_shape", confidence="low")
    row, origin = _find(envelope._replace(text=models.without_name(envelope.text, requested_model)), family)
    if row is None:
        return _by_status(envelope, family)
    if (
        origin == "family"
        and row.kind == "model_unavailable"
        and not row.codes
        and _is_foreign(envelope, family, weak=True)
        and not models.names_whole(envelope.text, requested_model)
    ):
        # A family's own words, in a stranger's shape, about no model that we asked for.
        return Verdict(kind="unknown", scope="none", signature="foreign_shape", confidence="low")
    if origin != "family" and _is_foreign(envelope, family, weak=row.weak or origin == "weak"):
        return Verdict(kind="unknown", scope="none", signature="foreign_shape", confidence="low")
    kind, scope = row.kind, row.scope
    if kind in _ABOUT_MODEL:
        if kind == "model_unavailable" and not requested_model.strip():
            return _verdict("bad_request", None, envelope, signature="no_model_asked")
        if models.names_another(envelope.text, requested_model):
            return _verdict("unknown", None, envelope, signature="other_model", low=True)
    low = row.weak or origin == "weak"
    if scope is None and envelope.relayed and family in _RELAYS and KINDS[kind].scope == "credential":
        # The account that is spent or refused is the relay's own with one upstream, not ours.
        scope = "model"
    if kind == "rate_limited" and scope is None and origin != "family":
        scope = _limit_scope(envelope, requested_model)
    return _verdict(kind, scope, envelope, low=low)


def _find(envelope: Envelope, family: str) -> tuple[Rule | None, str]:
    codes = tuple(code.lower() for code in envelope.codes)
    header = envelope.headers.get("x-amzn-errortype", "")
    if header:
        codes = (header.partition(":")[0].rpartition("#")[2].lower(), *codes)
    # `SensitiveContentDetected.Violence` is also a `SensitiveContentDetected`.
    codes += tuple(code.partition(".")[0] for code in codes if "." in code)
    for row in provider_rules.PROVIDER_RULES.get(family, ()):
        if (not row.codes or not row.codes.isdisjoint(codes)) and _fits(row, envelope):
            return row, "family"
    if not envelope.text:
        for name, value, status, row in provider_rules.HEADER_HABITS:
            here = envelope.headers.get(name)
            if here is not None and here.startswith(value) and status in ("", str(envelope.status)):
                return row, "family"
    found = _first(_GENERAL, codes, envelope) or (_first_sentence(envelope) if envelope.text else None)
    if found is not None:
        return found, "general"
    return _first(_WEAK, codes, envelope), "weak"


_Ordered = list[tuple[int, rules.Sentence]]


def _index() -> tuple[dict[str, _Ordered], _Ordered, _Ordered]:
    """The general sentences by their first word, those without one, and those in other scripts."""
    by_word: dict[str, _Ordered] = {}
    plain: _Ordered = []
    wide: _Ordered = []
    for order, row in enumerate(SENTENCES):
        for parts in row.says:
            first, blank, _ = parts[0].partition(" ")
            if not all(part.isascii() for part in parts):
                wide.append((order, parts))
            elif blank and first.isalpha():
                by_word.setdefault(first, []).append((order, parts))
            else:
                plain.append((order, parts))
    return by_word, plain, wide


_BY_WORD, _PLAIN, _WIDE = _index()
_WORDS: Final = frozenset(_BY_WORD)
_WORD: Final = re.compile(r"[a-z]+")


def _first_sentence(envelope: Envelope) -> Rule | None:
    """The first general row whose sentence is in the text: what `_fits` would find row by row, but looking only at
    sentences whose first word is there. A sentence begins where a word begins.
    """
    text = envelope.text
    orders = {order for order, parts in _PLAIN if parts[0] in text or parts[0] == MISSING}
    for word in _WORDS.intersection(_WORD.findall(text)):
        orders.update(order for order, parts in _BY_WORD[word] if parts[0] in text)
    if not text.isascii():
        orders.update(order for order, parts in _WIDE if parts[0] in text)
    for order in sorted(orders):
        row = SENTENCES[order]
        if _fits(row, envelope):
            return row
    return None


def _first(table: _By, codes: tuple[str, ...], envelope: Envelope) -> Rule | None:
    best: tuple[int, Rule] | None = None
    for code in codes:
        for order, row in table.get(code, ()):
            if (best is None or order < best[0]) and _fits(row, envelope):
                best = (order, row)
                break
    return best[1] if best else None


def _fits(row: Rule, envelope: Envelope) -> bool:
    text = envelope.text
    if row.statuses and envelope.status not in row.statuses:
        return False
    if row.says:
        for parts in row.says:
            if (parts[0] in text or parts[0] == MISSING) and all(_in(part, text) for part in parts):
                break
        else:
            return False
    return not any(_in(word, text) for word in row.never)


def _in(part: str, text: str) -> bool:
    return part in text or (part == MISSING and models.says_missing(text))


def _is_foreign(envelope: Envelope, family: str, *, weak: bool) -> bool:
    """A 401, 403 or 404 that this family never says in this shape comes from the network in between (SPEC 3)."""
    if envelope.shape == "empty" and envelope.status == 404:
        return False
    if envelope.status not in _STRANGER_STATUSES or family not in families.PROVIDER_RULES or envelope.shape == "inside":
        return False
    if envelope.shape in families.PROVIDER_RULES[family]:
        return False
    return weak or envelope.shape in ("html", "text", "empty")


def _by_status(envelope: Envelope, family: str) -> Verdict:
    status = envelope.status
    if status is not None and 200 <= status < 300:
        status = envelope.body_status
    if _is_foreign(envelope, family, weak=True):
        return Verdict(kind="unknown", scope="none", signature="foreign_shape", confidence="low")
    if status is None:
        return _verdict("unknown", None, envelope, low=True)
    if status == 500 and envelope.body_status in (429, 529):
        status = envelope.body_status
    if status not in rules.STATUS:
        if 300 <= status < 400:
            return _verdict("wrong_endpoint", None, envelope, low=True)
        return _verdict("unknown", None, envelope, low=True)
    kind, low = rules.STATUS[status]
    scope = _limit_scope(envelope, "") if kind == "rate_limited" else None
    return _verdict(kind, scope, envelope, low=low)


_ACCOUNT_LIMIT: Final = (
    "organization", "your account", "api key", "this key", "per key", "your team", "workspace", "per user"
)  # fmt: skip


def _limit_scope(envelope: Envelope, requested_model: str) -> ScopeName | None:
    """A limit is the model's unless the answer names an account and no model."""
    text = envelope.text
    if envelope.shape == "html":
        # A front server's own page knows addresses and keys, no models.
        return "credential"
    if "model" in text or not any(word in text for word in _ACCOUNT_LIMIT):
        return None
    return None if requested_model and models.names_whole(text, requested_model) else "credential"


def _verdict(
    kind: Kind, scope: ScopeName | None, envelope: Envelope, *, signature: str | None = None, low: bool = False
) -> Verdict:
    wait, said_in = retry_after(envelope.headers, envelope.doc, envelope.text) if kind in _HINTED else (None, None)
    return Verdict(
        kind=kind,
        scope=scope or KINDS[kind].scope,
        retry_after_s=wait,
        retry_after_from=said_in,
        code=machine_code(envelope),
        signature=signature,
        confidence="low" if low else "high",
    )


def machine_code(envelope: Envelope) -> str | None:
    """The provider's own code, if it looks like one: words joined by marks, or a short number. Never free text,
    which could hold a key.
    """
    number: str | None = None
    header = envelope.headers.get("x-amzn-errortype", "").partition(":")[0].rpartition("#")[2]
    for code in (header, *envelope.codes) if header else envelope.codes:
        if code.isascii() and code.isdigit():
            if number is None or (number == str(envelope.status) and len(code) <= 8):
                number = code if len(code) <= 8 else number
        elif len(code) <= CODE_CHARS_MAX and _MACHINE_CODE.fullmatch(code) and not _SECRET.search(code):
            if number is not None and number != str(envelope.status) and len(number) != 3:
                return number
            return code
    return number
