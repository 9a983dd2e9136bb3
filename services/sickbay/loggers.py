"""The product's loggers: what an outsider wrote is one harmless line in every log, whoever writes that log.

_log = logger("sickbay.gate")
"""

from __future__ import annotations

import logging
import traceback
from typing import Final

from sickbay_events.harmless import harmless

LOG_FORM: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
"""How the services write a line."""


def logger(name: str) -> logging.Logger:
    """The logger of this name, each line of which is harmless. Every module takes its logger from here."""
    found = logging.getLogger(name)
    found.addFilter(harmless_record)
    return found


def harmless_record(record: logging.LogRecord) -> bool:
    """A filter that keeps every record and makes its text harmless. Fields in `extra` stay as they are. Never raises.

    A record whose text is harmless is not touched. In a traceback a message with control characters or several lines
    is shown behind spaces, so that no line of it looks like one of the log.
    """
    try:
        message = record.getMessage()
        if not message.isprintable():
            record.msg, record.args = harmless(message), ()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not record.exc_text and not all(str(one).isprintable() for one in _chain(error)):
            text = "".join(traceback.format_exception(error))
            record.exc_text = "\n".join(f"  {harmless(line)}" for line in text.splitlines())
    except Exception:  # noqa: BLE001 - whoever logs wants to go on; the handler says what is wrong with the record
        return True
    return True


def _chain(error: BaseException) -> list[BaseException]:
    """An exception and all that a traceback of it shows."""
    found = [error]
    for one in found:
        parts = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        found += [each for each in (one.__cause__, one.__context__, *parts) if each is not None and each not in found]
    return found
