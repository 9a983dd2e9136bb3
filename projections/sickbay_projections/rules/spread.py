"""When models of one credential fail alike, the credential or its host opens as one (Rule 4.3, Spread)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sickbay_events.kinds import Kind

from ..state.model import Node
from . import circuit, holds, scopes
from .circuit import NAME
from .context import FoldContext

KINDS: Final[frozenset[Kind]] = frozenset({"network", "timeout", "server_error"})
"""Kinds of fault that speak of more than one model."""


def open_models(case: FoldContext) -> None:
    """A model's breaker has just opened: look whether its credential or its host is what is down."""
    credential = case.node.credential
    if credential is None or case.kind not in KINDS:
        return
    found, found_lately, called, kinds = 0, 0, 0, set[str | None]()
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
    if found >= case.limits.spread_models and found_lately * 2 >= called:
        _open(case, credential, {"open": found, "models": called}, network=kinds == {"network"})


def _open(case: FoldContext, credential: Node, numbers: dict[str, int], *, network: bool) -> None:
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
            circuit.begin_open(case, wide, numbers["open"], numbers)
        return


def closed(case: FoldContext) -> None:
    """A success closes the wide holds that it is after, and with them the models' holds of these kinds."""
    for wide in (case.node.host, case.node.credential):
        hold = circuit.breaker_hold(wide)
        if wide is None or hold is None or not holds.is_after(case, NAME, wide.state):
            continue
        circuit.close(case, wide, hold, ring_seq=hold.began_seq)
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


def failed(case: FoldContext) -> None:
    """A fault as the one trial for all begins the next wide hold."""
    for wide in (case.node.host, case.node.credential):
        if wide is None or wide.state.holds is None:
            continue
        hold = circuit.breaker_hold(wide)
        if hold is None or not circuit.is_trial(case, hold):
            continue
        if holds.is_after(case, NAME, wide.state):
            circuit.begin_open(case, wide, 1, {"faults": 1})


def told_nothing(case: FoldContext) -> None:
    """A trial of a wide hold gave its lease back."""
    for wide in (case.node.host, case.node.credential):
        hold = circuit.breaker_hold(wide)
        if wide is not None and hold is not None and holds.is_leased(case, NAME, hold.began_seq):
            holds.begins_again(case, wide, hold)
            case.store.touch(wide)


def models(wide: Node) -> Iterator[Node]:
    """The models of a credential or a host."""
    for child in wide.children.values():
        if child.scope.model is not None:
            yield child
        else:
            yield from child.children.values()


def _is_lately(case: FoldContext, at_ms: int) -> bool:
    return 0 < at_ms <= case.now_ms < at_ms + case.limits.spread_ms
