"""OpenTelemetry spans of decisions, attempts and folds; off until somebody asks for them.

    sickbay.tracing.enable(sb)        # or SICKBAY_TRACES=1, in a router and in the services

    sickbay.decide    one decision: provider, model, reason, rule, the log sequence behind it
    sickbay.attempt   one call to one target; whatever the caller does within it, such as its HTTP request, is its child
    sickbay.fold      one chunk of the log in a projector

Only opentelemetry-api is needed here; spans go where the process's own SDK sends them. No prompt, no completion, no
key and no error text is in a span. Switched on, methods of that one object are replaced: switched off costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from sickbay_events import CallOutcome, Decision, Target

from .attempt import Attempt
from .errors import Held, SickbayError

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from ..sync import SyncSickbay
    from .client import Sickbay

_log = logging.getLogger("sickbay.tracing")

HELD: Final = "held"
"""`error.type` of an attempt that was not made."""


class TracingUnavailable(SickbayError):
    """Traces were asked for and opentelemetry-api is not installed."""

    def __init__(self) -> None:
        super().__init__("traces need opentelemetry-api: pip install 'sickbay[otel]', or leave SICKBAY_TRACES unset")


def enable(sb: Sickbay | SyncSickbay) -> None:
    """Make spans of every decision and attempt of this connection from now on; a second call does nothing.

    In a process that forks, SICKBAY_TRACES=1 is the way: each child makes a connection of its own. Raises
    `TracingUnavailable`.
    """
    found = tracer()
    made: Sickbay = getattr(sb, "sickbay", sb)  # type: ignore[arg-type]
    if made.attempt_type is not Attempt:
        return
    made.gate.decide = _traced_decide(found, made)  # type: ignore[method-assign]

    class Traced(TracedAttempt):
        """The attempts of this connection."""

    Traced.tracer = found
    made.attempt_type = Traced


def tracer() -> Tracer:
    """The tracer of the process's own SDK. Raises `TracingUnavailable`."""
    try:
        from opentelemetry import trace
    except ModuleNotFoundError as error:
        raise TracingUnavailable from error
    return trace.get_tracer("sickbay", version("sickbay"))


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing on a router's request path raises, and samplers and processors of spans are anybody's code."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        _say(f"{type(error).__name__}: {error}")


@lru_cache(maxsize=32)
def _say(what: str) -> None:
    _log.warning("a span failed (said once): %s", what)


def _traced_decide(tracer: Tracer, sb: Sickbay) -> Any:
    decide = sb.gate.decide

    def traced(target: Target) -> Decision:
        span: Span | None = None
        with _quiet():
            span = tracer.start_span("sickbay.decide")
        decision = decide(target)
        if span is not None:
            with _quiet():
                if span.is_recording():
                    span.set_attributes({**_of_target(target), **_of_decision(decision)})
                span.end()
        return decision

    return traced


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


class TracedAttempt(Attempt):
    """An attempt with a span, current from entering to leaving. Each `enable` makes a class of it, with the tracer."""

    tracer: ClassVar[Tracer]
    _span: Span | None = None
    _token: Token[Context] | None = None

    def __enter__(self) -> Self:
        self._start()
        try:
            return super().__enter__()
        except BaseException as error:
            self._refused(error)
            raise

    async def __aenter__(self) -> Self:
        self._start()
        try:
            return await super().__aenter__()
        except BaseException as error:
            self._refused(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._end()

    def first_content(self) -> None:
        """The first content of a stream arrived: an event of the span."""
        if self._span is not None and not self.has_content:
            with _quiet():
                self._span.add_event("sickbay.first_content")
        super().first_content()

    def _start(self) -> None:
        from opentelemetry import context
        from opentelemetry.trace import set_span_in_context

        with _quiet():
            self._span = span = self.tracer.start_span("sickbay.attempt", attributes=_of_target(self.target))
            self._token = context.attach(set_span_in_context(span))

    def _refused(self, error: BaseException) -> None:
        with _quiet():
            if self._span is not None:
                if isinstance(error, Held):
                    self._span.set_attributes(_of_decision(error.decision))
                self._span.set_attribute("error.type", HELD if isinstance(error, Held) else type(error).__name__)
        with _quiet():
            self._leave()

    def _end(self) -> None:
        span, outcome = self._span, self.outcome
        if span is None:
            return
        with _quiet():
            if self.decision is not None:
                span.set_attributes(_of_decision(self.decision))
            if outcome is not None:
                span.set_attributes(_of_outcome(outcome))
                if outcome.kind != "ok":
                    from opentelemetry.trace import StatusCode

                    span.set_status(StatusCode.ERROR)
        with _quiet():
            self._leave()

    def _leave(self) -> None:
        """End the span. A stream that is closed in another task has nothing to take back there."""
        from opentelemetry import context
        from opentelemetry.trace import get_current_span

        span, token = self._span, self._token
        self._span = self._token = None
        if token is not None and get_current_span() is span:
            context.detach(token)
        if span is not None:
            span.end()
