"""Schemas of those answers that are made of documents of the folds, and examples of all: for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

_TEXT: Final = {"type": "string"}
_MAYBE_TEXT: Final = {"type": ["string", "null"]}
_WHOLE: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_FLAG: Final = {"type": "boolean"}
_FREE: Final = {"type": "object", "additionalProperties": True}


def _shape(says: str, required: dict[str, Any], more: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "description": says,
        "properties": {**required, **(more or {})},
        "required": list(required),
        **members,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_HEAD: Final = {
    "seq": {**_WHOLE, "description": "Log sequence that the answer rests on"},
    "policy_seq": _WHOLE,
    "at": {**_TEXT, "description": "Log time, RFC 3339"},
}
_SCOPE: Final = _shape(
    "What is known of a scope: times left end in `_s`, log times in `_ms`",
    {
        "provider": _TEXT,
        "model": _MAYBE_TEXT,
        "scope": {"enum": ["host", "credential", "model"]},
        "holds": _list(_FREE),
    },
    additionalProperties=True,
)
_TRANSITION: Final = _shape(
    "A derived event as the log's stream has it",
    {"key": _TEXT, "type": {"enum": ["held", "released", "health", "warning"]}, "provider": _TEXT, "rule": _TEXT,
     "cause_seq": _WHOLE, "time_ms": _WHOLE, "at": _TEXT},
    additionalProperties=True,
)  # fmt: skip

SHAPES: Final[dict[str, Any]] = {
    "Problem": _shape(
        "What went wrong (RFC 9457)",
        {"type": _TEXT, "title": _TEXT, "status": _WHOLE, "detail": _TEXT},
        {
            "field": {**_TEXT, "description": "The field that is not accepted"},
            "accepted": {"type": ["string", "integer"], "description": "The accepted form; of a batch, how many were"},
            "duplicates": _WHOLE,
            "rejected": _list({"$ref": "#/components/schemas/Rejected"}),
            "not_stored": _list({"$ref": "#/components/schemas/NotStored"}),
        },
    ),
    "Health": _shape("Alive", {"ok": _FLAG}, additionalProperties=True),
    "Readiness": _shape(
        "How fresh the view is",
        {"ready": _FLAG, "age_s": _NUMBER, "seq": _WHOLE, "source": {"enum": ["cluster", "stale"]}, "connected": _FLAG},
        {"why": _TEXT, "version": _TEXT},
    ),
    "Status": _shape(
        "What is held, or every target",
        {**_HEAD, "scopes": _list({"$ref": "#/components/schemas/Scope"}), "next": _MAYBE_TEXT},
        {"shadow": _FREE, "projector": _FREE},
    ),
    "Explanation": _shape(
        "A scope and those around it",
        {**_HEAD, "scope": _TEXT, "scopes": _list({"$ref": "#/components/schemas/Scope"})},
        {"decision": {"$ref": "#/components/schemas/Decision"}},
    ),
    "Scope": _SCOPE,
    "Transition": _TRANSITION,
    "History": _shape(
        "Transitions of a time, newest last",
        {"from": _TEXT, "to": _TEXT, "seq": _WHOLE,
         "complete": {**_FLAG, "description": "Nothing of the time asked for is missing"},
         "known_from": {**_TEXT, "description": "From then on nothing is missing"},
         "transitions": _list({"$ref": "#/components/schemas/Transition"})},
    ),
    "Overview": _shape(
        "The fleet at a glance",
        {"seq": _WHOLE, "time": _TEXT, "time_ms": _WHOLE, "replicas": {"type": ["array", "null"], "items": _FREE},
         "routes": {"type": ["array", "null"], "items": _FREE}, "warnings": _list(_FREE),
         "health": _list(_shape("One target", {"key": _TEXT, "provider": _TEXT, "model": _TEXT, "health": _TEXT,
                                              "why": _MAYBE_TEXT, "age_s": {"type": ["number", "null"]}},
                                {"outcomes": _WHOLE, "answers": _WHOLE})),
         "health_cut": _FLAG, "why": {**_MAYBE_TEXT, "description": "Why replicas and routes are not known"}},
        {"history": {"type": ["object", "null"]}, "projector": _FREE, "shadow": _FREE},
    ),
    "Session": _shape(
        "Who asks", {"name": _TEXT, "roles": _list({"enum": ["operate", "read", "report"]}), "anonymous": _FLAG,
                     "replica": _TEXT}
    ),
    "Document": {"type": "object", "additionalProperties": True},
}  # fmt: skip

_TARGET: Final = {"provider": "openrouter.ai", "model": "z-ai/glm-5.3"}
EXAMPLES: Final[dict[str, Any]] = {
    "outcome": {**_TARGET, "kind": "ok", "status": 200, "took_ms": 812, "seen_seq": 4711, "id": "5f0c9e2a7b41d8c6-17"},
    "batch": [
        {**_TARGET, "kind": "ok", "took_ms": 640, "id": "5f0c9e2a7b41d8c6-18"},
        {**_TARGET, "kind": "rate_limited", "status": 429, "retry_after_s": 20, "id": "5f0c9e2a7b41d8c6-19"},
    ],
    "hold": {**_TARGET, "reason": "maintenance", "for_s": 1800},
    "allow": {**_TARGET, "reason": "load tests", "for_s": 600},
    "clear": {**_TARGET, "reason": "the provider has fixed it"},
    "sign_in": {"token": "sbk_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"},
    "Taken": {"accepted": 2, "duplicates": 0, "rejected": []},
    "Decision": {"allowed": False, "reason": "quarantined", "scope": "openrouter=2Eai.=.z-ai/glm-5=2E3",
                 "rule": "quarantine", "retry_in_s": 412.6, "trial": False, "began_seq": 4690, "seq": 4711,
                 "age_s": 0.4, "source": "cluster"},
    "Problem": {"type": "urn:sickbay:problem:field-refused", "title": "Unprocessable Entity", "status": 422,
                "detail": "for_s is not accepted", "field": "for_s", "accepted": "float > 0"},
    "Unavailable": {"type": "urn:sickbay:problem:unavailable", "title": "Service Unavailable", "status": 503,
                    "detail": "there is no connection to NATS"},
    "Session": {"name": "ana", "roles": ["operate", "read"], "anonymous": False, "replica": "ana"},
}  # fmt: skip
MORE: Final = {
    "outcomes": (
        "One outcome, an array of them, or NDJSON. Answered when the log has them: what is answered with 503 was not "
        "stored, or nobody knows, and is sent again under the same ids. The replica is the token's."
    ),
    "decide": (
        "From this process's copy of the view, without asking anybody. It may be kept for its max-age; `seq` goes back "
        "as `seen_seq` of the outcome. `trial`: the target is on probation, who calls it does so at its own risk."
    ),
    "watch": (
        "`entry` when a gate entry changed (`gone` when nothing stands there any more), `transition` for each derived "
        "event, `beat` every second, `reset` before all that stands, when what was missed is not known any more."
    ),
    "sign_in": "The cookie is HttpOnly and SameSite=Strict. An act by cookie has to come from a page of this origin.",
}
