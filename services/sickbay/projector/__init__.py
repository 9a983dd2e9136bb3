"""The projector: the service that folds the log. One of several writes what follows, the others stand by.

May import the ground, `bus`, `view`, `log`, `control` and `projections`.
"""

from __future__ import annotations

from .health import ProjectorHealth
from .loop import Projector

__all__ = ["Projector", "ProjectorHealth"]
