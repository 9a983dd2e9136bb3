"""Files of TOML that the services are given beside their settings: every value checked, each refusal with its key."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from sickbay_events.redact import MARK, looks_secret

from .invalid import InvalidValue

_T = TypeVar("_T", bound=msgspec.Struct)


REFERENCE: Final = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
"""A secret stands in a file as the name of the environment variable that has it."""


def read_table(text: str, name: str, kind: type[_T], also: str) -> _T:
    """The one table of a file as a struct. `also`: what else may stand in the file, in words. Raises `InvalidValue`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue("(file)", str(error), "TOML") from error
    for key in data:
        if key != name:
            raise InvalidValue(key, _shown(data[key]), f"[{name}] and {also}, nothing else")
    return converted(data.get(name, {}), kind, name)


def converted(data: object, kind: type[_T], path: str) -> _T:
    """Plain data as a struct. Raises `InvalidValue` with the key under `path`; a value that looks secret is masked."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise InvalidValue(f"{path}{where.rstrip('`')}", _at(data, where.rstrip("`")), what) from error


def secret_of(value: str, key: str, environ: Mapping[str, str] | None = None) -> str:
    """The secret that `env:NAME` refers to. Raises `InvalidValue`, which never shows a secret."""
    found = REFERENCE.fullmatch(value)
    if found is None:
        raise InvalidValue(key, MARK if value else "", "env:NAME, the name of an environment variable that has it")
    known = os.environ if environ is None else environ
    if not known.get(found[1]):
        raise InvalidValue(key, value, "the name of an environment variable that is set")
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
