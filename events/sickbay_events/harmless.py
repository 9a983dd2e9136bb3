"""Text on its way to people: what an outsider wrote is shown and does nothing. Pure, and the only such function.

Names of models, providers and replicas, codes, reasons and details come from outside. On a terminal, in a log, in a
spreadsheet or in a chat they could move the cursor, turn the writing round, be run as a formula, call everybody or
lead elsewhere.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal, TypeAlias

Place: TypeAlias = Literal["line", "csv", "chat"]
"""`line`: terminals, logs, headers, pages' text. `csv`: a cell of a table. `chat`: messages and webhooks to people."""

_FORMULA: Final = re.compile(r"\s*[=+\-@|%\uff1d\uff0b\uff0d\uff20]")
_CHAT: Final = str.maketrans({"@": "\uff20", "<": "\u2039", ">": "\u203a", "`": "'"})
_LINK: Final = re.compile(r"(?<=[A-Za-z])(:)(?=//)|\b(?<=mailto)(:)|\b(?<=tel)(:)|(?<=\bwww)(\.)", re.I)
_MARKED_LINK: Final = re.compile(r"\](?=[(\[:])")


def harmless(text: object, place: Place = "line", limit: int | None = None) -> str:
    """The text on one line, in a form that does nothing at `place`; at most `limit` characters. Never raises.

    Control characters, line ends, bidirectional and invisible marks and halves of surrogate pairs become their
    escapes (`\\n`, `\\x1b`, `\\u202e`), so that they are seen. In a `csv` cell, what a spreadsheet takes for a formula
    gets an apostrophe in front. In `chat`, mentions, markup and links lose what makes them work and stay readable.
    """
    plain = text if isinstance(text, str) else str(text)
    if limit is not None:
        plain = plain[: max(limit, 0)]
    if not plain.isprintable():
        plain = "".join([one if one.isprintable() else _escaped(one) for one in plain])
    if place == "csv" and _FORMULA.match(plain) and not _is_number(plain):
        plain = "'" + plain
    elif place == "chat":
        plain = _LINK.sub(lambda found: f"[{found[0]}]", plain.translate(_CHAT))
        plain = _MARKED_LINK.sub("] ", plain)
    return plain if limit is None else plain[: max(limit, 0)]


def _escaped(character: str) -> str:
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape", "surrogatepass").decode() if character != "\\" else character


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
