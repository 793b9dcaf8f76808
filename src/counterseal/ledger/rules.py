"""Rules of the audit log that every back-end shares."""

from __future__ import annotations

from contextlib import suppress

from counterseal.audit import Caller, Columns, Event, EventType, Link
from counterseal.errors import CountersealError
from counterseal.ledger.due_work import escalated_concern as concern
from counterseal.ledger.due_work import failed_concern as parked
from counterseal.ledger.entry import adrift, reservable
from counterseal.ledger.holds import (
    asked_before,
    held_between,
    same_question,
    stands,
    usable,
)
from counterseal.ledger.holds import caller_key as asker
from counterseal.ledger.run_changes import implicit_run as implicit

__all__ = [
    "adrift",
    "asked_before",
    "asker",
    "concern",
    "erased",
    "held_between",
    "implicit",
    "micros",
    "parked",
    "place_of",
    "reservable",
    "said",
    "same_question",
    "stands",
    "usable",
]


def erased(tenant: str, now: float, count: int, until: int) -> Event:
    """What is put on record when events are erased: how many, and up to which number."""
    nobody = Caller(tenant, "", "", "", "", "counterseal", None, "")
    return Event(EventType.ERASED, nobody, now, "erase", body={"events": count, "until": until})


def said(link: Link, columns: Columns) -> Columns | None:
    """What a row of the log says; None once that was erased, but for the tenant.

    Whatever lies in an erased row was put there by somebody, and is shown to whoever checks.
    """
    if link.salt is None and all(one is None for one in (columns[0], *columns[2:])):
        return None
    return columns


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
