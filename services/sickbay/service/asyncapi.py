"""The event contract as AsyncAPI: every subject, with the schema of what it carries.

FastStream makes the document of the brokers it is given. The services' own broker brings what they publish and
subscribe; a second broker, which never connects, brings what reaches them by other ways (the log's reader, the
bucket, nats.micro), so that the document is whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, Final

import msgspec
from fast_depends.msgspec import MsgSpecSerializer
from faststream.nats import NatsBroker
from faststream.specification import AsyncAPI
from faststream.specification.base import SpecificationFactory

from sickbay_events import (
    CallAnswered,
    CallOutcome,
    CallsRefused,
    Checkpoint,
    GateEntry,
    HealthChanged,
    Override,
    PolicyChanged,
    ProbeResult,
    Released,
    TargetHeld,
    WarningRaised,
)
from sickbay_events.derived import Derived
from sickbay_events.view import PolicyInForce

from ..bus.topology import DEAD_PREFIX
from ..projector.deadletters import Letter
from .rpc import ENDPOINTS

_TEXT: Final = {"type": "string"}
_DERIVED: Final[dict[str, type[Derived]]] = {
    "held": TargetHeld,
    "released": Released,
    "health": HealthChanged,
    "warning": WarningRaised,
}


class Doc:
    """Tells FastStream's generator, which knows pydantic only, the schema of a type (in `Annotated`)."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Pydantic asks for a validator; it is never used, since msgspec decodes."""
        from pydantic_core import core_schema

        return core_schema.any_schema()

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        """The schema of the document."""
        return self.schema


def schema_of(*types: type[msgspec.Struct]) -> dict[str, Any]:
    """JSON schema of one struct, or of any of several, without references."""
    found, parts = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return inline(parts[node["$ref"].rsplit("/", 1)[1]])
        return {key: inline(value) for key, value in node.items() if key != "discriminator"}

    schemas = [inline(schema) for schema in found]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def derived_schema(event: type[Derived]) -> dict[str, Any]:
    """Schema of a derived event as `encode_derived` writes it: names instead of the scope, times also as text."""
    schema = schema_of(event)
    properties: dict[str, Any] = schema["properties"]
    del properties["scope"]
    extra: dict[str, Any] = {"provider": _TEXT, "model": _TEXT, "at": _TEXT, "id": _TEXT}
    if "end_ms" in properties:
        extra["until"] = _TEXT
    schema["properties"] = {**extra, **properties}
    schema["required"] = [name for name in schema["required"] if name != "scope"] + ["provider", "at", "id"]
    return schema


def documented(broker: NatsBroker) -> None:
    """Add what the projector publishes to the services' broker, as typed publishers."""
    for word, event in _DERIVED.items():
        broker.publisher(
            f"sickbay.{word}.{{scope_key}}",
            schema=Annotated[Any, Doc(derived_schema(event))],
            title=f"sickbay.{word}",
            description=_first_line(event),
        )


def specification(broker: NatsBroker) -> AsyncAPI:
    """The document's maker for the services' broker and everything around it."""
    return AsyncAPI(
        broker,
        _around(),
        title="Sickbay",
        version=version("sickbay"),
        description="Outcomes in, holds out: the events of Sickbay on NATS.",
    )


def asyncapi_document(made: SpecificationFactory) -> dict[str, Any]:
    """The AsyncAPI document as plain data, without the address of any server."""
    found: dict[str, Any] = json.loads(made.to_specification().to_json())
    found.pop("servers", None)
    for part in ("channels", "operations"):
        found[part] = dict(sorted(found[part].items()))
    for channel in found["channels"].values():
        channel.pop("servers", None)
    return found


def _around() -> NatsBroker:
    """What is no FastStream subscriber or publisher, as a broker that is only ever read."""
    broker = NatsBroker(serializer=MsgSpecSerializer(), logger=None)
    _receives(broker, "sickbay.outcome.{replica}.{scope_key}", "outcome", CallOutcome, CallAnswered, CallsRefused)
    _receives(broker, "sickbay.probe.{replica}.{scope_key}", "probe", ProbeResult)
    _receives(broker, "sickbay.override.{scope_key}", "override", Override)
    _receives(broker, "sickbay.policy", "policy", PolicyChanged)
    for row in ENDPOINTS:
        _receives(broker, row.subject, row.subject, row.ask)
    for subject, name, kind in (
        ("sickbay.view.{scope_key}", "view", GateEntry),
        ("sickbay.view.=.0", "checkpoint", Checkpoint),
        ("sickbay.view.=.1", "policy_in_force", PolicyInForce),
        (f"{DEAD_PREFIX}{{reason}}", "dead", Letter),
    ):
        broker.publisher(
            subject, schema=Annotated[Any, Doc(schema_of(kind))], title=name, description=_first_line(kind)
        )
    return broker


def _receives(broker: NatsBroker, subject: str, name: str, *types: type[msgspec.Struct]) -> None:
    schema = schema_of(*types)

    async def handler(event: Any) -> None:
        """Only read for its annotation."""

    handler.__annotations__ = {"event": Annotated[Any, Doc(schema)], "return": None}
    subscribe: Callable[..., Any] = broker.subscriber(
        subject, title=name, description=" ".join(_first_line(kind) for kind in types)
    )
    subscribe(handler)


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n")[0]
