"""Render a packet as a terminal card, as Markdown or as HTML, from one outline.

The outline has the consequence first, then target and arguments, what changes, whether it can be
undone, what a rejection means and when the request expires; then requester, reason and votes; ids
at the end. Every format shows exactly the outline.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from html import escape
from typing import Any, Final, NamedTuple

from counterseal.approvals.display import (
    Part,
    clock,
    fill,
    leaves,
    name_of,
    shown_status,
    span,
    stamp,
    value_parts,
    visible,
)
from counterseal.approvals.packet import Origin, Packet
from counterseal.approvals.terms import Choice, Vote, who_may
from counterseal.contract.approval_terms import PATTERNS

_ORIGINS: Final[Mapping[Origin, str]] = {
    "user": "from the user",
    "trusted": "from a trusted tool",
    "untrusted": "from untrusted text",
}


_MAX_NAMES: Final = 20


class RowKey(StrEnum):
    """Identifies a row of the outline. The value is its label and part of its CSS class."""

    CONSEQUENCE = "if-approved"
    ACTION = "action"
    TARGET = "target"
    AMOUNT = "amount"
    REVERSES = "reverses"
    ARGUMENTS = "arguments"
    CONFIG = "config"
    BEFORE = "before"
    AFTER = "after"
    REVERSIBLE = "reversible"
    IF_REJECTED = "if-rejected"
    EXPIRES = "expires"
    REQUESTER = "asked-by"
    REASON = "why"
    APPROVERS = "approval"
    VOTES = "so-far"
    DATA_CLASS = "data-class"
    FINGERPRINT = "fingerprint"
    APPROVAL_ID = "approval-id"
    TRACE_ID = "trace-id"
    CONTRACT = "contract"


class PacketLine(NamedTuple):
    """One statement of a row; `name` is the field that it is about."""

    parts: tuple[Part, ...]
    name: str = ""
    origin: Origin | None = None
    """The origin of an argument's value, if it is known."""

    @property
    def origin_text(self) -> str:
        """The origin in words; empty if it is not known."""
        return "" if self.origin is None else _ORIGINS[self.origin]

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """The parts, and the origin in brackets."""
        return (*self.parts, Part(f"  ({self.origin_text})")) if self.origin else self.parts


class PacketRow(NamedTuple):
    """One row of the outline; without lines it is left out."""

    key: RowKey
    lines: tuple[PacketLine, ...]

    @property
    def label(self) -> str:
        return self.key.replace("-", " ").capitalize()


class PacketOutline(NamedTuple):
    title: str
    risk: str
    groups: tuple[tuple[PacketRow, ...], ...]


class ValueStyle(NamedTuple):
    """How much of a packet's values is shown, and whether texts are in quotes."""

    max_characters: int
    max_values: int
    quoted: bool = True

    def parts(self, value: Any) -> list[Part]:
        return value_parts(value, self.max_characters, quoted=self.quoted)


WHOLE: Final = ValueStyle(10_000, 1_000)
"""For places that have room."""


def outline(packet: Packet, style: ValueStyle, *, now: float | None) -> PacketOutline:
    """Return the packet in rows. Long texts and large objects are cut as the style says."""
    groups = (
        (_row(RowKey.CONSEQUENCE, packet.sentence),),
        (
            _row(RowKey.ACTION, _action(packet)),
            _row(RowKey.TARGET, fill(packet.target) if packet.target else ()),
            PacketRow(RowKey.AMOUNT, tuple(_amount(packet))),
            _row(RowKey.REVERSES, _reverses(packet)),
            PacketRow(RowKey.ARGUMENTS, tuple(_arguments(packet, style))),
            PacketRow(RowKey.CONFIG, tuple(_fields(packet.config, style))),
        ),
        tuple(_state(packet, style)),
        (
            _row(RowKey.REVERSIBLE, [Part(packet.reversibility)]),
            _row(RowKey.IF_REJECTED, [Part(visible(packet.if_rejected))]),
            _row(RowKey.EXPIRES, [Part(_expiry(packet, now))]),
        ),
        (
            _row(RowKey.REQUESTER, _requester(packet)),
            _row(RowKey.REASON, _why(packet)),
            _row(RowKey.APPROVERS, _approval(packet)),
            PacketRow(RowKey.VOTES, tuple(_votes(packet, style))),
            _row(RowKey.DATA_CLASS, _data(packet)),
        ),
        (
            _row(RowKey.FINGERPRINT, [Part(visible(packet.fingerprint))]),
            _row(RowKey.APPROVAL_ID, fill(packet.approval_id)),
            _row(RowKey.TRACE_ID, fill(packet.trace_id)),
            _row(RowKey.CONTRACT, fill(packet.contract_hash)),
        ),
    )
    filled = (tuple(row for row in group if row.lines) for group in groups)
    status = "needed" if packet.status == "waiting" else visible(shown_status(packet.status))
    title = f"APPROVAL {status.upper()}"
    return PacketOutline(title, packet.risk, tuple(group for group in filled if group))


def _row(key: RowKey, parts: Iterable[Part]) -> PacketRow:
    line = tuple(parts)
    return PacketRow(key, (PacketLine(line),) if line else ())


# --- the action -----------------------------------------------------------------------------------


def _action(packet: Packet) -> Iterator[Part]:
    yield Part(f"{visible(packet.tool)} {visible(packet.version)}")
    if packet.effect:
        yield Part(f" ({packet.effect})")


def _amount(packet: Packet) -> Iterator[PacketLine]:
    """Yield what the call spends, and what was spent of each limit before."""
    if packet.amount:
        yield PacketLine((Part(packet.amount, value=True),))
        yield from (PacketLine((Part(visible(one)),)) for one in packet.spent)


def _reverses(packet: Packet) -> Iterator[Part]:
    """Yield the call that is to be reversed, with the destination's own reference of it."""
    about = packet.reverses or {}
    if about:
        yield Part(f"{visible(about['tool'] or '')}, call {visible(about['call_id'] or '')}")
    if about.get("external_ref"):
        yield Part(f", reference {visible(about['external_ref'] or '')}")


def _arguments(packet: Packet, style: ValueStyle) -> Iterator[PacketLine]:
    if not packet.arguments:
        yield PacketLine((Part("none"),))
    for line, place in _named(packet.arguments, style):
        yield line._replace(origin=_origin(packet, place))


def _origin(packet: Packet, place: str | None) -> Origin | None:
    """Return the origin of a value, or of the nearest value around it."""
    while place:
        if place in packet.origins:
            origin = packet.origins[place]
            return origin if origin in _ORIGINS else None
        place = place.rpartition("/")[0]
    return None


def _fields(value: Mapping[str, Any], style: ValueStyle) -> Iterator[PacketLine]:
    for line, _ in _named(value, style) if value else ():
        yield line


def _named(value: Any, style: ValueStyle) -> Iterator[tuple[PacketLine, str | None]]:
    """Yield every value with its name and place; then how many more there are."""
    found = list(leaves(value))
    for place, item in found[: style.max_values]:
        yield PacketLine(tuple(style.parts(item)), name_of(place[1:])), place
    more = len(found) - style.max_values
    if more > 0:
        text = f"… and {more:,} more value{'' if more == 1 else 's'}, not shown"
        yield PacketLine((Part(text),)), None


def _state(packet: Packet, style: ValueStyle) -> Iterator[PacketRow]:
    """Yield the state before the call and the expected state after it."""
    if packet.before is None:
        if packet.after is not None:
            yield PacketRow(RowKey.AFTER, tuple(_fields(packet.after, style)))
        return
    changed = tuple(
        PacketLine(
            (*style.parts(change.before), Part(" → "), *style.parts(change.after)),
            name_of(change.pointer[1:]) if change.pointer else "",
        )
        for change in packet.changes
    )
    yield PacketRow(RowKey.BEFORE, tuple(_fields(packet.before, style)))
    yield PacketRow(RowKey.AFTER, (*changed, *_other_fields(packet)))


def _other_fields(packet: Packet) -> Iterator[PacketLine]:
    """Yield the names of the fields that stay, and of those that the contract says nothing of."""
    fields = list(packet.other_fields())
    for label, stated in (("unchanged", True), ("not stated", False)):
        names = [name_of(one.pointer[1:]) for one in fields if one.stated is stated]
        if names:
            more = len(names) - _MAX_NAMES
            listed = ", ".join(names[:_MAX_NAMES])
            rest = [Part(f" and {more:,} more")] if more > 0 else []
            yield PacketLine((Part(f"{label}: "), Part(listed, value=True), *rest))


# --- people and time-------------------------------------------------------------------------------


def _expiry(packet: Packet, now: float | None) -> str:
    at = clock(packet.expires_at)
    if now is None:
        return f"{span(packet.expires_at - packet.created_at)} after the request, at {at}"
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


def _votes(packet: Packet, style: ValueStyle) -> Iterator[PacketLine]:
    needed = f". {packet.needed}" if packet.needed else ""
    yield PacketLine((Part(f"{packet.so_far} approved{needed}"),))
    for vote in packet.votes:
        yield PacketLine(tuple(_vote(vote, style)))


def _vote(vote: Vote, style: ValueStyle) -> Iterator[Part]:
    yield from fill(vote.approver)
    decision = "approved" if vote.decision is Choice.APPROVE else "rejected"
    yield Part(f" {decision} at {clock(vote.voted_at)}")
    for label, text in (("why", vote.justification), ("comment", vote.comment)):
        if text:
            yield Part(f", {label}: ")
            yield from style.parts(text)


def _data(packet: Packet) -> Iterator[Part]:
    demand = packet.demand
    named = [("", demand.data_class.value)] if demand.data_class else []
    named += [("jurisdiction ", name) for name in sorted(demand.jurisdictions)]
    named += [("accountable ", name) for name in sorted(demand.accountable_owners)]
    for index, (label, name) in enumerate(named):
        yield Part(f"{'; ' if index else ''}{label}")
        yield from fill(name)


# --- terminal card --------------------------------------------------------------------------------


_LABEL = 13
_NAME_WIDTH = 24
_EDGE = 3
_NARROWEST = 40
_WORDS = re.compile(r" +|[^ ]+ *")
_ASCII = str.maketrans({"┌": "+", "└": "+", "│": "|", "─": "-", "→": "->", "…": "..."})


def text(
    packet: Packet,
    width: int = 80,
    *,
    now: float | None = None,
    plain: bool = False,
    max_characters: int = 600,
    max_values: int = 60,
) -> str:
    """Return a card without a right edge. With `now` it counts down; `plain` draws it in ASCII."""
    width = max(width, _NARROWEST)
    content = outline(packet, ValueStyle(max_characters, max_values), now=now)
    body: list[str] = []
    for group in content.groups:
        body.append("")
        for row in group:
            body += _text_row(row, width - _EDGE, plain=plain)
    rule = "─" * (width - len(content.title) - len(content.risk) - 7)
    top = f"┌─ {content.title} {rule} {content.risk} ─"
    edge, bottom = "│  ", "└" + "─" * (width - 1)
    if plain:
        top, edge, bottom = (part.translate(_ASCII) for part in (top, edge, bottom))
    return "\n".join([top, *((edge + line).rstrip() for line in body), bottom, ""])


def _text_row(row: PacketRow, width: int, *, plain: bool) -> Iterator[str]:
    names = [_cells(line.name) for line in row.lines]
    column = min(max(names), _NAME_WIDTH, (width - _LABEL) // 2)
    label = row.label
    for line in row.lines:
        for shown in _text_line(line, column, width - _LABEL, plain=plain):
            yield f"{label:<{_LABEL}}{shown}"
            label = ""


def _text_line(line: PacketLine, column: int, width: int, *, plain: bool) -> Iterator[str]:
    text = _joined(line.all_parts, plain=plain)
    if not line.name:
        yield from _wrap(text, width)
        return
    indent = " " * (column + 2)
    first = line.name + " " * (column + 2 - _cells(line.name))
    if _cells(line.name) > column:  # too long to share a line with its value
        yield from _wrap(line.name, width)
        first = indent
    for shown in _wrap(text, width - column - 2):
        yield first + shown
        first = indent


def _joined(parts: Iterable[Part], *, plain: bool) -> str:
    """Return the parts as one text. With `plain`, our own words become ASCII; values stay."""
    return "".join(
        part.text.translate(_ASCII) if plain and not part.value else part.text for part in parts
    )


def _cells(shown: str) -> int:
    """Return how many columns a text needs; joined characters may need fewer."""
    return len(shown) if shown.isascii() else sum(map(_size, shown))


@lru_cache(maxsize=4096)
def _size(char: str) -> int:
    from rich.cells import get_character_cell_size  # noqa: PLC0415 - only beyond ASCII

    return get_character_cell_size(char)


def _wrap(text: str, width: int) -> Iterator[str]:
    """Yield lines of at most `width` cells, broken between words where possible."""
    line, taken = "", 0
    for word in _words(text, width):
        if line and taken + _cells(word.rstrip(" ")) > width:
            yield line.rstrip(" ")
            line, taken = "", 0
        line, taken = line + word, taken + _cells(word)
    yield line.rstrip(" ")


def _words(text: str, width: int) -> Iterator[str]:
    """Yield the words with their trailing blanks; a word wider than a line in pieces."""
    for word in _WORDS.findall(text):
        piece, taken = "", 0
        for char in word:
            size = _cells(char)
            if piece and taken + size > width:
                yield piece
                piece, taken = "", 0
            piece, taken = piece + char, taken + size
        yield piece


# --- Markdown, for chats and tickets --------------------------------------------------------------


_MARKUP = re.compile(r"([\\`*_\[\]<>&~:@$#|!{}^]|(?<=www)\.)", re.IGNORECASE)
_TICKS = re.compile(r"`+")


def markdown(packet: Packet, *, now: float | None = None) -> str:
    """Return Markdown. Values are in code spans, where no markup and no mention works."""
    content = outline(packet, WHOLE, now=now)
    lines = [f"### {_escaped(content.title.capitalize())}: {_code(content.risk)}"]
    for group in content.groups:
        lines += ["", *(line for row in group for line in _markdown_row(row))]
    return "\n".join(lines) + "\n"


def _markdown_row(row: PacketRow) -> Iterator[str]:
    if len(row.lines) == 1 and not row.lines[0].name:
        yield f"- **{row.label}:** {_markdown_parts(row.lines[0].all_parts)}"
        return
    yield f"- **{row.label}:**"
    for line in row.lines:
        name = f"{_code(line.name)}: " if line.name else ""
        yield f"  - {name}{_markdown_parts(line.all_parts)}"


def _markdown_parts(parts: Iterable[Part]) -> str:
    return "".join(_code(part.text) if part.value else _escaped(part.text) for part in parts)


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", text)


def _code(text: str) -> str:
    """Return a code span that nothing in the text can end."""
    longest = max(map(len, _TICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) or not text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


# --- HTML -----------------------------------------------------------------------------------------


def html(packet: Packet, *, now: float | None = None) -> str:
    """Return an `article` without script or style. Values are in `code` and `bdi` elements."""
    content = outline(packet, WHOLE, now=now)
    pattern, status = escape(packet.demand.pattern.value), escape(packet.status)
    about = f'data-pattern="{pattern}" data-status="{status}"'
    until = f'data-expires-at="{stamp(packet.expires_at)}"'
    lines = [
        f'<article class="packet" id="{escape(packet.approval_id)}" {about} {until}>',
        "<header>",
        f'<p class="packet-title">{escape(content.title)}</p>',
        f'<p class="packet-risk">{escape(content.risk)}</p>',
        "</header>",
    ]
    for group in content.groups:
        lines += ['<dl class="packet-fields">', *(line for row in group for line in _html_row(row))]
        lines += ["</dl>"]
    return "\n".join([*lines, "</article>"]) + "\n"


def _html_row(row: PacketRow) -> Iterator[str]:
    yield f'<dt class="packet-{row.key.value}">{escape(row.label)}</dt>'
    yield from (f'<dd class="packet-{row.key.value}">{_html_line(line)}</dd>' for line in row.lines)


def _html_line(line: PacketLine) -> str:
    name = [Part(line.name, value=True), Part(" ")] if line.name else []
    return "".join(
        f"<bdi><code>{escape(part.text)}</code></bdi>" if part.value else escape(part.text)
        for part in (*name, *line.all_parts)
    )
