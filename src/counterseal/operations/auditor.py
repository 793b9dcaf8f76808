"""Auditors: they verify and seal the audit record, read and erase kept proposals.

The rules of the record are in `audit`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from operator import itemgetter
from typing import Final, NamedTuple

from counterseal.audit import CallFields, Event, EventType, Head
from counterseal.audit.chain import Checkpoint, make_checkpoint, sealed_heads
from counterseal.audit.verify import LATE_MICROS, AuditReport, FindingKind, RecordVerifier
from counterseal.call.capture import Capture, unpack_capture
from counterseal.errors import CountersealError, StoreError
from counterseal.keys import KeyRing, Signer
from counterseal.ledger.requests import EventFilter, StoredEntry
from counterseal.storage.store import Store
from counterseal.vault import Vault, VaultError

_PAGE: Final = 1000
_TRIES: Final = 10
_START: Final = (-1, "")
"""A position before every event."""
_UNREADABLE: Final = (AttributeError, KeyError, TypeError, ValueError)
"""What a store raises for rows that other software has written."""


async def verify_store(
    store: Store,
    tenant: str,
    ring: KeyRing | None = None,
    *,
    receipts: Mapping[int, bytes] | None = None,
    progress: Callable[[int], None] | None = None,
) -> AuditReport:
    """Verify a tenant's whole record as it is now, without events that come in meanwhile.

    `receipts` are hashes of checkpoints by number, kept elsewhere; `progress` is called with the
    number of events checked so far.
    """
    # In this order, because checkpoints and erasures come after the events that they cover.
    try:
        checkpoints = await store.checkpoints(tenant)
    except _UNREADABLE:
        checkpoints = None
    erasures = []
    with suppress(*_UNREADABLE):  # only a hint: each erasure is verified when its event is
        events = await store.search(tenant, EventFilter(types=(EventType.ERASED.value,)))
        erasures = [(event_id, int(event.body["until"])) for event_id, event in events]
    verifier = RecordVerifier(
        tenant,
        checkpoints or (),
        ring,
        limits=await _heads(store, tenant, 0),
        erasures=erasures,
        receipts=receipts,
    )
    if checkpoints is None:
        verifier.note(
            FindingKind.CHECKPOINT, "the checkpoints can't be read: one of them was changed"
        )
    after, full = _START, True
    while full:
        page = await store.recorded(tenant, after, _PAGE)
        full = len(page) == _PAGE  # a short page is the last one
        verifier.feed(page)
        after = page[-1].link[:2] if page else after
        if progress is not None:
            progress(verifier.events)
    return verifier.report()


async def count_events(store: Store, tenant: str) -> int:
    """Return how many events a tenant's record has, as far as its heads can be read."""
    return sum(head.seq for head in (await _heads(store, tenant, 0)).values())


async def _heads(store: Store, tenant: str, since: int) -> dict[str, Head]:
    """Return the heads of the segments, without damaged ones."""
    heads = await store.heads(tenant, since)
    return {
        segment: head
        for segment, head in heads.items()
        if all(isinstance(number, int) for number in head[:2])
    }


async def seal_store(store: Store, tenant: str, signer: Signer, now: float) -> Checkpoint | None:
    """Seal the heads of a tenant's segments. None if no event came since the last checkpoint."""
    for _ in range(_TRIES):
        checkpoints = await store.checkpoints(tenant)
        sealed = sealed_heads(checkpoints)
        latest = max((head.number for head in sealed.values()), default=0)
        if checkpoints:
            # An event numbered by a clock that ran ahead must not hide later ones.
            latest = min(latest, int(checkpoints[-1].sealed_at * 1e6))
        # A slow writer may commit events that it numbered before the last checkpoint.
        heads = await _heads(store, tenant, max(0, latest - LATE_MICROS))
        grown = {
            segment: head
            for segment, head in heads.items()
            if segment not in sealed or head.seq > sealed[segment].seq
        }
        if not grown:
            return None
        last = checkpoints[-1] if checkpoints else None
        checkpoint = make_checkpoint(tenant, grown, last, now, signer)
        if await store.seal(checkpoint):
            return checkpoint
    raise StoreError(f"{tenant}: another process sealed first, {_TRIES} times; try again later")


# --- a call by its id -----------------------------------------------------------------------------

_OWN_ID: Final = re.compile(r"call_[0-9a-f]{24}")
_MAX_SAME: Final = 200
"""Events that are read to find the calls with an id: each call has a few of these types."""
_DONE: Final = (EventType.SUCCEEDED, EventType.FAILED, EventType.RECONCILED)
_STEPS: Final = (
    *(EventType.REQUESTED, EventType.DENIED, EventType.APPROVAL_REQUIRED, EventType.REPLAYED),
    *(EventType.ESCALATED, *_DONE),
)
_MAX_CHOICES: Final = 20


class CallChoice(NamedTuple):
    """A call that an id may mean."""

    call_id: str
    tool: str
    run_id: str
    at: float
    """When its latest step was recorded, or it was admitted; 0: an earlier version did not say."""
    executed: str
    """The id of the call whose outcome it has: its own, or that of the call that it repeats."""
    operation: str | None = None
    """Its key, or a fingerprint of that; None for a call without one."""
    done: bool = False
    """True if it was executed."""

    def __str__(self) -> str:
        when = f", {datetime.fromtimestamp(self.at, UTC):%Y-%m-%d %H:%M:%S} UTC" if self.at else ""
        return f"{self.call_id} ({self.tool or 'unknown tool'} in run {self.run_id}{when})"


class AmbiguousCallError(CountersealError):
    """Several calls have the id that was given: `choices` says which."""

    def __init__(self, call_id: str, choices: Sequence[CallChoice]) -> None:
        self.choices = tuple(choices[:_MAX_CHOICES])
        more = len(choices) - len(self.choices)
        listed = "; ".join([*map(str, self.choices), *([f"and {more} more"] if more else [])])
        if len({choice.call_id for choice in choices}) == len(choices):
            advice = "use the id that Counterseal gave the call"
        else:  # made by an earlier version, which took over the callers' ids
            keys = sorted({choice.operation or "" for choice in choices})
            advice = f"use the key of the call ({', '.join(keys)}), or look at its run"
        super().__init__(f"{len(choices)} calls have the id {call_id!r}; {advice}: {listed}.")


Owner = tuple[str, str | None]
"""An agent, and the user that it may be bound to: calls of others do not exist for it."""


async def find_call(
    store: Store, tenant: str, call_id: str, owner: Owner | None = None
) -> str | None:
    """Return Counterseal's id of a call, from that or from the caller's own id; None: unknown.

    AmbiguousCallError if several calls have the id. Tries of one operation count as one call: the
    one that was executed, else the latest.
    """
    choices = await _choices(store, tenant, call_id, owner)
    if not choices:
        return None
    operations = {choice.operation for choice in choices}
    if len(choices) > 1 and (len(operations) > 1 or None in operations):
        raise AmbiguousCallError(call_id, choices)
    return next((choice for choice in choices if choice.done), choices[0]).call_id


async def find_entry(store: Store, tenant: str, name: str) -> StoredEntry:
    """Return a ledger entry by its key, or by an id of its call.

    AmbiguousCallError if calls with several keys have the id; CountersealError if there is none.
    """
    kept = await store.look_up(tenant, name)
    if kept is not None:
        return kept
    ids = {name, *(choice.executed for choice in await _choices(store, tenant, name, None))}
    found = [one for call_id in sorted(ids) for one in await store.look_up_call(tenant, call_id)]
    if not found:
        raise CountersealError(f"no call is recorded under the key or the id {name!r}")
    if len(found) == 1:
        return found[0]
    choices = []
    for entry, at in ((one.entry, one.created_at or 0.0) for one in found):
        own = (entry.call_id, entry.tool, entry.run_id, at, entry.call_id, entry.key)
        choices.append(CallChoice(*own))
    raise AmbiguousCallError(name, choices)


async def _choices(
    store: Store, tenant: str, call_id: str, owner: Owner | None
) -> Sequence[CallChoice]:
    """Return the calls with an id, latest first.

    An id of Counterseal's own belongs to one call, whatever ids callers give to theirs.
    """
    wanted = EventFilter(types=_STEPS, limit=_MAX_SAME, newest_first=True)
    events = list(await store.search(tenant, wanted._replace(call_id=call_id)))
    is_own = _OWN_ID.fullmatch(call_id) is not None
    if is_own and not events:  # on record, but erased, or only just begun
        events = list(await store.search(tenant, EventFilter(call_id=call_id, limit=1)))
    if not (is_own and events):
        events += await store.search(tenant, wanted._replace(caller_call_id=call_id))
    calls: dict[tuple[str, ...], CallChoice] = {}
    for _, event in sorted(events, reverse=True, key=itemgetter(0)):
        caller, body = event.caller, event.body
        if owner is not None and (caller.agent != owner[0] or owner[1] not in (None, caller.user)):
            continue
        # Earlier versions took over the caller's id: such calls differ by run, tool and trace.
        shared = caller.caller_call_id is None and not is_own
        place = (caller.run_id, caller.tool, caller.trace_id) if shared else ()
        if shared and not caller.trace_id:
            continue  # an operator's step
        new = (caller.call_id, caller.tool, caller.run_id, event.occurred_at, caller.call_id)
        choice = calls.get((caller.call_id, *place), CallChoice(*new))
        calls[caller.call_id, *place] = choice._replace(
            executed=body.get("of", choice.executed),
            operation=body.get("key_fingerprint", choice.operation),
            done=choice.done or event.type in _DONE,
        )
    return tuple(calls.values())


# --- what was asked -------------------------------------------------------------------------------

NOT_CAPTURED: Final = {
    "opted_out": "Arguments of this tool or tenant are not kept (keep_arguments_days is 0).",
    "limit": "Too many proposals of this caller were refused in that hour; this one was not kept.",
    "failed": "They could not be kept when the call came in.",
}
_GONE: Final = "They are no longer kept."
_LOCKED: Final = "They can't be opened: the vault key that sealed them is not here."


class NotKeptError(CountersealError):
    """The arguments of a call are not kept; the message says why."""


async def read_arguments(
    store: Store, vault: Vault, tenant: str, call_id: str, *, by: str, now: float
) -> Capture:
    """Return what was proposed in a call. That `by` has looked is on record before it is shown.

    NotKeptError if it is not kept.
    """
    event = await _captured(store, tenant, call_id)
    capture = await open_capture(store, vault, tenant, event)
    await store.write([_act(event.caller, EventType.ARGUMENTS_READ, "read", by, now)])
    return capture


async def open_capture(store: Store, vault: Vault, tenant: str, event: Event) -> Capture:
    """Return an event's proposal; the caller puts that on record. Raises NotKeptError."""
    sealed = await store.fetch(tenant, str(event.body.get("captured")))
    if sealed is None:
        raise NotKeptError(_GONE)
    try:
        return unpack_capture(vault.open(tenant, event.caller.call_id, sealed))
    except (VaultError, ValueError):
        raise NotKeptError(_LOCKED) from None


async def note_export(store: Store, tenant: str, *, by: str, calls: str, now: float) -> None:
    """Record that a person exports the arguments of calls."""
    caller = CallFields(tenant, "", "", "", "", "counterseal", by, "")
    await store.write([_act(caller, EventType.ARGUMENTS_READ, "read", by, now, exported=calls)])


async def erase_arguments(
    store: Store, tenant: str, call_id: str, *, by: str, reason: str, now: float
) -> None:
    """Delete what was kept of a call's proposals, on record. Raises NotKeptError if nothing was."""
    if not reason.strip():
        raise ValueError("reason: say why the arguments are erased")
    event = await _captured(store, tenant, call_id)
    captures = await _captures(store, tenant, call_id)
    pointers = [str(capture.body["captured"]) for capture in captures]
    erased = _act(event.caller, EventType.ARGUMENTS_ERASED, "erase", by, now, reason=reason)
    await store.forget(tenant, pointers, [erased])


async def _captured(store: Store, tenant: str, call_id: str) -> Event:
    """Return the newest event of a call that points to its proposal."""
    captures = await _captures(store, tenant, call_id)
    if captures:
        return captures[-1]
    events = await store.events(tenant, call_id=call_id)
    reasons = [event.body["not_captured"] for _, event in events if "not_captured" in event.body]
    raise NotKeptError(NOT_CAPTURED.get(reasons[-1], _GONE) if reasons else _GONE)


async def _captures(store: Store, tenant: str, call_id: str) -> list[Event]:
    events = await store.events(tenant, call_id=call_id)
    return [event for _, event in events if isinstance(event.body.get("captured"), str)]


def _act(
    caller: CallFields, kind: EventType, decision: str, by: str, now: float, **more: str
) -> Event:
    caller = caller._replace(user=by, trace_id="")
    return Event(kind, caller, now, decision, body={"by": by, **more})
