"""JSON values: freeze, thaw, canonical form and digest.

`freeze` makes an immutable copy of foreign data, `thaw` a plain mutable one; `canonical` returns
the RFC 8785 form and `digest` its SHA-256. Nothing here knows what a value means.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Mapping
from dataclasses import fields
from datetime import datetime
from enum import Enum
from typing import Any, Final, NoReturn

import rfc8785

MAX_DEPTH = 64
"""How deep a JSON value may nest. Deeper values would threaten recursive readers."""

SAFE_INTEGER: Final = 2**53 - 1
"""The last integer that every JSON reader reads exactly: many read numbers as doubles."""
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_LISTS: Final = (list, tuple)


class FrozenDict(dict[str, Any]):
    """An immutable dict. It subclasses dict, so that every JSON library accepts it."""

    __slots__ = ()

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("this value is frozen; take a copy with thaw() to change it")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(canonical(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


def unused_key(key: Any, taken: Container[Any]) -> Any:
    """Return the key, or the key with a number if it is taken: keys can become equal when shown."""
    shown, number = key, 2
    while shown in taken:
        shown, number = f"{key} ({number})", number + 1
    return shown


def pointer(*parts: str | int) -> str:
    """Return a JSON Pointer (RFC 6901) made of these parts."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


def steps(place: str) -> list[str]:
    """Return the parts of a JSON Pointer."""
    return [part.replace("~1", "/").replace("~0", "~") for part in place.split("/")[1:]]


def at(value: Any, place: str, otherwise: Any = None) -> Any:
    """Return the value at a JSON Pointer, or `otherwise` where there is none."""
    for step in steps(place):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list | tuple) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return otherwise
    return value


def freeze(value: Any, *, max_depth: int = MAX_DEPTH) -> Any:
    """Return a deep, immutable copy of a JSON value. ValueError names the first invalid place."""
    return _freeze(value, (), max_depth)


def _freeze(value: Any, path: tuple[str | int, ...], depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        return int(value) if abs(value) <= SAFE_INTEGER else _double(value, path)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{_place(path)}: NaN and infinities are not JSON")
        return value
    if depth == 0 and isinstance(value, Mapping | list | tuple):
        raise ValueError(f"{_place(path[:4])}…: nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return FrozenDict(
            (_key(key, path), _freeze(item, (*path, str(key)), depth - 1))
            for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        return tuple(_freeze(item, (*path, i), depth - 1) for i, item in enumerate(value))
    raise ValueError(f"{_place(path)}: {type(value).__name__} is not a JSON type")


def _double(value: int, path: tuple[str | int, ...]) -> float:
    """Return a large integer as the double that holds it. Raises ValueError if none does."""
    try:
        double = float(value)
    except OverflowError:
        double = math.inf
    if double != value:
        raise ValueError(
            f"{_place(path)}: no double holds this integer, so it is not exact in JSON"
        )
    return double


def _key(key: Any, path: tuple[str | int, ...]) -> str:
    if not isinstance(key, str):
        raise ValueError(f"{_place(path)}: the key {key!r} is not a string")
    return _text(key, path)


def _text(value: str, path: tuple[str | int, ...]) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{_place(path)}: a lone surrogate is not text") from None
    return str(value)


def _place(path: tuple[str | int, ...]) -> str:
    return pointer(*path) or "value"


def thaw(value: Any) -> Any:
    """Return a plain copy made of dicts and lists."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    # Most values are flat, and one function call per leaf would cost more than the copy.
    if kind is dict:
        plain = value.copy()
        for key, item in value.items():
            if type(item) not in _LEAVES:
                plain[key] = thaw(item)
        return plain
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, _LISTS):
        return [item if type(item) in _LEAVES else thaw(item) for item in value]
    return value


def canonical(value: Any) -> bytes:
    """Return the RFC 8785 form. Raises ValueError for values that can't be hashed safely.

    Equal numbers have one form and others never share one: an integer beyond ±(2^53 - 1) is written
    as the double that holds it, and refused if none does.
    """
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        return rfc8785.dumps(freeze(value))
    except rfc8785.CanonicalizationError as error:
        raise ValueError(str(error)) from None


def digest(value: Any) -> str:
    """Return `sha256:…` of the canonical form."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def exported(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as plain JSON data, with sorted sets."""
    return {field.name: _exported(getattr(record, field.name)) for field in fields(record)}


def _exported(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(_exported(item) for item in value)
    if isinstance(value, datetime):
        return value.isoformat()
    return value.value if isinstance(value, Enum) else value


def json_default(value: Any) -> Any:
    """Convert a mapping for JSON writers that accept only dicts (their `default=` hook)."""
    if isinstance(value, Mapping):
        return thaw(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")
