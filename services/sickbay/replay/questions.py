"""Questions to the past: `{"at", "provider", "model", "replica"}` one a line, each answered from the state as it was.

asks = read_questions(Path("asks.jsonl"), now_ms=...)
folding = Folding(Fleet(), looks=asks.looks())
...
asks.answers            # in the order of the questions, each a decision at its own time
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from sickbay_events import Target, rfc3339
from sickbay_projections import Fleet

from ..invalid import InvalidValue
from ..log.folding import Bound, InspectAt
from ..when import when_ms

_ACCEPTED: Final = '{"at": a time, "provider", "model", "replica"?}'


class ReplayQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One question: may this replica call this target at this time?"""

    at: str
    provider: str
    model: str
    replica: str = ""


class ReplayQuestions:
    """Questions, and their answers once a fold has passed them."""

    def __init__(self, asks: list[tuple[ReplayQuestion, int]]) -> None:
        self.answers: list[dict[str, Any]] = [{} for _ in asks]
        self._asks = asks

    @property
    def earliest_ms(self) -> int | None:
        """The earliest time that is asked about; None without questions."""
        return min((at_ms for _, at_ms in self._asks), default=None)

    @property
    def latest_ms(self) -> int | None:
        """The latest."""
        return max((at_ms for _, at_ms in self._asks), default=None)

    def looks(self) -> list[InspectAt]:
        """What a folding is to show on its way."""
        order = sorted(range(len(self._asks)), key=lambda index: self._asks[index][1])
        return [InspectAt(Bound(time_ms=self._asks[index][1]), self._answer(index)) for index in order]

    def _answer(self, index: int) -> Any:
        ask, at_ms = self._asks[index]

        def see(fleet: Fleet) -> None:
            decision = fleet.decide(Target(ask.provider, ask.model), at_ms, ask.replica)
            asked = {"at": rfc3339(at_ms), "provider": ask.provider, "model": ask.model, "replica": ask.replica}
            self.answers[index] = {**asked, **msgspec.to_builtins(decision), "seq": fleet.seq}

        return see


def read_questions(path: Path, *, now_ms: int) -> ReplayQuestions:
    """Read a file of questions; blank lines are none. Raises `InvalidValue`, `OSError`."""
    found: list[tuple[ReplayQuestion, int]] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            ask = msgspec.json.decode(line, type=ReplayQuestion)
            found.append((ask, when_ms(ask.at, now_ms=now_ms)))
        except (msgspec.DecodeError, UnicodeDecodeError, InvalidValue) as error:
            text = line.decode("utf-8", "replace")[:80]
            raise InvalidValue(f"{path}, line {number}", text, f"{_ACCEPTED} ({error})") from error
    return ReplayQuestions(found)
