"""A packet as Markdown, for chats and tickets.

Values stand in code spans, where no markup and no mention works; everything else is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from counterseal.approvals.outline import Row, outline
from counterseal.approvals.packet import Packet
from counterseal.approvals.plain import Part

__all__ = ["markdown"]

_MARKUP = re.compile(r"([\\`*_\[\]<>&~:@$#|!{}^]|(?<=www)\.)", re.IGNORECASE)
_TICKS = re.compile(r"`+")


def markdown(packet: Packet, *, now: float | None = None) -> str:
    """The packet, beginning with the consequence."""
    told = outline(packet, now=now, characters=10_000, values=1_000)
    lines = [f"### {_escaped(told.title.capitalize())}: {_code(told.risk)}"]
    for group in told.groups:
        lines += ["", *(line for row in group for line in _row(row))]
    return "\n".join(lines) + "\n"


def _row(row: Row) -> Iterator[str]:
    if len(row.lines) == 1 and not row.lines[0].name:
        yield f"- **{row.label}:** {_said(row.lines[0].parts)}"
        return
    yield f"- **{row.label}:**"
    for line in row.lines:
        name = f"{_code(line.name)}: " if line.name else ""
        yield f"  - {name}{_said(line.parts)}"


def _said(parts: Iterable[Part]) -> str:
    return "".join(_code(part.text) if part.value else _escaped(part.text) for part in parts)


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", text)


def _code(text: str) -> str:
    """A code span that nothing in the text can end."""
    longest = max(map(len, _TICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) or not text else ""
    return f"{fence}{pad}{text}{pad}{fence}"
