"""A store in this process's memory: for tests, and for trying things out. Forgets at the end.

Nothing here awaits, so on one event loop every method is a transaction by itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from counterseal.audit import Event
from counterseal.ledger import Entry, Status
from counterseal.storage.base import (
    IDLE_SECONDS,
    Admission,
    Admit,
    Held,
    HeldStatus,
    Memory,
    Refused,
    RunRecord,
    Settle,
)
from counterseal.storage.rules import counts, merged, reservable, same_question

__all__ = ["MemoryStore"]

_Counters = dict[str, float]
_NOTHING: Mapping[str, float] = {}
_ADMITTED = Admission()


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
        self._implicit: dict[tuple[str, str, str | None], tuple[str, float]] = {}
        """Who names no run: the run they are in, and when they used it last."""
        self._refusals: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        self._events: list[Event] = []
        self._vault: dict[tuple[str, str], bytes] = {}

    async def open_run(self, run: RunRecord) -> RunRecord:
        return self._runs.setdefault((run.tenant, run.run_id), run)

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        return self._runs.get((tenant, run_id))

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord | None:
        run_id, used = self._implicit.get((tenant, agent, user), ("", now))
        return None if now - used > IDLE_SECONDS else self._runs.get((tenant, run_id))

    async def implicit_run(self, run: RunRecord, agent: str, user: str | None) -> RunRecord:
        now = run.started_at
        known = await self.find_implicit_run(run.tenant, agent, user, now)
        known = known or await self.open_run(run)
        self._implicit[run.tenant, agent, user] = (known.run_id, now)
        return known

    async def new_turn(self, tenant: str, run_id: str, keep: Collection[str]) -> RunRecord | None:
        run = self._runs.get((tenant, run_id))
        if run is None:
            return None
        gone = [key for key in run.state if key not in keep]
        turned = replace(
            run,
            turn=run.turn + 1,
            state={key: value for key, value in run.state.items() if key in keep},
            untrusted=run.untrusted.difference(gone),
            state_versions=_moved(run.state_versions, gone),
        )
        self._runs[tenant, run_id] = turned
        return turned

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
        if run is not None and request.reads:
            now = run.state_versions
            if any(now.get(key, 0) != version for key, version in request.reads.items()):
                return Admission(Refused.STATE)
        if request.entry is not None:
            there = self._entries.get((tenant, request.entry.key))
            if there is not None and not reservable(there, request.takes_over):
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
            if there is None or there.fence != entry.fence or there.status is not Status.PENDING:
                return False
            self._entries[request.tenant, entry.key] = entry
        if run is not None:
            self._runs[request.tenant, request.run_id] = run
        if request.mended is not None:
            self._refusals.pop((request.tenant, request.run_id, request.mended), None)
        self._events.extend(request.events)
        return True

    def _advanced(self, request: Settle) -> RunRecord | None:
        """The run with what it has seen and what was left in its state; None if it is the same."""
        run = self._runs.get((request.tenant, request.run_id))
        if run is None or not (request.seen or request.state or request.mended):
            return None
        state, untrusted = dict(run.state), set(run.untrusted)
        for name, merge, value in request.state:
            state[name] = merged(state.get(name), merge, value)
            if request.untrusted:
                untrusted.add(name)
            elif merge == "replace":
                untrusted.discard(name)
        return replace(
            run,
            seen={**run.seen, **request.seen},
            refused=run.refused - {request.mended},
            state=state,
            state_versions=_moved(run.state_versions, [name for name, _, _ in request.state]),
            untrusted=frozenset(untrusted),
        )

    async def hold(self, held: Held, events: Sequence[Event]) -> Held:
        known = self._held_by_key.get((held.tenant, held.key))
        before = self._held.get((held.tenant, known)) if known else None
        if before is not None and same_question(before, held) and counts(before):
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
        self,
        tenant: str,
        run_id: str,
        tool: str,
        fingerprints: Sequence[str],
        events: Sequence[Event],
    ) -> Sequence[int]:
        self._events.extend(events)
        whose = ["" if one.startswith("run/") else tool for one in fingerprints]
        counters = [self._refusals[tenant, run_id, name] for name in whose]
        for counter, one in zip(counters, fingerprints, strict=True):
            counter[one] += 1
        run = self._runs.get((tenant, run_id))
        if run is not None and tool in whose:
            self._runs[tenant, run_id] = replace(run, refused=run.refused | {tool})
        return [counter[one] for counter, one in zip(counters, fingerprints, strict=True)]

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


def _moved(versions: Mapping[str, int], keys: Sequence[str]) -> Mapping[str, int]:
    """The versions of a state in which these keys were changed."""
    if not keys:
        return versions
    return {**versions, **{key: versions.get(key, 0) + 1 for key in (*keys, "*")}}


def _undo(done: list[tuple[_Counters, str, float]]) -> None:
    for counters, name, before in reversed(done):
        counters[name] = before
