"""What a server that stops, restarts or loses its streams can raise."""

from __future__ import annotations

from typing import Final

import nats.errors
from nats.js.errors import Error as JetStreamError

from .connect import BusError

TRANSIENT_ERRORS: Final = (BusError, JetStreamError, nats.errors.Error, OSError)
"""A TimeoutError is an OSError."""
