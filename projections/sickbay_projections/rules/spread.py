"""When models of one credential fail alike, the credential or its host opens as one (Rule 4.3, Spread)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sickbay_events.kinds import Kind

from ..state.model import Node
from . import circuit, holds, scopes, scoring
from .circuit import FAULTS, NAME
from .context import FoldContext

KINDS: Final[frozenset[Kind]] = frozenset({"network", "timeout", "server_error"})
"""Kinds of fault that speak of more than one model."""


def open_models(case: FoldContext) -> None:
    """A model's breaker has just opened: look whether its credential or its host is what is down."""
    credential = case.node.credential
    if credential is None or case.kind not in KINDS:
        return
    found, found_lately, called, kinds, by = 0, 0, 0, set[str | None](), set[str]()
    for model in credential.children.values():
        state = model.state
        lately = _is_lately(case, max(state.good_ms, state.bad_ms))
        called += lately
        hold = circuit.breaker_hold(model)
        if hold is None or hold.kind not in KINDS or case.now_ms >= hold.end_ms or scopes.is_behind(model):
            continue
        found += 1
        found_lately += lately
        kinds.add(hold.kind)
        by.add(hold.by)
    if found >= case.limits.spread_models and found_lately * 2 >= called:
        # Models that are all held on the word of one replica are no more than its word for the wider scope.
        word = by.pop() if len(by) == 1 else ""
        _open(case, credential, {"open": found, "models": called}, word, network=kinds == {"network"})


def _open(case: FoldContext, credential: Node, numbers: dict[str, int], word: str, *, network: bool) -> None:
    """The widest scope of which no model was answered; a provider without an alias has only its host."""
    candidates = []
    if credential.host is not None and (network or not credential.scope.alias):
        candidates.append(credential.host)
    if credential.scope.alias:
        candidates.append(credential)
    for wide in candidates:
        if any(_is_lately(case, model.state.good_ms) for model in models(wide)):
            continue
        hold = circuit.breaker_hold(wide)
        if (hold is None or case.now_ms >= hold.end_ms) and holds.is_after(case, NAME, wide.state):
            numbers["n"] = hold.nth + 1 if hold is not None else 1
            scoring.begin_hold(case, wide, FAULTS, hold, word, numbers=numbers)
        return


def closed(case: FoldContext) -> None:
    """A success closes the wide holds that it is after, and with them the models' holds of these kinds."""
    for wide in (case.node.host, case.node.credential):
        hold = circuit.breaker_hold(wide)
        if wide is None or hold is None or not holds.is_after(case, NAME, wide.state):
            continue
        circuit.close(case, wide, hold)
        for model in sorted(models(wide), key=lambda model: model.key):
            own = circuit.breaker_hold(model)
            if own is None or own.kind not in KINDS or scopes.is_behind(model):
                continue
            if case.now_ms >= holds.over_ms(own, model.limits):
                continue
            # A model's hold that is younger than the wide one may rest on what this call did not know yet.
            if own.began_seq <= hold.began_seq or holds.is_after(case, NAME, model.state):
                # In the same ring: a replica that is in for the wide scope is in for its models.
                circuit.close(case, model, own, ring_seq=hold.began_seq, by="wide_close")


def wide_failed(case: FoldContext) -> None:
    """A fault as the one trial for all begins the next wide hold; another replica's makes one's word everyone's."""
    for wide in (case.node.host, case.node.credential):
        if wide is None or wide.state.holds is None:
            continue
        hold = circuit.breaker_hold(wide)
        if hold is None or not holds.is_after(case, NAME, wide.state):
            continue
        case.store.touch(wide)
        if scoring.is_trial(case, hold):
            scoring.tried(case, wide, hold, FAULTS)
        elif case.now_ms < hold.end_ms:
            scoring.confirm(case, wide, hold)


def trial_told_nothing(case: FoldContext) -> None:
    """A trial of a wide hold told nothing of it."""
    for wide in (case.node.host, case.node.credential):
        if wide is not None:
            scoring.told_nothing(case, wide, FAULTS)


def models(wide: Node) -> Iterator[Node]:
    """The models of a credential or a host."""
    for child in wide.children.values():
        if child.scope.model is not None:
            yield child
        else:
            yield from child.children.values()


def _is_lately(case: FoldContext, at_ms: int) -> bool:
    return 0 < at_ms <= case.now_ms < at_ms + case.limits.spread_ms
