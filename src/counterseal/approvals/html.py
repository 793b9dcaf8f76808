"""A packet as a fragment of HTML: headings, lists and classes, with neither script nor style."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from counterseal.approvals.outline import Line, Row, outline
from counterseal.approvals.packet import Packet
from counterseal.approvals.plain import Part, stamp

__all__ = ["html"]


def html(packet: Packet, *, now: float | None = None) -> str:
    """An `article`. Values stand in `code` and `bdi`, so that no direction of text leaks out."""
    told = outline(packet, now=now, characters=10_000, values=1_000)
    pattern, status = escape(packet.demand.pattern.value), escape(packet.status)
    about = f'data-pattern="{pattern}" data-status="{status}"'
    until = f'data-expires-at="{stamp(packet.expires_at)}"'
    lines = [
        f'<article class="packet" id="{escape(packet.approval_id)}" {about} {until}>',
        "<header>",
        f'<p class="packet-title">{escape(told.title)}</p>',
        f'<p class="packet-risk">{escape(told.risk)}</p>',
        "</header>",
    ]
    for group in told.groups:
        lines += ['<dl class="packet-fields">', *(line for row in group for line in _row(row))]
        lines += ["</dl>"]
    return "\n".join([*lines, "</article>"]) + "\n"


def _row(row: Row) -> Iterator[str]:
    name = row.label.lower().replace(" ", "-")
    yield f'<dt class="packet-{name}">{escape(row.label)}</dt>'
    yield from (f'<dd class="packet-{name}">{_line(line)}</dd>' for line in row.lines)


def _line(line: Line) -> str:
    name = f"<bdi><code>{escape(line.name)}</code></bdi> " if line.name else ""
    return f"{name}{_said(line.parts)}"


def _said(parts: Iterable[Part]) -> str:
    return "".join(
        f"<bdi><code>{escape(part.text)}</code></bdi>" if part.value else escape(part.text)
        for part in parts
    )
