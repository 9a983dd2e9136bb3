"""Files of TOML that the services are given beside their settings: every value checked, each refusal with its key."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from sickbay_events.redact import MARK, looks_secret

_T = TypeVar("_T", bound=msgspec.Struct)
REFERENCE: Final = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
"""A secret stands in a file as the name of the environment variable that has it."""


class FileRefused(ValueError):
    """A value of a file that is not accepted.

    Attributes: `key` (dotted; `(file)` for text that is no TOML), `value`, `accepted` (the accepted form in words). Of
    a table and a list the text says only what it is: any key below may have a secret in clear.
    """

    def __init__(self, key: str, value: object, accepted: str) -> None:
        self.key, self.value, self.accepted = key, value, accepted
        shown = repr(value)
        if value and isinstance(value, dict | list):
            shown = "a table" if isinstance(value, dict) else "a list"
        super().__init__(f"{key}: {shown} is not accepted; accepted is {accepted}")


def read_table(text: str, name: str, kind: type[_T], refused: type[FileRefused], also: str) -> _T:
    """The one table of a file as a struct. `also`: what else may stand in the file, in words. Raises `refused`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise refused("(file)", str(error), "TOML") from error
    for key in data:
        if key != name:
            raise refused(key, _shown(data[key]), f"[{name}] and {also}, nothing else")
    return converted(data.get(name, {}), kind, name, refused)


def converted(data: object, kind: type[_T], path: str, refused: type[FileRefused]) -> _T:
    """Plain data as a struct. Raises `refused` naming the key, under `path`; what looks like a secret is not shown."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise refused(f"{path}{where.rstrip('`')}", _at(data, where.rstrip("`")), what) from error


def secret_of(value: str, key: str, refused: type[FileRefused], environ: Mapping[str, str] | None = None) -> str:
    """The secret that `env:NAME` refers to. Raises `refused`, which never shows a secret."""
    found = REFERENCE.fullmatch(value)
    if found is None:
        raise refused(key, MARK if value else "", "env:NAME, the name of an environment variable that has it")
    known = os.environ if environ is None else environ
    if not known.get(found[1]):
        raise refused(key, value, "the name of an environment variable that is set")
    return known[found[1]]


def _at(data: Any, where: str) -> object:
    """The value at a path as msgspec writes it (`.target[0].level`)."""
    for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", where):
        try:
            data = data[name] if name else data[int(index)]
        except (KeyError, IndexError, TypeError):
            return None
    return _shown(data)


def _shown(value: object) -> object:
    """Text that may be a secret, as the address of a chat room is one, is not shown."""
    return MARK if isinstance(value, str) and ("://" in value or looks_secret(value)) else value
