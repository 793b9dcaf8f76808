"""JSON values as this product keeps them: frozen, canonical, hashed.

`freeze` takes foreign data in (a copy that nobody can change afterwards), `thaw` gives plain data
out, `canonical` is the RFC 8785 form, `digest` its SHA-256. Nothing here knows what a value means.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import rfc8785

__all__ = [
    "MAX_DEPTH",
    "FrozenDict",
    "at",
    "canonical",
    "digest",
    "freeze",
    "pointer",
    "spelt_out",
    "thaw",
]

MAX_DEPTH = 64
"""How deep a JSON value may nest. Deeper ones serve no tool and threaten every recursive reader."""

_SAFE_INTEGER = 2**53 - 1
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_LISTS: Final = (list, tuple)


class FrozenDict(dict[str, Any]):
    """A dict that refuses change. A real dict, so that every JSON library takes it as it is."""

    __slots__ = ()

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("this value is frozen; take a copy with thaw() to change it")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(canonical(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


def pointer(*parts: str | int) -> str:
    """A JSON Pointer (RFC 6901)."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


def at(value: Any, place: str) -> Any:
    """What a JSON Pointer leads to in a value; None where it leads nowhere."""
    for part in place.split("/")[1:]:
        step = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list | tuple) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def freeze(value: Any, *, max_depth: int = MAX_DEPTH) -> Any:
    """A deep, immutable copy of a JSON value. ValueError names the place of what is not JSON."""
    return _freeze(value, (), max_depth)


def _freeze(value: Any, path: tuple[str | int, ...], depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        if abs(value) > _SAFE_INTEGER:
            raise ValueError(f"{_place(path)}: an integer beyond ±(2^53 - 1) does not survive JSON")
        return int(value)
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
    """A plain copy, made of dicts and lists."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    # Most values are flat: a call for each of their leaves would cost more than the copy.
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
    """RFC 8785. ValueError for what can't be hashed safely."""
    try:
        return rfc8785.dumps(value)
    except rfc8785.CanonicalizationError as error:
        raise ValueError(str(error)) from None


def digest(value: Any) -> str:
    """`sha256:…` of the canonical form."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def spelt_out(value: Any) -> Any:
    """For writers of JSON that know no mapping but a dict: any other as one; else TypeError."""
    if isinstance(value, Mapping):
        return thaw(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")
