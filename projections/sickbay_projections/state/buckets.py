"""Counts by bucket where there are any: `[bucket, count, bucket, count, ...]`, oldest first (SPEC 4, Windows).

For windows of many buckets of which most are empty. A bucket is floor(log time / size); a window of n buckets is
the current one and the n-1 before. What is too old leaves when a new bucket begins, so time alone costs nothing.
"""

from __future__ import annotations


def add(counts: list[int] | None, bucket: int, buckets: int) -> list[int]:
    """Count one more in the current bucket; the counts, made if there are none."""
    if counts is None:
        return [bucket, 1]
    if counts[-2] == bucket:
        counts[-1] += 1
        return counts
    if counts[-2] > bucket:
        # Buckets of another size have far-off numbers: after a change of policy the window begins anew.
        kept = [at for at in range(0, len(counts), 2) if bucket - buckets < counts[at] < bucket]
        counts[:] = [number for at in kept for number in counts[at : at + 2]]
    elif counts[0] <= bucket - buckets:
        del counts[: _first_in(counts, bucket - buckets)]
    counts += (bucket, 1)
    return counts


def total(counts: list[int] | None, bucket: int, buckets: int) -> int:
    """The counts of the window whose current bucket this is."""
    if not counts:
        return 0
    if counts[-2] <= bucket:
        return sum(counts[_first_in(counts, bucket - buckets) + 1 :: 2])
    return sum(counts[at + 1] for at in range(0, len(counts), 2) if bucket - buckets < counts[at] <= bucket)


def _first_in(counts: list[int], before: int) -> int:
    """Index of the oldest bucket that lies after this one; the end if none does."""
    at, end = 0, len(counts)
    while at < end and counts[at] <= before:
        at += 2
    return at


def current(counts: list[int], bucket: int) -> int:
    """The count of this bucket alone."""
    return counts[-1] if counts[-2] == bucket else 0


def step_back(counts: list[int], bucket: int) -> None:
    """The log's clock is believed: what was counted in buckets ahead of it was counted in its own."""
    late = 0
    while counts and counts[-2] >= bucket:
        late += counts.pop()
        counts.pop()
    if late:
        counts += (bucket, late)
