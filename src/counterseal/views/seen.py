"""What the model saw of a call, where it is kept: in the ledger, or of a read in the vault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from counterseal.audit import Event, EventType
from counterseal.audit.facts import filed
from counterseal.ledger.entry import Status
from counterseal.observation.stored import from_stored, open_read
from counterseal.storage.base import Kept
from counterseal.vault import VaultError

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["Seen", "end_of", "in_ledger", "in_vault", "seen_of", "without_gates"]

_NOT_KEPT: Final = {
    EventType.DENIED: "It was refused; of a refusal, the reason is kept.",
    EventType.APPROVAL_REQUIRED: "It waits for people; the agent was told so.",
    EventType.STARTED: "It has not come to its end yet.",
}
_OF_A_READ: Final = "Not kept: it changed nothing. [observations] keep_reads says which reads are."
_NOT_TAKEN: Final = "It could not be kept: the vault did not take it."
_NO_LONGER: Final = "It is no longer kept."
_UNKNOWN: Final = "What became of it is not known; the agent was told so."
_OVER: Final = "It is no longer kept, or was never on record."


class Seen(NamedTuple):
    """What the model saw, or why that can't be told."""

    record: Mapping[str, Any] | None = None
    text: str | None = None
    """The same as the model read it."""
    cut: str = ""
    """What of the text is not kept."""
    not_kept: str = ""


async def seen_of(runtime: Runtime, tenant: str, end: Event, kept: Kept | None) -> Seen:
    """From the vault where the event that ended the call says so, else from the ledger."""
    seen = await in_vault(runtime, tenant, end) or in_ledger(kept)
    return seen or Seen(not_kept=_not_kept(end, kept))


def in_ledger(kept: Kept | None) -> Seen | None:
    """What the ledger has of it; None where it has nothing."""
    if kept is None or kept.entry.observation is None:
        return None
    seen = from_stored(kept.entry.observation)
    return Seen(seen.record(), seen.for_model())


async def in_vault(runtime: Runtime, tenant: str, end: Event) -> Seen | None:
    """What was kept of a read; None where nothing was to be."""
    if "seen" not in end.body:
        return None
    pointer = end.body["seen"]
    if not isinstance(pointer, str):
        return Seen(not_kept=_NOT_TAKEN)
    sealed = await runtime.store.fetch(tenant, pointer)
    if sealed is None:
        return Seen(not_kept=_NO_LONGER)
    try:
        return Seen(*open_read(runtime.vault.open(tenant, end.caller.call_id, sealed)))
    except (VaultError, ValueError):
        return Seen(not_kept=_NO_LONGER)


def _not_kept(end: Event, kept: Kept | None) -> str:
    if kept is not None and kept.entry.status is Status.PENDING:
        return _NOT_KEPT[EventType.STARTED] if end.type is EventType.STARTED else _UNKNOWN
    return _NOT_KEPT.get(end.type) or (_OVER if "mutates" in end.body else _OF_A_READ)


def end_of(told: Sequence[tuple[str, Event]]) -> Event:
    """The last event that ended the call; while it is under way, the last of all."""
    events = [event for _, event in told]
    ended = [one for one in events if filed(one.type, one.decision, one.body)[0] is not None]
    return (ended or events)[-1]


def without_gates(seen: Mapping[str, Any]) -> dict[str, Any]:
    """What was decided about a call is for people, and stands on its page."""
    return {name: value for name, value in seen.items() if name not in ("decisions", "raw")}
