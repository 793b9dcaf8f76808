"""What every back-end must agree on. Pure: a store reads, asks here, and writes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from counterseal.audit import Caller, Event, EventType
from counterseal.errors import CountersealError
from counterseal.ledger import Entry, Phase, Status
from counterseal.storage.base import Concern, Due, Held, HeldStatus

__all__ = [
    "adrift",
    "concern",
    "counts",
    "erased",
    "merged",
    "micros",
    "parked",
    "place_of",
    "reservable",
    "same_question",
]


def reservable(entry: Entry, takes_over: int | None) -> bool:
    """Whether a key that was used may be reserved again.

    Who takes over decided on an entry that nobody had settled: they get that one, or none.
    """
    if takes_over is not None:
        return adrift(entry) and entry.fence == takes_over
    return entry.status is Status.FAILED_RETRYABLE


def adrift(entry: Entry) -> bool:
    """Whether nobody knows what became of it, nobody is at work on it, and no person is asked."""
    pending = entry.status is Status.PENDING and entry.phase is not Phase.ESCALATED
    return pending and not entry.held and (entry.lapsed or entry.phase is Phase.UNKNOWN)


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


def erased(tenant: str, now: float, count: int, until: int) -> Event:
    """What is put on record when events are erased: how many, and up to which number."""
    nobody = Caller(tenant, "", "", "", "", "counterseal", None, "")
    return Event(EventType.ERASED, nobody, now, "erase", body={"events": count, "until": until})


def concern(entry: Entry) -> Concern:
    """An escalated entry, as an operator is shown it."""
    call = (entry.call_id, entry.run_id, entry.tool, entry.version)
    reason = "it is not known whether this took effect"
    return Concern(
        entry.tenant, "unknown", entry.key, *call, entry.unknown_since or 0.0, reason, entry.fence
    )


def parked(due: Due) -> Concern:
    """Due work that failed, as an operator is shown it."""
    call = (due.call_id, due.run_id, due.tool, due.version)
    return Concern(
        due.tenant, str(due.kind), due.key, *call, due.since, due.failed or "", due.fence
    )


def micros(moment: float) -> int:
    """A moment as events are numbered."""
    return int(moment * 1e6)


def place_of(event_id: str) -> tuple[int, str]:
    """Where an event is in its tenant's log: its number and its segment."""
    if event_id.startswith("evt_"):
        with suppress(ValueError):
            return int(event_id[4:18], 16), event_id[18:]
    raise CountersealError(
        f"after: {event_id!r} is no event's id; give one as a search has returned it"
    )
