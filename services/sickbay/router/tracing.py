"""OpenTelemetry spans of decisions and attempts; off until somebody asks for them.

    sickbay.tracing.enable(sb)        # or SICKBAY_TRACES=1, in a router and in the services

    sickbay.decide    one decision: provider, model, reason, rule, the log sequence behind it
    sickbay.attempt   one call to one target; whatever the caller does within it, such as its HTTP request, is its child

Only opentelemetry-api is needed here; spans go where the process's own SDK sends them. No prompt, no completion, no
key and no error text is in a span. Switched off, nothing of this is imported.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from sickbay_events import CallOutcome, Decision, Target

from .attempt import Attempt
from .errors import Held, SickbayError
from .hooks import Hook, Hooked

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

HELD: Final = "held"
"""`error.type` of an attempt that was not made."""


class TracingUnavailable(SickbayError):
    """Traces were asked for and opentelemetry-api is not installed."""

    def __init__(self) -> None:
        super().__init__("traces need opentelemetry-api: pip install 'sickbay[otel]', or leave SICKBAY_TRACES unset")


def enable(sb: Hooked) -> None:
    """Make spans of every decision and attempt of a `Sickbay` or `SyncSickbay` from now on; a second call does nothing.

    In a process that forks, SICKBAY_TRACES=1 is the way: each child makes a connection of its own. Raises
    `TracingUnavailable`.
    """
    if not any(isinstance(hook, SpanHook) for hook in sb.hooks):
        sb.hooks = (*sb.hooks, SpanHook(tracer()))


def tracer() -> Tracer:
    """The tracer of the process's own SDK. Raises `TracingUnavailable`."""
    try:
        from opentelemetry import trace
    except ModuleNotFoundError as error:
        raise TracingUnavailable from error
    return trace.get_tracer("sickbay", version("sickbay"))


class SpanHook(Hook):
    """A span for each decision, and one for each attempt that is current from entering to leaving.

    Samplers and processors of spans are foreign code and may raise: the context is put back before a span ends.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: WeakKeyDictionary[Attempt, tuple[Span, Token[Context]]] = WeakKeyDictionary()

    def decided(self, target: Target, decision: Decision, took_s: float) -> None:
        """A span of the decision, from its beginning."""
        end_ns = time.time_ns()
        span = self._tracer.start_span("sickbay.decide", start_time=end_ns - round(took_s * 1e9))
        if span.is_recording():
            span.set_attributes({**_of_target(target), **_of_decision(decision)})
        span.end(end_ns)

    def entering(self, attempt: Attempt) -> None:
        """Begin the attempt's span and make it the current one."""
        from opentelemetry import context
        from opentelemetry.trace import set_span_in_context

        span = self._tracer.start_span("sickbay.attempt", attributes=_of_target(attempt.target))
        self._open[attempt] = span, context.attach(set_span_in_context(span))

    def not_entered(self, attempt: Attempt, error: BaseException) -> None:
        """End the span with why the call was not made."""
        if (span := self._close(attempt)) is not None:
            if isinstance(error, Held):
                span.set_attributes(_of_decision(error.decision))
            span.set_attribute("error.type", HELD if isinstance(error, Held) else type(error).__name__)
            span.end()

    def first_content(self, attempt: Attempt) -> None:
        """An event of the span."""
        if (found := self._open.get(attempt)) is not None:
            found[0].add_event("sickbay.first_content")

    def left(self, attempt: Attempt) -> None:
        """End the span with what came of the call."""
        from opentelemetry.trace import StatusCode

        if (span := self._close(attempt)) is not None:
            if attempt.decision is not None:
                span.set_attributes(_of_decision(attempt.decision))
            if attempt.outcome is not None:
                span.set_attributes(_of_outcome(attempt.outcome))
                if attempt.outcome.kind != "ok":
                    span.set_status(StatusCode.ERROR)
            span.end()

    def _close(self, attempt: Attempt) -> Span | None:
        """Put back the context that was current before. A stream that is closed in another task has none to put back
        there."""
        from opentelemetry import context
        from opentelemetry.trace import get_current_span

        span, token = self._open.pop(attempt, (None, None))
        if token is not None and get_current_span() is span:
            context.detach(token)
        return span


def _of_target(target: Target) -> dict[str, Any]:
    """By the semantic conventions for generative AI, where they have a name for it. Names of what is no target are
    left out."""
    provider, model = getattr(target, "provider", None), getattr(target, "model", None)
    if not isinstance(provider, str) or not isinstance(model, str):
        return {}
    return {
        "gen_ai.provider.name": provider.partition("#")[0],
        "gen_ai.request.model": model,
        "sickbay.provider": provider,
    }


def _of_decision(decision: Decision) -> dict[str, Any]:
    found: dict[str, Any] = {
        "sickbay.decision.allowed": decision.allowed,
        "sickbay.decision.reason": decision.reason,
        "sickbay.decision.source": decision.source,
        "sickbay.decision.trial": decision.trial,
        "sickbay.seq": decision.seq,
    }
    if decision.rule is not None:
        found["sickbay.decision.rule"] = decision.rule
    if not decision.allowed:
        found["sickbay.decision.retry_in_s"] = decision.retry_in_s
    return found


def _of_outcome(outcome: CallOutcome) -> dict[str, Any]:
    facts = {
        "sickbay.outcome.kind": outcome.kind,
        "sickbay.outcome.scope": outcome.scope,
        "sickbay.outcome.signature": outcome.signature,
        "sickbay.outcome.seen_seq": outcome.seen_seq,
        "sickbay.rank": outcome.rank,
        "sickbay.route": outcome.route,
        "sickbay.forced": outcome.forced,
        "sickbay.ttft_ms": outcome.ttft_ms,
        "http.response.status_code": outcome.status,
        "error.type": outcome.kind if outcome.kind != "ok" else None,
    }
    return {key: value for key, value in facts.items() if value is not None}
