"""What the router side raises: nothing on a request path but `Held`."""

from __future__ import annotations

from sickbay_events import Decision, Target


class SickbayError(Exception):
    """Base of what the router side raises by itself."""


class Held(SickbayError):
    """The target may not be called now.

    Attributes: `target`, `decision` (why, by which rule and scope), `retry_in_s` (seconds truly left).
    """

    def __init__(self, target: Target, decision: Decision) -> None:
        self.target, self.decision = target, decision
        self.retry_in_s = decision.retry_in_s
        super().__init__(
            f"{target.provider} / {target.model} is held ({decision.reason}, {decision.scope}), "
            f"{decision.retry_in_s:.1f} s left"
        )
