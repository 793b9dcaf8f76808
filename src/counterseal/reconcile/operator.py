"""The operator's list: what no machine will settle by itself, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from counterseal.audit import Caller, Event, EventType
from counterseal.call.resume import unpack
from counterseal.codes import RESPONSES, Code
from counterseal.contract.effects import Trust
from counterseal.errors import CountersealError, RegistryError
from counterseal.ledger.entry import Entry, Phase, Status
from counterseal.observation import Observation
from counterseal.observation.stored import stored
from counterseal.reconcile.compensating import request_compensation, undo_key
from counterseal.storage.base import Concern, Due, DueKind, Finish, Kept, Settle
from counterseal.vault import VaultError

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["OperatorList"]

_LONGEST = 1000


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
        settled = kept.entry._replace(status=Status.COMPLETED, phase=None, observation=stored(seen))
        await self._settle(kept, settled, "happened", reason)

    async def did_not_happen(self, tenant: str, key: str, *, reason: str) -> None:
        """Say that a call had no effect: its key is free again, and so is its approval."""
        kept = await self._escalated(tenant, key)
        settled = kept.entry._replace(status=Status.FAILED_RETRYABLE, phase=None)
        await self._settle(kept, settled, "did_not_happen", reason)

    async def compensate(self, tenant: str, key: str, *, reason: str) -> Due:
        """Have what a call did reversed; the next pass of a reconciler does it.

        The call is told by its key, or by its id.
        """
        return await request_compensation(
            self._runtime, tenant, key, reason=_given(reason), by=self._by
        )

    async def again(self, tenant: str, kind: DueKind, key: str, *, reason: str) -> None:
        """Have work that failed tried once more."""
        more: dict[str, Any] = {"again_after": 0.0}
        work = await self._runtime.store.find_due(tenant, kind, key)
        if work is not None and kind is DueKind.COMPENSATE and await self._failed_for_good(work):
            # Under the same key the reversal would only be told once more that it failed.
            anew = {**work.body, "generation": work.body.get("generation", 0) + 1}
            more = {"due": ((0.0, work._replace(body=anew, fence=0, tries=0, failed=None)),)}
        await self._finish(tenant, kind, key, "again", reason, **more)

    async def _failed_for_good(self, work: Due) -> bool:
        contract = self._runtime.registry.get(work.tool, work.version).contract
        undo = contract.transactional.compensation_tool
        kept = await self._runtime.store.look_up(work.tenant, f"undo:{undo}:{undo_key(work)}")
        return kept is not None and kept.entry.status is Status.FAILED_FINAL

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
        now, event = runtime.clock(), self._event(entry, decision, reason)
        request = Settle(entry.tenant, entry.run_id, now, settled, {}, (), (event,))
        request = request._replace(keep_for=self._keep_for(entry))
        if settled.status is Status.FAILED_RETRYABLE:
            request = request._replace(gives_back=self._approval(kept))
        if not await runtime.store.settle(request):
            raise CountersealError("somebody else has settled this call meanwhile")

    def _keep_for(self, entry: Entry) -> float | None:
        try:
            contract = self._runtime.registry.get(entry.tool, entry.version).contract
        except RegistryError:
            return None
        return contract.idempotency.ttl_seconds

    def _approval(self, kept: Kept) -> str | None:
        entry = kept.entry
        if kept.resume is None:
            return None
        try:
            return unpack(kept.resume, entry.tenant, entry.key, self._runtime.vault).approval_id
        except VaultError as error:
            # What was done is the person's to say, whether or not an approval can be given back.
            self._runtime.report(entry.call_id, "vault", error)
            return None

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
            data=self._runtime.redactor.redact(dict(data or {}))[0],
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
        events = (self._event(work, decision, reason),)
        if not await runtime.store.finish(Finish(work, events=events, **more)):
            raise CountersealError("somebody else has taken this up meanwhile")

    def _event(self, about: Entry | Due, decision: str, reason: str) -> Event:
        caller = Caller(
            about.tenant,
            about.run_id,
            about.call_id,
            about.tool,
            about.version,
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
    if len(reason) > _LONGEST:
        raise ValueError(f"reason: takes at most {_LONGEST} characters, got {len(reason)}")
    return reason
