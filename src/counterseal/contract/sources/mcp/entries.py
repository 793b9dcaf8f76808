"""Entries: what an overlay says of the tools of an upstream, and where it says so.

`reading` makes them of a file, `overlay` lays them over definitions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from counterseal.canonical import pointer
from counterseal.contract.declare import set_option
from counterseal.contract.model import Contract
from counterseal.documents import Document
from counterseal.errors import Problem, Source

__all__ = ["RULE", "Entry", "Overlay", "blame", "contract_name", "lay", "meant"]

RULE: Final = "overlay-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What an overlay says of one tool."""

    declared: Mapping[str, Any] = field(default_factory=dict)
    """By the names that `@tool` has."""
    rename: str | None = None
    """The name that agents see."""
    hidden: bool = False
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keywords laid over the schemas of arguments; `remove: true` takes an optional one away."""
    redact: tuple[str, ...] = ()
    """JSON Pointers into the output; `*` stands for every item of a list."""
    annotations_reviewed: bool = False
    """Whether a person looked at annotations that say more than the effect, and disagrees."""
    place: str = ""
    """JSON Pointer into the overlay's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    server: str
    tools: Mapping[str, Entry]
    defaults: Entry | None = None
    """Laid under every entry."""
    rules: list[Any] = field(default_factory=list)
    """Policy rules, as they stand in the file."""
    path: Path
    document: Document = field(repr=False)

    def source(self, place: str) -> Source:
        """Where a JSON Pointer stands in the file."""
        return self.document.source(place)

    def strays(self, listed: Iterable[str]) -> list[Problem]:
        """The entries of tools that the upstream does not list."""
        known = sorted(set(listed))
        return [
            Problem(
                rule=RULE,
                tool=name,
                message=f"{self.server} has no tool {name}",
                fix=meant(name, known) or "Take the entry out.",
                pointer=entry.place,
                source=self.source(entry.place),
            )
            for name, entry in self.tools.items()
            if name not in known
        ]


def landing(name: str) -> str:
    """Where one of the declared names lands in a contract, as a JSON Pointer."""
    data: dict[str, Any] = {}
    set_option(data, name, {} if name in Contract.model_fields else None)
    section, value = next(iter(data.items()))
    return pointer(section, *(value if isinstance(value, dict) else ()))


def lay(data: dict[str, Any], *entries: Entry | None) -> None:
    """Lay entries over a contract's data, the later ones upon the earlier. Changes the data."""
    for entry in entries:
        for name, value in entry.declared.items() if entry else ():
            set_option(data, name, value)


def blame(problem: Problem, overlay: Overlay, entry: Entry) -> Problem:
    """A contract's problem, told in the words of the overlay and placed where it stands there."""
    for holder in (entry, overlay.defaults):
        for name in holder.declared if holder else ():
            lands = landing(name)
            if holder and (problem.pointer == lands or problem.pointer.startswith(f"{lands}/")):
                place = f"{holder.place}/{name}{problem.pointer[len(lands) :]}"
                return _told(problem, lands, name).at(overlay.source(place))
    place = entry.place
    if problem.pointer == "/identity/name" and entry.rename is not None:
        place += "/rename"
    argument = _argument(problem.pointer)
    if argument in entry.arguments:
        place += pointer("arguments", argument)
    return problem.at(overlay.source(place))


def _argument(place: str) -> str:
    parts = place.split("/")
    if parts[1:4] != ["affordance", "input_schema", "properties"] or len(parts) < 5:
        return ""
    return parts[4].replace("~1", "/").replace("~0", "~")


def _told(problem: Problem, lands: str, name: str) -> Problem:
    dotted = lands[1:].replace("/", ".")
    if not problem.message.startswith(dotted):
        return problem
    return replace(problem, message=name + problem.message[len(dotted) :])


def contract_name(name: str) -> str:
    """A tool's name with what a contract's can't have replaced."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "_", name)


def meant(word: str, known: Collection[str]) -> str:
    """What to do about a word that nobody knows."""
    near = get_close_matches(str(word), list(known), n=1)
    if near:
        return f"Did you mean {near[0]}?"
    return f"It takes {', '.join(known)}." if known and len(known) < 10 else ""
