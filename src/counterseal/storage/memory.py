"""A store in this process's memory: for tests, and for trying things out. Forgets at the end.

Nothing here awaits, so on one event loop every method is a transaction by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from counterseal.audit import Event
from counterseal.ledger import Entry, Status
from counterseal.storage.base import (
    Admission,
    Admit,
    Held,
    HeldStatus,
    Memory,
    Refused,
    RunRecord,
    Settle,
)

__all__ = ["MemoryStore"]

_Counters = dict[str, float]
_NOTHING: Mapping[str, float] = {}
_ADMITTED = Admission()
_OVER = (HeldStatus.SPENT, HeldStatus.VOID)


class MemoryStore:
    """Speaks the `Store` protocol. Everything is keyed by tenant first."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], RunRecord] = {}
        self._run_counters: defaultdict[tuple[str, str], _Counters] = defaultdict(dict)
        self._tenant_counters: defaultdict[str, _Counters] = defaultdict(dict)
        self._rates: defaultdict[str, _Counters] = defaultdict(dict)
        self._entries: dict[tuple[str, str], Entry] = {}
        self._held: dict[tuple[str, str], Held] = {}
        self._held_by_key: dict[tuple[str, str], str] = {}
        self._refusals: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._events: list[Event] = []
        self._vault: dict[tuple[str, str], bytes] = {}

    async def open_run(self, run: RunRecord) -> RunRecord:
        return self._runs.setdefault((run.tenant, run.run_id), run)

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        return self._runs.get((tenant, run_id))

    async def recall(self, tenant: str, run_id: str, key: str | None) -> Memory:
        entry = held = None
        if key is not None:
            entry = self._entries.get((tenant, key))
            held = self._held.get((tenant, self._held_by_key.get((tenant, key), "")))
        return Memory(
            entry,
            held,
            self._run_counters.get((tenant, run_id), _NOTHING),
            self._tenant_counters.get(tenant, _NOTHING),
            self._rates.get(tenant, _NOTHING),
        )

    async def admit(self, request: Admit) -> Admission:
        return self._obstacle(request) or self._spend(request) or self._take_in(request)

    def _obstacle(self, request: Admit) -> Admission | None:
        """The first thing that has changed since the decision, and forbids it now."""
        tenant = request.tenant
        run = self._runs.get((tenant, request.run_id))
        if run is not None and run.pins.get(request.tool, request.version) != request.version:
            return Admission(Refused.PIN)
        if request.entry is not None:
            there = self._entries.get((tenant, request.entry.key))
            if there is not None and there.status is not Status.FAILED_RETRYABLE:
                return Admission(Refused.DUPLICATE, there)
        if request.approval_id is not None:
            held = self._held.get((tenant, request.approval_id))
            if held is None or held.status is not HeldStatus.APPROVED:
                return Admission(Refused.APPROVAL)
        return None

    def _spend(self, request: Admit) -> Admission | None:
        """Spend everything, or nothing and say which limit is in the way."""
        own = self._run_counters[request.tenant, request.run_id]
        shared, rates = self._tenant_counters[request.tenant], self._rates[request.tenant]
        done: list[tuple[_Counters, str, float]] = []
        for charge in request.charges:
            _, name, amount, _, of_run = charge
            counters = own if of_run else shared
            before = counters.get(name, 0.0)
            if charge.exceeds(before):
                _undo(done)
                return Admission(Refused.BUDGET, charge=charge, spent=before)
            counters[name] = before + amount
            done.append((counters, name, before))
        for rate in request.rates:
            arrival = rates.get(rate.counter, 0.0)
            wait = rate.wait(arrival, request.now)
            if wait > 0:
                _undo(done)
                return Admission(Refused.RATE, rate=rate, retry_after=wait)
            rates[rate.counter] = rate.next(arrival, request.now)
            done.append((rates, rate.counter, arrival))
        return None

    def _take_in(self, request: Admit) -> Admission:
        tenant = request.tenant
        self._pin(request)
        self._events.extend(request.events)
        if request.approval_id is not None:
            self._change_held(tenant, request.approval_id, HeldStatus.SPENT)
        if request.entry is None:
            return _ADMITTED
        before = self._entries.get((tenant, request.entry.key))
        entry = request.entry
        if before is not None:
            entry = replace(entry, fence=before.fence + 1, attempts=before.attempts + 1)
        self._entries[tenant, entry.key] = entry
        return Admission(entry=entry)

    def _pin(self, request: Admit) -> None:
        key = (request.tenant, request.run_id)
        run = self._runs.get(key)
        if run is not None and request.tool not in run.pins:
            pins = {**run.pins, request.tool: request.version}
            self._runs[key] = replace(run, pins=pins)

    def note(self, event: Event) -> None:
        self._events.append(event)

    async def settle(self, request: Settle) -> bool:
        run = self._advanced(request)
        entry = request.entry
        if entry is not None:
            there = self._entries.get((request.tenant, entry.key))
            if there is None or there.fence != entry.fence:
                return False
            self._entries[request.tenant, entry.key] = entry
        if run is not None:
            self._runs[request.tenant, request.run_id] = run
        self._events.extend(request.events)
        return True

    def _advanced(self, request: Settle) -> RunRecord | None:
        """The run with what it has seen and what was left in its state; None if it is the same."""
        run = self._runs.get((request.tenant, request.run_id))
        if run is None or not (request.seen or request.state):
            return None
        state = dict(run.state)
        for name, merge, value in request.state:
            state[name] = _merged(state.get(name), merge, value)
        return replace(run, seen={**run.seen, **request.seen}, state=state)

    async def hold(self, held: Held, events: Sequence[Event]) -> Held:
        known = self._held_by_key.get((held.tenant, held.key))
        before = self._held.get((held.tenant, known)) if known else None
        same = before is not None and _subject(before) == _subject(held)
        if before is not None and same and before.status not in _OVER:
            return before
        self._held[held.tenant, held.approval_id] = held
        self._held_by_key[held.tenant, held.key] = held.approval_id
        self._events.extend(events)
        return held

    async def decide(
        self, tenant: str, approval_id: str, status: HeldStatus, events: Sequence[Event]
    ) -> Held | None:
        held = self._held.get((tenant, approval_id))
        voids = status is HeldStatus.VOID
        if held is None or held.status is not (
            HeldStatus.APPROVED if voids else HeldStatus.WAITING
        ):
            return None
        self._events.extend(events)
        return self._change_held(tenant, approval_id, status)

    def _change_held(self, tenant: str, approval_id: str, status: HeldStatus) -> Held:
        changed = replace(self._held[tenant, approval_id], status=status)
        self._held[tenant, approval_id] = changed
        return changed

    async def refuse(
        self, tenant: str, run_id: str, fingerprint: str, events: Sequence[Event]
    ) -> int:
        self._events.extend(events)
        self._refusals[tenant, run_id, fingerprint] += 1
        return self._refusals[tenant, run_id, fingerprint]

    async def keep(self, tenant: str, call_id: str, raw: bytes) -> str:
        # Numbered, because a caller may name two calls alike, and evidence is never overwritten.
        pointer = f"vault:{call_id}/{len(self._vault)}"
        self._vault[tenant, pointer] = raw
        return pointer

    async def events(
        self, tenant: str, *, call_id: str | None = None, run_id: str | None = None
    ) -> Sequence[tuple[str, Event]]:
        return [
            (f"evt_{number:08}", event)
            for number, event in enumerate(self._events)
            if event.caller.tenant == tenant
            and call_id in (None, event.caller.call_id)
            and run_id in (None, event.caller.run_id)
        ]

    async def close(self) -> None:
        """Nothing to give back."""


def _subject(held: Held) -> tuple[str, str, int]:
    """What a person is asked about."""
    return held.approval_hash, held.contract_hash, held.approvers


def _undo(done: list[tuple[_Counters, str, float]]) -> None:
    for counters, name, before in reversed(done):
        counters[name] = before


def _merged(before: Any, merge: str, value: Any) -> Any:
    """What a key holds afterwards. What does not fit to be merged into is replaced."""
    if merge == "append":
        return [*(before if isinstance(before, list) else ()), value]
    if merge == "merge_dict":
        return {**(before if isinstance(before, Mapping) else {}), **value}
    return value
