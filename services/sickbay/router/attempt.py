"""One call to one target: may it be made, and what came of it.

    async with sb.attempt(target, limit_s=60) as attempt:       # raises Held if the target may not be called
        response = await client.post(...)
        attempt.response(response.status_code, response.headers, response.content)

Leaving without a verdict records `ok`, not checkable. An exception is classified and re-raised. Text is judged and
forgotten: no prompt and no completion is kept.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from sickbay_events import CallAnswered, Decision, Verdict, judge_output
from sickbay_events.classify.held_answer import is_held_verdict
from sickbay_events.outcome import Lease

from ..loggers import logger
from . import joined
from .answer_bytes import AnswerBytes
from .attempt_host import AttemptHost
from .errors import Held
from .judged_attempt import JudgedAttempt
from .judging import OK, UNCHECKED, charset_said, milliseconds
from .sdk_shapes import answer_of_sdk, gather
from .trials import Trial

_log = logger("sickbay.attempt")


class Attempt(JudgedAttempt):
    """One attempt of one call; a context manager, plain or async. Made by `Sickbay.attempt`.

    decision   what the gate said when it was entered
    verdict    what was said of it so far; a caller that judges answers in its own way may set it
    outcome    what was recorded, once it is over; None if another Sickbay refused the call
    error_text what the provider said of its failure, redacted; filled once it is over, if it is to be kept
    """

    _outer: Attempt | None = None
    """The open attempt that this one is part of."""
    is_open = False
    is_passed_on = False
    """Whether content went to the reader."""

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
                self.content_came()
        if end:
            seen.is_whole = True
            self._ended_s = self._monotonic()

    def returned(self, value: object) -> Verdict | None:
        """Judge what an SDK returned: a completion, a message, a raw response. None for a value of another kind, which
        says nothing."""
        answer = answer_of_sdk(value)
        return None if answer is None else self.response(*answer)

    def chunks(self, stream: Any) -> Any:
        """The chunks of an SDK's stream, sync or async, passed on as they come. At their end it says the `output` that
        they make, with finish reason and tool calls."""
        self._is_stream = True
        return gather(self, stream)

    def content_came(self) -> None:
        """The first content of a stream arrived, and the caller keeps it: another candidate can still take over."""
        if not self.has_content:
            self._is_stream = True
            self._arrived()

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
    def has_content(self) -> bool:
        """Whether the first content of a stream arrived."""
        return (self._outer or self)._ttft_s is not None

    @property
    def is_fed(self) -> bool:
        """Whether the answer's bytes are shown, which tell more than anything made of them."""
        return (self._outer or self)._bytes is not None

    @property
    def is_joined(self) -> bool:
        """Whether it is part of an open attempt of the same target, which asked and will report."""
        return self._outer is not None

    def is_open_at(self, host: AttemptHost) -> bool:
        """Whether this is an open attempt of that connection, and not itself part of another."""
        return self.is_open and self._host is host and self._outer is None

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
        error = None if self.is_fed else asyncio.CancelledError()
        self.__exit__(type(error) if error is not None else None, error, None)

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
