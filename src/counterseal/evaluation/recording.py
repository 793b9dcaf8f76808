"""Recorded calls: what was proposed, what the decision depended on, and what was decided.

They are read from the record in batches, oldest first. Captures hold arguments, so callers of
`read_calls` first record that they read them (`operations.auditor.note_export`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from counterseal.audit import Event, EventType
from counterseal.call.capture import Capture, unpack_capture
from counterseal.ledger.records import Held
from counterseal.ledger.requests import EventFilter
from counterseal.storage.store import Store
from counterseal.vault import Vault, VaultError

BATCH: Final = 1000
_ENDS: Final = (EventType.SUCCEEDED, EventType.FAILED, EventType.RECONCILED)
_DECISIONS: Final = (
    *(EventType.REQUESTED, EventType.DENIED, EventType.APPROVAL_REQUIRED, EventType.REPLAYED),
    *_ENDS,
)
"""The events that say how a proposal was decided. A read may have no event but its end."""
NOT_KEPT: Final = {
    "opted_out": "arguments of the tool or tenant are not kept",
    "limit": "too many proposals of the caller were refused in that hour",
    "failed": "the proposal could not be kept when it came in",
}
_GONE: Final = "the arguments are no longer kept"
_LOCKED: Final = "the vault key that sealed the arguments is not here"
_GAPS: Final = {
    "redacted": "a value was redacted",
    "cut": "a value was too long to be kept whole",
    "unreadable": "a value has no JSON form",
    "older": "an earlier version kept less of a proposal",
}


class CallVerdict(NamedTuple):
    """How a proposal was decided: `allow`, `deny`, `ask` or `repeat`, by which gate and rule."""

    verdict: str
    gate: str | None = None
    code: str | None = None
    rule: str | None = None

    def __str__(self) -> str:
        words = {"allow": "allowed", "deny": "refused", "ask": "asked", "repeat": "repeated"}
        by = " ".join(filter(None, (self.gate, self.rule)))
        return f"{words[self.verdict]} by {by}" if by else words[self.verdict]


class RecordedCall(NamedTuple):
    """One decision on record. `lacks` says why it can't be made again; empty if it can."""

    event_id: str
    event: Event
    outcome: CallVerdict
    capture: Capture | None = None
    held: Held | None = None
    """The request for approval that the decision read, as it is stored now."""
    lacks: str = ""

    @property
    def call_id(self) -> str:
        return self.event.caller.call_id

    @property
    def tool(self) -> str:
        return self.event.caller.tool

    @property
    def gates(self) -> Mapping[str, Any]:
        """The decision of each gate, as `call.events.decisions_of` writes it."""
        gates: Mapping[str, Any] = self.event.body.get("gates", {})
        return gates


async def read_calls(
    store: Store, vault: Vault, tenant: str, search: EventFilter, *, batch: int = BATCH
) -> AsyncGenerator[Sequence[RecordedCall]]:
    """Yield the decisions of a tenant that match, in batches, oldest first."""
    search = search._replace(types=_DECISIONS, limit=batch)
    while True:
        events = await store.search(tenant, search)
        decisions = [one for one in events if _is_decision(one[1])]
        pointers = [pointer for _, event in decisions if (pointer := event.body.get("captured"))]
        kept = await store.fetch_all(tenant, pointers) if pointers else {}
        calls = [_recorded(vault, tenant, *one, kept) for one in decisions]
        if calls:
            yield [await _with_held(store, tenant, call) for call in calls]
        if len(events) < batch:
            return
        search = search._replace(after=events[-1][0])


def _is_decision(event: Event) -> bool:
    """Return True unless the event ends a call whose decision is on record before it."""
    body = event.body
    return event.type not in _ENDS or ("announced" not in body and "resumed" not in body)


def _recorded(
    vault: Vault, tenant: str, event_id: str, event: Event, kept: Mapping[str, bytes]
) -> RecordedCall:
    body = event.body
    call = RecordedCall(event_id, event, _outcome(event))
    pointer = body.get("captured")
    if pointer is None:
        return call._replace(lacks=NOT_KEPT.get(str(body.get("not_captured")), _GONE))
    sealed = kept.get(pointer)
    if sealed is None:
        return call._replace(lacks=_GONE)
    try:
        capture = unpack_capture(vault.open(tenant, event.caller.call_id, sealed))
    except (VaultError, ValueError):
        return call._replace(lacks=_LOCKED)
    missing = capture.missing
    if missing:
        part, why = next(iter(missing.items()))
        return call._replace(capture=capture, lacks=f"{_GAPS.get(why, why)} ({part})")
    return call._replace(capture=capture)


def _outcome(event: Event) -> CallVerdict:
    body = event.body
    if event.type is EventType.DENIED:
        return CallVerdict("deny", body.get("gate"), body.get("code"), body.get("rule"))
    if event.type is EventType.APPROVAL_REQUIRED:
        return CallVerdict("ask", "approval", "CONFIRMATION_MISSING", body.get("rule"))
    return (
        CallVerdict("repeat", "ledger")
        if event.type is EventType.REPLAYED
        else CallVerdict("allow")
    )


async def _with_held(store: Store, tenant: str, call: RecordedCall) -> RecordedCall:
    memory = None if call.capture is None else call.capture.memory
    approval = None if memory is None else memory.get("approval")
    if approval is None:
        return call
    held = await store.find_held(tenant, approval[0])
    if held is None:
        return call._replace(lacks="the request for approval is no longer kept")
    return call._replace(held=held)
