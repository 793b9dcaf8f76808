"""A definition: what an upstream says of one of its tools, taken in with care, hashed for its pin.

A stranger wrote it, so it is checked and bounded before anybody looks at it. Fields that nobody
here reads (icons, `_meta`, what a later protocol adds) are left out, and not part of the hash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from counterseal.canonical import canonical, digest, freeze, thaw

__all__ = ["HINTS", "MAX_BYTES", "Definition"]

MAX_BYTES: Final = 256 * 1024
"""Of the canonical record. What is longer serves no model."""

HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""The annotations that speak of what a tool does. A stranger's word: they can only tighten."""

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """One tool as its upstream describes it. Two are equal when their hashes are."""

    name: str
    title: str | None
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    annotations: Mapping[str, Any]
    hash: str = field(init=False)
    """`sha256:…` of the canonical record: neither key order nor the spelling of numbers counts."""

    def __post_init__(self) -> None:
        _check(self)
        for name in ("input_schema", "output_schema", "annotations"):
            object.__setattr__(self, name, _frozen(name, getattr(self, name)))
        if any("\0" in text for text in _texts(self.record())):
            raise ValueError("it holds a NUL character")
        size = len(canonical(self.record()))
        if size > MAX_BYTES:
            raise ValueError(f"it is {size:,} bytes long; at most {MAX_BYTES:,} are taken")
        object.__setattr__(self, "hash", digest(self.record()))

    @classmethod
    def of(cls, wire: Mapping[str, Any]) -> Definition:
        """One item of tools/list, as JSON. ValueError says what is wrong with it."""
        if not isinstance(wire, Mapping):
            raise ValueError("a tool's definition is an object")
        hints = wire.get("annotations")
        if isinstance(hints, Mapping):
            # To leave a hint out and to say null is the same; some libraries always write it.
            hints = {key: value for key, value in hints.items() if value is not None}
        return cls(
            name=wire.get("name"),  # type: ignore[arg-type]  # checked when it is made
            title=wire.get("title"),
            description="" if wire.get("description") is None else wire["description"],
            input_schema=wire.get("inputSchema"),  # type: ignore[arg-type]  # likewise
            output_schema=wire.get("outputSchema"),
            annotations={} if hints is None else hints,
        )

    def record(self) -> dict[str, Any]:
        """As it is pinned: camelCase JSON, without what was not said."""
        made = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": thaw(self.input_schema),
            "outputSchema": thaw(self.output_schema),
            "annotations": thaw(self.annotations),
        }
        unsaid: dict[str, Any] = {"title": None, "outputSchema": None, "annotations": {}}
        return {key: made[key] for key in made if key not in unsaid or made[key] != unsaid[key]}

    def hint(self, name: str) -> bool | None:
        """What an annotation says; None when it says nothing."""
        value = self.annotations.get(name)
        return value if isinstance(value, bool) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Definition) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)


def _check(given: Definition) -> None:
    """Whether everything is of the kind that the protocol says."""
    if not isinstance(given.name, str):
        raise ValueError("name is missing" if given.name is None else "name is not a text")
    if not _NAME.fullmatch(given.name):
        raise ValueError(
            f"name {ascii(given.name)[:80]} is not 1 to 128 letters, digits, '_', '.', '-' and '/'"
        )
    _check_text("title", "" if given.title is None else given.title)
    _check_text("description", given.description)
    if not isinstance(given.input_schema, Mapping):
        raise ValueError("inputSchema is not an object")
    if given.input_schema.get("type") != "object":
        raise ValueError('inputSchema is not of "type": "object"')
    if given.output_schema is not None and not isinstance(given.output_schema, Mapping):
        raise ValueError("outputSchema is not an object")
    _check_hints(given.annotations)


def _check_hints(annotations: object) -> None:
    if not isinstance(annotations, Mapping):
        raise ValueError("annotations is not an object")
    for hint in HINTS:
        if hint in annotations and not isinstance(annotations[hint], bool):
            raise ValueError(f"annotations.{hint} is not true or false")


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{name} is not a text")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError(f"{name} holds a lone surrogate, which is not text")


_WIRE = {"input_schema": "inputSchema", "output_schema": "outputSchema"}


def _frozen(name: str, value: Any) -> Any:
    try:
        return freeze(value)
    except ValueError as error:
        raise ValueError(f"{_WIRE.get(name, name)}: {error}") from None


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
