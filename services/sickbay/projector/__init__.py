"""The projector: one folds and writes, the others fold along and stand by."""

from __future__ import annotations

from .health import ProjectorHealth
from .loop import Projector

__all__ = ["Projector", "ProjectorHealth"]
