"""A packet's outline, laid out for a page: which row stands where. Nothing is left out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from counterseal.approvals.display import Part, name_of, value_parts
from counterseal.approvals.packet import Packet
from counterseal.approvals.packet_formats import PacketLine, PacketRow, outline

__all__ = ["Argument", "Card", "Difference", "card"]

_CHARACTERS: Final = 10_000
_VALUES: Final = 1_000
_ORIGINS: Final = {
    "from the user": "user",
    "from a trusted tool": "trusted",
    "from untrusted text": "untrusted",
}
"""What the outline says of where an argument comes from, and its style."""
_FACTS: Final = ("Action", "Target", "Reversible", "If rejected")
_PEOPLE: Final = ("Asked by", "Why", "Approval", "Data class")
_IDS: Final = ("Fingerprint", "Approval id", "Trace id", "Contract")
_ELSEWHERE: Final = ("If approved", "Arguments", "Config", "Before", "After", "So far", "Expires")
"""Rows with a place of their own on the page."""


class Argument(NamedTuple):
    """One value that the call is made with, and where it comes from, as far as known."""

    name: str
    parts: tuple[Part, ...]
    origin: str = ""
    style: str = ""


class Difference(NamedTuple):
    """A place in the state: as it is, and as it is expected to become."""

    name: str
    before: tuple[Part, ...]
    after: tuple[Part, ...] | None
    """None: as before."""


class Card(NamedTuple):
    title: str
    risk: str
    sentence: tuple[Part, ...]
    facts: tuple[PacketRow, ...]
    arguments: tuple[Argument, ...]
    config: tuple[PacketLine, ...]
    differences: tuple[Difference, ...]
    expected: tuple[PacketLine, ...]
    """What is expected, where nothing is known of what is now."""
    votes: tuple[PacketLine, ...]
    people: tuple[PacketRow, ...]
    ids: tuple[PacketRow, ...]
    more: tuple[PacketRow, ...]
    """What the outline says besides."""


def card(packet: Packet, *, now: float) -> Card:
    """The packet as a page shows it."""
    told = outline(packet, now=now, characters=_CHARACTERS, values=_VALUES)
    rows = {row.label: row for group in told.groups for row in group}
    placed = {*_FACTS, *_PEOPLE, *_IDS, *_ELSEWHERE}
    before = _lines(rows, "Before")
    return Card(
        title=told.title,
        risk=told.risk,
        sentence=packet.sentence,
        facts=_named(rows, _FACTS),
        arguments=tuple(_argument(line) for line in _lines(rows, "Arguments")),
        config=_lines(rows, "Config"),
        differences=tuple(_differences(packet, before)),
        expected=() if packet.changes or before else _lines(rows, "After"),
        votes=_lines(rows, "So far")[1:],
        people=_named(rows, _PEOPLE),
        ids=_named(rows, _IDS),
        more=tuple(row for label, row in rows.items() if label not in placed),
    )


def _named(rows: dict[str, PacketRow], labels: Sequence[str]) -> tuple[PacketRow, ...]:
    return tuple(rows[label] for label in labels if label in rows)


def _lines(rows: dict[str, PacketRow], label: str) -> tuple[PacketLine, ...]:
    return rows[label].lines if label in rows else ()


def _argument(line: PacketLine) -> Argument:
    """The outline puts the origin behind the value, in brackets."""
    *rest, last = line.parts
    said = last.text.strip(" ()")
    if rest and not last.value and said in _ORIGINS:
        return Argument(line.name, tuple(rest), said, _ORIGINS[said])
    return Argument(line.name, line.parts)


def _differences(packet: Packet, before: Sequence[PacketLine]) -> Iterator[Difference]:
    """What changes first, then what stays."""
    for change in packet.changes:
        yield Difference(
            name_of(change.pointer[1:]) if change.pointer else "",
            tuple(value_parts(change.before, _CHARACTERS)),
            tuple(value_parts(change.after, _CHARACTERS)),
        )
    changed = {change.pointer[1:] for change in packet.changes}
    names = {name_of(place) for place in changed}
    for line in before:
        if line.name not in names and not any(line.name.startswith(f"{one}/") for one in changed):
            yield Difference(line.name, line.parts, None)
