"""Provider habits, as data: codes and sentences that mean something else, or only something, at one family.

Rows are read before the general ones in rules.py. Number codes are here only: the same number is
another thing at another provider.
"""

from __future__ import annotations

from typing import Final

from ..rules import Rule, rule
from .china import CHINA
from .hosts import HOSTS
from .makers import MAKERS
from .relays import RELAYS
from .servers import SERVERS

PROVIDER_RULES: Final[dict[str, tuple[Rule, ...]]] = {**MAKERS, **CHINA, **HOSTS, **RELAYS, **SERVERS}
"""Rows by family; the first that fits decides."""

HEADER_HABITS: Final[tuple[tuple[str, str, str, Rule], ...]] = (
    # (header, value or its beginning, only under this status or "", the row). For answers without any body.
    ("x-admission-dimension", "", "429", rule("overloaded")),
    ("x-concurrent-limit-dimension", "", "429", rule("rate_limited")),
    ("x-ratelimit-remaining", "0", "429", rule("rate_limited", scope="credential")),
)

EMPTY_HABITS: Final[dict[tuple[str, int | None], Rule]] = {
    # (family, status): what an answer without any body means there.
    ("cerebras", 400): rule("context_length", weak=True),
}
