"""Warnings: what is worth a person's look and gates nothing (Rule 4.5).

Hours and days are buckets of log time. An outcome that waited over an hour in its reporter is no part of any of them.
"""

from __future__ import annotations

from typing import Final

from sickbay_events.kinds import KINDS, Kind
from sickbay_events.names import Scope, token
from sickbay_events.outcome import CallsRefused

from ..state import buckets
from ..state.limits import DAY_MS, HOUR_MS
from ..state.model import Node, Notices, Replica, ScopeState, Sightings
from .context import FoldContext
from .rule import Rule
from .samples import ENCODING

OWN_DECODING: Final = "own_decoding"
KEY_REFUSED: Final = "key_refused"
ROUTINE: Final = frozenset({"tool_calls", "capped"})
"""Signatures of ordinary turns that could not be checked: nothing to warn of."""
SIGNATURES_MAX: Final = 32
"""Signatures remembered of one scope; of more the one that was not seen for the longest time is forgotten."""
ENDPOINTS_MAX: Final = 256
"""Models of one host whose wrong endpoints are counted within one hour."""
DAY_HOURS: Final = 24
_CALLERS: Final[frozenset[Kind]] = frozenset({"bad_request", "context_length", "content_filter", "cancelled"})
"""Kinds that are the caller's own; `wrong_endpoint` has a rule of its own."""


def fold(case: FoldContext) -> None:
    """Fold one outcome of a target. Reads and writes `notices` of its scopes and its replica's `warned_hour`."""
    event = case.event
    if case.overlay or not case.is_attempt or case.queued_ms > HOUR_MS:
        return
    if event.kind == "wrong_endpoint":
        _wrong_endpoint(case)
        return
    damaged = event.signature in ENCODING or event.signature == OWN_DECODING
    if damaged and event.kind == "mangled_output" and event.charset == "absent":
        _no_charset(case)
    if event.signature == OWN_DECODING:
        _own_decoding(case)
    elif event.signature is not None and event.signature not in ROUTINE and event.kind not in _CALLERS:
        _signature(case, event.signature)


def fold_answered(case: FoldContext, node: Node, route: str, rank: int) -> None:
    """Count an answered call of a chain. Runs for every success that names its route."""
    routes, hour = case.store.routes, case.now_ms // HOUR_MS
    key = token(route[:64])
    part = routes.get(key) or case.store.new_route(key)
    if part is None:
        return
    if part.hour != hour:
        part.hour, part.answers, part.by_fallback, part.warned = hour, 0, 0, False
    part.answers += 1
    part.by_fallback += rank > 0
    case.store.touch_route(part)
    limits = case.store.policy.warnings
    if part.warned or part.answers < limits.fallback_answers:
        return
    if part.by_fallback * 100 >= limits.fallback_percent * part.answers:
        part.warned = True
        numbers = {"answers": part.answers, "by_fallback": part.by_fallback}
        case.warned(node.scope, "sustained_fallback", numbers, route=route[:64])


def fold_refused(case: FoldContext, replica: Replica, scope: Scope, event: CallsRefused) -> None:
    """A replica keeps a credential from itself of which the fleet holds nothing: most likely its key is an old one."""
    hour = case.now_ms // HOUR_MS
    is_own = event.alone_until_ms is not None and event.alone_until_ms > case.now_ms
    if case.overlay or not is_own or event.rule != "credential" or replica.warned_hour == hour:
        return
    replica.warned_hour = hour
    case.warned(scope, "replica_suspect", {"refused": event.count}, replica=replica.key, signature=KEY_REFUSED)


def _signature(case: FoldContext, signature: str) -> None:
    node, hour = _scope_of(case), case.now_ms // HOUR_MS
    signatures = _notices(case, node).signatures
    name, limits = token(signature[:64]), case.store.policy.warnings
    seen = signatures.get(name)
    if seen is None or not buckets.total(seen.counts, hour, DAY_HOURS):
        if seen is None and len(signatures) >= SIGNATURES_MAX:
            del signatures[min(signatures, key=lambda each: (signatures[each].counts[-2], each))]
        seen = signatures[name] = Sightings(counts=[hour, 0], novel=True)
    buckets.add(seen.counts, hour, DAY_HOURS)
    in_day, in_hour = buckets.total(seen.counts, hour, DAY_HOURS), buckets.current(seen.counts, hour)
    is_due = in_day >= limits.novel_count if seen.novel else in_hour >= limits.familiar_count
    if not is_due or seen.warned_hour == hour:
        return
    rule = "novel_signature" if seen.novel else "familiar_signature"
    seen.novel, seen.warned_hour = False, hour
    case.warned(node.scope, rule, {"in_day": in_day, "in_hour": in_hour}, signature=signature[:64])


def _wrong_endpoint(case: FoldContext) -> None:
    """By host and model: another credential of the same caller meets the same set-up."""
    node, host, hour = case.node, case.node.host, case.now_ms // HOUR_MS
    if host is None or node.scope.model is None:
        return
    endpoints, name = _notices(case, host).endpoints, token(node.scope.model)
    found = endpoints.get(name)
    if found is None or found[0] != hour:
        if found is None and len(endpoints) >= ENDPOINTS_MAX:
            for each in [each for each, counted in endpoints.items() if counted[0] != hour]:
                del endpoints[each]
            if len(endpoints) >= ENDPOINTS_MAX:
                return
        found = endpoints[name] = [hour, 0, 0]
    found[1] += 1
    if found[1] >= case.store.policy.warnings.wrong_endpoint_count and not found[2]:
        found[2] = 1
        case.warned(node.scope, "wrong_endpoint", {"in_hour": found[1]})


def _no_charset(case: FoldContext) -> None:
    host, day = case.node.host, case.now_ms // DAY_MS
    if host is None:
        return
    notices = _notices(case, host)
    if notices.no_charset_day != day:
        notices.no_charset_day = day
        case.warned(host.scope, "charset_absent", {}, signature=case.event.signature)


def _own_decoding(case: FoldContext) -> None:
    """Damage that is not in the bytes as received is that router's own fault (Rule 3)."""
    replica, hour = case.store.replica(case.replica), case.now_ms // HOUR_MS
    if replica.warned_hour != hour:
        replica.warned_hour = hour
        case.store.touch_replica(replica)
        case.warned(case.node.scope, "pipeline_suspect", {}, replica=case.replica, signature=OWN_DECODING)


def _scope_of(case: FoldContext) -> Node:
    """The scope of the signature; what is nobody's own is told of the target."""
    node, event = case.node, case.event
    name = "host" if event.signature in ENCODING else event.scope or KINDS[event.kind].scope
    if name == "host" and node.host is not None:
        return node.host
    if name == "credential" and node.credential is not None and node.credential.scope.alias:
        return node.credential
    return node


def _notices(case: FoldContext, node: Node) -> Notices:
    case.store.touch(node)
    found = node.state.notices
    if found is None:
        found = node.state.notices = Notices()
    return found


def _clear(state: ScopeState) -> None:
    state.notices = None


def _step_back(node: Node, now_ms: int) -> None:
    notices, hour = node.state.notices, now_ms // HOUR_MS
    if notices is None:
        return
    for seen in notices.signatures.values():
        buckets.step_back(seen.counts, hour)
        seen.warned_hour = min(seen.warned_hour, hour)
    for found in notices.endpoints.values():
        found[0] = min(found[0], hour)
    notices.no_charset_day = min(notices.no_charset_day, now_ms // DAY_MS)


RULE: Final = Rule(name="warnings", clear=_clear, step_back=_step_back)
