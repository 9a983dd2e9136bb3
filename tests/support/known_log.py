"""A log with known truth: mostly good calls, noise that must hold nobody, and planted incidents with their one hold.

    log = KnownLog(100_000)
    for seq, time_ms, subject, body in log.messages(): ...
    log.holds          # {(scope key, rule, sequence of the event that must begin it)}, once all were taken

Each incident has a target of its own, so what must come of it follows from Rules 4.1 to 4.4 without a fold.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sickbay.log.file import LogLine, open_writer
from sickbay_events import CallOutcome, Target, encode, outcome_subject

START_MS: Final = 1_780_000_000_000
STEP_MS: Final = 5
"""Between two events: 200 calls a second."""
EVERY: Final = 500
"""One incident so often."""
REPLICAS: Final = 6
TARGETS: Final = 1_000
_NOISE: Final = (
    {"kind": "bad_request", "status": 400},
    {"kind": "context_length", "status": 400},
    {"kind": "content_filter", "status": 200, "checkable": False},
    {"kind": "cancelled"},
    {"kind": "unknown", "status": 418, "signature": "teapot"},
    {"kind": "server_error", "status": 502},
    {"kind": "network"},
    {"kind": "rate_limited", "status": 429, "retry_after_s": 1},
    {"kind": "empty_output", "status": 200},
)  # fmt: skip
_REJECTED: Final = {"kind": "model_unavailable", "status": 404, "code": "model_not_found"}
_FAULT: Final = {"kind": "server_error", "status": 503}
_EMPTY: Final = {"kind": "empty_output", "status": 200}
_FINE: Final = {"kind": "ok", "status": 200}
_AUTH: Final = {"kind": "auth", "status": 401}
_INCIDENTS: Final[tuple[tuple[str, str, tuple[dict[str, Any], ...]], ...]] = (
    ("quarantine", "model", (_REJECTED, _REJECTED)),
    ("breaker", "model", (_FAULT,) * 5),
    ("degraded", "model", (_EMPTY,) * 12),
    ("throttle", "credential", ({"kind": "quota", "status": 402, "retry_after_s": 600},)),
    ("credential", "credential", (_AUTH, _AUTH, _AUTH)),
)
"""Rule, the scope it holds, and the outcomes of which the last must begin the hold; replicas take turns."""


class KnownLog:
    """`count` events of 200 calls a second, the same for the same seed."""

    def __init__(self, count: int, *, seed: int = 1) -> None:
        self.count = count
        self.holds: set[tuple[str, str, int]] = set()
        self._random = random.Random(seed)
        self._boots = [f"{self._random.getrandbits(64):016x}" for _ in range(REPLICAS)]
        self._n = [0] * REPLICAS
        self._targets = [Target(f"provider-{n % 20}.example", f"vendor/model-{n}") for n in range(TARGETS)]
        self._incidents = 0

    def messages(self) -> Iterator[tuple[int, int, str, bytes]]:
        """Sequence, log time, subject and body of each."""
        seq = 0
        planned: Iterator[Any] = iter(())
        while seq < self.count:
            seq += 1
            time_ms = START_MS + seq * STEP_MS
            if seq % EVERY == 0:
                planned = self._incident()
            incident = next(planned, None) if seq % 5 == 0 else None
            if incident is not None:
                replica, target, fields, hold = incident
                if hold is not None:
                    self.holds.add((*hold, seq))
            else:
                replica, target, fields = self._ordinary(seq)
            self._n[replica] += 1
            outcome = CallOutcome(
                id=f"{self._boots[replica]}-{self._n[replica]}",
                took_ms=400 + seq % 900,
                queued_ms=seq % 7,
                limit_ms=60_000,
                seen_seq=max(0, seq - 20),
                **fields,
            )
            yield seq, time_ms, outcome_subject(f"router-{replica}", target), encode(outcome)

    def write(self, path: Path) -> None:
        """As a log file."""
        with open_writer(path) as write:
            for seq, time_ms, subject, body in self.messages():
                write(LogLine.of(seq, time_ms * 1_000_000 + 123_456, subject, {"Nats-Msg-Id": "x"}, body))

    def _ordinary(self, seq: int) -> tuple[int, Target, dict[str, Any]]:
        drawn = self._random.random()
        replica = int(drawn * 1e6) % REPLICAS
        # Some models are called much, many are called little.
        target = self._targets[int(self._random.random() ** 2 * TARGETS)]
        noise = _NOISE[seq // 25 % len(_NOISE)]
        if noise["kind"] == "rate_limited" and seq % 25 <= 1:
            target = self._targets[0]  # answered next: two throttles with no answer in between would hold it
        if seq % 25 == 0:
            return replica, target, noise
        fields: dict[str, Any] = {"kind": "ok", "status": 200, "ttft_ms": 150 + seq % 90, "charset": "utf-8"}
        if seq % 3 == 0:
            fields["checkable"] = False
        if seq % 4 == 0:
            fields["route"] = "brief"
        return replica, target, fields

    def _incident(self) -> Iterator[tuple[int, Target, dict[str, Any], tuple[str, str] | None]]:
        number, self._incidents = self._incidents, self._incidents + 1
        rule, scope, outcomes = _INCIDENTS[number % len(_INCIDENTS)]
        target = Target(f"sick-{number}.example#team", "vendor/patient")
        key = target.key if scope == "model" else target.key.rpartition(".")[0]
        for n, fields in enumerate(outcomes):
            yield n % REPLICAS, target, fields, (key, rule) if n == len(outcomes) - 1 else None
