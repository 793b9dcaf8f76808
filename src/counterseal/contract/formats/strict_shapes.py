"""A schema that strict mode can express, as a small tree that maps calls in both directions.

Every shape has its strict schema, and converts a value for the provider (`Way.TO_STRICT`) and back
(`Way.RESTORE`). Conversion never refuses: a value that does not fit is passed on unchanged, because
the schema gate judges calls. `strict_schema` reads schemas into shapes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

Json = dict[str, Any]

ROOT: Final = "#"
"""The name of the whole schema in references to itself."""

_NOTES = ("title", "description")
_NULL: Final[Json] = {"type": "null"}
_ABSENT: Final = object()


class Way(Enum):
    TO_STRICT = auto()
    RESTORE = auto()


class Absence(Enum):
    """How an optional property is written where every property is required."""

    NEVER = auto()
    """The property is required."""
    NULL = auto()
    """As null, because null is not a value of the property, or means the same."""
    WRAPPED = auto()
    """As null, with values wrapped in an object, because null is also a value."""


class StrictShape(ABC):
    """One node of the tree."""

    __slots__ = ()

    @abstractmethod
    def schema(self) -> Json: ...

    def walk(self, value: Any, way: Way, depth: int) -> Any:
        return value

    def parts(self) -> Iterable[StrictShape]:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Value(StrictShape):
    """A scalar. Never converted."""

    keywords: Json
    values: tuple[Any, ...] | None = None
    """The possible values, if the schema lists them."""

    def schema(self) -> Json:
        return dict(self.keywords)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Array(StrictShape):
    items: StrictShape
    keywords: Json

    def schema(self) -> Json:
        return {"type": "array", **self.keywords, "items": self.items.schema()}

    def walk(self, value: Any, way: Way, depth: int) -> Any:
        if depth == 0 or not isinstance(value, list | tuple):
            return value
        return [self.items.walk(item, way, depth - 1) for item in value]

    def parts(self) -> Iterable[StrictShape]:
        return (self.items,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PropertySlot:
    """A property of an object."""

    shape: StrictShape
    absence: Absence
    takes_null: bool = False
    note: str = ""
    """The sentence about the form that the model reads."""

    def schema(self) -> Json:
        inner = self.shape.schema()
        if self.absence is Absence.WRAPPED:
            inner = _wrapped(inner)
        elif self.absence is Absence.NULL and not self.takes_null:
            inner = _nullable(inner)
        description = " ".join(filter(None, (inner.get("description"), self.note)))
        return {**inner, "description": description} if self.note else inner

    def walk(self, value: Any, way: Way, depth: int) -> Any:
        if way is Way.TO_STRICT:
            if value is _ABSENT:
                return None
            inner = self.shape.walk(value, way, depth)
            return {"value": inner} if self.absence is Absence.WRAPPED else inner
        if value is None and self.absence is not Absence.NEVER:
            return _ABSENT
        wrapped = isinstance(value, Mapping) and set(value) == {"value"}
        if self.absence is Absence.WRAPPED and wrapped:
            value = value["value"]
        return self.shape.walk(value, way, depth)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Object(StrictShape):
    slots: Mapping[str, PropertySlot]
    keywords: Json

    def schema(self) -> Json:
        return {
            "type": "object",
            **self.keywords,
            "properties": {name: slot.schema() for name, slot in self.slots.items()},
            "required": list(self.slots),
            "additionalProperties": False,
        }

    def walk(self, value: Any, way: Way, depth: int) -> Any:
        if depth == 0 or not isinstance(value, Mapping):
            return value
        walked = {}
        if way is Way.TO_STRICT:
            optional = (n for n, slot in self.slots.items() if slot.absence is not Absence.NEVER)
            value = {**dict.fromkeys(optional, _ABSENT), **value}
        for name, item in value.items():
            slot = self.slots.get(name)
            walked[name] = item if slot is None else slot.walk(item, way, depth - 1)
        return {name: item for name, item in walked.items() if item is not _ABSENT}

    def parts(self) -> Iterable[StrictShape]:
        return (slot.shape for slot in self.slots.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchemaReference(StrictShape):
    """A reference by name. `definitions` is shared, and complete once the schema is read."""

    name: str
    definitions: Mapping[str, StrictShape]
    keywords: Json

    @property
    def target(self) -> StrictShape:
        return self.definitions[self.name]

    def schema(self) -> Json:
        where = ROOT if self.name == ROOT else f"#/$defs/{self.name}"
        # Strict mode supports no keyword beside a reference.
        return {"anyOf": [{"$ref": where}], **self.keywords} if self.keywords else {"$ref": where}

    def walk(self, value: Any, way: Way, depth: int) -> Any:
        shape: StrictShape = self
        while isinstance(shape, SchemaReference):
            shape = shape.target
        return shape.walk(value, way, depth)


_Pick = tuple[str | None, Mapping[Hashable, StrictShape]]
"""How to find the variant of a value: the property that tells them apart, and a variant for each of
its values. Without a property there is one variant, under None."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Union(StrictShape):
    variants: tuple[StrictShape, ...]
    keywords: Json
    picks: dict[type[StrictShape], _Pick] = field(default_factory=dict)
    """For objects and arrays; filled by `settle`. Other values need no mapping."""

    def schema(self) -> Json:
        return {"anyOf": [variant.schema() for variant in self.variants], **self.keywords}

    def walk(self, value: Any, way: Way, depth: int) -> Any:
        tag, options = self.picks.get(Object if isinstance(value, Mapping) else Array, (None, {}))
        variant = options.get(None if tag is None else _key(value.get(tag)))
        return variant.walk(value, way, depth) if variant else value

    def parts(self) -> Iterable[StrictShape]:
        return self.variants


def settle(union: Union, converted: frozenset[str]) -> bool:
    """Find out how to tell the variants apart. Return False if a value could be two of them.

    `converted` names the definitions in which something is written differently under strict mode.
    Variants that are written the same way need not be told apart.
    """
    leaves = _leaves(union)
    for kind in (Object, Array):
        alike = [leaf for leaf in leaves if isinstance(leaf, kind)]
        inside = [_inside(leaf) for leaf in alike]
        if not any(optional or converted & references for optional, references in inside):
            continue
        pick: _Pick | None = (None, {None: alike[0]}) if len(alike) == 1 else _by_tag(alike)
        if pick is None:
            return False
        union.picks[kind] = pick
    return True


def _by_tag(leaves: Sequence[StrictShape]) -> _Pick | None:
    """Return the first required property with values that no two of these share."""
    objects = [leaf for leaf in leaves if isinstance(leaf, Object)]
    if len(objects) < len(leaves):
        return None
    for name in objects[0].slots:
        tagged = [(_key(tag), leaf) for leaf in objects for tag in _tags(leaf, name)]
        options: dict[Hashable, StrictShape] = dict(tagged)
        if len(options) == len(tagged) and all(_tags(leaf, name) for leaf in objects):
            return name, options
    return None


def _tags(leaf: Object, name: str) -> tuple[Any, ...]:
    slot = leaf.slots.get(name)
    if slot is None or slot.absence is not Absence.NEVER:
        return ()
    leaves = _leaves(slot.shape)
    only = leaves[0] if len(leaves) == 1 else None
    return only.values or () if isinstance(only, Value) else ()


def converted_definitions(definitions: Mapping[str, StrictShape]) -> frozenset[str]:
    """Return the definitions with an optional property, directly or through another."""
    inside = {name: _inside(shape) for name, shape in definitions.items()}
    fresh = {name for name, (optional, _) in inside.items() if optional}
    converted: set[str] = set()
    while fresh:
        converted |= fresh
        fresh = {name for name, (_, names) in inside.items() if names & converted} - converted
    return frozenset(converted)


def _inside(shape: StrictShape) -> tuple[bool, set[str]]:
    """Return whether a shape has an optional property, and the references that it has."""
    optional, references, waiting = False, set(), [shape]
    while waiting:
        current = waiting.pop()
        waiting.extend(current.parts())
        if isinstance(current, SchemaReference):
            references.add(current.name)
        elif isinstance(current, Object):
            absences = {slot.absence for slot in current.slots.values()}
            optional = optional or not absences <= {Absence.NEVER}
    return optional, references


def _leaves(shape: StrictShape) -> list[StrictShape]:
    """Yield the possible shapes of a value, with references and nested unions resolved."""
    leaves, seen, waiting = [], set(), [shape]
    while waiting:
        current = waiting.pop()
        if isinstance(current, Union):
            waiting.extend(reversed(current.variants))
        elif not isinstance(current, SchemaReference):
            leaves.append(current)
        elif current.name not in seen:
            seen.add(current.name)
            waiting.append(current.target)
    return leaves


def _key(value: Any) -> Hashable:
    """Return a scalar as a key that compares like JSON: 1 equals 1.0, and not true."""
    comparable = value is None or isinstance(value, str | int | float)
    return (isinstance(value, bool), value) if comparable else None


def _nullable(schema: Json) -> Json:
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], dict(_NULL)]}
    if {"properties", "items", "enum", "const", "$ref"}.isdisjoint(schema):
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {**schema, "type": [*types, "null"]}
    inner, notes = _apart(schema)
    return {"anyOf": [inner, dict(_NULL)], **notes}


def _wrapped(schema: Json) -> Json:
    inner, notes = _apart(schema)
    wrapper = {
        "type": "object",
        "properties": {"value": inner},
        "required": ["value"],
        "additionalProperties": False,
    }
    return {"anyOf": [dict(_NULL), wrapper], **notes}


def _apart(schema: Json) -> tuple[Json, Json]:
    notes = {key: schema[key] for key in _NOTES if key in schema}
    return {key: value for key, value in schema.items() if key not in notes}, notes
