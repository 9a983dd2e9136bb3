"""The OpenAPI document."""

from __future__ import annotations

from typing import Any


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    return {"openapi": "3.1.0"}
