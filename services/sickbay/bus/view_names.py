"""What a view of the log is called on NATS: the one without a name, or another one beside it under a name.

    names = view_names("next")
    names.stream            # KV_sickbay-next
    names.view_prefix       # sickbay.views.next.

A projector of another fold version, or with another policy, writes a view of its own name beside the running one.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ..invalid import InvalidValue

ACCEPTED: Final = "up to 32 letters, digits and hyphens, or nothing for the view without a name"


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}")


class ViewNames(msgspec.Struct, frozen=True):
    """Bucket and subjects of a view, and where the snapshots of its projectors are."""

    name: str
    bucket: str
    gate_prefix: str
    """+ scope key: a gate entry."""
    target_prefix: str
    """+ scope key: the counters of a target, to be read by people."""
    view_prefix: str
    """+ scope key: a gate entry as it is republished, without the `gate.`."""
    snapshots_bucket: str
    raw_gate_prefix: bytes
    raw_view_prefix: bytes

    @property
    def stream(self) -> str:
        """The bucket's stream."""
        return f"KV_{self.bucket}"

    @property
    def snapshots_stream(self) -> str:
        """The stream of the snapshots' bucket."""
        return f"OBJ_{self.snapshots_bucket}"


def view_names(name: str = "") -> ViewNames:
    """The names of a view; without a name those that all follow. Raises `InvalidValue`."""
    if name and _NAME.fullmatch(name) is None:
        raise InvalidValue("view", name[:80], ACCEPTED)
    bucket = f"sickbay-{name}" if name else "sickbay"
    gate_prefix = f"$KV.{bucket}.gate."
    view_prefix = f"sickbay.views.{name}." if name else "sickbay.view."
    return ViewNames(
        name=name,
        bucket=bucket,
        gate_prefix=gate_prefix,
        target_prefix=f"$KV.{bucket}.target.",
        view_prefix=view_prefix,
        snapshots_bucket=f"sickbay_snapshots-{name}" if name else "sickbay_snapshots",
        raw_gate_prefix=gate_prefix.encode(),
        raw_view_prefix=view_prefix.encode(),
    )


MAIN: Final = view_names()
"""The view without a name: routers follow it unless they are given another one."""
