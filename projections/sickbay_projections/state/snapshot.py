"""The whole state as bytes and back."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sickbay_events.names import Scope
from sickbay_events.policy import Policy

from .dedup import Acts
from .model import Replica, Route, ScopeState, encode_sorted
from .store import Store

FOLD_VERSION: Final = 3
"""Rises whenever the same log gives another state: snapshots of another version are not read."""


class Position(msgspec.Struct):
    """What belongs to the whole fold and to no scope: where it stands in the log, and what it passed over."""

    overlay: bool = False
    """A gate's own fold."""
    seq: int = 0
    """Last sequence that was folded or passed."""
    time_ms: int = 0
    """Log time (Rule 6)."""
    policy_seq: int = 0
    repeated: int = 0
    """Events that had been folded before (Rule 4, Once)."""
    skipped: dict[str, int] = {}
    """Poison and gaps by reason."""


class Snapshot(msgspec.Struct, kw_only=True):
    """The shape of an encoded state."""

    fold: int
    overlay: bool
    policy: dict[str, Any]
    policy_seq: int
    seq: int
    time_ms: int
    repeated: int
    other: int
    skipped: dict[str, int]
    swept_hour: int
    hour: int
    new_targets: int
    acts: dict[str, int]
    acts_before_ms: int
    replicas: dict[str, list[Any]]
    routes: dict[str, list[Any]]
    scopes: dict[str, ScopeState]


_decode: Final = msgspec.msgpack.Decoder(Snapshot).decode


def rest(position: Position, store: Store) -> dict[str, Any]:
    """What belongs to no scope and no replica."""
    return {
        "fold": FOLD_VERSION,
        "overlay": position.overlay,
        "policy": store.policy_data,
        "policy_seq": position.policy_seq,
        "seq": position.seq,
        "time_ms": position.time_ms,
        "repeated": position.repeated,
        "other": store.other,
        "skipped": position.skipped,
        "swept_hour": store.swept_hour,
        "hour": store.hour,
        "new_targets": store.new_targets,
        "acts": store.acts.times_ms,
        "acts_before_ms": store.acts.before_ms,
    }


def encode(position: Position, store: Store) -> bytes:
    """The state with sorted keys."""
    replicas = {key: replica.to_data() for key, replica in store.replicas.items()}
    routes = {key: route.to_data() for key, route in store.routes.items()}
    scopes = {key: node.state for key, node in store.nodes.items()}
    return encode_sorted({**rest(position, store), "replicas": replicas, "routes": routes, "scopes": scopes})


def decode(data: bytes) -> tuple[Position, Store]:
    """Read `encode` back. Raises ValueError for another fold version, or bytes that are no state."""
    try:
        found = _decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"these bytes are no state of a fleet: {error}") from error
    if found.fold != FOLD_VERSION:
        raise ValueError(f"a state of fold version {found.fold}; this is version {FOLD_VERSION}")
    store = Store(Policy.from_data(found.policy))
    store.other, store.swept_hour = found.other, found.swept_hour
    store.hour, store.new_targets = found.hour, found.new_targets
    store.acts = Acts(found.acts, found.acts_before_ms)
    for key, state in found.scopes.items():
        store.node(Scope.of_key(key)).state = state
    for key, data_of in found.replicas.items():
        store.add_replica(Replica.from_data(key, data_of))
    for key, data_of in found.routes.items():
        store.add_route(Route.from_data(key, data_of))
    store.queue_idle()
    names = Position.__struct_fields__
    return Position(*(getattr(found, name) for name in names)), store
