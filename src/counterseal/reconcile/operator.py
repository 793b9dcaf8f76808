"""The operator's list: what no machine will settle by itself, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from counterseal.audit import Caller, Event, EventType
from counterseal.codes import RESPONSES, Code
from counterseal.contract.effects import Trust
from counterseal.errors import CountersealError
from counterseal.ledger import Entry, Phase, Status
from counterseal.observation import Observation
from counterseal.passage.resume import unpack
from counterseal.reconcile.compensating import request_compensation
from counterseal.storage.base import Concern, Due, DueKind, Finish, Kept, Settle

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["OperatorList"]

_LONGEST = 500


class OperatorList:
    """Acts in the name of a person, who is put on record with the reason that they give."""

    def __init__(self, runtime: Runtime, *, by: str) -> None:
        if not by.strip():
            raise ValueError("by: name the person who acts")
        self._runtime = runtime
        self._by = by[:128]

    async def list(self, tenant: str | None = None, limit: int = 100) -> Sequence[Concern]:
        """What waits for a person, oldest first."""
        return await self._runtime.store.concerns(tenant, limit)

    async def happened(
        self, tenant: str, key: str, *, reason: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Say that a call took effect. Who asks again gets a success, with this data."""
        kept = await self._escalated(tenant, key)
        seen = self._confirmed(kept.entry, data)
        settled = replace(
            kept.entry, status=Status.COMPLETED, phase=None, observation=seen.record()
        )
        await self._settle(kept, settled, "happened", reason)

    async def did_not_happen(self, tenant: str, key: str, *, reason: str) -> None:
        """Say that a call had no effect: its key is free again, and so is its approval."""
        kept = await self._escalated(tenant, key)
        settled = replace(kept.entry, status=Status.FAILED_RETRYABLE, phase=None)
        await self._settle(kept, settled, "did_not_happen", reason)

    async def compensate(self, tenant: str, key: str, *, reason: str) -> Due:
        """Have what a call did reversed; the next pass of a reconciler does it."""
        return await request_compensation(
            self._runtime, tenant, key, reason=_given(reason), by=self._by
        )

    async def again(self, tenant: str, kind: DueKind, key: str, *, reason: str) -> None:
        """Have work that failed tried once more."""
        await self._finish(tenant, kind, key, "again", reason, again_after=0.0)

    async def dismiss(self, tenant: str, kind: DueKind, key: str, *, reason: str) -> None:
        """Take work that failed off the list: somebody has seen to it."""
        await self._finish(tenant, kind, key, "dismissed", reason)

    # --- one transaction each ---------------------------------------------------------------------

    async def _escalated(self, tenant: str, key: str) -> Kept:
        kept = await self._runtime.store.look_up(tenant, key)
        if kept is None:
            raise CountersealError(f"nothing is on record under the key {key!r}")
        if kept.entry.status is not Status.PENDING or kept.entry.phase is not Phase.ESCALATED:
            raise CountersealError("this call does not wait for a person")
        return kept

    async def _settle(self, kept: Kept, settled: Entry, decision: str, reason: str) -> None:
        runtime, entry = self._runtime, kept.entry
        now, event = runtime.clock(), self._event(kept, decision, reason)
        request = Settle(entry.tenant, entry.run_id, now, settled, {}, (), (event,))
        if settled.status is Status.FAILED_RETRYABLE:
            request = request._replace(gives_back=self._approval(kept))
        if not await runtime.store.settle(request):
            raise CountersealError("somebody else has settled this call meanwhile")

    def _approval(self, kept: Kept) -> str | None:
        entry = kept.entry
        if kept.resume is None:
            return None
        return unpack(kept.resume, entry.tenant, entry.key, self._runtime.vault).approval_id

    def _confirmed(self, entry: Entry, data: Mapping[str, Any] | None) -> Observation:
        response = RESPONSES[Code.SUCCESS]
        return Observation(
            entry.tool,
            entry.version,
            entry.call_id,
            Code.SUCCESS,
            response,
            response.next_action,
            self._runtime.clock(),
            data=dict(data or {}),
            warnings=("A person has confirmed that this call took effect.",),
            trust=Trust.UNTRUSTED,
            attempt=entry.attempts,
        )

    async def _finish(
        self, tenant: str, kind: DueKind, key: str, decision: str, reason: str, **more: Any
    ) -> None:
        runtime = self._runtime
        work = await runtime.store.find_due(tenant, kind, key)
        if work is None or work.failed is None:
            raise CountersealError(f"no {kind} that failed is on the list under {key!r}")
        kept = await runtime.store.look_up(tenant, key)
        events = () if kept is None else (self._event(kept, decision, reason),)
        if not await runtime.store.finish(Finish(work, events=events, **more)):
            raise CountersealError("somebody else has taken this up meanwhile")

    def _event(self, kept: Kept, decision: str, reason: str) -> Event:
        entry = kept.entry
        caller = Caller(
            entry.tenant,
            entry.run_id,
            entry.call_id,
            entry.tool,
            entry.version,
            "operator",
            self._by,
            "",
        )
        body = {"reason": _given(reason)}
        now = self._runtime.clock()
        return Event(EventType.RECONCILED, caller, now, decision, body=body)


def _given(reason: str) -> str:
    if not reason.strip():
        raise ValueError("reason: say why, for whoever reads the record")
    return reason[:_LONGEST]
