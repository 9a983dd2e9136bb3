"""Folds a seeded history in a process of its own and prints what came of it; see tests/log/test_folding.py."""

from __future__ import annotations

import hashlib
import json
import sys

from histories import history
from sickbay_projections import Fleet


def main() -> None:
    """Arguments: seed, count, and the sequences at which to print the state."""
    seed, count, *marks = (int(text) for text in sys.argv[1:])
    fleet, derived = Fleet(), hashlib.sha256()
    for recorded in history(seed, count):
        for event in fleet.apply(recorded):
            derived.update(repr(event).encode())
        if recorded.seq in marks:
            state = hashlib.sha256(fleet.encode()).hexdigest()
            print(json.dumps([recorded.seq, state, fleet.digest(), derived.hexdigest(), fleet.take_changed()]))


if __name__ == "__main__":
    main()
