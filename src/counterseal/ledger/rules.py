"""What every back-end must agree on. Pure: a store reads, asks here, and writes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from math import inf
from typing import Any

from counterseal.audit import Caller, Columns, Event, EventType, Link
from counterseal.errors import CountersealError
from counterseal.ledger.entry import Entry, Phase, Status
from counterseal.storage.base import Concern, Due, Held, HeldStatus, RunRecord

__all__ = [
    "adrift",
    "asked_before",
    "asker",
    "concern",
    "erased",
    "held_between",
    "implicit",
    "merged",
    "micros",
    "parked",
    "place_of",
    "reservable",
    "said",
    "same_question",
    "stands",
    "usable",
]


def reservable(entry: Entry, takes_over: int | None) -> bool:
    """Whether a key that was used may be reserved again.

    Who takes over decided on an entry that nobody had settled: they get that one, or none. Who has
    not looked gets none at all.
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


def implicit(tenant: str, agent: str, user: str | None, now: float) -> RunRecord:
    """The run that begins when somebody makes a call who names none, and is in none."""
    named = "\0".join((tenant, user or "", agent, str(now)))
    # As other ids, it begins with the time: what is new lies together in a store's index.
    run_id = f"run_{int(now * 1000):011x}{sha256(named.encode()).hexdigest()[:13]}"
    return RunRecord(tenant=tenant, run_id=run_id, started_at=now)


def same_question(one: Held, other: Held) -> bool:
    """Whether a person would be asked the same, and for the same."""
    return _subject(one) == _subject(other)


def _subject(held: Held) -> tuple[Any, ...]:
    asked = {name: value for name, value in held.demand.items() if name not in _SAID}
    return held.approval_hash, held.contract_hash, held.approvers, held.agent, held.user, asked


_SAID = ("reason", "rule")
"""Why somebody is asked does not change what they are asked."""


def usable(held: Held, now: float) -> bool:
    """Whether an approval can be spent."""
    return held.status is HeldStatus.APPROVED and now < held.expires_at


def stands(held: Held, run_id: str, now: float) -> bool:
    """Whether a request stands for its question, so that nobody is asked anew.

    A spent or a void one does not, and a rejection always does. One that ended without being used
    stands for its own run only, and there for as long again as it was open.
    """
    if held.status in (HeldStatus.SPENT, HeldStatus.VOID):
        return False
    ended = held.status is HeldStatus.EXPIRED or now >= held.expires_at
    if held.status is HeldStatus.REJECTED or not ended:
        return True
    return held.run_id == run_id and now < held.expires_at + (held.expires_at - held.created_at)


def asked_before(held: Held | None, asked: Held) -> bool:
    """Whether what is asked was asked before, in the caller's last request under the key."""
    return (
        held is not None
        and same_question(held, asked)
        and stands(held, asked.run_id, asked.created_at)
    )


def asker(agent: str, user: str | None) -> tuple[str, str]:
    """A caller, as requests are told apart by them: nobody is the empty user."""
    return agent, user or ""


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


def held_between(
    after: float | None, beyond: tuple[float, str] | None, *, newest_first: bool
) -> tuple[tuple[float, str], tuple[float, str]]:
    """The places that requests lie between that are asked for, neither of them included.

    A place is when a request ends, and its id.
    """
    first = (-inf, "") if after is None else (after, _BEHIND_ALL)
    last = (inf, _BEHIND_ALL)
    if beyond is None:
        return first, last
    return (first, min(last, beyond)) if newest_first else (max(first, beyond), last)


_BEHIND_ALL = "\U0010ffff"
"""Greater than any id."""


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
