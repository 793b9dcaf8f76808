"""Objects that several schemas speak of at once, and values of which nothing is said.

Where parts of a schema apply to the same object (`allOf`, `if`, alternatives beside properties), no
part can be closed by itself: it would refuse the names of the others. So each part is made to list
the names of all of them, and says nothing of those that are not its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

from counterseal.contract.schemas import resolve_local, subschemas

__all__ = ["Anything", "join"]

Node = dict[str, Any]

_MANY: Final = ("allOf", "anyOf", "oneOf")
_ONE: Final = ("if", "then", "else", "not")
_MOST_COPIES: Final = 50
_MOST_NAMES: Final = 20_000
"""How many names all parts of an object together may come to list."""
_OPEN: Final[tuple[Any, ...]] = (True, {})


class Anything:
    """A definition for values of every kind, put into a schema's `$defs` when it is needed."""

    def __init__(self, root: Node, *, max_length: int, max_items: int) -> None:
        self._root = root
        self._limits = (max_length, max_items)
        self._used = False
        taken = root.get("$defs")
        names = taken if isinstance(taken, dict) else {}
        self._name = "Anything"
        while self._name in names:
            self._name += "_"

    def ref(self) -> Node:
        self._used = True
        return {"$ref": f"#/$defs/{self._name}"}

    def define(self) -> None:
        """Called when all references are made."""
        if not self._used:
            return
        max_length, max_items = self._limits
        self._root.setdefault("$defs", {})[self._name] = {
            "anyOf": [
                {"type": "string", "maxLength": max_length},
                {"type": ["number", "boolean", "null"]},
                {"type": "array", "items": self.ref(), "maxItems": max_items},
                {"type": "object", "additionalProperties": self.ref()},
            ]
        }


def join(root: Node, anything: Anything) -> None:
    """Let the parts of each object list the same names. Changes its argument.

    ValueError where that can't be done.
    """
    copies = _Copies(root)
    for path, inner in subschemas(root):
        if not isinstance(inner, dict):
            continue
        if "$ref" in inner and "properties" in inner:
            inner.setdefault("allOf", []).append({"$ref": inner.pop("$ref")})
        if not path or _joins(inner):
            parts = list(_parts(inner, copies, ()))
            speaking = [part for part in parts if "properties" in part]
            if any("$ref" in part for part in parts) and (speaking or inner.get("properties")):
                raise ValueError("its arguments are put together in a way that can't be followed")
            _share(inner, speaking, anything)


def _joins(schema: Node) -> bool:
    """Whether its parts are about one object. Mere alternatives are each for themselves."""
    return bool(schema.get("properties")) or any(
        word in schema for word in ("allOf", "dependentSchemas", *_ONE)
    )


class _Copies:
    """What references lead to, copied to where they stand."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._left = _MOST_COPIES

    def of(self, part: Node, followed: tuple[str, ...]) -> tuple[Node, tuple[str, ...]]:
        """A part without its reference. As it is, where that leads nowhere or in a circle."""
        reference = part.get("$ref")
        if not isinstance(reference, str) or reference in followed or not self._left:
            return part, followed
        target = resolve_local(self._root, reference)
        if not isinstance(target, dict):
            return part, followed
        self._left -= 1
        own = {key: value for key, value in part.items() if key != "$ref"}
        if own.keys() & target.keys() - {"title", "description", "default"}:
            return part, followed  # neither replaces the other
        return {**deepcopy(target), **own}, (*followed, reference)


def _parts(schema: Node, copies: _Copies, followed: tuple[str, ...]) -> Iterator[Node]:
    """The schemas that apply to the same value as this one does."""
    for holder, key in _places(schema):
        if isinstance(holder[key], dict):
            holder[key], now_followed = copies.of(holder[key], followed)
            yield holder[key]
            yield from _parts(holder[key], copies, now_followed)


def _places(schema: Node) -> Iterator[tuple[Any, Any]]:
    for word in _MANY:
        if isinstance(schema.get(word), list):
            yield from ((schema[word], at) for at in range(len(schema[word])))
    yield from ((schema, word) for word in _ONE if word in schema)
    named = schema.get("dependentSchemas")
    if isinstance(named, dict):
        yield from ((named, name) for name in named)


def _share(schema: Node, parts: list[Node], anything: Anything) -> None:
    if not parts:
        return
    if len(parts) * sum(map(len, map(_names, (schema, *parts)))) > _MOST_NAMES:
        raise ValueError("its arguments are put together from too many parts")
    open_on_purpose = schema.get("additionalProperties") in _OPEN
    if "additionalProperties" in schema and not open_on_purpose:
        names = list(schema.get("properties") or ())
    else:
        names = list(dict.fromkeys(name for each in (schema, *parts) for name in _names(each)))
        own = schema.setdefault("properties", {})
        _list(own, names, anything)
        schema.setdefault("type", "object")
    for part in parts:
        if part.get("additionalProperties", True) in _OPEN:
            _list(part["properties"], names, anything)
            part.pop("additionalProperties", None)
            if open_on_purpose:
                part["additionalProperties"] = True


def _names(schema: Node) -> list[str]:
    held = schema.get("properties")
    return list(held) if isinstance(held, dict) else []


def _list(properties: Any, names: list[str], anything: Anything) -> None:
    for name in names if isinstance(properties, dict) else ():
        properties.setdefault(name, anything.ref())
