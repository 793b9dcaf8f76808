"""Raw results of tools, behind pointers that no model can follow."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

__all__ = ["Vault"]

_Where = tuple[str, str]


class Vault:
    """By tenant and pointer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._raw: dict[_Where, bytes] = {}
        self._kept: dict[_Where, float] = {}
        """When each was put here, oldest first."""
        self._pointers = 0

    def keep(self, tenant: str, call_id: str, raw: bytes) -> str:
        # Numbered, because a caller may name two calls alike, and evidence is never overwritten.
        pointer = f"vault:{call_id}/{self._pointers}"
        self._pointers += 1
        self._raw[tenant, pointer] = raw
        self._kept[tenant, pointer] = self._clock()
        return pointer

    def fetch(self, tenant: str, pointer: str) -> bytes | None:
        return self._raw.get((tenant, pointer))

    def empty(self, oldest: float, limit: int) -> int:
        """Forget what was kept until a moment. How much."""
        over = (pointer for pointer, kept in self._kept.items() if kept <= oldest)
        gone = list(islice(over, limit))
        for pointer in gone:
            del self._raw[pointer], self._kept[pointer]
        return len(gone)
