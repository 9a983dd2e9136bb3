"""What a NATS user may do: enough for its role, and no more.

Whether a subject may be published is tried without effect: a message that expects another stream than the one that
would take it is refused by that stream, after the server has let it pass; an API request that is no JSON is refused as
such.
"""

from __future__ import annotations

import contextlib
from typing import Final

import nats.errors

from sickbay_events import token

from ..bus.connect import BusError, ConnectError, PermissionDenied, connect_client, request
from ..bus.topology import LOG, OVERRIDE_PREFIX, POLICY_SUBJECT
from .finding import Finding, Installation

WAIT_S: Final = 1.0
NOBODY: Final = token("sickbay-doctor")
"""A name that no target, stream or bucket has."""
_UNEXPECTED: Final = {"Nats-Expected-Stream": NOBODY}
CONNECT_S: Final = 5.0
_NO_JETSTREAM: Final = (10_039, 10_076, 10_035)
"""Errors of an account without JetStream: there is no stream of ours in it."""


async def reads(installation: Installation) -> list[Finding]:
    """Whether this user may read the view, as a router does."""
    subject = f"$JS.API.DIRECT.GET.{installation.names.stream}"
    body = f'{{"last_by_subj":"{installation.names.gate_prefix}=.0"}}'.encode()
    try:
        reply = await installation.client.request(subject, body, timeout=WAIT_S)
        if reply.headers is not None:
            return [Finding(what="permissions", level="ok", found="may read the view")]
    except (nats.errors.Error, OSError):
        pass
    do = f"allow publish on {subject} and the answers under its inbox prefix"
    return [Finding(what="permissions", level="bad", found="may not read the view", do=do)]


async def router_rights(installation: Installation) -> list[Finding]:
    """Whether a router's credential can do what no router needs; nothing where none was given to be tried."""
    if installation.router is None:
        return []
    names = installation.names
    forbidden = {
        "write the view": (f"{names.gate_prefix}{NOBODY}", _UNEXPECTED),
        "publish overrides": (f"{OVERRIDE_PREFIX}{NOBODY}", _UNEXPECTED),
        "set the policy": (POLICY_SUBJECT, _UNEXPECTED),
        "put events into transitions": (f"sickbay.held.{NOBODY}", _UNEXPECTED),
        "change streams": (f"$JS.API.STREAM.UPDATE.{LOG}", None),
        "delete streams": (f"$JS.API.STREAM.DELETE.{NOBODY}", None),
        "read the log by consumers": (f"$JS.API.CONSUMER.CREATE.{LOG}.{NOBODY}", None),
    }
    try:
        client = await connect_client(installation.router, timeout_s=CONNECT_S)
    except ConnectError as error:
        do = "look into the file given by --router; until this is mended no router that uses it reports"
        return [Finding(what="router", level="bad", found=str(error), do=do)]
    may: list[str] = []
    try:
        for does, (subject, headers) in forbidden.items():
            try:
                reply = await request(client, subject, b"-", timeout_s=WAIT_S, headers=headers)
            except (PermissionDenied, nats.errors.NoRespondersError):
                continue  # denied, or nobody in its account takes it
            except (BusError, nats.errors.Error, OSError):
                continue  # no answer: nothing is proved
            if not any(b'"err_code":%d' % code in reply.data for code in _NO_JETSTREAM):
                may.append(does)
    finally:
        with contextlib.suppress(Exception):
            await client.close()
    if not may:
        return [Finding(what="router", level="ok", found="its credential can report and read, and no more")]
    do = "give routers the user that `sickbay nats-config` writes for them (router.env), and end this one's"
    return [Finding(what="router", level="bad", found=f"its credential may {', '.join(may)}", do=do)]
