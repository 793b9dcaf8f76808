"""What came of a call is put on record: in one transaction, whoever still waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic_core import to_json

from counterseal.audit import Event, EventType
from counterseal.call.following import due_for, seal_text, verifiable
from counterseal.call.observing import THEN, Observing
from counterseal.call.telling import NOBODY
from counterseal.canonical import at
from counterseal.codes import Code, Path
from counterseal.contract.effects import Trust
from counterseal.contract.fill import resource_of
from counterseal.contract.model import Contract, KeepReads, OnUnknown
from counterseal.contract.tool_context import state_updates
from counterseal.errors import StoreError
from counterseal.execution.failures import said_not_done
from counterseal.gates.base import deny
from counterseal.ledger.entry import Entry, Phase, Status
from counterseal.observation import (
    Observation,
)
from counterseal.observation.observe import without_redacted
from counterseal.observation.stored import pack_read, stored
from counterseal.positional import made
from counterseal.storage.base import Due, DueKind, Settle

__all__ = ["UNRECORDED", "Settling"]

_NOTHING: Mapping[str, str | int] = MappingProxyType({})
_NOT_DONE = {Code.RATE_LIMITED, Code.STALE_STATE, Code.SEMANTIC_INVALIDITY}
"""The other side refused before it did anything, so the key is free again."""
UNRECORDED = "The record can't be written right now. Nothing was done."
_PAUSES = (0.05, 0.5)
# Found on their classes anew each time, they would cost as much as a gate.
_SUCCEEDED, _UNTRUSTED = EventType.SUCCEEDED, Trust.UNTRUSTED
_PENDING, _COMPLETED = Status.PENDING, Status.COMPLETED
_FAILED_RETRYABLE = Status.FAILED_RETRYABLE
_Following = tuple[float | None, float | None, str | None, Sequence[tuple[float, Due]]]
"""Of what was settled: as `Settle` has them, `again_after`, `keep_for`, `gives_back`, `due`."""


class Settling(Observing):
    """The last steps of a call. Nothing is decided here any more."""

    _goes_on = False
    """Whether something that was left behind still runs under the entry."""

    def _slept(self) -> bool:
        return self.entry is not None and self.runtime.leases.slept(self.entry)

    async def _ours(self) -> bool:
        if self.entry is None:
            return True
        try:
            return await self.runtime.leases.ours(self.entry)
        except StoreError as error:
            self.runtime.report(self.ctx.call_id, "store", error)
            return False

    def noted(self, observation: Observation) -> Observation | None:
        """The same observation, where nothing is left of the call but an event; None: settle it."""
        if self.entry is not None or self.gone is not None or not self._is_told_all(observation):
            return None
        try:
            self.runtime.store.note(self._ending(observation))
        except StoreError as error:
            self.runtime.report(self.ctx.call_id, "store", error)
            return self._not_on_record()
        return observation

    def settle(self, observation: Observation) -> Coroutine[Any, Any, Observation]:
        """One transaction: entry, what the run has seen, run state, events."""
        if self.gone is None and self.entry is None:
            return self._settle(observation)
        return self._settle_surely(observation)

    async def _settle_surely(self, observation: Observation) -> Observation:
        """What may have changed something is written down even if the caller goes away now."""
        settled = await self.runtime.surely(self._settle(observation))
        if self.gone is None:
            return settled
        self.runtime.tell(self, settled)
        raise self.gone

    async def _settle(self, observation: Observation) -> Observation:
        entry = self.entry
        try:
            return await self._write_down(observation)
        except StoreError as error:
            self.runtime.report(self.ctx.call_id, "store", error)
            return self._not_on_record()
        finally:
            if entry is not None and not self._goes_on:
                self.runtime.leases.let_go(entry)

    def _is_told_all(self, observation: Observation) -> bool:
        """Whether the event that ends the call is all that is left of it: so of most reads."""
        ctx, seen = self.ctx, self.observed
        return (
            observation.ok
            and ctx.compiled is not None
            and ctx.compiled.leaves_nothing
            and not ctx.run.refused
            and seen is not None
            and seen.raw is None
            and not seen.redactions
        )

    async def _write_down(self, observation: Observation) -> Observation:
        store, tenant = self.runtime.store, self.ctx.principal.tenant
        plain, ok = observation, observation.ok
        if not ok:
            observation = await self._bounded(observation)
        raw = self._raw()
        if raw is not None:
            observation = observation._replace(raw=await self._kept(raw))
        event = self._ending(observation) if ok else await self._failure(plain)
        if self.entry is None and self._keeps(observation):
            event = event._replace(body={**event.body, "seen": await self._seen(observation)})
        seen, state = self._effects(observation)
        awaited = self.ctx.compiled is None or self.ctx.compiled.announced
        mended = self._mended() if ok and self.ctx.run.refused else None
        unused = None if ok else self._unused(plain)
        if self.entry is None and not (seen or state or awaited or mended or unused):
            store.note(event)
            if not ok:
                self.note_path(observation)
            return observation
        entry = None if self.entry is None else self._settled(self.entry, plain, observation.raw)
        again_after, keep_for, gives_back, due = self._followed_up(entry, unused)
        request = made(
            Settle,
            (
                tenant,
                self.ctx.run.run_id,
                self.runtime.clock(),
                entry,
                seen,
                state,
                (event,),
                mended,
                observation.trust is _UNTRUSTED,
                again_after,
                keep_for,
                gives_back,
                due,
            ),
        )
        running = self._left_behind(request)
        if running is not None:
            self._settle_later(request._replace(events=()), running)
            store.note(event)
        elif not await self._settle_stubbornly(request):
            # Somebody else has settled it by now; what happened here goes on record all the same.
            store.note(event._replace(body={**event.body, "settled": False}))
        if not ok:
            self.note_path(observation)
        return observation

    def _keeps(self, observation: Observation) -> bool:
        """Whether what the model saw of a read is worth keeping."""
        keeps = KeepReads.NONE if self.ctx.compiled is None else self.ctx.compiled.keeps
        if keeps is KeepReads.REDACTED:
            return bool(observation.redactions)
        return keeps is KeepReads.ALL

    async def _seen(self, observation: Observation) -> str | None:
        """Where that lies in the vault; None where it could not be kept."""
        try:
            packed = pack_read(observation, self.runtime.keep_reads_bytes)
        except Exception as error:  # noqa: BLE001 - as with a vault that fails
            self.runtime.report(self.ctx.call_id, "vault", error)
            return None
        return await self._kept(packed)

    def _left_behind(self, request: Settle) -> asyncio.Future[Any] | None:
        """What still runs under this entry's key, where nobody knows what it will have done."""
        entry = request.entry
        if entry is None or entry.status is not _PENDING:
            return None
        return self.runtime.executor.behind(entry.tenant, entry.key)

    def _settle_later(self, request: Settle, running: asyncio.Future[Any]) -> None:
        """Hold the entry for as long as it runs: nobody may do beside it what it may still do."""
        self._goes_on = True
        running.add_done_callback(lambda _: self.runtime.begin_if_open(self._over(request)))

    async def _over(self, request: Settle) -> None:
        """What was left behind has come to its end; what it did is still not known."""
        try:
            await self.runtime.store.settle(request)
        except StoreError as error:
            self.runtime.report(self.ctx.call_id, "store", error)
        finally:
            if request.entry is not None:
                self.runtime.leases.let_go(request.entry)

    async def _bounded(self, observation: Observation) -> Observation:
        """As `bounded`; but a store that can't count must not keep a call from its end."""
        try:
            return await self.bounded(observation)
        except StoreError as error:
            self.runtime.report(self.ctx.call_id, "store", error)
            return observation

    async def _settle_stubbornly(self, request: Settle) -> bool:
        """What was done is worth another try to write it down."""
        for pause in _PAUSES:
            try:
                settled = await self.runtime.store.settle(request)
                break
            except StoreError as error:
                self.runtime.report(self.ctx.call_id, "store", error)
                await self.runtime.pause(pause)
        else:
            settled = await self.runtime.store.settle(request)
        if request.due and any(after <= 0 for after, _ in request.due):
            self.runtime.due.set()
        return settled

    def _followed_up(self, entry: Entry | None, unused: str | None) -> _Following:
        """What is to follow: when to look again, how long to keep it, what to verify."""
        record = self.ctx.record
        if entry is None or record is None:
            return None, None, unused, ()
        contract, status = record.contract, entry.status
        if status is _PENDING:
            escalated = entry.phase is Phase.ESCALATED
            return None if escalated else self._again_after(contract), None, None, ()
        keep_for = contract.idempotency.ttl_seconds
        if status is _COMPLETED and verifiable(contract):
            return None, keep_for, None, (self._to_verify(entry, contract),)
        # What came to nothing has used no approval up.
        gives_back = self.ctx.approval_id if status is _FAILED_RETRYABLE else None
        return None, keep_for, gives_back, ()

    def _unused(self, observation: Observation) -> str | None:
        """The approval of a read that came to nothing, and may be made again."""
        record = self.ctx.record
        if self.entry is not None or record is None or record.contract.mutates:
            return None
        return self.ctx.approval_id if observation.path is Path.RETRY else None

    @property
    def gives_up(self) -> bool:
        """Whether it was looked at too often already, so that a person must."""
        return False

    def _again_after(self, contract: Contract) -> float:
        """After how many seconds somebody should look what became of it."""
        return contract.runtime.timeout_ms / 1000

    def _to_verify(self, entry: Entry, contract: Contract) -> tuple[float, Due]:
        _, expected, delay = self._to_be_verified(contract)
        body = {"expected": seal_text(self.runtime.vault, entry, expected)}
        return delay, due_for(DueKind.VERIFY, entry, body)

    def _not_on_record(self) -> Observation:
        """The answer when a call ran, and the store could not be told."""
        code, record = Code.DEPENDENCY_UNAVAILABLE, self.ctx.record
        if self.entry is None or record is None or not self.outcome.began:
            return self.answer(deny("ledger", code, UNRECORDED))
        action, then = THEN[record.contract.on_unknown]
        said = f"What came of it could not be written down. {then}"
        return self.answer(deny("ledger", code, said, next_action=action, rule="outcome-unknown"))

    def _raw(self) -> bytes | None:
        """The output as it came, where it is worth keeping.

        That is where the agent is shown less of it, or where it may be needed to reverse the call.
        """
        seen, record = self.observed, self.ctx.record
        if seen is None or seen.raw is not None or not seen.redactions or record is None:
            return None if seen is None else seen.raw
        reversible = record.contract.transactional.compensation_tool is not None
        return to_json(seen.output) if reversible else None

    async def _kept(self, raw: bytes) -> str | None:
        """Where it lies in the vault. A vault that fails must not keep a call from its end."""
        try:
            tenant, call_id = self.ctx.principal.tenant, self.ctx.call_id
            sealed = self.runtime.vault.seal(tenant, call_id, raw)
            return await self.runtime.store.keep(tenant, call_id, sealed)
        except Exception as error:  # noqa: BLE001 - a trace less, but an outcome on record
            self.runtime.report(self.ctx.call_id, "vault", error)
            return None

    def _mended(self) -> str | None:
        """Whose counted mistakes are over, now that a call has succeeded."""
        record, refused = self.ctx.record, self.ctx.run.refused
        if record is None:
            return None
        return next((one for one in (record.name, NOBODY) if one in refused), None)

    def _ending(self, observation: Observation) -> Event:
        """The event that ends a call."""
        kind = EventType.RECONCILED if self.reconciled else _SUCCEEDED
        body = self._particulars(None)
        if observation.verification.required:
            body["verify"] = True
        if observation.redactions:
            body["redactions"] = [one.record() for one in observation.redactions]
        at = None if self.entry is None else self.runtime.clock()
        return self.event(kind, str(observation.code), body, at)

    def _particulars(self, failed: Observation | None) -> dict[str, Any]:
        body = self.told(failed)
        if self.ctx.corrections:
            body["corrections"] = len(self.ctx.corrections)
        if self.ctx.config_shown:
            shown, _ = self.runtime.redactor.redact(self.ctx.config_shown)
            body["config"] = self.outcome.mask.data(shown)
        attempts = self.attempt + (self.entry.attempts - 1 if self.entry else 0)
        if attempts > 1:
            body["attempts"] = attempts
        if self.ctx.approval_id is not None:
            body["approval_id"] = self.ctx.approval_id
        return body

    async def _failure(self, observation: Observation) -> Event:
        """The same for a failure, with what an operator needs to look into it."""
        body, outcome = self._particulars(observation), self.outcome
        if not outcome.began:
            body["began"] = False
        if self.retry_blocked:
            body["retry_blocked"] = True
        if self.unknown and self.ctx.record is not None:
            body["unknown"] = self.ctx.record.contract.on_unknown.value
        if outcome.fault is not None:
            body["error"] = outcome.mask.text(outcome.fault.kinds[0])
        if outcome.trace:
            body["trace"] = await self._kept(outcome.trace.encode(errors="replace"))
        kind = EventType.RECONCILED if self.reconciled else EventType.FAILED
        return self.event(kind, observation.code.value, body, self.runtime.clock())

    def _settled(self, entry: Entry, observation: Observation, raw: str | None) -> Entry:
        """The entry with what came of it. `raw` is where the whole output is kept."""
        attempts = entry.attempts + self.attempt - 1
        if self.unknown and self.ctx.record is not None:
            asks = self.gives_up or self.ctx.record.contract.on_unknown is OnUnknown.ESCALATE
            phase = Phase.ESCALATED if asks else Phase.UNKNOWN
            since = self.runtime.clock() if entry.unknown_since is None else entry.unknown_since
            return entry.left(entry.status, attempts, phase=phase, unknown_since=since)
        outcome = self.outcome
        if not outcome.began or said_not_done(outcome.fault) or outcome.code in _NOT_DONE:
            wrong = outcome.began and outcome.code is Code.SEMANTIC_INVALIDITY
            kept = self._stored(observation, raw) if wrong else None
            return entry.left(_FAILED_RETRYABLE, attempts, observation=kept)
        code = observation.code
        failed = not observation.ok and code is not Code.OBSERVATION_NORMALIZATION_FAIL
        status = Status.FAILED_FINAL if failed else _COMPLETED
        return entry.left(status, attempts, observation=self._stored(observation, raw))

    def _stored(self, observation: Observation, raw: str | None) -> dict[str, Any]:
        """What a second request will be answered from.

        Of the gates' answers those are kept that do more than simply allow.
        """
        kept = stored(observation, self.trail.telling())
        if raw is not None:
            kept["raw"] = raw
        return kept

    def _effects(
        self, observation: Observation
    ) -> tuple[Mapping[str, str | int], Sequence[tuple[str, str, Any]]]:
        """What the run has seen now, and what the contract declares to leave in its state."""
        contract = self.ctx.record.contract if self.ctx.record else None
        if contract is None or not (contract.version_from or contract.state_effects):
            return _NOTHING, ()
        output = self.observed.output if self.observed else None
        if output is None or not observation.ok:
            return _NOTHING, ()
        # What was checked, not what is shown: that may be a summary, or wrapped in steps.
        data = output.get("data") if observation.code is Code.PARTIAL_SUCCESS else output
        if not isinstance(data, Mapping):
            return _NOTHING, ()
        if self.ctx.compiled is not None:
            data = without_redacted(data, self.ctx.compiled.profile)
        clean, _ = self.runtime.redactor.redact(data)
        declared = contract.affordance.output_schema.get("properties", {})
        wrapped = self.ctx.compiled is not None and self.ctx.compiled.profile.wrapped
        fitting = state_updates(contract.state_effects, clean, declared, wrapped=wrapped)
        resource = resource_of(contract, self.ctx.arguments)
        version = at(data, contract.version_from) if contract.version_from else None
        if resource is None or not isinstance(version, str | int):
            return _NOTHING, fitting
        return {resource: version}, fitting
