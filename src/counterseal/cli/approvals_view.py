"""Requests for approval as a list to choose from, as JSON, and as the card."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from counterseal.cli.output import console, one_line, print_json, print_styled

if TYPE_CHECKING:
    from counterseal.approvals.packet import Packet
    from counterseal.runtime import Runtime
    from counterseal.storage.base import Held

__all__ = [
    "Format",
    "Listed",
    "card",
    "listed",
    "print_listed",
    "print_packet",
    "record_of",
]


class Format(StrEnum):
    TEXT = "text"
    MARKDOWN = "markdown"
    HTML = "html"
    JSON = "json"


class Listed(NamedTuple):
    """A request, and what it comes to in a sentence."""

    held: Held
    consequence: str
    """Or why that can't be told here."""
    readable: bool


async def listed(runtime: Runtime, held: Held) -> Listed:
    """A request with its consequence, as far as this project still knows the contract."""
    from counterseal.views.approvals import approval_row

    row = approval_row(runtime, held)
    if row.consequence is None:
        return Listed(held, one_line(row.unreadable), readable=False)
    return Listed(held, row.consequence, readable=True)


def print_listed(one: Listed, now: float) -> None:
    """Which and how far; what would happen; what it is, and who asks for it."""
    from rich.text import Text

    from counterseal.cli.layout import paragraph

    held = one.held
    known = one.consequence if one.readable else f"(can't be shown here: {one.consequence})"
    asks = held.agent if held.user is None else f"{held.agent} for {held.user}"
    about = f"{held.tool} {held.version}, {held.risk}, asked by {asks}, tenant {held.tenant}"
    first = Text(f"{one_line(held.approval_id)}  {_votes(held)}, {_left(held, now)}", style="bold")
    print_styled(first, paragraph(one_line(known), indent=4), paragraph(one_line(about), indent=4))
    sys.stdout.flush()


def record_of(one: Listed) -> dict[str, Any]:
    """The same for programs."""
    from counterseal.approvals.display import stamp
    from counterseal.views.approvals import votes_for

    held = one.held
    return {
        "approval_id": held.approval_id,
        "status": held.status.value,
        "tenant": held.tenant,
        "tool": held.tool,
        "version": held.version,
        "risk_class": held.risk,
        "consequence": one.consequence if one.readable else None,
        "agent": held.agent,
        "user": held.user,
        "approved": votes_for(held),
        "approvers": held.approvers,
        "created_at": stamp(held.created_at),
        "expires_at": stamp(held.expires_at),
    }


def _votes(held: Held) -> str:
    from counterseal.views.approvals import votes_for

    return f"{votes_for(held)} of {held.approvers} approved"


def _left(held: Held, now: float) -> str:
    from counterseal.approvals.display import clock, span

    if held.status.value != "waiting":
        return held.status.value
    if now >= held.expires_at:
        return f"expired at {clock(held.expires_at)}"
    return f"{span(held.expires_at - now)} left"


# One request -------------------------------------------------------------------------------------


def card(packet: Packet, now: float) -> str:
    """As wide as the terminal; drawn with what the stream can show."""
    from counterseal.approvals.packet_formats import text

    waits = packet.status == "waiting"
    return text(packet, console().width, now=now if waits else None, plain=_is_plain())


def _is_plain() -> bool:
    try:
        "┌│└─→…".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def print_packet(packet: Packet, form: Format, now: float) -> None:
    """The packet on stdout, in one of its forms."""
    from counterseal.approvals.packet_formats import html, markdown
    from counterseal.views.approvals import current

    shown = current(packet, now)
    if form is Format.JSON:
        print_json(shown.record())
    elif form is Format.TEXT:
        sys.stdout.write(card(shown, now))
    else:
        made = markdown(shown) if form is Format.MARKDOWN else html(shown)
        sys.stdout.write(f"{made.rstrip()}\n")
