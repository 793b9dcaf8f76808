"""The record: search it, see how far it is sealed, check it, take it elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from counterseal.audit.report import Report
from counterseal.desk.base import Page, Seat, iso

__all__ = ["ChainStatus", "EventRow", "RecordDesk"]

Format = Literal["jsonl", "csv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStatus:
    """How far the record is sealed, without checking it."""

    segments: int
    checkpoints: int
    sealed_at: float | None
    """When the last checkpoint was made."""
    sealed_hash: str | None
    """The last checkpoint's."""
    unsealed_segments: int
    """Segments that have grown since, or that no checkpoint names."""
    has_key: bool
    """Whether there is a key here to seal with."""

    def record(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "sealed_at": iso(self.sealed_at),
        }


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event, as its record."""

    content: dict[str, Any]

    def record(self) -> dict[str, Any]:
        return self.content


class RecordDesk(Seat):
    async def search(
        self,
        *,
        call_id: str | None = None,
        run_id: str | None = None,
        tool: str | None = None,
        types: Collection[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[EventRow]:
        """Events, newest first. ValueError for a type that there is not."""
        raise NotImplementedError

    async def chain(self) -> ChainStatus:
        """How far the record is sealed."""
        raise NotImplementedError

    async def verify(self, progress: Callable[[int], None] | None = None) -> Report:
        """Check all of it. `progress` is told how many events were looked at."""
        raise NotImplementedError

    def export(
        self, form: Format = "jsonl", *, since: float | None = None, until: float | None = None
    ) -> AsyncIterator[bytes]:
        """Events oldest first, as lines."""
        raise NotImplementedError
