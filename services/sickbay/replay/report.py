"""A comparison as one HTML page: no script, nothing from elsewhere, light and dark, and everything in it escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

from sickbay_events import Scope, rfc3339
from sickbay_events.derived import numbers_in_words
from sickbay_events.harmless import harmless
from sickbay_projections.replay.compared import ComparedHold, ComparedScope, Result

TARGETS_MAX: Final = 100
"""Timelines on a page: those where the policies differ most."""
WIDTH: Final = 1_000
LEFT: Final = 8
CALLS_HEIGHT: Final = 46
LANE: Final = 12
MINUTE_MS: Final = 60_000
_STEPS_MS: Final = [n * MINUTE_MS for n in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440, 2_880, 10_080)]
_SIDES: Final = ("one", "other")


def write_report(
    path: Path, result: Result, lines: Iterable[Sequence[str]], *, source: str, notes: Sequence[str] = ()
) -> None:
    """Write the page. `lines`: the rows of the table, as the terminal has them. Raises `OSError`."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(comparison_report(result, lines, source=source, notes=notes), encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def comparison_report(result: Result, lines: Iterable[Sequence[str]], *, source: str, notes: Sequence[str] = ()) -> str:
    """The page as text."""
    one, other = (part.name for part in result.parts)
    heading = f"{one} against {other}"
    about = f"{source}: {result.events} events, {result.calls} calls"
    if result.events:
        about += f", {rfc3339(result.from_ms)[:16]} to {rfc3339(result.to_ms)[:16]} UTC"
    shown = [row for row in result.rows if row.model is not None or row.parts[0].holds or row.parts[1].holds]
    targets = [_target(row, result) for row in shown[:TARGETS_MAX]]
    if len(shown) > TARGETS_MAX:
        targets.append(f'<p class="soft">{len(shown) - TARGETS_MAX} more are not drawn.</p>')
    template = files("sickbay.replay").joinpath("report.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=_escape(f"{heading} · sickbay"),
        heading=_escape(heading),
        about=_escape(about),
        notes="".join(f"<p><strong>{_escape(note)}</strong></p>" for note in notes),
        one=_escape(one),
        other=_escape(other),
        lines="\n".join(_line(line) for line in lines),
        difference=_difference(result),
        targets="\n".join(targets) or "<p>Neither policy would have held anything.</p>",
    )


def _line(cells: Sequence[str]) -> str:
    name, *values = cells
    indent = ' class="soft"' if name.startswith(" ") else ""
    return f"<tr><td{indent}>{_escape(name.strip())}</td>" + "".join(f"<td>{_escape(v)}</td>" for v in values) + "</tr>"


def _difference(result: Result) -> str:
    first = result.first_difference
    if first is None:
        return "<p>Nowhere: both conclude the same from every event.</p>"
    status = f" ({first.status})" if first.status is not None else ""
    by = f" from {first.replica}" if first.replica else ""
    text = f"Sequence {first.seq}, {rfc3339(first.time_ms)[:19]}Z: {first.event}{status}{by}"
    what = f"{first.provider} {first.model or ''}".strip()
    says = "".join(
        f'<li><span class="{side}">{_escape(part.name)}</span>: {_escape("; ".join(said) or "nothing")}</li>'
        for side, part, said in zip(_SIDES, result.parts, first.says, strict=True)
    )
    return f"<p>{_escape(text)}, {_escape(what)}</p><ul>{says}</ul>"


def _escape(text: str) -> str:
    """As text of a page: harmless, and no markup."""
    return html.escape(harmless(text))


# -- one timeline ----------------------------------------------------------------------------------------


def _target(row: ComparedScope, result: Result) -> str:
    name = f"{row.provider} / {row.model}" if row.model is not None else f"{row.provider} (the whole {_width(row)})"
    numbers = "".join(
        f'<span><span class="{side}">{_escape(part.name)}</span>: {_count(part.holds, "hold")}, '
        f"{_count(part.calls.dead, 'dead call')} avoided, {_count(part.calls.good, 'good one')} refused</span>"
        for side, part in zip(_SIDES, row.parts, strict=True)
    )
    drawn = _svg(row, result)
    return f'<section class="card"><h3>{_escape(name)}</h3><div class="numbers">{numbers}</div>{drawn}</section>'


def _width(row: ComparedScope) -> str:
    return Scope.of_key(row.scope).name


def _count(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


class _Scale:
    def __init__(self, from_ms: int, to_ms: int) -> None:
        self.from_ms, self.to_ms = from_ms, max(to_ms, from_ms + 1_000)

    def x(self, time_ms: int) -> float:
        share = (min(max(time_ms, self.from_ms), self.to_ms) - self.from_ms) / (self.to_ms - self.from_ms)
        return round(LEFT + share * (WIDTH - 2 * LEFT), 2)


def _svg(row: ComparedScope, result: Result) -> str:
    scale = _Scale(result.from_ms, result.to_ms)
    top = CALLS_HEIGHT + 6 if row.traffic else 2
    wide = _wide_holds(row, result)
    bottom = top + 2 * (LANE + 4)
    parts = [*_axis(scale, bottom), *_bars(row, result.bucket_ms, scale)]
    for at, side in enumerate(_SIDES):
        y = top + at * (LANE + 4)
        parts.append(f'<rect class="lane" x="{LEFT}" y="{y}" width="{WIDTH - 2 * LEFT}" height="{LANE}" rx="2"/>')
        parts += [_span(hold, scale, y, f"f-{side} wide") for hold in wide[at]]
        parts += [_span(hold, scale, y, f"f-{side}") for hold in row.holds[at]]
    label = _escape(f"Calls and holds of {row.provider} {row.model or ''}".strip())
    return f'<svg viewBox="0 0 {WIDTH} {bottom + 18}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _wide_holds(row: ComparedScope, result: Result) -> tuple[list[ComparedHold], list[ComparedHold]]:
    """Holds of the host and the credential that a target lies under."""
    above: tuple[list[ComparedHold], list[ComparedHold]] = [], []
    for other in result.rows:
        if row.scope.startswith(other.scope + "."):
            for side in (0, 1):
                above[side].extend(other.holds[side])
    return above


def _bars(row: ComparedScope, bucket_ms: int, scale: _Scale) -> Iterator[str]:
    """Dead calls stand at the bottom, where the eye looks for them, then good ones, then the callers' own."""
    tallest = max((sum(counts) for _, *counts in row.traffic), default=0)
    for begin_ms, good, dead, neutral in row.traffic:
        x = scale.x(begin_ms)
        width = max(1.0, round(scale.x(begin_ms + bucket_ms) - x - 0.5, 2))
        y = float(CALLS_HEIGHT)
        what = f"{rfc3339(begin_ms)[:19]}Z: {good} good, {dead} dead, {neutral} the caller's own"
        yield f"<g><title>{_escape(what)}</title>"
        for count, name in ((dead, "dead"), (good, "good"), (neutral, "neutral")):
            if count:
                height = max(1.0, round(count / tallest * (CALLS_HEIGHT - 4), 2))
                y = round(y - height, 2)
                yield f'<rect class="f-{name}" x="{x}" y="{y}" width="{width}" height="{height}"/>'
        yield "</g>"


def _span(hold: ComparedHold, scale: _Scale, y: int, css: str) -> str:
    x = scale.x(hold.from_ms)
    width = max(2.0, round(scale.x(hold.to_ms) - x, 2))
    numbers = numbers_in_words(hold.numbers)
    what = f"{hold.rule}, sequence {hold.began_seq}, {rfc3339(hold.from_ms)[:19]}Z to {rfc3339(hold.to_ms)[:19]}Z"
    what += f", {hold.kind}" if hold.kind else ""
    what += f" ({numbers})" if numbers else ""
    what += f", ended by {hold.by}" if hold.by else ""
    return (
        f'<rect class="{css}" x="{x}" y="{y}" width="{width}" height="{LANE}" rx="2">'
        f"<title>{_escape(what)}</title></rect>"
    )


def _axis(scale: _Scale, y: int) -> Iterator[str]:
    span_ms = scale.to_ms - scale.from_ms
    step_ms = next((step for step in _STEPS_MS if span_ms / step <= 8), -(-span_ms // 8))
    digits = slice(5, 16) if span_ms > 86_400_000 else slice(11, 16)
    at_ms = -(-scale.from_ms // step_ms) * step_ms
    while at_ms <= scale.to_ms:
        x = scale.x(at_ms)
        # A label at the edge stays within the picture.
        anchor = "start" if x < 40 else "end" if x > WIDTH - 40 else "middle"
        text = rfc3339(at_ms)[digits].replace("T", " ")
        yield f'<line class="axis" x1="{x}" x2="{x}" y1="0" y2="{y}"/>'
        yield f'<text x="{x}" y="{y + 13}" text-anchor="{anchor}">{text}</text>'
        at_ms += step_ms
