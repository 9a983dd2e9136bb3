"""Counts in a window of six buckets (SPEC 4, Windows): `[bucket, now, one before, ..., five before]`.

A bucket is floor(log time / size); the window is the current one and the five before. A list turns when it is
next counted in or summed, so time alone costs nothing.
"""

from __future__ import annotations

from typing import Final

from .limits import BUCKETS

_NO_COUNTS: Final = [0] * BUCKETS
NONE: Final = -(1 << 62)
"""In place of a bucket: none has any counts."""


def new(bucket: int) -> list[int]:
    """A window without counts."""
    return [bucket, *_NO_COUNTS]


def turn(counts: list[int], bucket: int) -> None:
    """Make `bucket` the current one: what is older than the window falls out."""
    ahead = bucket - counts[0]
    if not ahead:
        return
    # Buckets of another size have far-off numbers: after a change of policy the window begins anew.
    counts[0] = bucket
    if 0 < ahead < BUCKETS:
        counts[1:] = [0] * ahead + counts[1 : BUCKETS + 1 - ahead]
    else:
        counts[1:] = _NO_COUNTS


def add(counts: list[int] | None, bucket: int) -> list[int]:
    """Count one more in the current bucket; the window, made if there is none."""
    if counts is None:
        counts = new(bucket)
    if counts[0] != bucket:
        turn(counts, bucket)
    counts[1] += 1
    return counts


def total(counts: list[int] | None, bucket: int) -> int:
    """The counts of the window whose current bucket this is."""
    if counts is None:
        return 0
    ahead = bucket - counts[0]
    return sum(counts[1 : BUCKETS + 1 - ahead]) if 0 <= ahead < BUCKETS else 0


def step_back(counts: list[int], bucket: int) -> None:
    """The log's clock is believed: what was counted in buckets ahead of it was counted in its own."""
    ahead = counts[0] - bucket
    if ahead > 0:
        late = min(ahead, BUCKETS - 1) + 1
        kept = counts[late + 1 :]
        counts[:] = [bucket, sum(counts[1 : late + 1]), *kept, *[0] * (BUCKETS - 1 - len(kept))]


def newest(counts: list[int], bucket: int) -> int:
    """The newest bucket with counts of the window whose current bucket is `bucket`; `NONE` if there is none."""
    found = counts[0]
    if not 0 <= bucket - found < BUCKETS:
        return NONE
    for count in counts[1 : BUCKETS + 1 - bucket + found]:
        if count:
            return found
        found -= 1
    return NONE
