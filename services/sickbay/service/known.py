"""Names that a person may have meant: what the state knows, and what is near a name that it does not know."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

from sickbay_events import Scope
from sickbay_projections import Fleet
from sickbay_projections.alone import alone_fact

NEAR_MAX: Final = 3
LOOKED_AT_MAX: Final = 2_000
"""Names that are compared; the comparison takes about 20 us a name."""
HELD_MAX: Final = 200
"""Scopes below a host or a credential that an answer lists."""


def is_known(fleet: Fleet, scope: Scope, at_ms: int) -> bool:
    """Whether anything but an operator's act was ever seen of this scope, or of one below it, or an act is in force."""
    keys = [scope.key] if scope.model is not None else [key for key in _keys(fleet) if _is_within(key, scope)]
    return any(_has_facts(document) for key in keys if (document := fleet.document(key, at_ms)) is not None)


def is_anything_heard(fleet: Fleet) -> bool:
    """Whether any router has reported anything yet: before that no name can be known."""
    return any(node.state.outcomes for node in fleet.store.nodes.values())


def near_names(fleet: Fleet, scope: Scope) -> Sequence[tuple[str, str | None]]:
    """Known (provider, model) near a name that is not known, the nearest first; model None for a whole provider."""
    scopes = [Scope.of_key(key) for key in _keys(fleet)]
    near = _near(scope.provider, list(dict.fromkeys(one.provider for one in scopes)))
    if scope.model is None:
        return [(name, None) for name in near]
    models = [(one.provider, one.model) for one in scopes if one.model is not None]
    # The same provider's models first, then those of a provider of a like name, then the model elsewhere.
    for wanted in ([scope.provider], near):
        at = [(provider, model) for provider, model in models if provider in wanted]
        close = _near(scope.model, list(dict.fromkeys(model for _, model in at)))
        if close:
            return sorted(((p, m) for p, m in at if m in close), key=lambda one: close.index(one[1]))[:NEAR_MAX]
    return [(provider, model) for provider, model in models if model == scope.model][:NEAR_MAX]


def held_keys(fleet: Fleet, at_ms: int) -> set[str]:
    """Keys of all scopes that have an entry, or that one replica alone keeps from itself."""
    return {key for key, _ in fleet.entries()} | {one.scope for one in fleet.held_alone(at_ms)}


def told_document(fleet: Fleet, key: str, at_ms: int) -> dict[str, Any] | None:
    """A scope's document, and under `alone` which replicas keep it from themselves; None if it is not in the state."""
    found = fleet.document(key, at_ms)
    if found is None:
        return None
    return {**found, "alone": [alone_fact(one, at_ms) for one in fleet.held_alone(at_ms) if one.scope == key]}


def held_below(fleet: Fleet, scope: Scope, at_ms: int) -> list[dict[str, Any]]:
    """Documents of what is held below a host or a credential, be it by an operator or for one replica alone."""
    below = (key for key in sorted(held_keys(fleet, at_ms)) if key.startswith(f"{scope.key}."))
    documents = (document for key in below if (document := told_document(fleet, key, at_ms)) is not None)
    return list(islice((one for one in documents if one["holds"] or one["operator"] or one["alone"]), HELD_MAX))


def _keys(fleet: Fleet) -> list[str]:
    return list(fleet.keys())


def _is_within(key: str, scope: Scope) -> bool:
    return f"{key}.".startswith(f"{scope.key}.")


def _has_facts(document: dict[str, Any]) -> bool:
    probed = document.get("health") not in (None, "unknown", "held")
    return bool(document["outcomes"] or document["holds"] or document["operator"] or probed)


def _near(name: str, known: list[str]) -> list[str]:
    """Names like this one: a part of them, or nearly spelled so; upper and lower case are the same."""
    plain = {one: one.casefold() for one in known[:LOOKED_AT_MAX]}
    wanted = name.casefold()
    parts = [one for one, low in plain.items() if len(wanted) >= 3 and (wanted in low or low in wanted)]
    close = set(get_close_matches(wanted, list(plain.values()), n=NEAR_MAX))
    spelled = sorted((one for one, low in plain.items() if low in close and one not in parts), key=len)
    return [*sorted(parts, key=len), *spelled][:NEAR_MAX]
