"""How a tool's page shows its contract, and changes of an MCP server's definition.

`words.yaml` lists the parts of a contract. Parts that it does not name are shown at the end, so
that a new part is visible before it gets a place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from counterseal.canonical import at, pointer, thaw
from counterseal.contract.schema_diff import ChangeKind
from counterseal.contract.schemas import Parameter, parameters
from counterseal.contract.sources.foreign_text import visible
from counterseal.views.tools import DefinitionChangeRow
from counterseal.web.console.rendering import WORDS

# --- contracts ------------------------------------------------------------------------------------

_SECTIONS: Final[Mapping[str, Mapping[str, str] | str]] = WORDS["contract"]
"""For each section, the label and JSON Pointer of its parts, or the pointer of a schema."""
_ELSEWHERE: Final = frozenset({"/identity/name", "/identity/version"})
"""Shown in the page's heading."""
_UNITS: Final = {
    "/runtime/timeout_ms": "ms",
    "/memory_mb": "MB",
    "/max_output_bytes": "bytes",
    "/verify_after": "s",
}
_HIDDEN_AT_ZERO: Final = frozenset({"/verify_after"})
_KNOWN: Final = _ELSEWHERE.union(
    *([rows] if isinstance(rows, str) else rows.values() for rows in _SECTIONS.values())
)


class ContractFact(NamedTuple):
    """One line: text, or JSON if text is not enough."""

    label: str
    text: str
    json: Any = None


class ContractPart(NamedTuple):
    """A section of a contract: facts, or the fields of a schema."""

    title: str
    facts: tuple[ContractFact, ...] = ()
    fields: tuple[Parameter, ...] = ()
    note: str = ""


def contract_sections(contract: Mapping[str, Any]) -> list[ContractPart]:
    """Return the sections of a contract's record that have content."""
    sections = [_section(title, rows, contract) for title, rows in _SECTIONS.items()]
    sections.append(ContractPart("Other", tuple(_other(contract, ()))))
    return [section for section in sections if section.facts or section.fields or section.note]


def _section(
    title: str, rows: Mapping[str, str] | str, contract: Mapping[str, Any]
) -> ContractPart:
    if not isinstance(rows, str):
        facts = (_fact(label, place, at(contract, place)) for label, place in rows.items())
        return ContractPart(title, tuple(fact for fact in facts if fact is not None))
    schema = at(contract, rows)
    if not isinstance(schema, Mapping):
        return ContractPart(title)
    fields = tuple(parameters(schema))
    closed = schema.get("additionalProperties") is False
    note = "" if fields else "No fields." if closed else "Any object."
    return ContractPart(title, fields=fields, note=note)


def _fact(label: str, place: str, value: Any) -> ContractFact | None:
    plain = thaw(value)
    empty = plain is None or plain in ("", [], {})
    if empty or (plain == 0 and place in _HIDDEN_AT_ZERO):
        return None
    words = _words(plain)
    if words is None:
        return ContractFact(label, "", plain)
    unit = _UNITS.get(place)
    return ContractFact(label, f"{words} {unit}" if unit else words)


def _words(value: Any) -> str | None:
    """Return a plain value, a list or pairs of such as text; None if it needs more than a line."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,g}"
        case str():
            return value
        case list() if all(isinstance(item, str) for item in value):
            return ", ".join(value)
        case dict() if all(_flat(item) for item in value.values()):
            given = {name: item for name, item in value.items() if item not in (None, [])}
            return "; ".join(
                f"{name.replace('_', ' ')} {_words(item)}" for name, item in given.items()
            )
    return None


def _flat(value: Any) -> bool:
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value is None or texts or isinstance(value, str | int | float)


def _other(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[ContractFact]:
    """Yield the parts that no section names."""
    for name, part in value.items():
        place = pointer(*path, name)
        if place in _KNOWN:
            continue
        inside = any(known.startswith(f"{place}/") for known in _KNOWN)
        if inside and isinstance(part, Mapping):
            yield from _other(part, (*path, name))
        elif (fact := _fact(place, place, part)) is not None:
            yield fact


# --- changed definitions --------------------------------------------------------------------------

_TOKEN: Final = re.compile(r"⟨[^⟩]*⟩|\s+|\w+|[^\w\s]")
_MOST_TOKENS: Final = 2_000
_TONES: Final = {
    ChangeKind.LOOSER: ("bad", "wider"),
    ChangeKind.TIGHTER: ("info", "stricter"),
    ChangeKind.OTHER: ("warn", "different"),
    ChangeKind.WORDS: ("warn", "words"),
}


class TextPiece(NamedTuple):
    """A piece of a changed text."""

    how: str
    """same, removed or added."""
    text: str


class ShownChange(NamedTuple):
    """One change of a definition, with invisible characters spelt out."""

    pointer: str
    tone: str
    kind: str
    text: str
    pieces: tuple[TextPiece, ...]
    """Both texts merged; empty if one is missing or too long."""
    before: str
    after: str


def shown_changes(changes: Sequence[DefinitionChangeRow]) -> list[ShownChange]:
    """Return every change of a definition, in its order."""
    shown = []
    for change in changes:
        tone, kind = _TONES[ChangeKind(change.kind)]
        texts = isinstance(change.before, str) and isinstance(change.after, str)
        pieces = tuple(_pieces(change.before, change.after)) if texts else ()
        before, after = _as_text(change.before), _as_text(change.after)
        place = visible(change.pointer)
        shown.append(ShownChange(place, tone, kind, change.text, pieces, before, after))
    return shown


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return visible(value or "")
    return visible(json.dumps(thaw(value), ensure_ascii=False, indent=2))


def _pieces(before: str, after: str) -> Iterator[TextPiece]:
    old, new = _TOKEN.findall(visible(before)), _TOKEN.findall(visible(after))
    if len(old) > _MOST_TOKENS or len(new) > _MOST_TOKENS:
        return
    for what, first, last, start, end in SequenceMatcher(None, old, new).get_opcodes():
        if what == "equal":
            yield TextPiece("same", "".join(old[first:last]))
            continue
        if first < last:
            yield TextPiece("removed", "".join(old[first:last]))
        if start < end:
            yield TextPiece("added", "".join(new[start:end]))
