"""The end of the chain that this store writes, for each tenant.

The file is shared, the segment is not: nobody else extends it, so its end need not be read. It is
moved on when a commit has succeeded. When nobody knows whether one did, a new segment begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from secrets import token_hex
from typing import Final

from counterseal.audit import GENESIS, Columns, Head, extend
from counterseal.ledger.rules import micros
from counterseal.storage.rows import Row
from counterseal.storage.sqlite.rows import NULL

__all__ = ["Chain"]

_POOL: Final = 256
"""How many salts are drawn at once."""


class Chain:
    """What one writer has recorded."""

    __slots__ = ("_heads", "_salts", "_segment", "clock")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._salts = _salts()
        self.begin()

    def begin(self) -> None:
        """Begin a new segment."""
        self._segment = token_hex(6)
        self._heads: dict[str, Head] = {}

    def linked(self, told: Sequence[Columns], heads: dict[str, Head]) -> list[Row]:
        """Events with their links, as `record` takes them. `heads`: those of this transaction."""
        now, segment = micros(self.clock()), self._segment
        rows = []
        for columns in told:
            tenant = columns[1]
            head = heads.get(tenant) or self._heads.get(tenant, GENESIS)
            salt = next(self._salts)
            number, _, seq, _, digest, hashed = extend(tenant, segment, head, columns, now, salt)
            heads[tenant] = Head(number, seq, hashed)
            link = (number, segment, seq, bytearray(salt), bytearray(digest), bytearray(hashed))
            rows.append((*link, *[NULL if one is None else one for one in columns]))
        return rows

    def advance(self, heads: dict[str, Head]) -> None:
        """All of it is committed."""
        self._heads.update(heads)


def _salts() -> Iterator[bytes]:
    while True:
        pool = os.urandom(_POOL * 16)
        for start in range(0, len(pool), 16):
            yield pool[start : start + 16]
