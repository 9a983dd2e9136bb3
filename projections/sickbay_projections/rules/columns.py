"""The table of Rule 4 as data: what each group of outcomes is to each sort of evidence."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from sickbay_events.kinds import KINDS, Group, Kind

Cell: TypeAlias = Literal["answer", "failure", "none"]
FaultsCell: TypeAlias = Literal["answer", "closes", "failure", "none"]
SampleCell: TypeAlias = Literal["clean", "bad", "none"]


class KindRow(NamedTuple):
    """One row: a group of outcomes, column by column. A rule reads its own columns and no others.

    A leased trial that is `none` to its rule tells nothing of it (Rule 4.0, Trials).
    """

    strikes: Cell
    throttles: Cell
    faults: FaultsCell
    """`closes` ends a breaker's hold like an answer, but takes no point off."""
    sample: SampleCell
    """If it can be checked."""
    credential: Cell


TABLE: Final[dict[Group, KindRow]] = {
    "success": KindRow(strikes="answer", throttles="answer", faults="answer", sample="clean", credential="answer"),
    "degraded": KindRow(strikes="answer", throttles="answer", faults="closes", sample="bad", credential="answer"),
    "throttle": KindRow(strikes="none", throttles="failure", faults="none", sample="none", credential="none"),
    "rejection": KindRow(strikes="failure", throttles="none", faults="none", sample="none", credential="none"),
    "fault": KindRow(strikes="none", throttles="none", faults="failure", sample="none", credential="none"),
    "auth": KindRow(strikes="none", throttles="none", faults="none", sample="none", credential="failure"),
    "neutral": KindRow(strikes="none", throttles="none", faults="none", sample="none", credential="none"),
}
GROUPS: Final[dict[Kind, Group]] = {kind: row.group for kind, row in KINDS.items()}
REPEATABLE: Final[frozenset[Kind]] = frozenset({"empty_output", "malformed_output", "timeout", "truncated"})
"""Kinds that count once for one request (Rule 4, Same request)."""
