"""The table of SPEC section 4 as data: what each group of outcomes does in each column."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from sickbay_events.kinds import KINDS, Group, Kind

StrikesCell: TypeAlias = Literal["none", "clears", "strike"]
QuarantineCell: TypeAlias = Literal["lifts", "strike", "given_back", "tells_nothing"]
RunCell: TypeAlias = Literal["success", "fault", "neither", "none"]
ThrottleCell: TypeAlias = Literal["ends", "holds", "none"]
SampleCell: TypeAlias = Literal["clean", "bad", "none"]
DegradedCell: TypeAlias = Literal["counts", "begins_again", "given_back", "tells_nothing"]
CredentialCell: TypeAlias = Literal["lifts", "strike", "given_back", "tells_nothing"]
BreakerCell: TypeAlias = Literal["closes", "begins_again", "given_back", "tells_nothing"]


class KindRow(NamedTuple):
    """One row: a group of outcomes, column by column. A fold reads its own columns and no others."""

    strikes: StrikesCell
    quarantine: QuarantineCell
    """As a trial of a quarantine. A leased `tells_nothing` three times in a row begins the hold again."""
    run: RunCell
    """In the breaker's run and window: `neither` is no attempt there, and breaks no run."""
    breaker: BreakerCell
    """As a trial of a breaker."""
    throttle: ThrottleCell
    credential: CredentialCell
    """To the strikes and holds of a credential; `lifts` clears its strikes too."""
    sample: SampleCell
    """If it can be checked."""
    degraded: DegradedCell
    """As a trial of a hold for degraded output: `counts` only if it can be checked, else given back."""


TABLE: Final[dict[Group, KindRow]] = {
    "success": KindRow(
        strikes="clears",
        quarantine="lifts",
        run="success",
        breaker="closes",
        throttle="ends",
        credential="lifts",
        sample="clean",
        degraded="counts",
    ),
    "degraded": KindRow(
        strikes="clears",
        quarantine="lifts",
        run="neither",
        breaker="closes",
        throttle="ends",
        credential="lifts",
        sample="bad",
        degraded="begins_again",
    ),
    "throttle": KindRow(
        strikes="none",
        quarantine="given_back",
        run="neither",
        breaker="given_back",
        throttle="holds",
        credential="given_back",
        sample="none",
        degraded="given_back",
    ),
    "rejection": KindRow(
        strikes="strike",
        quarantine="strike",
        run="neither",
        breaker="given_back",
        throttle="none",
        credential="given_back",
        sample="none",
        degraded="given_back",
    ),
    "fault": KindRow(
        strikes="none",
        quarantine="given_back",
        run="fault",
        breaker="begins_again",
        throttle="none",
        credential="given_back",
        sample="none",
        degraded="given_back",
    ),
    "auth": KindRow(
        strikes="none",
        quarantine="given_back",
        run="none",
        breaker="given_back",
        throttle="none",
        credential="strike",
        sample="none",
        degraded="given_back",
    ),
    "neutral": KindRow(
        strikes="none",
        quarantine="tells_nothing",
        run="none",
        breaker="tells_nothing",
        throttle="none",
        credential="tells_nothing",
        sample="none",
        degraded="tells_nothing",
    ),
}
GROUPS: Final[dict[Kind, Group]] = {kind: row.group for kind, row in KINDS.items()}
REPEATABLE: Final[frozenset[Kind]] = frozenset({"empty_output", "malformed_output", "timeout", "truncated"})
"""Kinds that count once for one request (SPEC 4, Same request)."""
