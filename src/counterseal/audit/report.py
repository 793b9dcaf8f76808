"""What came of checking a tenant's record: how much there is, how much is sealed, what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

__all__ = ["MAX_FINDINGS", "Finding", "Findings", "Kind", "Report"]

MAX_FINDINGS: Final = 100
"""More are counted, not listed: whoever rewrote a whole log shall not fill a screen with it."""


class Kind(StrEnum):
    CHANGED = "changed"
    MISSING = "missing"
    INSERTED = "inserted"
    REWRITTEN = "rewritten"
    """The chain fits, but it is not the one that was sealed."""
    ERASED = "erased"
    """Erased without a record of it."""
    CHECKPOINT = "checkpoint"
    """A checkpoint that was changed, or does not follow from the one before."""
    CHECKPOINT_MISSING = "checkpoint_missing"
    SIGNATURE = "signature"
    """A signature that its key did not make."""
    UNKNOWN_KEY = "unknown_key"
    """A signature by a key that is not here, so that nobody can say."""


class Finding(NamedTuple):
    """One thing that is wrong: what, in one sentence, and where."""

    kind: Kind
    message: str
    event_id: str | None = None
    segment: str | None = None
    place: int | None = None
    """In the segment, from 1 on; the first one where several are missing."""
    checkpoint: int | None = None

    def record(self) -> dict[str, Any]:
        return {**self._asdict(), "kind": self.kind.value}


class Findings:
    """A list that keeps the first ones, and counts the rest."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.count = 0

    def add(self, finding: Finding) -> None:
        self.count += 1
        if len(self.kept) < MAX_FINDINGS:
            self.kept.append(finding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """On one tenant."""

    tenant: str
    events: int
    segments: int
    sealed: int
    """Events that a signed checkpoint covers, by a key that is here."""
    unsealed: int
    """The others: whoever can write to the store could have changed them unseen."""
    erased: int
    erased_unsealed: int
    """Those whose erasure is on record, but not yet sealed."""
    checkpoints: int
    findings: tuple[Finding, ...] = field(default=(), repr=False)
    found: int
    """How many findings there are; the list is cut at some length."""

    @property
    def ok(self) -> bool:
        return self.found == 0

    def record(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "tenant": self.tenant,
            "ok": self.ok,
            "events": self.events,
            "segments": self.segments,
            "sealed": self.sealed,
            "unsealed": self.unsealed,
            "erased": self.erased,
            "erased_unsealed": self.erased_unsealed,
            "checkpoints": self.checkpoints,
            "found": self.found,
            "findings": [finding.record() for finding in self.findings],
        }
