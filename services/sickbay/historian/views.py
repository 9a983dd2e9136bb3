"""The views of a history: plain names, readable times, and nothing that needs a function of ours to read."""

from __future__ import annotations

from typing import Final

from .families import CALLS, CHARSETS, GRAINS, REFUSED, ROUTES, Family


def _time(column: str) -> str:
    return f"strftime('%Y-%m-%dT%H:%M:%SZ', {column}, 'unixepoch')"


def _time_ms(column: str) -> str:
    seconds = f"strftime('%Y-%m-%dT%H:%M:%S', {column} / 1000, 'unixepoch')"
    return f"CASE WHEN {column} IS NULL THEN NULL ELSE {seconds} || printf('.%03dZ', {column} % 1000) END"


def _percent(part: str, whole: str) -> str:
    return f"round(100.0 * {part} / nullif({whole}, 0), 1)"


def _quantile(histogram: str, percent: int) -> str:
    """The quantile of a histogram in plain SQL, so that it needs no function of ours where a file is opened."""
    counted = (
        f"SELECT CAST(key AS INTEGER) AS bound, sum(value) OVER (ORDER BY CAST(key AS INTEGER)) AS below, "
        f"sum(value) OVER () AS all_of_them FROM json_each({histogram})"
    )
    return f"(SELECT bound FROM ({counted}) WHERE below * 100 >= all_of_them * {percent} ORDER BY bound LIMIT 1)"


def _all_grains(family: Family) -> str:
    columns = ", ".join(family.columns)
    return " UNION ALL ".join(
        f"SELECT {grain.length_s} AS span_s, {columns} FROM {family.table(grain)}" for grain in GRAINS
    )


_HELD_TO: Final = "min(end_ms, coalesce(released_ms, end_ms))"
_NOW_MS: Final = "(SELECT time_ms FROM position)"

VIEWS: Final[dict[str, str]] = {
    "calls": f"""
        SELECT {_time("start_s")} AS start, span_s, provider, model, kind, kind_group, failed, calls, forced, trials,
            streamed, by_fallback, {_quantile("took", 50)} AS p50_ms, {_quantile("took", 95)} AS p95_ms,
            {_quantile("took", 99)} AS p99_ms, {_quantile("ttft", 50)} AS ttft_p50_ms,
            {_quantile("ttft", 95)} AS ttft_p95_ms, start_s, scope_id
        FROM ({_all_grains(CALLS)}) JOIN scopes ON scopes.id = scope_id JOIN kinds USING (kind)""",
    "traffic": f"""
        SELECT {_time("start_s")} AS start, span_s, provider, model, sum(calls) AS calls,
            sum(calls * (kind = 'ok')) AS answered, sum(calls * failed) AS failed,
            {_percent("sum(calls * failed)", "sum(calls)")} AS failed_percent, start_s, scope_id
        FROM ({_all_grains(CALLS)}) JOIN scopes ON scopes.id = scope_id JOIN kinds USING (kind)
        GROUP BY span_s, start_s, scope_id""",
    "held": f"""
        SELECT provider, model, scope, rule, {_time_ms("began_ms")} AS began,
            CASE WHEN {_HELD_TO} <= {_NOW_MS} THEN {_time_ms(_HELD_TO)} END AS ended,
            round((min({_HELD_TO}, max({_NOW_MS}, began_ms)) - began_ms) / 1000.0, 3) AS held_s,
            CASE WHEN released_ms < end_ms THEN ended_by WHEN end_ms <= {_NOW_MS} THEN 'time' END AS ended_by,
            kind, status, numbers, replica,
            reason, actor, enforced, proof, moved, calls_saved, {_time_ms("end_ms")} AS until,
            {_time_ms("released_ms")} AS released,
            ended_by AS released_by, began_seq,
            began_ms, {_HELD_TO} AS held_to_ms, holds.id AS hold_id, scope_id
        FROM holds JOIN scopes ON scopes.id = scope_id""",
    "changes": f"""
        SELECT {_time_ms("at_ms")} AS at, type, provider, model, scope, rule, kind, status, old, new, ended_by, replica,
            signature, route, {_time_ms("end_ms")} AS until, numbers, reason, actor, enforced, seq,
            transitions.id AS transition_id, scope_id
        FROM transitions JOIN scopes ON scopes.id = scope_id""",
    "warnings": f"""
        SELECT {_time_ms("at_ms")} AS at, rule AS warning, provider, model, signature, replica, route, numbers, seq,
            transitions.id AS transition_id, scope_id
        FROM transitions JOIN scopes ON scopes.id = scope_id WHERE type = 'warning'""",
    "operator_acts": f"""
        SELECT {_time_ms("at_ms")} AS at, action, provider, model, actor, reason, until, seq, acts.id AS act_id
        FROM acts LEFT JOIN scopes ON scopes.id = scope_id""",
    "calls_saved": f"""
        SELECT {_time("start_s")} AS start, span_s, provider, model, rule, calls, start_s, scope_id
        FROM ({_all_grains(REFUSED)}) JOIN scopes ON scopes.id = scope_id""",
    "fallbacks": f"""
        SELECT {_time("start_s")} AS start, span_s, name AS route, calls, answered, by_fallback,
            {_percent("by_fallback", "answered")} AS fallback_percent, skipped, start_s, route_id
        FROM ({_all_grains(ROUTES)}) JOIN routes ON routes.id = route_id""",
    "charsets": f"""
        SELECT {_time("start_s")} AS start, span_s, host, charset, answers, streams, damaged,
            CASE WHEN charset = 'absent' THEN streams ELSE 0 END AS streams_without, start_s
        FROM ({_all_grains(CHARSETS)})""",
    "fleet": f"""
        SELECT name AS replica, {_time_ms("last_ms")} AS last_heard, {_time_ms("first_ms")} AS first_heard, boots,
            outcomes, answered, probes, refused, repeated, id AS replica_id FROM replicas""",
}
