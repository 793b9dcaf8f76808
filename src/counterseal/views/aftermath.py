"""What followed a call: was it looked whether it took effect, and was it reversed?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from counterseal.audit import Event, EventType
from counterseal.errors import RegistryError
from counterseal.observation.stored import from_stored
from counterseal.storage.base import DueKind, Kept
from counterseal.views.base import iso

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["compensation_of", "verification_of"]

Told = Sequence[tuple[str, Event]]

_LOOKED: Final = {
    EventType.VERIFIED: "verified",
    EventType.UNVERIFIED: "unverified",
    EventType.OVERTAKEN: "overtaken",
}
_REVERSED: Final = {
    EventType.COMPENSATION_REQUIRED: "due",
    EventType.COMPENSATION_FAILED: "failed",
    EventType.COMPENSATED: "compensated",
}


async def verification_of(
    runtime: Runtime, tenant: str, told: Told, kept: Kept | None
) -> dict[str, Any] | None:
    """In which state looking at it is, and what is to be seen; None: nobody has to look."""
    states = [(_LOOKED[event.type], event) for _, event in told if event.type in _LOOKED]
    seen = kept.entry.observation if kept else None
    hint = None if seen is None else from_stored(seen).verification
    due = await runtime.store.find_due(tenant, DueKind.VERIFY, kept.entry.key) if kept else None
    if not states and due is None and not (hint and hint.required):
        return None
    state, event = states[-1] if states else ("due" if due else "required", None)
    return {
        "state": state,
        "at": iso(event.occurred_at) if event else None,
        "wrong": list(event.body.get("wrong", ())) if event else [],
        "failed": due.failed if due else None,
        "reference": hint.target_state_reference if hint else None,
        "expected": hint.expected_state if hint else None,
        "delay_seconds": hint.delay_seconds if hint else None,
    }


async def compensation_of(
    runtime: Runtime, tenant: str, told: Told, kept: Kept | None
) -> dict[str, Any] | None:
    """In which state its reversal is; None: nobody asked for one."""
    states = [(_REVERSED[event.type], event) for _, event in told if event.type in _REVERSED]
    if not states:
        return None
    state, event = states[-1]
    due = await runtime.store.find_due(tenant, DueKind.COMPENSATE, kept.entry.key) if kept else None
    return {
        "state": state,
        "at": iso(event.occurred_at),
        "tool": _undo(runtime, event),
        "reason": event.body.get("reason"),
        "failed": due.failed if due else None,
        "by_call": event.body.get("by") if state == "compensated" else None,
    }


def _undo(runtime: Runtime, event: Event) -> str | None:
    try:
        record = runtime.registry.get(event.caller.tool, event.caller.version)
    except RegistryError:
        return None
    return record.contract.transactional.compensation_tool
