"""The one error for a value that somebody gave and Sickbay does not accept."""

from __future__ import annotations


class InvalidValue(ValueError):
    """A value that is not accepted: of an option, a setting, a file, a request, an argument.

    Attributes: `what` (the name of the value, dotted within a file), `value`, `accepted` (the accepted form in words).
    Of a table or a list the text says only what it is, because any key in it may hold a secret in clear.
    """

    def __init__(self, what: str, value: object, accepted: str) -> None:
        self.what, self.value, self.accepted = what, value, accepted
        shown = repr(value)
        if value and isinstance(value, dict | list):
            shown = "a table" if isinstance(value, dict) else "a list"
        super().__init__(f"{what}: {shown} is not accepted; accepted is {accepted}")
