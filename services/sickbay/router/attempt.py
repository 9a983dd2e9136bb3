"""One call to one target: may it be made, and what came of it.

    async with sb.attempt(target, limit_s=60) as attempt:       # raises Held if the target may not be called
        response = await client.post(...)
        attempt.response(response.status_code, response.headers, response.content)

Leaving without a verdict records `ok`, not checkable. An exception is classified and re-raised. Text is judged and
forgotten: no prompt and no completion is kept.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import msgspec

from sickbay_events import CallAnswered, CallOutcome, Decision, Target, Verdict, classify, judge_output
from sickbay_events.classify.held_answer import is_held_verdict
from sickbay_events.kinds import KINDS, Kind
from sickbay_events.outcome import DETAIL_CHARS_MAX, Lease
from sickbay_events.redact import redact

from . import joined
from .answer_bytes import AnswerBytes
from .attempt_host import AttemptHost, AttemptOptions
from .errors import Held
from .faults import answer_of, fault_of
from .judging import LEFT_EARLY, OK, UNCHECKED, UNKNOWN, charset_said, is_unfinished, milliseconds
from .trials import Trial

_log = logging.getLogger("sickbay.attempt")


class Attempt:
    """One attempt of one call; a context manager, plain or async. Made by `Sickbay.attempt`.

    decision   what the gate said when it was entered
    verdict    what was said of it so far; a caller that judges answers in its own way may set it
    outcome    what was recorded, once it is over; None if another Sickbay refused the call
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
        self._bytes: AnswerBytes | None = None
        self._fed_s = 0.0
        """When the last bytes of an answer passed."""
        self._outer: Attempt | None = None
        """The open attempt that this one is part of."""
        self.is_open = self.is_passed_on = False

    # What the caller says.

    def response(self, status: int, headers: Mapping[str, str] | None, body: str | bytes) -> Verdict:
        """Classify an answer. `body` as received (bytes), or as much of it as was read."""
        if self._outer is not None:
            self._outer._note(status, headers, body)
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
            self._charset = charset_said(content_type)
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

    def feed(
        self,
        data: bytes = b"",
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        end: bool = False,
    ) -> None:
        """Show the answer's bytes as they pass. It is judged when the attempt is left.

        data      the next bytes as received, also compressed (gzip, deflate)
        status    with the first call: the status and the headers of the answer. With a later one, another answer begins
        end       the body is at its end. Leaving without it means that the caller left early or, with an exception,
                  that the answer was cut

        At most 64 KiB are kept. Never raises.
        """
        if self._outer is not None:
            self._outer.feed(data, status=status, headers=headers, end=end)
            return
        seen = self._bytes
        if seen is None or status is not None:
            self.verdict = None  # what was said before was of another answer
            seen = self._bytes = AnswerBytes(status or 200, headers or {}, is_stream=self._is_stream)
        if data:
            self._fed_s = self._monotonic()
            if self._trial is not None:
                self._trial.fed_s = self._fed_s
            if seen.add(data):
                self._is_stream = True
                self._arrived()
        if end:
            seen.is_whole = True
            self._ended_s = self._monotonic()

    def first_content(self) -> None:
        """The first content of a stream arrived and goes to the reader, so that no other candidate of a chain can take
        over; only the first call counts."""
        self._is_stream = self.is_passed_on = True
        if self._outer is not None:
            self._outer.is_passed_on = True
        self._arrived()

    def _arrived(self) -> None:
        if self._outer is not None:
            self._outer._is_stream = True
            self._outer._arrived()
            return
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
                event = CallAnswered(ttft_ms=milliseconds(self._ttft_s), seen_seq=self._seen[0], trial=leases or None)
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
        return (self._outer or self)._ttft_s is not None

    @property
    def is_joined(self) -> bool:
        """Whether it is part of an open attempt of the same target, which asked and will report."""
        return self._outer is not None

    def is_open_at(self, host: AttemptHost) -> bool:
        """Whether this is an open attempt of that connection, and not itself part of another."""
        return self.is_open and self._host is host and self._outer is None

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
        if self._join():
            return self
        self._host.tell_hooks("entering", self)
        try:
            decision = self._host.decide(self.target)
            trial = self._host.acquire_blocking(self.target, decision, self.limit_s) if self._wants(decision) else None
            return self._begin(decision, trial)
        except BaseException as error:
            self._host.tell_hooks("not_entered", self, error)
            raise

    def _join(self) -> bool:
        """Inside an open attempt of the same target this is that attempt: asked and reported once."""
        outer: Attempt | None = joined.open_attempt(self._host, self.target)
        if outer is None:
            return False
        self._outer, self.decision, self.verdict, self.outcome = outer, outer.decision, None, None
        return True

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
        self._bytes, self.is_passed_on = None, False
        self._began_s = self._fed_s = self._monotonic()
        self.is_open = True
        joined.bind(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record what came of it; an exception is re-raised."""
        if self._outer is not None:
            self._leave_outer(self._outer, error)
            return
        joined.unbind(self)
        if not self.is_open:
            return
        self.is_open = False
        try:
            took_s = (self._ended_s or self._monotonic()) - self._began_s
            verdict = self._final(error, took_s)
            if is_held_verdict(verdict):
                self.verdict = verdict
                if self._trial is not None:
                    self._host.drop(self._trial)
            else:
                self.outcome = self._outcome(verdict, took_s)
                if self.decision is not None and self.decision.reason != "no_target":
                    self._host.finish(self.target, self.outcome, self._seen[1], self._trial)
        except Exception:  # noqa: BLE001 - nothing on a router's request path raises
            _log.exception("an attempt could not be recorded")
        self._text, self._before, self._bytes = b"", None, None
        self._host.tell_hooks("left", self)

    def _leave_outer(self, outer: Attempt, error: BaseException | None) -> None:
        self._outer = None
        if error is not None and self.verdict is None:
            self.verdict = outer._of_exception(error)
            if outer.verdict is None and outer._bytes is None and self.verdict.kind != "unknown":
                outer._say(self.verdict)

    def forget(self) -> None:
        """Leave for a client that dropped its stream. For finalizers: safe in any thread, at any moment."""
        self._host.later(self._forget)

    def _forget(self) -> None:
        self._ended_s = self._ended_s or self._fed_s  # it did not take longer than its bytes
        self.__exit__(None, None, None)

    async def __aenter__(self) -> Self:
        """Ask the gate, and on probation wait up to 0.25 s for the lease of a trial. Raises `Held`."""
        if self._join():
            return self
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
        if self._outer is not None:
            self._outer._say(verdict)
        return verdict

    def _final(self, error: BaseException | None, took_s: float) -> Verdict:
        verdict = self.verdict
        if verdict is None and self._bytes is not None:
            verdict = self._of_bytes(self._bytes, error)
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

    def _of_bytes(self, seen: AnswerBytes, error: BaseException | None) -> Verdict | None:
        """The verdict on an answer that was fed. Whatever its bytes tell counts; only where they have no end, how the
        attempt was left says whose end it was."""
        body = seen.body if seen.is_readable else b""
        self._note(seen.status, seen.headers, body)
        is_success = 200 <= seen.status < 300
        is_opaque = is_success and not seen.is_readable
        verdict = UNCHECKED if is_opaque else self._classify(seen.status, seen.headers, body)
        if seen.is_whole or not is_success or not is_unfinished(verdict):
            return verdict
        if error is None or isinstance(error, GeneratorExit):
            return LEFT_EARLY
        fault = fault_of(error, self._before)
        return self._classify(seen.status, seen.headers, body or b"{", fault) if fault is not None else None

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
        self._charset = charset_said(found[0] if found else "")

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
            took_ms=milliseconds(took_s),
            ttft_ms=None if self._ttft_s is None else milliseconds(self._ttft_s),
            limit_ms=None if options.limit_s is None else milliseconds(options.limit_s),
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
