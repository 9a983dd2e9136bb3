"""One call to one target: may it be made, and what came of it.

    async with sb.attempt(target, limit_s=60) as attempt:       # raises Held if the target may not be called
        response = await client.post(...)
        attempt.response(response.status_code, response.headers, response.content)

Leaving without a verdict records `ok`, not checkable. An exception is classified and re-raised. Text is judged and
forgotten: no prompt and no completion is kept.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

import msgspec

from sickbay_events import CallAnswered, CallOutcome, Decision, Skipped, Target, Verdict, classify, judge_output
from sickbay_events.kinds import KINDS, Kind
from sickbay_events.outcome import DAY_MS, DETAIL_CHARS_MAX, Lease
from sickbay_events.redact import redact

from ..loggers import logger
from .errors import Held
from .faults import answer_of, fault_of
from .trials import Trial

_log = logger("sickbay.attempt")

OK: Final = Verdict(kind="ok", scope="none")
UNCHECKED: Final = Verdict(kind="ok", scope="none", checkable=False)
UNKNOWN: Final = Verdict(kind="unknown", scope="none", confidence="low")
CHARSET_ABSENT: Final = "absent"


class AttemptHost(Protocol):
    """Where an attempt asks and reports: a `Sickbay`."""

    def decide(self, target: Target) -> Decision:
        """May the target be called now?"""
        ...

    def seen(self) -> tuple[int, int]:
        """The largest log sequence known, and the overlay's own counter, when a call starts."""
        ...

    async def acquire(self, target: Target, decision: Decision, limit_s: float | None) -> Trial | None:
        """The leases of the trial that the decision asks for; None if none is needed by now. Raises `Held`."""
        ...

    def acquire_blocking(self, target: Target, decision: Decision, limit_s: float | None) -> Trial | None:
        """The same without awaiting. Raises `Held`."""
        ...

    def answered(self, target: Target, event: CallAnswered, own_seen: int, trial: Trial) -> None:
        """The first content of a streaming trial came."""
        ...

    def finish(self, target: Target, outcome: CallOutcome, own_seen: int, trial: Trial | None) -> None:
        """Report a finished attempt."""
        ...

    def tell_hooks(self, event: str, *arguments: object) -> None:
        """Call the method `event` of every `Hook`. Never raises an `Exception`."""
        ...

    @property
    def impatience_s(self) -> float:
        """A call cancelled without first content after this long was too slow (Rule 3)."""
        ...

    @property
    def keeps_detail(self) -> bool:
        """Whether the provider's error text may be kept, redacted."""
        ...


class AttemptOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an attempt beforehand; `Sickbay.attempt` says what each field means."""

    limit_s: float | None = 60.0
    route: str | None = None
    rank: int = 0
    prompt_ascii: bool | None = None
    client_capped: bool | None = None
    stream: bool = False
    request_hash: str | None = None
    skipped: list[Skipped] | None = None
    forced: bool = False
    """The call is made although its target is held."""
    keep_text: bool = False
    """`error_text` is wanted, whether or not it may be reported."""


class Attempt:
    """One attempt of one call; a context manager, plain or async. Made by `Sickbay.attempt`.

    decision   what the gate said when it was entered
    verdict    what was said of it so far; a caller that judges answers in its own way may set it
    outcome    what was recorded, once it is over
    error_text what the provider said of its failure, redacted; filled once it is over, if it is to be kept
    """

    def __init__(
        self,
        host: AttemptHost,
        target: Target,
        options: AttemptOptions = AttemptOptions(),  # noqa: B008 - frozen
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self.decision: Decision | None = None
        self.verdict: Verdict | None = None
        self.outcome: CallOutcome | None = None
        self.error_text = ""
        self._host, self._options, self._monotonic = host, options, monotonic
        self._is_stream = options.stream
        self._trial: Trial | None = None
        self._seen = (0, 0)
        self._before: BaseException | None = None
        """What was being handled when it was entered: an error of another call."""
        self._began_s = self._ended_s = 0.0
        self._ttft_s: float | None = None
        self._status: int | None = None
        self._charset: str | None = None
        self._text: str | bytes = b""

    # What the caller says.

    def response(self, status: int, headers: Mapping[str, str] | None, body: str | bytes) -> Verdict:
        """Classify an answer. `body` as received (bytes), or as much of it as was read."""
        self._note(status, headers, body)
        return self._say(self._classify(status, headers or {}, body))

    def output(
        self,
        text: str,
        *,
        finish_reason: str | None = None,
        has_tool_calls: bool = False,
        reasoning_text: str = "",
        refusal: str = "",
        raw: bytes | None = None,
        content_type: str = "",
        status: int | None = None,
        complete: bool | None = None,
    ) -> Verdict:
        """Judge the text of an answer whose envelope the caller has read, such as a stream put together.

        A stream without a finish reason was cut off and is `truncated`, unless `complete` says that it was whole: its
        end mark came.
        """
        self._status = status if status is not None else self._status
        if content_type:
            self._charset = _charset(content_type)
        return self._say(
            judge_output(
                text,
                finish_reason=finish_reason,
                has_tool_calls=has_tool_calls,
                reasoning_text=reasoning_text,
                refusal=refusal,
                prompt_ascii=self._options.prompt_ascii,
                client_capped=self._options.client_capped,
                raw=raw,
                content_type=content_type,
                complete=False if complete is None and self._is_stream else complete,
            )
        )

    def ok(self, *, status: int | None = None, checkable: bool = True) -> Verdict:
        """The caller found the answer usable. `checkable`: whether its text could be judged (False for a turn of tool
        calls)."""
        self._status = status if status is not None else self._status
        return self._say(OK if checkable else UNCHECKED)

    def error(self, error: BaseException) -> Verdict:
        """Classify what a client library raised."""
        return self._say(self._of_exception(error))

    def first_content(self) -> None:
        """The first content of a stream arrived; only the first call counts."""
        self._is_stream = True
        if self._ttft_s is not None:
            return
        self._ttft_s = self._monotonic() - self._began_s
        self._host.tell_hooks("first_content", self)
        if self._trial is None:
            return
        try:
            # The first content proves a trial, so that other routers need not wait for the end of the stream. Only
            # degraded output is judged at the end.
            leases = [Lease(lease.rule, lease.began_seq) for lease in self._trial.proved if not lease.is_local]
            if self._trial.proved:
                event = CallAnswered(ttft_ms=_ms(self._ttft_s), seen_seq=self._seen[0], trial=leases or None)
                self._host.answered(self.target, event, self._seen[1], self._trial)
        except Exception:  # noqa: BLE001 - nothing on a router's request path raises
            _log.exception("the first content of a trial could not be recorded")

    @property
    def limit_s(self) -> float | None:
        """The time the call was given, for the client's own timeout; None if there is no limit."""
        return self._options.limit_s

    @property
    def has_content(self) -> bool:
        """Whether the first content of a stream arrived."""
        return self._ttft_s is not None

    @property
    def trial(self) -> list[Lease] | None:
        """The leases of the cluster's holds that the call runs under; None if it is not a trial."""
        return (self._trial.leases or None) if self._trial is not None else None

    # Entering and leaving.

    def __enter__(self) -> Self:
        """Ask the gate. Raises `Held`.

        On probation a thread waits up to 0.25 s for the lease of a trial. In the event loop a plain `with` cannot
        wait: there the target is called without a lease.
        """
        self._host.tell_hooks("entering", self)
        try:
            decision = self._host.decide(self.target)
            trial = self._host.acquire_blocking(self.target, decision, self.limit_s) if self._wants(decision) else None
            return self._begin(decision, trial)
        except BaseException as error:
            self._host.tell_hooks("not_entered", self, error)
            raise

    def _wants(self, decision: Decision) -> bool:
        return decision.trial and not self._options.forced

    def _begin(self, decision: Decision, trial: Trial | None) -> Self:
        self._before = sys.exception()
        if not decision.allowed and trial is None and not self._options.forced:
            self.decision = decision
            raise Held(self.target, decision)
        if trial is not None and trial.is_self_given:
            decision = msgspec.structs.replace(decision, source="local")
        # An attempt may be entered again: the next outcome is another one, with a lease of its own.
        self.verdict = self.outcome = self._ttft_s = self._status = self._charset = None
        self.error_text, self._text, self._ended_s = "", b"", 0.0
        self.decision, self._trial = decision, trial
        self._seen = self._host.seen()
        self._began_s = self._monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record what came of it; an exception is re-raised."""
        if self.outcome is not None:
            return
        try:
            took_s = (self._ended_s or self._monotonic()) - self._began_s
            verdict = self._final(error, took_s)
            self.outcome = self._outcome(verdict, took_s)
            if self.decision is not None and self.decision.reason != "no_target":
                self._host.finish(self.target, self.outcome, self._seen[1], self._trial)
        except Exception:  # noqa: BLE001 - nothing on a router's request path raises
            _log.exception("an attempt could not be recorded")
        self._text, self._before = b"", None
        self._host.tell_hooks("left", self)

    async def __aenter__(self) -> Self:
        """Ask the gate, and on probation wait up to 0.25 s for the lease of a trial. Raises `Held`."""
        self._host.tell_hooks("entering", self)
        try:
            decision = self._host.decide(self.target)
            trial = await self._host.acquire(self.target, decision, self.limit_s) if self._wants(decision) else None
            return self._begin(decision, trial)
        except BaseException as error:
            self._host.tell_hooks("not_entered", self, error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record what came of it; an exception is re-raised."""
        self.__exit__(kind, error, trace)

    # How it is judged.

    def _say(self, verdict: Verdict) -> Verdict:
        self._ended_s = self._monotonic()
        self.verdict = verdict
        return verdict

    def _final(self, error: BaseException | None, took_s: float) -> Verdict:
        verdict = self.verdict
        if error is not None and (verdict is None or verdict.kind == "ok"):
            raised = self._of_exception(error)
            # An error of the caller's own code after a good answer takes nothing back.
            if verdict is None or raised.kind != "unknown":
                verdict = raised
        verdict = verdict or UNCHECKED
        is_own_end = verdict.signature == "aborted" and self.limit_s is not None and took_s >= self.limit_s
        if verdict.kind == "cancelled" and self._ttft_s is None and (is_own_end or took_s > self._host.impatience_s):
            # Given up after a long wait for nothing, or at the call's own limit: too slow (Rule 3).
            return Verdict(kind="timeout", scope="model", signature="cancelled")
        return verdict

    def _of_exception(self, error: BaseException) -> Verdict:
        try:
            answer = answer_of(error, self._before)
            if answer is not None:
                self._note(answer.status, answer.headers, answer.body)
                verdict = self._classify(answer.status, answer.headers, answer.body)
                if answer.is_frame and verdict.kind == "unknown" and self._ttft_s is not None:
                    # One that says nothing, after the answer had begun, is the server's.
                    return Verdict(kind="server_error", scope="model", code=verdict.code)
                return verdict
            fault = fault_of(error, self._before)
        except Exception:  # noqa: BLE001 - foreign exception classes may do anything when looked at
            return UNKNOWN
        if fault is None:
            return UNKNOWN
        if fault == "reset" and self._ttft_s is not None:
            return Verdict(kind="truncated", scope="model", signature=fault)
        return self._classify(None, {}, b"", fault)

    def _classify(
        self, status: int | None, headers: Mapping[str, str], body: str | bytes, fault: str | None = None
    ) -> Verdict:
        try:
            return classify(
                status=status,
                headers=headers,
                body=body,
                requested_model=self.target.model,
                provider=self.target.provider.partition("#")[0],
                error=fault,
                stream=self._is_stream,
                prompt_ascii=self._options.prompt_ascii,
                client_capped=self._options.client_capped,
            )
        except (AttributeError, TypeError):  # the target is not a `Target`
            return UNKNOWN

    def _note(self, status: int, headers: Mapping[str, str] | None, body: str | bytes) -> None:
        self._status = status
        self._text = body
        try:
            found = [value for name, value in (headers or {}).items() if name.lower() == "content-type"]
        except Exception:  # noqa: BLE001 - headers in a form of the caller's own may do anything
            found = []
        self._charset = _charset(found[0] if found else "")

    def _outcome(self, verdict: Verdict, took_s: float) -> CallOutcome:
        kind: Kind = verdict.kind
        options = self._options
        is_answer = kind in ("ok", "content_filter") or KINDS[kind].group == "degraded"
        if (options.keep_text or self._host.keeps_detail) and self._text and not is_answer:
            text = self._text if isinstance(self._text, str) else self._text[:4096].decode("utf-8", "replace")
            self.error_text = redact(text)[:DETAIL_CHARS_MAX]
        return CallOutcome(
            kind=kind,
            status=self._status,
            took_ms=_ms(took_s),
            ttft_ms=None if self._ttft_s is None else _ms(self._ttft_s),
            limit_ms=None if options.limit_s is None else _ms(options.limit_s),
            scope=verdict.scope if verdict.scope != KINDS[kind].scope else None,
            seen_seq=self._seen[0],
            trial=self.trial,
            forced=options.forced,
            route=options.route,
            rank=options.rank,
            skipped=options.skipped,
            retry_after_s=verdict.retry_after_s,
            retry_after_from=verdict.retry_after_from,
            signature=verdict.signature,
            checkable=verdict.checkable,
            # Rule 4.4 counts damaged answers to ASCII prompts as a share of all checkable answers to such prompts.
            attributable=verdict.attributable or (kind == "ok" and verdict.checkable and options.prompt_ascii is True),
            stream=self._is_stream,
            charset=self._charset,
            code=verdict.code,
            request_hash=options.request_hash,
            detail=(self.error_text or None) if self._host.keeps_detail else None,
        )


def _ms(seconds: float) -> int | None:
    """Whole milliseconds, 0 to 24 h; None if `seconds` is not finite."""
    return max(0, min(DAY_MS, round(seconds * 1000))) if math.isfinite(seconds) else None


def _charset(content_type: Any) -> str:
    for part in str(content_type).split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().lower() == "charset" and value.strip():
            return value.strip().strip("\"'").lower()[:64]
    return CHARSET_ABSENT
