"""Find the first row that fits an envelope: the family's rows, the general ones, the status at last."""

from __future__ import annotations

import re
from typing import Final

from ..kinds import KINDS, Kind, ScopeName
from ..verdict import Verdict
from . import families, models, provider_rules, rules, subjects
from .envelope import Envelope
from .held_answer import HELD_HEADER, HELD_MARK, held_verdict
from .message_patterns import SENTENCES
from .plain_patterns import FIRST
from .retry_after import allowance_is_spent, retry_after
from .rules import FEATURE_GONE, FORM, MISSING, MODEL_ID, OTHER, OVER_LIMIT, Rule, Sentence

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

_SAYS: Final = {
    MISSING: models.says_missing,
    OTHER: subjects.names_other_resource,
    FEATURE_GONE: subjects.says_feature_gone,
    FORM: subjects.is_about_request,
    OVER_LIMIT: subjects.asks_over_limit,
    MODEL_ID: subjects.refuses_model_id,
}
"""What each mark in a sentence stands for."""
_WORD: Final = re.compile(r"[a-z]+")


class RuleIndex:
    """Rows by code and by the first word of each sentence, so that a text meets only those that can fit it.

    A sentence begins where a word begins.
    """

    __slots__ = ("_by_code", "_by_word", "_late", "_plain", "_rows", "_wide", "_words")

    def __init__(self, rows: tuple[Rule, ...]) -> None:
        self._rows = rows
        self._by_code: dict[str, list[int]] = {}
        self._by_word: dict[str, list[tuple[int, Sentence]]] = {}
        self._wide: list[tuple[int, Sentence]] = []
        plain: dict[str, list[tuple[int, Sentence]]] = {}
        late: set[int] = set()
        for order, row in enumerate(rows):
            for code in row.codes:
                self._by_code.setdefault(code, []).append(order)
            if row.codes:
                continue
            if not row.says:
                late.add(order)
            for parts in row.says:
                first, blank, _ = parts[0].partition(" ")
                if parts[0] in _SAYS:
                    late.add(order)
                elif not all(part.isascii() for part in parts):
                    self._wide.append((order, parts))
                elif blank and first.isalpha():
                    self._by_word.setdefault(first, []).append((order, parts))
                else:
                    plain.setdefault(parts[0], []).append((order, parts))
        self._plain = tuple(plain.items())
        self._late = tuple(sorted(late))
        self._words = frozenset(self._by_word)

    def first(self, codes: tuple[str, ...], text: str, words: frozenset[str], status: int | None) -> Rule | None:
        """The first row that fits; `words` are those of the text."""
        rows = self._rows
        best = len(rows)
        for code in codes:
            for order in self._by_code.get(code, ()):
                if order >= best:
                    break
                if _fits(rows[order], text, status):
                    best = order
        if text:
            for first, sentences in self._plain:
                if first in text:
                    for order, parts in sentences:
                        if order < best and _fits_rest(rows[order], parts, text, status):
                            best = order
            for word in self._words & words:
                for order, parts in self._by_word[word]:
                    if order < best and parts[0] in text and _fits_rest(rows[order], parts, text, status):
                        best = order
            if not text.isascii():
                for order, parts in self._wide:
                    if order < best and parts[0] in text and _fits_rest(rows[order], parts, text, status):
                        best = order
        for order in self._late:
            if order >= best:
                break
            if _fits(rows[order], text, status):
                best = order
        return rows[best] if best < len(rows) else None


_FIRST: Final = RuleIndex(FIRST)
_FAMILIES: Final = {family: RuleIndex(rows) for family, rows in provider_rules.PROVIDER_RULES.items()}
_GENERAL: Final = RuleIndex(rules.CODES)
_SENTENCES: Final = RuleIndex(SENTENCES)
_WEAK: Final = RuleIndex(rules.WEAK_CODES)


def match(envelope: Envelope, requested_model: str, family: str) -> Verdict:
    """The verdict on an error answer."""
    if HELD_HEADER in envelope.headers or HELD_MARK in envelope.text or HELD_MARK in envelope.codes:
        wait_s, _ = retry_after(envelope.headers, envelope.doc, "", windows=False)
        if (held := held_verdict(envelope.headers, "\n".join((envelope.text, *envelope.codes)), wait_s)) is not None:
            return held
    if envelope.status in _PROXY_STATUSES or (
        not _CHALLENGES.isdisjoint(envelope.headers)
        and not _WANTS_BROWSER.isdisjoint(envelope.headers.get(name, "") for name in _CHALLENGES)
    ):
        return Verdict(kind="unknown", scope="none", signature="foreign_shape", confidence="low")
    plain = models.without_name(envelope.text, requested_model)
    row, origin = _find(envelope._replace(text=plain), family)
    if row is None:
        return _by_status(envelope, family, plain)
    if row.kind in _UNAVAILABLE and (not row.says or row.weak) and subjects.is_about_request(plain):
        # A code for unavailability beside a sentence about the request: the sentence knows better.
        return _verdict("bad_request", None, envelope)
    if (
        origin == "family"
        and row.kind == "model_unavailable"
        and not row.codes
        and _is_foreign(envelope, family, weak=True)
        and not models.names_whole(envelope.text, requested_model)
    ):
        # A family's own words, in a stranger's shape, about no model that we asked for.
        return Verdict(kind="unknown", scope="none", signature="foreign_shape", confidence="low")
    if (
        origin != "family"
        and not (row.kind == "wrong_endpoint" and envelope.status == 404 and envelope.text)
        and _is_foreign(envelope, family, weak=row.weak or origin == "weak")
    ):
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
    if kind == "rate_limited":
        if allowance_is_spent(envelope.headers):
            kind, scope = "quota", None
        elif scope is None and origin != "family":
            scope = _limit_scope(envelope, requested_model)
    if (scope or KINDS[kind].scope) == "credential" and origin != "family":
        kind, scope = _narrowed(kind, scope, plain, is_vague=low)
    return _verdict(kind, scope, envelope, low=low)


_UNAVAILABLE: Final = frozenset(("overloaded", "server_error"))
_ONE_RULE: Final = re.compile(
    # What is refused is a model's, a tier's, or decided by a request's size: other calls of the credential go on.
    rf"\b(?:{re.escape(models.PLAIN_ID)}\b|(?:for|to|of|on|use|using|with|call|access) (?:the |this |that )?model\b|"
    r"(?:flex|priority|standard|default|batch|scale|service|free|enterprise|pro|premium) tier\b)"
)
_OF_ALL: Final = re.compile(
    r"balance|credit|billing|payment|api[ -_]?key|invalid key|recharge|top up|suspended|deactivated"
)
"""Words that are about the account or the key as a whole, whatever else is named beside them."""


def _narrowed(kind: Kind, scope: ScopeName | None, text: str, *, is_vague: bool) -> tuple[Kind, ScopeName | None]:
    """A credential is blamed only where nothing in the text names a model, a tier or a size."""
    if kind == "auth" and not is_vague:
        return kind, scope
    if not text or _ONE_RULE.search(text) is None or _OF_ALL.search(text) is not None:
        return kind, scope
    return ("permission_model", None) if kind == "auth" else (kind, "model")


def _find(envelope: Envelope, family: str) -> tuple[Rule | None, str]:
    codes = tuple(code.lower() for code in envelope.codes)
    header = envelope.headers.get("x-amzn-errortype", "")
    if header:
        codes = (header.partition(":")[0].rpartition("#")[2].lower(), *codes)
    # `SensitiveContentDetected.Violence` is also a `SensitiveContentDetected`.
    codes += tuple(code.partition(".")[0] for code in codes if "." in code)
    text, status = envelope.text, envelope.status
    words = frozenset(_WORD.findall(text))
    if text and (row := _FIRST.first((), text, words, status)) is not None:
        return row, "general"
    own = _FAMILIES.get(family)
    if own is not None and (row := own.first(codes, text, words, status)) is not None:
        return row, "family"
    if not text:
        for name, value, at, row in provider_rules.HEADER_HABITS:
            here = envelope.headers.get(name)
            if here is not None and here.startswith(value) and at in ("", str(status)):
                return row, "family"
        if envelope.shape == "empty" and (habit := provider_rules.EMPTY_HABITS.get((family, status))) is not None:
            return habit, "family"
    found = _GENERAL.first(codes, text, words, status)
    if found is None and text:
        found = _SENTENCES.first((), text, words, status)
    if found is not None:
        return found, "general"
    return _WEAK.first(codes, text, words, status), "weak"


def _fits(row: Rule, text: str, status: int | None) -> bool:
    if row.says and not any(_all_in(parts, text) for parts in row.says):
        return False
    return _allows(row, text, status)


def _fits_rest(row: Rule, parts: Sentence, text: str, status: int | None) -> bool:
    """Whether a row fits whose sentence begins in the text."""
    return (len(parts) == 1 or _all_in(parts, text)) and _allows(row, text, status)


def _allows(row: Rule, text: str, status: int | None) -> bool:
    if row.statuses and status not in row.statuses:
        return False
    for word in row.never:  # noqa: SIM110 - a generator would cost more than all of it
        if word in text or (word[0] == "{" and _in(word, text)):
            return False
    return True


def _all_in(parts: Sentence, text: str) -> bool:
    for part in parts:  # noqa: SIM110 - as above
        if part not in text and (part[0] != "{" or not _in(part, text)):
            return False
    return True


def _in(part: str, text: str) -> bool:
    return part in text or (part[0] == "{" and part in _SAYS and _SAYS[part](text))


def _is_foreign(envelope: Envelope, family: str, *, weak: bool) -> bool:
    """A 401, 403 or 404 that this family never says in this shape comes from the network in between (Rule 3)."""
    if envelope.shape == "empty" and envelope.status in (401, 404):
        return False
    if envelope.status not in _STRANGER_STATUSES or family not in families.PROVIDER_RULES or envelope.shape == "inside":
        return False
    if envelope.shape in families.PROVIDER_RULES[family]:
        return False
    return weak or envelope.shape in ("html", "text", "empty")


def _by_status(envelope: Envelope, family: str, text: str) -> Verdict:
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
    if kind == "rate_limited" and allowance_is_spent(envelope.headers):
        kind = "quota"
    if kind == "auth":
        kind, scope = _narrowed(kind, scope, text, is_vague=True)
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
    wait, said_in = None, None
    if kind in _HINTED:
        windows = KINDS[kind].group == "throttle"
        wait, said_in = retry_after(envelope.headers, envelope.doc, envelope.text, windows=windows)
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
