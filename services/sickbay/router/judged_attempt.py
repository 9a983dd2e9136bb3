"""What is known of one attempt, and the verdict that follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from sickbay_events import CallOutcome, Decision, Target, Verdict, classify
from sickbay_events.kinds import KINDS, Kind
from sickbay_events.outcome import DETAIL_CHARS_MAX, Lease
from sickbay_events.redact import redact

from .answer_bytes import AnswerBytes
from .attempt_host import AttemptHost, AttemptOptions
from .faults import answer_of, fault_of
from .judging import LEFT_EARLY, UNCHECKED, UNKNOWN, charset_said, is_unfinished, milliseconds
from .retries import warn_of_retries
from .trials import Trial


class JudgedAttempt:
    """The part of an `Attempt` that judges: from what the caller said, from bytes, from an exception."""

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

    @property
    def trial(self) -> list[Lease] | None:
        """The leases of the cluster's holds that the call runs under; None if it is not a trial."""
        return (self._trial.leases or None) if self._trial is not None else None

    @property
    def limit_s(self) -> float | None:
        """The time the call was given, for the client's own timeout; None if there is no limit."""
        return self._options.limit_s

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
        warn_of_retries(error)
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
