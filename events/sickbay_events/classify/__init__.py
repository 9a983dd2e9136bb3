"""What one answer of a provider says, and about whom (Rule 3). Pure and total."""

from __future__ import annotations

from collections.abc import Mapping

from ..kinds import KINDS, Kind
from ..verdict import Verdict
from .answer import CallFacts, judge_answer
from .envelope import parse_body, plain_headers, read_envelope
from .families import family_of
from .match import match
from .output import judge_output
from .rules import ERRORS

__all__ = ["classify", "family_of", "judge_output"]


def classify(
    *,
    status: int | None,
    headers: Mapping[str, str],
    body: str | bytes,
    requested_model: str,
    provider: str = "",
    error: str | None = None,
    stream: bool = False,
    prompt_ascii: bool | None = None,
    client_capped: bool | None = None,
) -> Verdict:
    """Say what an answer means. Never raises, reads no clock and at most 64 KiB of the body.

    `status` is the HTTP status, or None if none arrived; `headers` in any case; `body` as received (bytes are
    better: text may already be damaged). `provider` is a host (`api.x.ai`) or a family's name (`xai`); one that
    is unknown is judged by the general rules. `error` is what the transport saw: None, `connect`, `dns`, `tls`,
    `reset`, `timeout` or `aborted` (or `connect_timeout`, `eof`, `closed`, `truncated`, `cancelled`, as others say).
    `stream` says that the caller asked for a stream. `prompt_ascii` and `client_capped` are what `judge_output`
    needs to know of the request.
    """
    try:
        question = CallFacts(
            requested_model=requested_model if isinstance(requested_model, str) else "",
            family=family_of(provider) if isinstance(provider, str) else "",
            stream=bool(stream),
            prompt_ascii=prompt_ascii,
            client_capped=client_capped,
        )
        return judge_exchange(status, headers, body, question, error=error)
    except Exception:  # noqa: BLE001 - total by contract: what nobody foresaw is "cannot tell", and changes nothing
        return Verdict(kind="unknown", scope="none", confidence="low")


def judge_exchange(
    status: object, headers: object, body: object, question: CallFacts, *, error: object = None
) -> Verdict:
    """`classify` without its safety net: whatever the arguments, it is meant not to raise."""
    code = status if isinstance(status, int) and not isinstance(status, bool) else None
    plain = plain_headers(headers)
    read = parse_body(body, plain.get("content-type", ""))
    success = code is not None and 200 <= code < 300
    if isinstance(error, str) and error in ERRORS and (success or code is None):
        if code is not None and read.text and ERRORS[error] != "cancelled":
            # Damage that was read outranks an end that is missing.
            verdict = judge_answer(code, plain, read, question)
            if verdict.kind == "mangled_output":
                return verdict
        return _transport(error, begun=success and "{" in read.text)
    if code is not None and success:
        return judge_answer(code, plain, read, question)
    return match(read_envelope(code, plain, read), question.requested_model, question.family)


def _transport(error: str, *, begun: bool) -> Verdict:
    """No whole answer: what the transport saw. One that had begun and was cut off is `truncated`."""
    kind: Kind = "truncated" if begun and error in ("reset", "eof", "closed") else ERRORS[error]
    return Verdict(kind=kind, scope=KINDS[kind].scope, signature=error)
