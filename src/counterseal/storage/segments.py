"""Chains the events that one writer commits: one segment for each tenant.

No other writer extends a segment, so its end need not be read. It moves on when a commit has
succeeded. When it is not known whether a commit did, a new segment begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import urandom
from secrets import token_hex
from typing import Final

from counterseal.audit import GENESIS, Columns, Head, Link, extend
from counterseal.audit.chain import micros

_SALT: Final = 16
_MOST: Final = 10_000
"""Tenants after which a new segment begins, so that memory stays bounded."""


class SegmentWriter:
    """Where each tenant's chain of one writer ends."""

    __slots__ = ("_heads", "name")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a new segment: the fate of the last commit is unknown, or the writer is new."""
        self.name = token_hex(6)
        self._heads: dict[str, Head] = {}

    def chain(
        self, events: Sequence[Columns], now: float, heads: dict[str, Head]
    ) -> Sequence[Link]:
        """Return the links of events. `heads` are the ends within the transaction; they move on."""
        moment, salts = micros(now), urandom(_SALT * len(events))
        links = []
        for number, columns in enumerate(events):
            tenant = columns[1]
            head = heads.get(tenant) or self._heads.get(tenant, GENESIS)
            salt = salts[_SALT * number : _SALT * (number + 1)]
            link = extend(tenant, self.name, head, columns, moment, salt)
            heads[tenant] = Head(link.number, link.seq, link.hash)
            links.append(link)
        return links

    def adopt(self, name: str, heads: dict[str, Head]) -> None:
        """Note that a transaction was committed. A segment that has ended is left alone."""
        if name != self.name:
            return
        self._heads.update(heads)
        if len(self._heads) > _MOST:
            self.begin()
