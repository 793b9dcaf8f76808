"""Overlay files: an operator's entries for the tools of an upstream, with their places in the file.

`read_overlay` reads a file. The module `overlay` applies the entries to definitions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from counterseal.canonical import pointer, steps
from counterseal.contract.declare import ToolOptions, set_option
from counterseal.contract.model import NAME_PATTERN, Contract
from counterseal.documents import Document, kind_of, read_document
from counterseal.errors import ContractError, Problem, Source

RULE: Final = "overlay-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayEntry:
    """An overlay's entry for one tool."""

    declared: Mapping[str, Any] = field(default_factory=dict)
    """Options, by their names in `@tool`."""
    rename: str | None = None
    """The name that agents see."""
    hidden: bool = False
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Schema keywords for each argument; `remove: true` removes an optional argument."""
    redact: tuple[str, ...] = ()
    """JSON Pointers into the output; `*` stands for every item of a list."""
    annotations_reviewed: bool = False
    """Whether a person reviewed the annotations that contradict the effect, and rejected them."""
    place: str = ""
    """JSON Pointer into the overlay's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    server: str
    tools: Mapping[str, OverlayEntry]
    defaults: OverlayEntry | None = None
    """Applied before every entry."""
    rules: list[Any] = field(default_factory=list)
    """Policy rules, as written in the file."""
    path: Path
    document: Document = field(repr=False)

    def source(self, place: str) -> Source:
        """Return the place of a JSON Pointer in the file."""
        return self.document.source(place)

    def strays(self, listed: Iterable[str]) -> list[Problem]:
        """Return a problem for each entry of a tool that the upstream does not list."""
        known = sorted(set(listed))
        return [
            Problem(
                rule=RULE,
                tool=name,
                message=f"{self.server} has no tool {name}",
                fix=suggestion(name, known) or "Remove the entry.",
                pointer=entry.place,
                source=self.source(entry.place),
            )
            for name, entry in self.tools.items()
            if name not in known
        ]


def apply_entries(data: dict[str, Any], *entries: OverlayEntry | None) -> None:
    """Apply entries to a contract's data, in order. Changes the data."""
    for entry in entries:
        for name, value in entry.declared.items() if entry else ():
            set_option(data, name, value)


def locate_problem(problem: Problem, overlay: Overlay, entry: OverlayEntry) -> Problem:
    """Return a contract's problem with the overlay's name of the option and its place there."""
    for holder in (entry, overlay.defaults):
        for name in holder.declared if holder else ():
            data: dict[str, Any] = {}
            set_option(data, name, {} if name in Contract.model_fields else None)
            section, value = next(iter(data.items()))
            inside = pointer(section, *(value if isinstance(value, dict) else ()))
            if holder and (problem.pointer == inside or problem.pointer.startswith(f"{inside}/")):
                place = f"{holder.place}/{name}{problem.pointer[len(inside) :]}"
                dotted, message = inside[1:].replace("/", "."), problem.message
                if message.startswith(dotted):
                    problem = replace(problem, message=name + message[len(dotted) :])
                return problem.at(overlay.source(place))
    place = entry.place
    if problem.pointer == "/identity/name" and entry.rename is not None:
        place += "/rename"
    match steps(problem.pointer):
        case ["affordance", "input_schema", "properties", name, *_] if name in entry.arguments:
            place += pointer("arguments", name)
    return problem.at(overlay.source(place))


def contract_name(name: str) -> str:
    """Return a tool's name with underscores for characters that a contract's name can't have."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "_", name)


def suggestion(word: str, known: Collection[str]) -> str:
    """Return a fix for an unknown word: the nearest known one, or the list if it is short."""
    near = get_close_matches(str(word), list(known), n=1)
    if near:
        return f"Did you mean {near[0]}?"
    return f"Allowed: {', '.join(known)}." if known and len(known) < 10 else ""


# --- reading --------------------------------------------------------------------------------------


SERVER: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")

_NOT_HERE: Final = {
    "name": "rename it",
    "version": "it is the number of accepted definitions of the tool",
    "secrets": "the upstream's credentials are set where it is configured",
    "egress": "the upstream connects, not this process",
    "executed_by": "the upstream runs it, not the client",
    "isolation": "the upstream runs it, not this process",
    "memory_mb": "the upstream runs it, not this process",
    "runs_code": "the upstream runs it, not this process",
}
"""Options of `@tool` that an entry can't have, with the reason."""
_OWN: Final = ("rename", "hidden", "arguments", "redact", "annotations_reviewed")
DECLARED: Final = tuple(
    name for name in ToolOptions.__annotations__ if name not in (*_NOT_HERE, *_OWN)
)
_NOT_INSIDE: Final = (
    ("identity", "name", "Write `rename`."),
    ("identity", "version", "Leave it out: it is the number of accepted definitions."),
    ("runtime", "sandbox_isolated", "Leave it out: the upstream runs it, not this process."),
)
_PARTS: Final = ("server", "defaults", "tools", "rules")
_LISTS: Final = ("config_params", "state_reads")
_AFFORDANCE: Final = {"model_description": "-", "input_schema": {"type": "object"}}

Place = tuple[str | int, ...]


def read_overlay(path: str | Path) -> Overlay:
    """Return the overlay of a file. Raise ContractError with every problem and its place."""
    reader = _OverlayReader(read_document(path))
    data = reader.mapping(reader.file.data, (), "an overlay", _PARTS)
    server = data.get("server")
    named = isinstance(server, str) and SERVER.fullmatch(server)
    if isinstance(reader.file.data, Mapping) and not named:
        fault = (
            "server is missing" if server is None else f"{server!r} is not a valid upstream name"
        )
        fix = "Name the upstream as counterseal.toml does: `server: git` for [upstreams.git]."
        reader.problem(("server",), fault, fix)
    defaults = None
    if data.get("defaults") is not None:
        defaults = reader.entry(data["defaults"], ("defaults",), "`defaults`", DECLARED)
        reader.shape(defaults, None)
    sound = defaults if not reader.problems else None
    tools: dict[str, OverlayEntry] = {}
    for name, given in reader.mapping(data.get("tools"), ("tools",), "`tools`").items():
        place = ("tools", name)
        tools[name] = entry = reader.entry(given, place, "an entry", (*DECLARED, *_OWN))
        reader.shape(entry, sound, tool=name)
        effect = "effect" in entry.declared or "effect" in (defaults.declared if defaults else ())
        if isinstance(given, Mapping | None) and not entry.hidden and not effect:
            fix = "Declare its effect, like `effect: retrieve`, or hide it with `hidden: true`."
            reader.problem(place, f"{name} has no effect", fix)
    shown_as: dict[str, str] = {}
    for name, entry in tools.items():
        shown = contract_name(entry.rename or name)
        first = name if entry.hidden else shown_as.setdefault(shown, name)
        if first != name:
            here = ("tools", name, *(["rename"] if entry.rename else []))
            fault = f"{first} and {name} would both be called {shown}"
            reader.problem(here, fault, "Rename one of them, or hide it.")
    rules = reader.items(data.get("rules"), ("rules",), "`rules`")
    if reader.problems:
        raise ContractError(reader.problems)
    return Overlay(
        server=str(server),
        tools=tools,
        defaults=defaults,
        rules=rules,
        path=Path(path),
        document=reader.file,
    )


class _OverlayReader:
    """Reads the parts of an overlay, and collects the problems."""

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
            # A key without a value counts as missing; an empty file is an error.
            if value is not None or not place:
                self.problem(place, f"{what} must be a mapping, not {kind_of(value)}")
            return {}
        for key in value if known else ():
            if key not in known:
                why = _NOT_HERE.get(key, "") if place else ""
                fix = f"Leave it out: {why}." if why else suggestion(key, known)
                fix = "Write `rename`." if key == "name" and place else fix
                self.problem((*place, key), f"{key} is not a field of {what}", fix)
        return value

    def items(self, value: Any, place: Place, what: str) -> list[Any]:
        if value is not None and not isinstance(value, list):
            self.problem(place, f"{what} must be a list, not {kind_of(value)}")
        return value if isinstance(value, list) else []

    def entry(self, value: Any, place: Place, what: str, known: Collection[str]) -> OverlayEntry:
        data = self.mapping(value, place, what, known)
        declared = {name: data[name] for name in data if name in DECLARED}
        for name in _LISTS:
            if name in declared and not isinstance(declared[name], list):
                self.items(declared.pop(name), (*place, name), name)
        for section, name, why in _NOT_INSIDE:
            held = declared.get(section)
            if isinstance(held, Mapping) and name in held:
                self.problem((*place, section, name), f"{name} can't be set here", why)
        own = {name: data[name] for name in data if name in _OWN and name in known}
        return OverlayEntry(
            declared=declared,
            rename=self._rename(own, place),
            hidden=self._flag(own, place, "hidden"),
            arguments=self._arguments(own, place),
            redact=tuple(self._pointers(own, place)),
            annotations_reviewed=self._flag(own, place, "annotations_reviewed"),
            place=pointer(*place),
        )

    def shape(self, entry: OverlayEntry, defaults: OverlayEntry | None, tool: str = "") -> None:
        """Add a problem for each declared option that no contract could have."""
        if not entry.declared:
            return
        data: dict[str, Any] = {"identity": {"name": "tool"}, "affordance": dict(_AFFORDANCE)}
        try:
            apply_entries(data, defaults, entry)
            Contract.model_validate(data)
        except ContractError as error:
            overlay = Overlay(
                server="", tools={}, defaults=defaults, path=Path(), document=self.file
            )
            self.problems += [
                locate_problem(problem.of(tool), overlay, entry) for problem in error.problems
            ]

    def _flag(self, own: Mapping[str, Any], place: Place, name: str) -> bool:
        value = own.get(name, False)
        if not isinstance(value, bool):
            self.problem((*place, name), f"{name} must be true or false, not {kind_of(value)}")
        return value is True

    def _rename(self, own: Mapping[str, Any], place: Place) -> str | None:
        name = own.get("rename")
        if isinstance(name, str) and re.fullmatch(NAME_PATTERN[1:-1], name):
            return name
        if "rename" in own:
            shown = repr(name) if isinstance(name, str) else kind_of(name)
            fix = "Use 1 to 128 of a-z, A-Z, 0-9, '_', '.', '-'."
            self.problem((*place, "rename"), f"{shown} is not a tool name", fix)
        return None

    def _arguments(self, own: Mapping[str, Any], place: Place) -> dict[str, Mapping[str, Any]]:
        here = (*place, "arguments")
        given = self.mapping(own.get("arguments"), here, "`arguments`")
        arguments = {}
        for name, value in given.items():
            keywords = self.mapping(value, (*here, name), f"the argument {name}")
            arguments[name] = keywords
            remove = keywords.get("remove", True)
            if remove is not True or ("remove" in keywords and len(keywords) > 1):
                fix = "Write `remove: true` alone, or leave it out."
                message = "remove must be true, without other keywords"
                self.problem((*here, name, "remove"), message, fix)
        return arguments

    def _pointers(self, own: Mapping[str, Any], place: Place) -> Iterator[str]:
        here = (*place, "redact")
        for at, item in enumerate(self.items(own.get("redact"), here, "`redact`")):
            if isinstance(item, str) and re.fullmatch(r"(?:/(?:[^~/]|~[01])*)+", item):
                yield item
            else:
                fix = "Write it like /author/email, or /items/*/email for each item of a list."
                shown = ascii(item)[:60] if isinstance(item, str) else kind_of(item)
                self.problem((*here, at), f"{shown} is not a JSON Pointer", fix)
