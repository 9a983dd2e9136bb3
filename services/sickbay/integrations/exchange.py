"""One request and its answer, as a transport of any library sees them: everything about it but the waiting."""

from __future__ import annotations

import time
import weakref
from types import SimpleNamespace
from typing import Any, Final

from ..router.attempt import Attempt
from ..router.client import Sickbay
from ..router.joined import unbind
from ..router.retries import warn_of_retries
from .asked import Dialect, ModelRequest

ERROR_BYTES_MAX: Final = 64 * 1024
ERROR_S_MAX: Final = 2.0
"""So much of an error answer is read before the client gets it, and for so long."""


def connection_of(router: Any) -> Sickbay:
    """The connection of this process."""
    found = router if isinstance(router, Sickbay) else getattr(router, "sickbay", None)
    if not isinstance(found, Sickbay):
        raise TypeError(f"router: accepted is what sickbay.connect or sickbay.sync.connect gives, not {router!r}")
    return found


class Exchange:
    """An attempt of its own, or a part of the one that is open around the request. Enter `attempt` first."""

    __slots__ = ("__weakref__", "_connection", "_finalizer", "_is_over", "attempt", "dialect", "is_joined")

    def __init__(self, router: Any, asked: ModelRequest, limit_s: Any) -> None:
        self._connection = connection_of(router)
        self.dialect: Dialect = asked.dialect
        self.attempt: Attempt = self._connection.attempt(
            asked.target,
            limit_s if isinstance(limit_s, int | float) else None,
            stream=asked.is_stream,
            client_capped=asked.client_capped,
            prompt_ascii=asked.prompt_ascii,
        )
        self.is_joined = self._is_over = False
        self._finalizer: Any = None

    def entered(self) -> None:
        """The target may be called."""
        self.is_joined = self.attempt.is_joined
        unbind(self.attempt)  # what the caller does while the answer comes is not part of it

    def begin(self, response: Any, request: Any) -> None:
        """The head of the answer came."""
        if self.is_joined:
            warn_of_retries(SimpleNamespace(request=request))
        status, headers = response.status_code, response.headers
        self.attempt.feed(status=status, headers=headers)

    def feed(self, data: bytes) -> None:
        """The next bytes came, as received."""
        self.attempt.feed(data)

    def watch(self, stream: object) -> None:
        """End with the stream, if the client drops it without closing it."""
        self._finalizer = weakref.finalize(stream, self.attempt.forget)
        self._finalizer.atexit = False

    def end(self) -> None:
        """The answer is whole."""
        if not self._is_over:
            self.attempt.feed(end=True)
            self.leave(None)

    def leave(self, error: BaseException | None) -> None:
        """It is over: with an error of the transport, or because the client left. Only the first call counts."""
        if self._is_over:
            return
        self._is_over = True
        if self._finalizer is not None:
            self._finalizer.detach()
        self.attempt.__exit__(type(error) if error is not None else None, error, None)

    def forbids_retry(self) -> bool:
        """Whether a retry of the client's own would be refused, or would hide what came from the attempt around it."""
        return self.is_joined or not self._connection.gate.look(self.attempt.target).decision.allowed


class BodyStart:
    """How much of an answer was read before the client gets it; only error answers are read so.

    rest      what is still to come
    failure   what broke it
    """

    __slots__ = ("_until_s", "failure", "kept", "rest", "size")

    def __init__(self, rest: Any) -> None:
        self.rest = rest
        self.failure: Exception | None = None
        self.kept: list[bytes] = []
        self.size = 0
        self._until_s = time.monotonic() + ERROR_S_MAX

    def add(self, chunk: bytes) -> bool:
        """Keep a chunk; whether more may be read."""
        self.kept.append(chunk)
        self.size += len(chunk)
        return self.size < ERROR_BYTES_MAX and self.left_s > 0

    @property
    def left_s(self) -> float:
        """Seconds left to read in."""
        return self._until_s - time.monotonic()
