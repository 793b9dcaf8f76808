"""Overlay files, read with file, line and column: everything that is wrong at once.

An entry takes what `@tool` takes, as far as it makes sense for a tool that somebody else runs, and
a few words of its own: `rename`, `hidden`, `arguments`, `redact`, `annotations_reviewed`. Whether
it fits the tool is found out when the two are laid together, in `overlay`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from counterseal.canonical import pointer
from counterseal.contract.declare import ToolOptions
from counterseal.contract.model import NAME_PATTERN, Contract
from counterseal.contract.sources.mcp.entries import (
    RULE,
    Entry,
    Overlay,
    blame,
    contract_name,
    lay,
    meant,
)
from counterseal.documents import Document, read_document
from counterseal.errors import ContractError, Problem

__all__ = ["DECLARED", "read_overlay"]

SERVER: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")

_NOT_HERE: Final = {
    "name": "rename it",
    "version": "it is counted by how many definitions of the tool were accepted",
    "secrets": "the upstream's credentials are set where it is configured",
    "egress": "the upstream connects, not this process",
    "isolation": "the upstream runs it, not this process",
    "memory_mb": "the upstream runs it, not this process",
    "runs_code": "the upstream runs it, not this process",
}
"""What `@tool` takes and an entry does not, and why."""
_OWN: Final = ("rename", "hidden", "arguments", "redact", "annotations_reviewed")
_BESIDE: Final = {*_NOT_HERE, *_OWN}
DECLARED: Final = tuple(name for name in ToolOptions.__annotations__ if name not in _BESIDE)
_NOT_INSIDE: Final = (
    ("identity", "name", "Write `rename`."),
    ("identity", "version", "Leave it out: it is counted by what was accepted."),
    ("runtime", "sandbox_isolated", "Leave it out: the upstream runs it, not this process."),
)
_PARTS: Final = ("server", "defaults", "tools", "rules")
_LISTS: Final = ("config_params", "state_reads")
_STAND_IN: Final = {"model_description": "-", "input_schema": {"type": "object"}}

Place = tuple[str | int, ...]


def read_overlay(path: str | Path) -> Overlay:
    """A file's overlay. ContractError holds everything that is wrong with it, with its place."""
    reader = _Reader(read_document(path))
    data = reader.mapping(reader.file.data, (), "an overlay", _PARTS)
    server = reader.server(data)
    defaults = None
    if data.get("defaults") is not None:
        defaults = reader.entry(data["defaults"], ("defaults",), "`defaults`", DECLARED)
        reader.shape(defaults, None)
    sound = defaults if not reader.problems else None
    tools: dict[str, Entry] = {}
    for name, given in reader.mapping(data.get("tools"), ("tools",), "`tools`").items():
        place = ("tools", name)
        tools[name] = entry = reader.entry(given, place, "an entry", (*DECLARED, *_OWN))
        reader.shape(entry, sound, tool=name)
        effect = "effect" in entry.declared or "effect" in (defaults.declared if defaults else ())
        if isinstance(given, Mapping | None) and not entry.hidden and not effect:
            fix = "Say what it does: `effect: retrieve`, …; or `hidden: true`."
            reader.problem(place, f"{name} has no effect", fix)
    reader.twice(tools)
    rules = reader.items(data.get("rules"), ("rules",), "`rules`")
    if reader.problems:
        raise ContractError(reader.problems)
    return Overlay(
        server=server,
        tools=tools,
        defaults=defaults,
        rules=rules,
        path=Path(path),
        document=reader.file,
    )


class _Reader:
    """Takes an overlay's parts out of a document, and remembers what was wrong with them."""

    def __init__(self, file: Document) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def problem(self, place: Place, message: str, fix: str = "") -> None:
        where = pointer(*place)
        tool = str(place[1]) if place[:1] == ("tools",) and len(place) > 1 else ""
        source = self.file.source(where)
        self.problems.append(
            Problem(rule=RULE, message=message, fix=fix, pointer=where, tool=tool, source=source)
        )

    def mapping(
        self, value: Any, place: Place, what: str, known: Collection[str] = ()
    ) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            # A key with nothing behind it is as good as none, but a file with nothing in it is not.
            if value is not None or not place:
                self.problem(place, f"{what} is a mapping, not {_kind(value)}")
            return {}
        for key in value if known else ():
            if key not in known:
                why = _NOT_HERE.get(key, "") if place else ""
                fix = f"Leave it out: {why}." if why else meant(key, known)
                fix = "Write `rename`." if key == "name" and place else fix
                self.problem((*place, key), f"{key} is not a field of {what}", fix)
        return value

    def items(self, value: Any, place: Place, what: str) -> list[Any]:
        if value is not None and not isinstance(value, list):
            self.problem(place, f"{what} is a list, not {_kind(value)}")
        return value if isinstance(value, list) else []

    def server(self, data: Mapping[str, Any]) -> str:
        name = data.get("server")
        if isinstance(name, str) and SERVER.fullmatch(name):
            return name
        if isinstance(self.file.data, Mapping):
            message = "server is missing" if name is None else f"{name!r} is no upstream's name"
            fix = "Name the upstream as counterseal.toml does: `server: git` for [upstreams.git]."
            self.problem(("server",), message, fix)
        return ""

    def entry(self, value: Any, place: Place, what: str, known: Collection[str]) -> Entry:
        data = self.mapping(value, place, what, known)
        declared = {name: data[name] for name in data if name in DECLARED}
        for name in _LISTS:
            if name in declared and not isinstance(declared[name], list):
                self.items(declared.pop(name), (*place, name), name)
        for section, name, why in _NOT_INSIDE:
            held = declared.get(section)
            if isinstance(held, Mapping) and name in held:
                self.problem((*place, section, name), f"{name} has no place here", why)
        own = {name: data[name] for name in data if name in _OWN and name in known}
        return Entry(
            declared=declared,
            rename=self._rename(own, place),
            hidden=self._flag(own, place, "hidden"),
            arguments=self._arguments(own, place),
            redact=tuple(self._pointers(own, place)),
            annotations_reviewed=self._flag(own, place, "annotations_reviewed"),
            place=pointer(*place),
        )

    def shape(self, entry: Entry, defaults: Entry | None, tool: str = "") -> None:
        """Whether a contract could hold what is declared, whatever the tool is."""
        if not entry.declared:
            return
        data: dict[str, Any] = {"identity": {"name": "tool"}, "affordance": dict(_STAND_IN)}
        try:
            lay(data, defaults, entry)
            Contract.model_validate(data)
        except ContractError as error:
            stand_in = Overlay(
                server="", tools={}, defaults=defaults, path=Path(), document=self.file
            )
            placed = (blame(problem.of(tool), stand_in, entry) for problem in error.problems)
            self.problems += placed

    def twice(self, tools: Mapping[str, Entry]) -> None:
        """Two tools that agents would see under one name."""
        shown: dict[str, str] = {}
        for name, entry in tools.items():
            if entry.hidden:
                continue
            seen = contract_name(entry.rename or name)
            first = shown.setdefault(seen, name)
            if first != name:
                place = ("tools", name, "rename") if entry.rename else ("tools", name)
                fix = "Rename one of them, or hide it."
                self.problem(place, f"{first} and {name} would both be called {seen}", fix)

    def _flag(self, own: Mapping[str, Any], place: Place, name: str) -> bool:
        value = own.get(name, False)
        if not isinstance(value, bool):
            self.problem((*place, name), f"{name} is true or false, not {_kind(value)}")
        return value is True

    def _rename(self, own: Mapping[str, Any], place: Place) -> str | None:
        if "rename" not in own:
            return None
        name = own["rename"]
        if isinstance(name, str) and re.fullmatch(NAME_PATTERN[1:-1], name):
            return name
        shown = repr(name) if isinstance(name, str) else _kind(name)
        fix = "Use 1 to 128 of a-z, A-Z, 0-9, '_', '.', '-'."
        self.problem((*place, "rename"), f"{shown} is not a tool name", fix)
        return None

    def _arguments(self, own: Mapping[str, Any], place: Place) -> dict[str, Mapping[str, Any]]:
        here = (*place, "arguments")
        given = self.mapping(own.get("arguments"), here, "`arguments`")
        found = {}
        for name, keywords in given.items():
            found[name] = self.mapping(keywords, (*here, name), f"the argument {name}")
            remove = found[name].get("remove", True)
            if remove is not True or ("remove" in found[name] and len(found[name]) > 1):
                fix = "Write `remove: true` alone, or leave it out."
                self.problem((*here, name, "remove"), "remove is true, and stands alone", fix)
        return found

    def _pointers(self, own: Mapping[str, Any], place: Place) -> Iterator[str]:
        here = (*place, "redact")
        for at, item in enumerate(self.items(own.get("redact"), here, "`redact`")):
            if isinstance(item, str) and re.fullmatch(r"(?:/(?:[^~/]|~[01])*)+", item):
                yield item
            else:
                fix = "Write it like /author/email, or /items/*/email for each of a list."
                self.problem((*here, at), f"{_shown(item)} is no JSON Pointer", fix)


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "a text", bool: "a yes or no"}
    return "empty" if value is None else names.get(type(value), "a number")


def _shown(value: Any) -> str:
    return ascii(value)[:60] if isinstance(value, str) else _kind(value)
