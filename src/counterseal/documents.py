"""Read YAML and JSON files as plain data with the line and column of every value.

Files that are too large, nested too deeply, or ambiguous (aliases, duplicate keys, custom tags,
bytes that are not UTF-8) are refused with their position. This module does not know what a document
means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from counterseal.canonical import MAX_DEPTH, pointer
from counterseal.errors import ContractError, Problem, Source

MAX_BYTES = 256 * 1024
SUFFIXES = (".yaml", ".yml", ".json")

_MAX_DIGITS = 30
Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The data of a file. `places` maps JSON Pointers to line and column."""

    name: str
    data: Any
    places: Mapping[str, Place]

    def source(self, place: str) -> Source:
        """Return the position of a JSON Pointer, or of the nearest value around it."""
        while place and place not in self.places:
            place = place.rpartition("/")[0]
        line, column = self.places.get(place, (1, 1))
        return Source(file=self.name, line=line, column=column)


def kind_of(value: Any) -> str:
    """Return what a value is, for a sentence such as "must be a list, not a text"."""
    names = {dict: "a mapping", list: "a list", str: "a text", bool: "true or false"}
    empty = value is None or (isinstance(value, str) and not value.strip())
    return "empty" if empty else names.get(type(value), "a number")


def read_document(path: str | Path) -> Document:
    """Read a YAML or JSON file. ContractError says where it is unreadable, and why."""
    path = Path(path)
    name = str(path)
    if path.suffix not in SUFFIXES:
        expected = ", ".join(SUFFIXES)
        _refuse(name, f"the suffix is {path.suffix or 'missing'}; expected {expected}")
    try:
        size = path.stat().st_size
        raw = path.read_bytes() if size <= MAX_BYTES else b""
    except OSError as error:
        _refuse(name, f"can't be opened: {error.strerror}")
    if size > MAX_BYTES:
        _refuse(name, f"the file has {size:,} bytes; the limit is {MAX_BYTES:,}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        place = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        _refuse(name, f"byte 0x{raw[error.start]:02x} is not UTF-8", place)
    return _read_json(name, text) if path.suffix == ".json" else read_yaml(name, text)


def _read_json(name: str, text: str) -> Document:
    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("an object has the same key twice")
        return dict(pairs)

    try:
        data = json.loads(text, object_pairs_hook=mapping, parse_int=_integer)
    except json.JSONDecodeError as error:
        _refuse(name, f"not JSON: {error.msg.lower()}", (error.lineno, error.colno))
    except RecursionError:
        data, fault = None, f"nested deeper than {MAX_DEPTH} levels"
    except ValueError as error:
        data, fault = None, str(error)
    else:
        fault = ""
    # Parsing the text again as YAML gives the positions. In valid JSON a raw tab can only be white
    # space, and YAML does not accept tabs.
    try:
        places = read_yaml(name, text.replace("\t", " ")).places
    except ContractError as error:
        if fault or not error.problems[0].message.startswith("not YAML"):
            raise
        places = {}  # JSON that YAML can't parse: the data is valid, but has no positions
    if fault:
        _refuse(name, fault)
    return Document(name=name, data=data, places=places)


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(text)} digits; the limit is {_MAX_DIGITS}")
    return int(text)


def read_yaml(name: str, text: str) -> Document:
    """Read YAML that is no file. ContractError says where it is unreadable, and why."""
    builder = _Builder(name)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            builder.take(event)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        _refuse(name, f"not YAML: {error.problem or error.context}", place)
    except YAMLError as error:
        _refuse(name, f"not YAML: {str(error).splitlines()[0]}")
    return Document(name=name, data=builder.root, places=builder.places)


@dataclass(slots=True)
class _Open:
    """A mapping or a list whose end has not been parsed yet."""

    path: tuple[str | int, ...]
    value: dict[str, Any] | list[Any]
    key: str | None = None
    """The last key, while its value has not been parsed."""


@dataclass(slots=True)
class _Builder:
    """Builds data from the parser's events without recursion."""

    name: str
    root: Any = None
    places: dict[str, Place] = field(default_factory=dict)
    open: list[_Open] = field(default_factory=list)
    documents: int = 0

    def take(self, event: Any) -> None:
        place = (event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                _refuse(self.name, "the file has several documents; write one list instead", place)
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            self.open.pop()
        elif not isinstance(event, NodeEvent):
            return
        elif event.anchor is not None or isinstance(event, AliasEvent):
            _refuse(self.name, "anchors and aliases are not supported; repeat the value", place)
        elif self.open and isinstance(self.open[-1].value, dict) and self.open[-1].key is None:
            inside = self.open[-1]
            if not isinstance(event, ScalarEvent):
                _refuse(self.name, "a key must be plain text, not a list or a mapping", place)
            if event.value in inside.value:
                _refuse(self.name, f"the key {event.value!r} occurs twice", place)
            inside.key = event.value
            self.places[pointer(*inside.path, event.value)] = place
        elif isinstance(event, ScalarEvent):
            self._put(_scalar(self.name, event, place), place)
        else:
            self._begin(event, place)

    def _begin(self, event: Any, place: Place) -> None:
        if len(self.open) >= MAX_DEPTH:
            _refuse(self.name, f"nested deeper than {MAX_DEPTH} levels", place)
        core = "map" if isinstance(event, MappingStartEvent) else "seq"
        if event.tag is not None and str(event.tag) != f"tag:yaml.org,2002:{core}":
            _refuse(self.name, f"the tag {event.tag} is not supported", place)
        value: dict[str, Any] | list[Any] = [] if isinstance(event, SequenceStartEvent) else {}
        self.open.append(_Open(self._put(value, place), value))

    def _put(self, value: Any, place: Place) -> tuple[str | int, ...]:
        """Add a value to the innermost open mapping or list, and return its path."""
        path: tuple[str | int, ...] = ()
        if not self.open:
            self.root = value
        else:
            inside = self.open[-1]
            if isinstance(inside.value, list):
                path = (*inside.path, len(inside.value))
                inside.value.append(value)
            else:
                path = (*inside.path, inside.key or "")
                inside.value[inside.key or ""] = value
                inside.key = None
        self.places.setdefault(pointer(*path), place)
        return path


# The core schema of YAML 1.2. Dates stay text, because JSON has no dates.
_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def _scalar(name: str, event: Any, place: Place) -> Any:
    text = event.value
    if event.tag is not None:
        if str(event.tag) != "tag:yaml.org,2002:str":
            _refuse(name, f"the tag {event.tag} is not supported", place)
        return text
    if event.style is not None:
        return text  # quoted or block style: always text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            _refuse(name, f"a number has {len(text)} digits; the limit is {_MAX_DIGITS}", place)
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _refuse(name: str, message: str, place: Place = (1, 1)) -> NoReturn:
    source = Source(file=name, line=place[0], column=place[1])
    raise ContractError([Problem(rule="file-unreadable", message=message, source=source)])
