"""What a classification answers."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .kinds import Kind, ScopeName

Confidence: TypeAlias = Literal["high", "low"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one provider answer says, and about whom (Rule 3).

    `classify` and `judge_output` return it; neither ever raises.
    """

    kind: Kind
    scope: ScopeName
    """What the verdict holds for: `host`, `credential`, `model`, or `none` (the caller's own, or no fault)."""
    retry_after_s: float | None = None
    """Seconds to wait as the provider said, 0 to 2,592,000 (30 days); None if it said nothing."""
    retry_after_from: Literal["header", "body"] | None = None
    code: str | None = None
    """The provider's machine code, at most 64 characters."""
    signature: str | None = None
    """A short stable name for the way it went wrong: `foreign_shape`, `double_encoded`, `loop` and so on."""
    checkable: bool = True
    """Whether the output could be judged at all; False for a tool-call turn, a capped answer, unknown JSON."""
    attributable: bool = False
    """Whether damaged text is shown to be the provider's or the model's, not the caller's (Rule 3)."""
    confidence: Confidence = "high"
