"""How long `classify` and `judge_output` take: ordinary error bodies, ordinary answers, and 64 KiB of the worst.

    python bench/bench_classify.py

Budgets: 20 us for an ordinary error body, 2 ms for 64 KiB of anything.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from classify_answers import CASES, ERROR_CASES, HOSTILE
from rows import Row
from sickbay_events.classify import classify, judge_output


def best_us(call: Callable[[], Any], repeats: int = 5, loops: int = 50) -> float:
    """The best mean of a few rounds, in microseconds of processor time: what the code costs, whatever else runs."""
    best = float("inf")
    for _ in range(repeats):
        begun = time.process_time_ns()
        for _ in range(loops):
            call()
        best = min(best, (time.process_time_ns() - begun) / loops / 1000)
    return best


def errors() -> list[tuple[float, str]]:
    """(microseconds, rule) of each of our own error cases."""
    found = []
    for case in ERROR_CASES:
        body = (case["body"] if isinstance(case["body"], str) else json.dumps(case["body"])).encode()
        headers = case.get("headers", {"content-type": "application/json"})
        status, model, provider = case["status"], case["model"], case["provider"]
        found.append(
            (
                best_us(
                    lambda s=status, h=headers, b=body, m=model, p=provider: classify(  # type: ignore[misc]
                        status=s, headers=h, body=b, requested_model=m, provider=p
                    )
                ),
                case["rule"],
            )
        )
    return sorted(found)


def answers() -> list[tuple[float, str]]:
    """(microseconds, what it says) of each of our own 2xx cases."""
    return sorted(
        (
            best_us(
                lambda c=case: classify(  # type: ignore[misc]
                    status=200,
                    headers={"content-type": c.content_type},
                    body=c.body,
                    requested_model="m",
                    provider=c.provider,
                )
            ),
            case.says,
        )
        for case in CASES
    )


def worst() -> list[tuple[float, str]]:
    """(microseconds, name) of 64 KiB bodies made to be slow."""
    return sorted(
        (
            best_us(
                lambda b=body, s=status, n=name: classify(  # type: ignore[misc]
                    status=s,
                    headers={"content-type": "text/event-stream"} if "event" in n else {},
                    body=b,
                    requested_model="m",
                ),
                loops=3,
            ),
            f"{name} ({status})",
        )
        for name, body in HOSTILE.items()
        for status in (200, 404, 429)
    )


def measure(quick: bool) -> list[Row]:
    """Rows of the budget table. Nearly all of it is quick anyway."""
    body_us = statistics.median([us for us, _ in errors()])
    answer_us = statistics.median([us for us, _ in answers()])
    worst_us, name = worst()[-1]
    text = ("A sentence of an ordinary answer, with a few accents: é, ã, ü. " * 1100)[:65536]
    judge_us = best_us(lambda: judge_output(text, finish_reason="stop"), loops=3 if quick else 10)
    return [
        Row("classify(), an ordinary error body", body_us, "us", 20),
        Row("classify(), an ordinary answer", answer_us, "us"),
        Row("classify(), the worst 64 KiB", worst_us / 1000, "ms", 2, name),
        Row("judge_output(), 64 KiB of text", judge_us / 1000, "ms", 2),
    ]


def main() -> None:
    """Print the cases that take longest."""
    rows = errors()
    times = [us for us, _ in rows]
    p90 = times[len(times) * 9 // 10]
    print(f"error bodies: {len(rows)} cases, median {statistics.median(times):.1f} us, p90 {p90:.1f} us")
    print("  slowest: " + "; ".join(f"{us:.1f} us {rule}" for us, rule in rows[-3:]))
    rows = answers()
    times = [us for us, _ in rows]
    print(f"2xx answers: {len(rows)} cases, median {statistics.median(times):.1f} us")
    print(f"  slowest: {rows[-1][0]:.1f} us {rows[-1][1]}")
    rows = worst()
    print("64 KiB of the worst: " + "; ".join(f"{us / 1000:.2f} ms {name}" for us, name in rows[-6:]))
    text = ("A sentence of an ordinary answer, with a few accents: é, ã, ü. " * 1100)[:65536]
    long_ms = best_us(lambda: judge_output(text, finish_reason="stop"), loops=10) / 1000
    print(f"judge_output, 64 KiB of ordinary text: {long_ms:.2f} ms")
    short = text[:600]
    print(f"judge_output, 600 characters: {best_us(lambda: judge_output(short, finish_reason='stop')):.1f} us")


if __name__ == "__main__":
    main()
