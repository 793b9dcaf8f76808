"""Needs attention: what waits for an operator, and what an operator can do about it.

That is unknown outcomes, failed verifications and failed compensations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from counterseal.audit import Event, EventType
from counterseal.call.admit import unpack
from counterseal.call.call import CallServices
from counterseal.call.events import caller_of
from counterseal.call.recall import compensation_key
from counterseal.call.settle import due_for
from counterseal.codes import RESPONSES, Code
from counterseal.contract.effects import Trust
from counterseal.errors import CountersealError, RegistryError
from counterseal.ledger.entry import Entry, EntryStatus, Phase
from counterseal.ledger.records import Concern, Due, DueKind
from counterseal.ledger.requests import FinishRequest, SettlementRequest, StoredEntry
from counterseal.observation import Observation
from counterseal.observation.observation import stored
from counterseal.operations.auditor import find_entry
from counterseal.vault import VaultError

COMPENSATION_AGENT: Final = "counterseal.compensation"
"""The agent under which a compensation is recorded."""
_MAX_REASON: Final = 1000


class NeedsAttention:
    """Acts in the name of an operator, who is recorded with the reason given.

    A `key` is that of the call, or an id of it. Methods raise AmbiguousCallError if calls with
    several keys have the id.
    """

    def __init__(self, services: CallServices, *, by: str) -> None:
        if not by.strip():
            raise ValueError("by must name the person who acts")
        self._services = services
        self._by = by[:128]

    async def list(self, tenant: str | None = None, limit: int = 100) -> Sequence[Concern]:
        """Return what waits for an operator, oldest first."""
        return await self._services.store.concerns(tenant, limit)

    async def happened(
        self, tenant: str, key: str, *, reason: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Record that a call took effect. A repeated call succeeds, with this data."""
        kept = await self._escalated(tenant, key)
        observation = stored(self._confirmed(kept.entry, data))
        settled = kept.entry._replace(
            status=EntryStatus.COMPLETED, phase=None, observation=observation
        )
        await self._settle(kept, settled, "happened", reason)

    async def did_not_happen(self, tenant: str, key: str, *, reason: str) -> None:
        """Record that a call had no effect: its key and its approval can be used again."""
        kept = await self._escalated(tenant, key)
        settled = kept.entry._replace(status=EntryStatus.FAILED_RETRYABLE, phase=None)
        await self._settle(kept, settled, "did_not_happen", reason)

    async def compensate(self, tenant: str, key: str, *, reason: str) -> Due:
        """Schedule the reversal of a call. RegistryError or CountersealError if it can't be."""
        services, reason = self._services, _checked(reason)
        entry = (await find_entry(services.store, tenant, key)).entry
        if entry.status is not EntryStatus.COMPLETED:
            raise CountersealError(
                f"only a completed call can be reversed; this one is {entry.status}"
            )
        contract = services.registry.get(entry.tool, entry.version).contract
        undo = contract.transactional.compensation_tool
        if undo is None:
            raise RegistryError(f"{entry.tool} {entry.version} names no compensation tool")
        body = {"reason": reason[:500], "by": self._by}
        work = due_for(DueKind.COMPENSATE, entry, body)
        required = {**body, "code": Code.COMPENSATION_REQUIRED.value, "tool": undo}
        event = Event(
            EventType.COMPENSATION_REQUIRED,
            caller_of(entry, COMPENSATION_AGENT, self._by),
            services.clock(),
            "compensate",
            body=required,
        )
        if await services.store.schedule(0.0, work, [event]):
            services.due.set()
            return work
        scheduled = await services.store.find_due(tenant, DueKind.COMPENSATE, entry.key)
        if scheduled is not None and scheduled.failed is not None:
            raise CountersealError("its reversal has failed before; try it again, or dismiss it")
        return scheduled or work

    async def again(self, tenant: str, kind: DueKind, key: str, *, reason: str) -> None:
        """Schedule failed work to be tried once more."""
        more: dict[str, Any] = {"again_after": 0.0}
        work = await self._failed(tenant, kind, key)
        if kind is DueKind.COMPENSATE:
            generation = work.body.get("generation", 0)
            contract = self._services.registry.get(work.tool, work.version).contract
            undo = contract.transactional.compensation_tool
            undo_key = f"undo:{undo}:{compensation_key(work.key, generation)}"
            kept = await self._services.store.look_up(tenant, undo_key)
            if kept is not None and kept.entry.status is EntryStatus.FAILED_FINAL:
                # Under the same key, the compensation would only be answered with its failure.
                body = {**work.body, "generation": generation + 1}
                more = {"due": ((0.0, work._replace(body=body, fence=0, tries=0, failed=None)),)}
        await self._finish(work, "again", reason, **more)

    async def dismiss(self, tenant: str, kind: DueKind, key: str, *, reason: str) -> None:
        """Take failed work off the list: the operator has dealt with it."""
        await self._finish(await self._failed(tenant, kind, key), "dismissed", reason)

    # --- one transaction each ---------------------------------------------------------------------

    async def _escalated(self, tenant: str, key: str) -> StoredEntry:
        kept = await find_entry(self._services.store, tenant, key)
        if kept.entry.status is not EntryStatus.PENDING or kept.entry.phase is not Phase.ESCALATED:
            raise CountersealError("this call does not need attention")
        return kept

    async def _settle(self, kept: StoredEntry, settled: Entry, decision: str, reason: str) -> None:
        services, entry, keep_for = self._services, kept.entry, None
        free = settled.status is EntryStatus.FAILED_RETRYABLE
        with suppress(RegistryError):
            contract = services.registry.get(entry.tool, entry.version).contract
            keep_for = contract.idempotency.ttl_seconds
        request = SettlementRequest(
            tenant=entry.tenant,
            run_id=entry.run_id,
            now=services.clock(),
            entry=settled,
            seen={},
            state=(),
            events=(self._event(entry, decision, reason),),
            keep_for=keep_for,
            gives_back=self._approval(kept) if free else None,
        )
        if not await services.store.settle(request):
            raise CountersealError("this call has been settled meanwhile; read it again")

    def _approval(self, kept: StoredEntry) -> str | None:
        entry = kept.entry
        if kept.resume is None:
            return None
        try:
            return unpack(kept.resume, entry.tenant, entry.key, self._services.vault).approval_id
        except VaultError as error:
            # The operator's answer counts, whether or not an approval can be given back.
            self._services.report(entry.call_id, "vault", error)
            return None

    def _confirmed(self, entry: Entry, data: Mapping[str, Any] | None) -> Observation:
        response = RESPONSES[Code.SUCCESS]
        return Observation(
            tool=entry.tool,
            version=entry.version,
            call_id=entry.call_id,
            code=Code.SUCCESS,
            response=response,
            next_action=response.next_action,
            timestamp=self._services.clock(),
            data=self._services.redactor.redact(dict(data or {}))[0],
            warnings=("A person has confirmed that this call took effect.",),
            trust=Trust.UNTRUSTED,
            attempt=entry.attempts,
        )

    async def _failed(self, tenant: str, kind: DueKind, key: str) -> Due:
        """Return failed work. Raises CountersealError if there is none under the key."""
        store = self._services.store
        work = await store.find_due(tenant, kind, key)
        if work is None and kind in (DueKind.VERIFY, DueKind.COMPENSATE):
            entry = (await find_entry(store, tenant, key)).entry
            work = await store.find_due(tenant, kind, entry.key)
        if work is None or work.failed is None:
            raise CountersealError(f"no failed {kind} needs attention under the key {key!r}")
        return work

    async def _finish(self, work: Due, decision: str, reason: str, **more: Any) -> None:
        events = (self._event(work, decision, reason),)
        if not await self._services.store.finish(FinishRequest(work, events=events, **more)):
            raise CountersealError("this has been dealt with meanwhile; read the list again")

    def _event(self, about: Entry | Due, decision: str, reason: str) -> Event:
        caller, body = caller_of(about, "operator", self._by), {"reason": _checked(reason)}
        now = self._services.clock()
        return Event(EventType.RECONCILED, caller, now, decision, body=body)


def _checked(reason: str) -> str:
    if not reason.strip():
        raise ValueError("reason must be a text that says why, for the audit record")
    if len(reason) > _MAX_REASON:
        raise ValueError(f"reason must have at most {_MAX_REASON} characters, got {len(reason)}")
    return reason
