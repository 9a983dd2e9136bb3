"""What the rules have counted of a scope, and what was warned of, in plain words: for status and explain."""

from __future__ import annotations

from typing import Any, Final

from sickbay_events import rfc3339

from .base import seconds

WARNINGS_MAX: Final = 10

_WARNS: Final[dict[str, str]] = {
    "replica_suspect": "{replica} has nearly all of the bad ones while others are well: look at that machine",
    "replica_suspect key_refused": "the key of {replica} is refused while the fleet's is not: look at its key there",
    "pipeline_suspect": "{replica} damages texts itself: look at how it decodes answers",
    "novel_signature": "new: {signature}",
    "familiar_signature": "again and again: {signature}",
    "charset_absent": "damaged answers that name no charset",
    "wrong_endpoint": "is called by a route that does not exist there: look at the caller's base URL",
    "sustained_fallback": "route {route} is mostly answered by a fallback",
}
_NOUNS: Final = {
    "strikes": "rejections",
    "throttles": "throttles",
    "faults": "faults",
    "slow": "slow answers",
    "bad": "bad answers",
    "damage": "damaged answers",
}
"""What the evidences of Rule 4.0 count."""
_WHY: Final = {
    "answer": "answered",
    "readiness": "by its readiness checks",
    "liveness": "by its liveness checks",
    "strikes": "strikes below the threshold",
    "faults": "faults below the threshold",
    "bad_answers": "half of the bad answers that hold it",
    "last_outcome": "the last outcome was bad",
}


def cause_of(hold: dict[str, Any]) -> str:
    """What began a hold: `12 x empty_output`, `2 x model_unavailable (404)`."""
    if hold["rule"] == "operator":
        return f"{hold.get('actor')}: {hold.get('reason')}"
    status = f" ({hold['status']})" if hold.get("status") else ""
    return f"{hold['count']} x {hold['kind']}{status}"


def sentences(scope: dict[str, Any]) -> list[str]:
    """Sentences about the counts of one scope's document; none for a scope that has had no events."""
    found: list[str] = []
    if scope.get("health_why") in _WHY and not scope["holds"]:  # what a hold makes of it is said beside the hold
        age = "" if scope["health_age_s"] is None else f", {seconds(scope['health_age_s'])} old"
        upstream = " (upstream unverified)" if scope["health"] == "live" else ""
        found.append(f"health: {scope['health']}{upstream}, {_WHY[scope['health_why']]}{age}")
    if scope["outcomes"]:
        found.append(f"{scope['outcomes']} outcomes, {scope['answers']} answered, {scope['rejections']} rejected")
    found += [*_points(scope), *_refusals(scope), *_holds(scope)]
    if until_ms := scope.get("ramp_until_ms"):
        found.append(f"ramp: replicas come back one part after the other until {rfc3339(until_ms)[11:19]}")
    if scope["last_answer_ms"]:
        ago = seconds((scope["at_ms"] - scope["last_answer_ms"]) / 1000)
        found.append(f"last good answer {ago} ago, by {scope['last_answer_by']}")
    return found


def _points(scope: dict[str, Any]) -> list[str]:
    """What each evidence has counted, what was needed and why (Rule 4.0)."""
    found = []
    held = {hold.get("evidence") for hold in scope["holds"]}
    for name, says in scope["evidence"].items():
        noun, needed, record = _NOUNS[name], says["needed"], says["record"]
        lately = f"this target has got over {record} by itself since yesterday" if record else ""
        if name in held:
            why = f"{lately}, so {needed} were needed" if lately else f"{needed} in a row are enough"
            found.append(f"{says['failures']} {noun} and {says['answers']} answers ({_by(says['by'])}); {why}")
        elif says["points"]:
            why = f"{lately}, so {needed} in a row are needed" if lately else f"{needed} in a row hold it"
            found.append(f"{says['points']} of {says['weight'] * needed} points for {noun} ({_by(says['by'])}); {why}")
        elif lately:
            found.append(f"{lately}, so {needed} {noun} in a row are needed")
        if says["alone"]:
            found.append(f"{says['alone']} fails where others are answered: {says['alone']} alone is held")
    return found


def _refusals(scope: dict[str, Any]) -> list[str]:
    count = scope.get("credential_strikes")
    return [f"{count} refusals of the credential lately"] if count else []


def _holds(scope: dict[str, Any]) -> list[str]:
    found = []
    for hold in scope["holds"]:
        if hold.get("later"):
            found.append(f"{hold['later']} more of the kind since {hold['rule']} began")
        if hold.get("by"):
            found.append(f"held for {hold['by']}, whose word it is: the next call of another replica looks")
        if hold.get("trial_from_ms"):
            found.append(_trials(hold))
        if hold["rule"] == "degraded" and (hold["clean_trials"] or hold["uncheckable"]):
            found.append(f"{hold['clean_trials']} clean trials so far, {hold['uncheckable']} that showed nothing")
    return found


def _trials(hold: dict[str, Any]) -> str:
    tried, by = hold.get("nth", 1) - 1, f", last by {hold['last']}" if hold.get("last") else ""
    often = f"tried {tried} times{by}" if tried > 1 else f"tried once{by}" if tried else "not tried yet"
    return f"{hold['rule']} {often}; the next trial from {rfc3339(hold['trial_from_ms'])[11:19]} on"


def _by(counts: dict[str, list[int]]) -> str:
    """Failures by replica."""
    return ", ".join(f"{each[0]} by {name}" for name, each in counts.items() if each[0]) or "by nobody named"


def warning_line(fact: dict[str, Any]) -> str:
    """One warning as a line."""
    names = {"signature": fact.get("signature"), "replica": fact.get("replica"), "route": fact.get("route")}
    rule = str(fact["rule"])
    says = _WARNS.get(f"{rule} {fact.get('signature')}") or _WARNS.get(rule, rule.replace("_", " "))
    says = says.format(**names)
    where = f"{fact['provider']} {fact['model'] or ''}".rstrip()
    often = f" ({fact['times']} times)" if fact["times"] > 1 else ""
    return f"warning {rfc3339(fact['time_ms'])[11:19]}  {where}: {says}{often}"
