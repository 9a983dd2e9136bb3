"""What the rules have counted of a scope, and what was warned of, in plain words: for status and explain."""

from __future__ import annotations

from typing import Any, Final

from sickbay_events import rfc3339

from .base import seconds

WARNINGS_MAX: Final = 10

_WARNS: Final[dict[str, str]] = {
    "replica_suspect": "{replica} has nearly all of the bad ones while others are well: look at that machine",
    "pipeline_suspect": "{replica} damages texts itself: look at how it decodes answers",
    "novel_signature": "new: {signature}",
    "familiar_signature": "again and again: {signature}",
    "charset_absent": "damaged answers that name no charset",
    "wrong_endpoint": "is called by a route that does not exist there: look at the caller's base URL",
    "sustained_fallback": "route {route} is mostly answered by a fallback",
}
_WHY: Final = {
    "answer": "answered",
    "readiness": "by its readiness checks",
    "liveness": "by its liveness checks",
    "strikes": "strikes below the threshold",
    "faults": "faults below the threshold",
    "bad_share": "a share of bad answers over half its limit",
    "last_outcome": "the last outcome was bad",
}


def cause_of(hold: dict[str, Any]) -> str:
    """What began a hold: `5 of 12 x empty_output`, `2 x model_unavailable (404)`."""
    if hold["rule"] == "operator":
        return f"{hold.get('actor')}: {hold.get('reason')}"
    of = f" of {hold['of']}" if hold.get("of") else ""
    status = f" ({hold['status']})" if hold.get("status") else ""
    return f"{hold['count']}{of} x {hold['kind']}{status}"


def sentences(scope: dict[str, Any]) -> list[str]:
    """Sentences about the counts of one scope's document; none for a scope that has had no events."""
    found: list[str] = []
    if scope.get("health_why") in _WHY and not scope["holds"]:  # what a hold makes of it is said beside the hold
        age = "" if scope["health_age_s"] is None else f", {seconds(scope['health_age_s'])} old"
        upstream = " (upstream unverified)" if scope["health"] == "live" else ""
        found.append(f"health: {scope['health']}{upstream}, {_WHY[scope['health_why']]}{age}")
    if scope["outcomes"]:
        found.append(f"{scope['outcomes']} outcomes, {scope['answers']} answered, {scope['rejections']} rejected")
    found += [*_strikes(scope), *_windows(scope), *_alone(scope), *_holds(scope)]
    if until_ms := scope.get("ramp_until_ms"):
        found.append(f"ramp: replicas come back one part after the other until {rfc3339(until_ms)[11:19]}")
    if scope["last_answer_ms"]:
        ago = seconds((scope["at_ms"] - scope["last_answer_ms"]) / 1000)
        found.append(f"last good answer {ago} ago, by {scope['last_answer_by']}")
    return found


def _strikes(scope: dict[str, Any]) -> list[str]:
    found = []
    if scope["strikes"]:
        found.append(f"{scope['strikes']} of {scope['threshold']} strikes ({_by(scope.get('strikes_by'))})")
    if count := scope.get("credential_strikes"):
        found.append(f"{count} refusals of the credential lately")
    return found


def _windows(scope: dict[str, Any]) -> list[str]:
    found = []
    if run := scope.get("fault_run"):
        found.append(f"{run} faults in a row")
    if faults := scope.get("window_faults"):
        by = _by(scope.get("window_faults_by"))
        found.append(f"{faults} faults among the last minute's {scope['window_attempts']} attempts ({by})")
    if bad := scope.get("bad"):
        found.append(f"{bad} bad among {scope['checkable']} answers that could be checked ({_by(scope.get('bad_by'))})")
    if damaged := scope.get("damaged"):
        found.append(f"{damaged} with damaged encoding among {scope['attributable']} that can be laid at its door")
    if throttles := scope.get("throttles"):
        found.append(f"{throttles} throttled answers in the last seconds, none came through")
    return found


def _alone(scope: dict[str, Any]) -> list[str]:
    """Replicas that hold it on their own word alone, because others have good answers (two witnesses)."""
    alone = [scope.get(f"{what}held_alone") for what in ("", "breaker_", "degraded_")]
    names = [name for name in (*alone, *scope.get("throttle_held_alone", [])) if name]
    return [f"{name} holds it alone: others had good answers" for name in dict.fromkeys(names)]


def _holds(scope: dict[str, Any]) -> list[str]:
    found = []
    for hold in scope["holds"]:
        if hold.get("later"):
            found.append(f"{hold['later']} more of the kind since {hold['rule']} began")
        if hold.get("nth", 1) > 1:
            found.append(f"{hold['rule']} for the {hold['nth']}. time in a row")
        if hold["rule"] == "degraded" and hold["phase"] == "probation":
            found.append(f"{hold['clean_trials']} clean trials so far, {hold['uncheckable']} that showed nothing")
    return found


def _by(counts: dict[str, int] | None) -> str:
    return ", ".join(f"{count} by {name}" for name, count in (counts or {}).items()) or "by nobody named"


def warning_line(fact: dict[str, Any]) -> str:
    """One warning as a line."""
    names = {"signature": fact.get("signature"), "replica": fact.get("replica"), "route": fact.get("route")}
    rule = str(fact["rule"])
    says = _WARNS.get(rule, rule.replace("_", " ")).format(**names)
    where = f"{fact['provider']} {fact['model'] or ''}".rstrip()
    often = f" ({fact['times']} times)" if fact["times"] > 1 else ""
    return f"warning {rfc3339(fact['time_ms'])[11:19]}  {where}: {says}{often}"
