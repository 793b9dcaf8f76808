"""What every back-end must agree on. Pure: a store reads, asks here, and writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterseal.ledger import Entry, Phase, Status
from counterseal.storage.base import Held, HeldStatus

__all__ = ["counts", "merged", "reservable", "same_question"]


def reservable(entry: Entry, takes_over: int | None) -> bool:
    """Whether a key that was used may be reserved again."""
    if entry.status is Status.FAILED_RETRYABLE:
        return True
    unknown = entry.status is Status.PENDING and entry.phase is Phase.UNKNOWN
    return unknown and entry.fence == takes_over


def merged(before: Any, merge: str, value: Any) -> Any:
    """What a key of run state holds afterwards. What can't be merged into is replaced."""
    if merge == "append":
        return [*(before if isinstance(before, list) else ()), value]
    if merge == "merge_dict":
        return {**(before if isinstance(before, Mapping) else {}), **value}
    return value


def same_question(one: Held, other: Held) -> bool:
    """Whether a person would be asked the same, and for the same."""
    return _subject(one) == _subject(other)


def _subject(held: Held) -> tuple[Any, ...]:
    return held.approval_hash, held.contract_hash, held.approvers, held.agent, held.user


def counts(held: Held) -> bool:
    """Whether it still stands for its question; a spent or a void one does not."""
    return held.status not in (HeldStatus.SPENT, HeldStatus.VOID)
