"""The services for FastStream: `faststream run sickbay.app:app`; or `sickbay serve`, which says more."""

from __future__ import annotations

from .service.app import app

__all__ = ["app"]
