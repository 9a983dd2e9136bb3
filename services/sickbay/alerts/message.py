"""A message about alerts: for machines as JSON, for people as lines of text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from sickbay_events import rfc3339
from sickbay_events.harmless import harmless

from .grouping import AlertBatch, Fact
from .settings import url_host

TEXT_MAX: Final = 3_000
"""Characters of a text for people; chat rooms cut at 4,000 and more."""
SHOWN_MAX: Final = 200
"""Characters of one line's name."""
_LEFT_OUT: Final = ("numbers",)
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class AlertMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What a webhook and a command get, as JSON. `type` is `held`, `released`, `warning`, `mixed` or `test`."""

    v: int = 1
    id: str
    """The same whenever this message is sent again."""
    type: str
    host: str | None
    """None where it tells of several."""
    count: int
    counts: dict[str, int]
    """How many of each type."""
    first_at: str
    last_at: str
    """Log time of the first and the last of them, RFC 3339."""
    alerts: list[dict[str, Any]]
    """The first of them, as the log of transitions has them."""
    held_back: int = 0
    """How many of them the rate limit kept waiting."""
    not_delivered: int = 0
    """Alerts before these that could not be delivered."""
    text: str
    """For people: names in it are harmless in a chat room. In `alerts` they are as the log has them."""


def message_of(batch: AlertBatch, named: int) -> AlertMessage:
    """The message about these alerts, of which the first `named` are in it."""
    facts = batch.facts
    counts = Counter(fact["type"] for fact in facts)
    hosts = list(dict.fromkeys(url_host(fact["provider"]) for fact in facts))
    ids = "\n".join(sorted(fact["id"] for fact in facts))
    return AlertMessage(
        id=sha256(ids.encode()).hexdigest()[:32],
        type=next(iter(counts)) if len(counts) == 1 else "mixed",
        host=hosts[0] if len(hosts) == 1 else None,
        count=len(facts),
        counts=dict(counts),
        first_at=rfc3339(facts[0]["time_ms"]),
        last_at=rfc3339(facts[-1]["time_ms"]),
        alerts=[{key: value for key, value in fact.items() if key not in _LEFT_OUT} for fact in facts[:named]],
        held_back=batch.held_back,
        not_delivered=batch.lost,
        text=_text(batch, counts, hosts, named),
    )


def sample_message(now_ms: int) -> AlertMessage:
    """A message that says nothing but that messages arrive."""
    at = rfc3339(now_ms)
    text = "This is a test by `sickbay alerts test`: alerts of Sickbay arrive here."
    return AlertMessage(
        id=f"test-{now_ms}", type="test", host=None, count=0, counts={}, first_at=at, last_at=at, alerts=[], text=text
    )


def slack_body(message: AlertMessage) -> dict[str, Any]:
    """For incoming webhooks of Slack and those that take the same."""
    return {"text": message.text.translate(_ESCAPES), "mrkdwn": False}


def _text(batch: AlertBatch, counts: Counter[str], hosts: Sequence[str], named: int) -> str:
    facts = batch.facts
    what = ", ".join(f"{count} {_word(word, count)}" for word, count in counts.items())
    lines = [line_of(facts[0])]
    if len(facts) > 1:
        where = harmless(_shown(hosts[0]), "chat") if len(hosts) == 1 else f"{len(hosts)} hosts"
        lines = [f"{what}: {where}", *(f"- {line_of(fact)}" for fact in facts[:named])]
        if len(facts) > named:
            lines.append(f"- and {len(facts) - named} more")
    if batch.held_back:
        lines.append(f"{batch.held_back} of these were held back by the limit on messages")
    if batch.lost:
        what = "alert" if batch.lost == 1 else "alerts"
        lines.append(f"{batch.lost} {what} before could not be delivered; `sickbay history` has what was held")
    text = "\n".join(lines)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def line_of(fact: Fact) -> str:
    """One transition as a line that is harmless wherever it is shown, in a chat room too."""
    return harmless(_line(fact), "chat")


def _line(fact: Fact) -> str:
    name = _shown(" ".join(str(fact[key]) for key in ("provider", "model") if fact.get(key)))
    rule, kind = fact.get("rule"), fact.get("type")
    if kind == "held":
        why = f"{fact['actor']}: {fact.get('reason')}" if fact.get("actor") else _cause(fact)
        alone = f", for {_shown(str(fact['replica']))} alone" if fact.get("replica") else ""
        shadow = "" if fact.get("enforced", True) else ", in shadow: not enforced"
        return f"held: {name} by {rule} until {fact.get('until')}{f' ({_shown(why)})' if why else ''}{alone}{shadow}"
    if kind == "released":
        who = f" ({_shown(str(fact['actor']))}: {_shown(str(fact.get('reason')))})" if fact.get("actor") else ""
        return f"released: {name} from {rule} by {fact.get('by')}{who}"
    facts = [f"{key} {_shown(str(fact[key]))}" for key in ("signature", "replica", "route") if fact.get(key)]
    return f"warning: {name} {str(rule).replace('_', ' ')}{': ' if facts else ''}{', '.join(facts)}"


def _cause(fact: Fact) -> str:
    return " ".join(str(fact[key]) for key in ("kind", "status") if fact.get(key) is not None)


def _word(word: str, count: int) -> str:
    return "warnings" if word == "warning" and count != 1 else word


def _shown(text: str) -> str:
    """A name from outside, no longer than is readable."""
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"
