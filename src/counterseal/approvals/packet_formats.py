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
from counterseal.approvals.terms import Choice, who_may
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
    at, created = clock(packet.expires_at), packet.created_at
    expires = f"{span(packet.expires_at - created)} after the request, at {at}"
    if now is not None:
        left = f"in {span(packet.expires_at - now)}, at {at}"
        expires = left if now < packet.expires_at else f"expired at {at}"
    groups = (
        [_row(RowKey.CONSEQUENCE, packet.sentence)],
        _action(packet, style),
        _state(packet, style),
        [
            _row(RowKey.REVERSIBLE, [Part(packet.reversibility)]),
            _row(RowKey.IF_REJECTED, [Part(visible(packet.if_rejected))]),
            _row(RowKey.EXPIRES, [Part(expires)]),
        ],
        _people(packet, style),
        [
            _row(RowKey.FINGERPRINT, [Part(visible(packet.fingerprint))]),
            _row(RowKey.APPROVAL_ID, fill(packet.approval_id)),
            _row(RowKey.TRACE_ID, fill(packet.trace_id)),
            _row(RowKey.CONTRACT, fill(packet.contract_hash)),
        ],
    )
    filled = (tuple(row for row in group if row.lines) for group in groups)
    status = "needed" if packet.status == "waiting" else visible(shown_status(packet.status))
    title = f"APPROVAL {status.upper()}"
    return PacketOutline(title, packet.risk, tuple(group for group in filled if group))


def _row(key: RowKey, parts: Iterable[Part]) -> PacketRow:
    line = tuple(parts)
    return PacketRow(key, (PacketLine(line),) if line else ())


def _action(packet: Packet, style: ValueStyle) -> Iterator[PacketRow]:
    """Yield what is done to what, with every argument and its origin."""
    effect = f" ({packet.effect})" if packet.effect else ""
    tool = Part(f"{visible(packet.tool)} {visible(packet.version)}{effect}")
    yield _row(RowKey.ACTION, [tool])
    yield _row(RowKey.TARGET, fill(packet.target) if packet.target else ())
    if packet.amount:  # what the call spends, and what was spent of each limit before
        spent = [PacketLine((Part(visible(one)),)) for one in packet.spent]
        yield PacketRow(RowKey.AMOUNT, (PacketLine((Part(packet.amount, value=True),)), *spent))
    if about := packet.reverses:
        reference = about.get("external_ref")
        known_as = f", reference {visible(reference)}" if reference else ""
        call = f"{visible(about['tool'] or '')}, call {visible(about['call_id'] or '')}"
        yield _row(RowKey.REVERSES, [Part(f"{call}{known_as}")])
    lines = [] if packet.arguments else [PacketLine((Part("none"),))]
    for line, place in _named(packet.arguments, style):
        nearest = place or ""  # else the origin of the nearest value around it
        while nearest and nearest not in packet.origins:
            nearest = nearest.rpartition("/")[0]
        origin = packet.origins.get(nearest) if nearest else None
        lines.append(line._replace(origin=origin if origin in _ORIGINS else None))
    yield PacketRow(RowKey.ARGUMENTS, tuple(lines))
    yield PacketRow(RowKey.CONFIG, tuple(_fields(packet.config, style)))


# --- the action -----------------------------------------------------------------------------------


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
    after = [
        PacketLine(
            (*style.parts(change.before), Part(" → "), *style.parts(change.after)),
            name_of(change.pointer[1:]) if change.pointer else "",
        )
        for change in packet.changes
    ]
    fields = list(packet.other_fields())
    for label, stated in (("unchanged", True), ("not stated", False)):
        names = [name_of(one.pointer[1:]) for one in fields if one.stated is stated]
        if names:
            more = len(names) - _MAX_NAMES
            listed = ", ".join(names[:_MAX_NAMES])
            rest = [Part(f" and {more:,} more")] if more > 0 else []
            after.append(PacketLine((Part(f"{label}: "), Part(listed, value=True), *rest)))
    yield PacketRow(RowKey.BEFORE, tuple(_fields(packet.before, style)))
    yield PacketRow(RowKey.AFTER, tuple(after))


def _people(packet: Packet, style: ValueStyle) -> Iterator[PacketRow]:
    """Yield who asked and why, who may approve, the votes so far, and whose data it is."""
    demand = packet.demand
    user = [] if packet.user is None else [Part(", for user "), *fill(packet.user)]
    at = Part(f", at {clock(packet.created_at)}")
    yield _row(RowKey.REQUESTER, [Part("agent "), *fill(packet.agent), *user, at])
    reasons = [visible(demand.reason) if demand.reason else ""]
    reasons.append(f"({visible(demand.rule)})" if demand.rule else "")
    if why := " ".join(filter(None, reasons)):
        yield _row(RowKey.REASON, [Part(why)])
    approval = [Part(f"{PATTERNS[demand.pattern].title}: ")]
    for text, foreign in who_may(demand, packet.user):
        approval += fill(text) if foreign else [Part(text)]
    yield _row(RowKey.APPROVERS, approval)
    needed = f". {packet.needed}" if packet.needed else ""
    lines = [PacketLine((Part(f"{packet.so_far} approved{needed}"),))]
    for vote in packet.votes:
        decision = "approved" if vote.decision is Choice.APPROVE else "rejected"
        parts = [*fill(vote.approver), Part(f" {decision} at {clock(vote.voted_at)}")]
        for label, said in (("why", vote.justification), ("comment", vote.comment)):
            if said:
                parts += [Part(f", {label}: "), *style.parts(said)]
        lines.append(PacketLine(tuple(parts)))
    yield PacketRow(RowKey.VOTES, tuple(lines))
    named = [("", demand.data_class.value)] if demand.data_class else []
    named += [("jurisdiction ", name) for name in sorted(demand.jurisdictions)]
    named += [("accountable ", name) for name in sorted(demand.accountable_owners)]
    data: list[Part] = []
    for label, name in named:
        data += [Part(f"{'; ' if data else ''}{label}"), *fill(name)]
    yield _row(RowKey.DATA_CLASS, data)


# --- terminal card --------------------------------------------------------------------------------


_LABEL = 13
_NAME_WIDTH = 24
_EDGE = 3
_NARROWEST = 40
_WORDS = re.compile(r" +|[^ ]+ *")
_ASCII = str.maketrans({"┌": "+", "└": "+", "│": "|", "─": "-", "→": "->", "…": "..."})


def text(packet: Packet, width: int = 80, *, now: float | None = None, plain: bool = False) -> str:
    """Return a card without a right edge. With `now` it counts down; `plain` draws it in ASCII."""
    width = max(width, _NARROWEST)
    content = outline(packet, ValueStyle(600, 60), now=now)
    body: list[str] = []
    for group in content.groups:
        body.append("")
        for row in group:
            label = row.label
            for line in _text_lines(row, width - _EDGE - _LABEL, plain=plain):
                body.append(f"{label:<{_LABEL}}{line}")
                label = ""
    rule = "─" * (width - len(content.title) - len(content.risk) - 7)
    top = f"┌─ {content.title} {rule} {content.risk} ─"
    edge, bottom = "│  ", "└" + "─" * (width - 1)
    if plain:
        top, edge, bottom = (part.translate(_ASCII) for part in (top, edge, bottom))
    return "\n".join([top, *((edge + line).rstrip() for line in body), bottom, ""])


def _text_lines(row: PacketRow, width: int, *, plain: bool) -> Iterator[str]:
    """Yield the lines of a row, wrapped: names in a column of their own, and their values."""
    column = min(max(_cells(line.name) for line in row.lines), _NAME_WIDTH, width // 2)
    for line in row.lines:
        # With `plain`, our own words become ASCII; values stay.
        text = "".join(
            part.text.translate(_ASCII) if plain and not part.value else part.text
            for part in line.all_parts
        )
        if not line.name:
            yield from _wrap(text, width)
            continue
        indent = " " * (column + 2)
        first = line.name + " " * (column + 2 - _cells(line.name))
        if _cells(line.name) > column:  # too long to share a line with its value
            yield from _wrap(line.name, width)
            first = indent
        for shown in _wrap(text, width - column - 2):
            yield first + shown
            first = indent


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
    for word in _WORDS.findall(text):  # with their trailing blanks
        if line and taken + _cells(word.rstrip(" ")) > width:
            yield line.rstrip(" ")
            line, taken = "", 0
        if _cells(word.rstrip(" ")) <= width:
            line, taken = line + word, taken + _cells(word)
            continue
        for char in word:  # a word wider than a line is broken
            if line and taken + _cells(char) > width:
                yield line.rstrip(" ")
                line, taken = "", 0
            line, taken = line + char, taken + _cells(char)
    yield line.rstrip(" ")


# --- Markdown, for chats and tickets --------------------------------------------------------------


_MARKUP = re.compile(r"([\\`*_\[\]<>&~:@$#|!{}^]|(?<=www)\.)", re.IGNORECASE)
_TICKS = re.compile(r"`+")


def markdown(packet: Packet) -> str:
    """Return Markdown. Values are in code spans, where no markup and no mention works."""
    content = outline(packet, WHOLE, now=None)
    lines = [f"### {_escaped(content.title.capitalize())}: {_code(content.risk)}"]
    for group in content.groups:
        lines.append("")
        for row in group:
            texts = []
            for line in row.lines:
                name = f"{_code(line.name)}: " if line.name else ""
                texts.append(
                    name
                    + "".join(
                        _code(part.text) if part.value else _escaped(part.text)
                        for part in line.all_parts
                    )
                )
            if len(row.lines) == 1 and not row.lines[0].name:
                lines.append(f"- **{row.label}:** {texts[0]}")
            else:
                lines += [f"- **{row.label}:**", *(f"  - {text}" for text in texts)]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", text)


def _code(text: str) -> str:
    """Return a code span that nothing in the text can end."""
    longest = max(map(len, _TICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) or not text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


# --- HTML -----------------------------------------------------------------------------------------


def html(packet: Packet) -> str:
    """Return an `article` without script or style. Values are in `code` and `bdi` elements."""
    content = outline(packet, WHOLE, now=None)
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
        lines.append('<dl class="packet-fields">')
        for row in group:
            lines.append(f'<dt class="packet-{row.key.value}">{escape(row.label)}</dt>')
            for line in row.lines:
                name = [Part(line.name, value=True), Part(" ")] if line.name else []
                text = "".join(
                    f"<bdi><code>{escape(part.text)}</code></bdi>"
                    if part.value
                    else escape(part.text)
                    for part in (*name, *line.all_parts)
                )
                lines.append(f'<dd class="packet-{row.key.value}">{text}</dd>')
        lines.append("</dl>")
    return "\n".join([*lines, "</article>"]) + "\n"
