"""OpenTelemetry spans of a router and of the services: `sickbay.tracing.enable(sb)`."""

from __future__ import annotations

from .router.tracing import TracingUnavailable, enable

__all__ = ["TracingUnavailable", "enable"]
