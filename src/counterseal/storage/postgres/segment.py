"""One connection's part of the audit log: what it records for a tenant is chained, link by link."""

from __future__ import annotations

from collections.abc import Sequence
from os import urandom
from secrets import token_hex
from typing import Any, Final

from counterseal.audit import GENESIS, Columns, Head, extend
from counterseal.ledger.rules import micros

__all__ = ["Links", "Segment"]

Links = Sequence[tuple[Any, ...]]
"""Number, segment, place, salt, digest and hash of each event."""
_SALT: Final = 16
_MOST: Final = 10_000
"""After so many tenants a new segment is begun, so that their heads need not all be remembered."""


class Segment:
    """Where each tenant's chain of this connection ends.

    It is extended when a transaction is committed, and only then. After one of which nobody knows
    whether it was, a new segment begins.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.name = token_hex(6)
        self._heads: dict[str, Head] = {}

    def chain(self, told: Sequence[Columns], now: float) -> tuple[Links, dict[str, Head]]:
        """Links for events, and where the chains would end."""
        moment, salts = micros(now), urandom(_SALT * len(told))
        ends: dict[str, Head] = {}
        links = []
        for number, columns in enumerate(told):
            tenant = columns[1]
            head = ends.get(tenant) or self._heads.get(tenant, GENESIS)
            salt = salts[_SALT * number : _SALT * (number + 1)]
            link = extend(tenant, self.name, head, columns, moment, salt)
            ends[tenant] = link.head
            links.append(tuple(link))
        return links, ends

    def adopt(self, name: str, ends: dict[str, Head]) -> None:
        """It was committed. Nothing to remember if that segment is over."""
        if name != self.name:
            return
        self._heads.update(ends)
        if len(self._heads) > _MOST:
            self._begin()

    def abandon(self) -> None:
        """Nobody knows whether it was, or the connection is gone."""
        self._begin()
