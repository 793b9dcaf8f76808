"""What a packet says, in the order in which it is read. Every renderer shows exactly this.

The consequence comes first, then what is acted on and with what, what changes, whether it can be
undone, what happens otherwise and until when; then who asks whom and why; ids at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from counterseal.approvals.packet import Packet
from counterseal.approvals.patterns import PATTERNS, who_may
from counterseal.approvals.plain import (
    Part,
    clock,
    fill,
    leaves,
    name_of,
    span,
    value_parts,
    visible,
)
from counterseal.approvals.votes import Choice, Vote

__all__ = ["Line", "Outline", "Row", "outline"]

_ORIGINS: Final = {
    "user": "from the user",
    "trusted": "from a trusted tool",
    "untrusted": "from untrusted text",
}


class Line(NamedTuple):
    """One statement; a name where it is about a field of something."""

    parts: tuple[Part, ...]
    name: str = ""


class Row(NamedTuple):
    label: str
    lines: tuple[Line, ...]


class Outline(NamedTuple):
    title: str
    risk: str
    groups: tuple[tuple[Row, ...], ...]


def outline(packet: Packet, *, now: float | None, characters: int, values: int) -> Outline:
    """The packet in rows. Of a text so many characters are shown, of an object so many values."""
    groups = (
        (_row("If approved", packet.sentence),),
        (
            _row("Action", _action(packet)),
            _row("Target", fill(packet.target) if packet.target else ()),
            Row("Arguments", tuple(_arguments(packet, characters, values))),
            Row("Config", tuple(_fields(packet.config, characters, values))),
        ),
        tuple(_state(packet, characters, values)),
        (
            _row("Reversible", [Part(packet.reversibility)]),
            _row("If rejected", [Part(visible(packet.if_rejected))]),
            _row("Expires", [Part(_expiry(packet, now))]),
        ),
        (
            _row("Asked by", _requester(packet)),
            _row("Why", _why(packet)),
            _row("Approval", _approval(packet)),
            Row("So far", tuple(_votes(packet, characters))),
            _row("Data class", _data(packet)),
        ),
        (
            _row("Fingerprint", [Part(visible(packet.fingerprint))]),
            _row("Approval id", fill(packet.approval_id)),
            _row("Trace id", fill(packet.trace_id)),
            _row("Contract", fill(packet.contract_hash)),
        ),
    )
    told = (tuple(row for row in group if row.lines) for group in groups)
    waiting = packet.status == "waiting"
    return Outline(
        "APPROVAL NEEDED" if waiting else f"APPROVAL {visible(packet.status).upper()}",
        packet.risk,
        tuple(group for group in told if group),
    )


def _row(label: str, parts: Iterable[Part]) -> Row:
    said = tuple(parts)
    return Row(label, (Line(said),) if said else ())


# --- what is done ---------------------------------------------------------------------------------


def _action(packet: Packet) -> Iterator[Part]:
    yield Part(f"{visible(packet.tool)} {visible(packet.version)}")
    if packet.effect:
        yield Part(f" ({packet.effect})")


def _arguments(packet: Packet, characters: int, values: int) -> Iterator[Line]:
    if not packet.arguments:
        yield Line((Part("none"),))
    for line, place in _named(packet.arguments, characters, values):
        origin = _origin(packet, place)
        note = (Part(f"  ({origin})"),) if origin else ()
        yield line._replace(parts=(*line.parts, *note))


def _origin(packet: Packet, place: str | None) -> str:
    """What is known of a value, or of the nearest thing that it is part of."""
    while place:
        if place in packet.origins:
            return _ORIGINS.get(packet.origins[place], "")
        place = place.rpartition("/")[0]
    return ""


def _fields(value: Mapping[str, Any], characters: int, values: int) -> Iterator[Line]:
    for line, _ in _named(value, characters, values) if value else ():
        yield line


def _named(value: Any, characters: int, values: int) -> Iterator[tuple[Line, str | None]]:
    """Every single value by its name, and where it is; then how many there are besides."""
    more = 0
    for count, (place, item) in enumerate(leaves(value)):
        if count < values:
            yield Line(tuple(value_parts(item, characters)), name_of(place[1:])), place
        else:
            more += 1
    if more:
        yield Line((Part(f"… and {more:,} more value{'' if more == 1 else 's'}, not shown"),)), None


def _state(packet: Packet, characters: int, values: int) -> Iterator[Row]:
    """What is now and what is expected, side by side where it changes."""
    changed = tuple(
        Line(
            (
                *value_parts(change.before, characters),
                Part(" → "),
                *value_parts(change.after, characters),
            ),
            name_of(change.pointer[1:]) if change.pointer else "",
        )
        for change in packet.changes
    )
    if packet.before is not None:
        yield Row("Before", tuple(_fields(packet.before, characters, values)))
    if changed:
        yield Row("After", changed)
    elif packet.after is not None and packet.before is None:
        yield Row("After", tuple(_fields(packet.after, characters, values)))
    elif packet.after is not None:
        yield _row("After", [Part("as before")])


# --- who and when ---------------------------------------------------------------------------------


def _expiry(packet: Packet, now: float | None) -> str:
    at = clock(packet.expires_at)
    if now is None:
        return f"{span(packet.expires_at - packet.created_at)} after it was asked, at {at}"
    if now >= packet.expires_at:
        return f"expired at {at}"
    return f"in {span(packet.expires_at - now)}, at {at}"


def _requester(packet: Packet) -> Iterator[Part]:
    yield Part("agent ")
    yield from fill(packet.agent)
    if packet.user is not None:
        yield Part(", for user ")
        yield from fill(packet.user)
    yield Part(f", at {clock(packet.created_at)}")


def _why(packet: Packet) -> Iterator[Part]:
    demand = packet.demand
    if demand.reason:
        yield Part(visible(demand.reason))
    if demand.rule:
        yield Part(f"{' ' if demand.reason else ''}({visible(demand.rule)})")


def _approval(packet: Packet) -> Iterator[Part]:
    yield Part(f"{PATTERNS[packet.demand.pattern].title}: ")
    for text, foreign in who_may(packet.demand, packet.user):
        if foreign:
            yield from fill(text)
        else:
            yield Part(text)


def _votes(packet: Packet, characters: int) -> Iterator[Line]:
    yield Line((Part(f"{packet.so_far} approved"),))
    for vote in packet.votes:
        yield Line(tuple(_vote(vote, characters)))


def _vote(vote: Vote, characters: int) -> Iterator[Part]:
    yield from fill(vote.approver)
    said = "approved" if vote.decision is Choice.APPROVE else "rejected"
    yield Part(f" {said} at {clock(vote.voted_at)}")
    for label, text in (("why", vote.justification), ("comment", vote.comment)):
        if text:
            yield Part(f", {label}: ")
            yield from value_parts(text, characters)


def _data(packet: Packet) -> Iterator[Part]:
    demand = packet.demand
    told = [("", [demand.data_class.value] if demand.data_class else [])]
    told += [("jurisdiction ", sorted(demand.jurisdictions))]
    told += [("accountable ", sorted(demand.accountable_owners))]
    first = True
    for label, names in told:
        for name in names:
            yield Part(f"{'' if first else '; '}{label}")
            yield from fill(name)
            first = False
