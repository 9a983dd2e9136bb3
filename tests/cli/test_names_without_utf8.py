"""Names that no UTF-8 has (half of a surrogate pair) come from file names and arguments; none may reach a document."""

from __future__ import annotations

import pytest

import sickbay
import sickbay.testing
from sickbay import CallOutcome, Target
from sickbay_events import NameRefused, Poison, outcome_subject, read_subject, token

LONE = "m\ud800"


@pytest.mark.parametrize(
    "subject",
    [
        outcome_subject("r", Target("p", LONE)),
        outcome_subject("r", Target(LONE, "m")),
        outcome_subject("r", Target(f"p#{LONE}", "m")),
        outcome_subject(LONE, Target("p", "m")),
        f"sickbay.override.{token(LONE)}",
    ],
)
def test_a_subject_with_such_a_name_is_poison(subject: str) -> None:
    """SPEC 2: what cannot be read is counted and passed; a gate entry that names it could not be written."""
    with pytest.raises(Poison) as caught:
        read_subject(subject)
    assert caught.value.reason == "subject"


def test_a_router_is_told_at_once() -> None:
    """Rejected with the field's name where it is recorded, not found as poison in the log."""
    sb = sickbay.testing.standalone()
    sb.record(Target("p", LONE), CallOutcome(kind="ok"))
    assert sb.recorded == [] and "target" in sb.rejected[0]
    assert sb.decide(Target("p", LONE)).allowed
    with pytest.raises(NameRefused, match="replica"):
        sickbay.connect("nats://127.0.0.1:1", replica=LONE)
