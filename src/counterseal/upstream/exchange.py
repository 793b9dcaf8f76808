"""One request to an upstream, and what is known of its way there and back.

A transport writes down what it sees: that the request left, how it was answered, that the answer
broke off. The library in between would tell little more than "an error". A request finds its record
through `EXCHANGE`, because a transport carries out what it is handed in the sender's context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from counterseal.contract.tool_context import Client

__all__ = ["EXCHANGE", "TOO_LARGE", "Exchange"]


class Exchange:
    """What became of one request."""

    __slots__ = (
        "client",
        "in_json",
        "lost",
        "retry_after",
        "sent",
        "status",
        "too_large",
        "trouble",
    )

    def __init__(self, client: Client) -> None:
        self.client = client
        """Who is in front of it: told what the upstream logs meanwhile."""
        self.sent = False
        """Whether any of it can have reached the upstream."""
        self.lost = False
        """Whether the answer broke off, or is none."""
        self.too_large = False
        self.trouble = ""
        """What went wrong on the way, in a few words for an operator."""
        self.status: int | None = None
        """HTTP: how it was answered."""
        self.in_json = False
        """HTTP: whether that was with JSON, so that the protocol's own words may be in it."""
        self.retry_after: str | None = None


EXCHANGE: Final[ContextVar[Exchange | None]] = ContextVar("counterseal_exchange", default=None)
"""The request that is under way in this context."""

TOO_LARGE: Final = object()
"""Stands in the data of an error that a transport put in the place of too long an answer."""
