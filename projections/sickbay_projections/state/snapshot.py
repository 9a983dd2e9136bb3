"""The whole state as bytes and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from sickbay_events.names import Scope

from .model import Replica, Route, ScopeState, encode_sorted

if TYPE_CHECKING:
    from ..fold import Fleet

FOLD_VERSION: Final = 1
"""Rises whenever the same log gives another state: snapshots of another version are not read."""


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
    replicas: dict[str, list[Any]]
    routes: dict[str, list[Any]]
    scopes: dict[str, ScopeState]


_decode: Final = msgspec.msgpack.Decoder(Snapshot).decode


def rest(fleet: Fleet) -> dict[str, Any]:
    """What belongs to no scope and no replica."""
    return {
        "fold": FOLD_VERSION,
        "overlay": fleet.overlay,
        "policy": fleet.store.policy_data,
        "policy_seq": fleet.policy_seq,
        "seq": fleet.seq,
        "time_ms": fleet.time_ms,
        "repeated": fleet.repeated,
        "other": fleet.store.other,
        "skipped": fleet.skipped,
        "swept_hour": fleet.store.swept_hour,
    }


def encode_fleet(fleet: Fleet) -> bytes:
    """The state with sorted keys."""
    replicas = {key: replica.to_data() for key, replica in fleet.store.replicas.items()}
    routes = {key: route.to_data() for key, route in fleet.store.routes.items()}
    scopes = {key: node.state for key, node in fleet.store.nodes.items()}
    return encode_sorted({**rest(fleet), "replicas": replicas, "routes": routes, "scopes": scopes})


def read(data: bytes) -> Snapshot:
    """Decode and check a state. Raises ValueError for another fold version, or bytes that are no state."""
    try:
        found = _decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"these bytes are no state of a fleet: {error}") from error
    if found.fold != FOLD_VERSION:
        raise ValueError(f"a state of fold version {found.fold}; this is version {FOLD_VERSION}")
    return found


def fill(fleet: Fleet, found: Snapshot) -> None:
    """Put what was read into a new fleet."""
    fleet.policy_seq, fleet.seq, fleet.time_ms = found.policy_seq, found.seq, found.time_ms
    fleet.repeated, fleet.skipped = found.repeated, found.skipped
    store = fleet.store
    store.other, store.swept_hour = found.other, found.swept_hour
    for key, state in found.scopes.items():
        store.node(Scope.of_key(key)).state = state
    for key, data in found.replicas.items():
        store.add_replica(Replica.from_data(key, data))
    for key, data in found.routes.items():
        store.add_route(Route.from_data(key, data))
    store.queue_idle()
