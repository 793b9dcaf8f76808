"""Checking and sealing a store's record. What that means is in `audit`; this asks the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from counterseal.audit import EventType, Head
from counterseal.audit.checkpoints import Checkpoint, make, sealed_heads
from counterseal.audit.verify import LATE_MICROS, Kind, Report, Verifier
from counterseal.errors import StoreError
from counterseal.keys import KeyRing, Signer
from counterseal.ledger.requests import Search
from counterseal.storage.store import Store

__all__ = ["seal_store", "verify_store"]

_PAGE: Final = 1000
_TRIES: Final = 10
_START: Final = (-1, "")
"""Before every event."""
_UNREADABLE: Final = (AttributeError, KeyError, TypeError, ValueError)
"""What a store raises when somebody has written something else there than it does."""


async def verify_store(
    store: Store,
    tenant: str,
    ring: KeyRing | None = None,
    *,
    receipts: Mapping[int, bytes] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Check everything on a tenant's record, as it is now. Events that come meanwhile are left.

    `receipts` are the hashes of checkpoints by number, kept elsewhere; `progress` is told how many
    events were looked at.
    """
    # In this order: what a checkpoint seals, and what an erasure tells of, was there before it.
    checkpoints = await _checkpoints(store, tenant)
    erasures = await _erasures(store, tenant)
    verifier = Verifier(
        tenant,
        checkpoints or (),
        ring,
        limits=await _heads(store, tenant, 0),
        erasures=erasures,
        receipts=receipts,
    )
    if checkpoints is None:
        verifier.note(Kind.CHECKPOINT, "the checkpoints can't be read: one of them was changed")
    after, full = _START, True
    while full:
        page = await store.recorded(tenant, after, _PAGE)
        full = len(page) == _PAGE  # a short one is the end, even if more is written meanwhile
        verifier.feed(page)
        after = page[-1].link[:2] if page else after
        if progress is not None:
            progress(verifier.events)
    return verifier.report()


async def _checkpoints(store: Store, tenant: str) -> Sequence[Checkpoint] | None:
    try:
        return await store.checkpoints(tenant)
    except _UNREADABLE:
        return None


async def _erasures(store: Store, tenant: str) -> Sequence[tuple[str, int]]:
    """What is known of erasures beforehand. Only a help: each is checked when its turn comes."""
    try:
        found = await store.search(tenant, Search(types=(EventType.ERASED.value,)))
        return [(event_id, int(event.body["until"])) for event_id, event in found]
    except _UNREADABLE:
        return ()


async def _heads(store: Store, tenant: str, since: int) -> dict[str, Head]:
    """Where segments end, as far as a store has written it."""
    found = await store.heads(tenant, since)
    return {
        segment: head
        for segment, head in found.items()
        if all(isinstance(one, int) for one in head[:2])
    }


async def seal_store(store: Store, tenant: str, signer: Signer, now: float) -> Checkpoint | None:
    """Seal where every segment of a tenant ends. None when nothing came since the last time."""
    for _ in range(_TRIES):
        checkpoints = await store.checkpoints(tenant)
        sealed = sealed_heads(checkpoints)
        latest = max((head.number for head in sealed.values()), default=0)
        if checkpoints:
            # An event numbered by a clock that ran ahead must not hide those that came after it.
            latest = min(latest, int(checkpoints[-1].sealed_at * 1e6))
        # A slow writer may commit what it had numbered before the last checkpoint.
        heads = await _heads(store, tenant, max(0, latest - LATE_MICROS))
        grown = {
            segment: head
            for segment, head in heads.items()
            if segment not in sealed or head.seq > sealed[segment].seq
        }
        if not grown:
            return None
        made = make(tenant, grown, checkpoints[-1] if checkpoints else None, now, signer)
        if await store.seal(made):
            return made
    raise StoreError(f"{tenant}: somebody else sealed first, {_TRIES} times; try again later")
