"""The store itself: what happens together, the registry's changes, and checkpoints."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from counterseal.audit import Event, Head
from counterseal.audit.checkpoint import Checkpoint
from counterseal.ledger.entry import Entry
from counterseal.ledger.rules import held_between, micros, reservable, usable
from counterseal.positional import made
from counterseal.storage.base import (
    Admission,
    Admit,
    Asker,
    Ballot,
    Calls,
    Claim,
    Concern,
    Due,
    DueKind,
    Erasure,
    Finish,
    Held,
    HeldStatus,
    Kept,
    Memory,
    Recorded,
    Refused,
    RunRecord,
    Search,
    SessionRow,
    Settle,
    Tallied,
)
from counterseal.storage.memory.counters import Counters
from counterseal.storage.memory.holds import Holds
from counterseal.storage.memory.ledger import Ledger
from counterseal.storage.memory.log import Log
from counterseal.storage.memory.runs import Runs
from counterseal.storage.memory.vault import Vault
from counterseal.storage.memory.work import Work

__all__ = ["MemoryStore"]

_ADMITTED: Final = Admission()
_DAY: Final = 86_400
_UNASKED: Final[tuple[Mapping[str, float], ...]] = (MappingProxyType({}),) * 3


class MemoryStore:
    """Speaks the `Store` protocol. Everything is keyed by tenant first."""

    inline = True
    """Whether who is alone is served at once, without a trip through the event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ledger = Ledger(clock)
        self._entries = self._ledger.entries
        self._work = Work(clock)
        self._log = Log(clock)
        self._lives = Runs()
        self._runs = self._lives.runs
        self._counters = Counters()
        self._holds = Holds()
        self._vault = Vault(clock)
        self._changes: list[Mapping[str, Any]] = []
        self._sessions: dict[str, SessionRow] = {}
        self._checkpoints: defaultdict[str, dict[int, Checkpoint]] = defaultdict(dict)

    async def ready(self) -> None:
        """It is."""

    # --- runs -------------------------------------------------------------------------------------

    async def open_run(self, run: RunRecord) -> RunRecord:
        return self._lives.open(run)

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        return self._runs.get((tenant, run_id))

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord | None:
        return self._lives.find_implicit(tenant, agent, user, now)

    async def implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord:
        return self._lives.use_implicit(tenant, agent, user, now)

    async def new_turn(self, tenant: str, run_id: str, keep: Collection[str]) -> RunRecord | None:
        return self._lives.new_turn((tenant, run_id), keep)

    # --- the way of a call ------------------------------------------------------------------------

    async def recall(
        self,
        tenant: str,
        run_id: str,
        key: str | None,
        who: Asker | None = None,
        *,
        spent: bool = True,
    ) -> Memory:
        entry = held = None
        if key is not None:
            entry = self._ledger.find((tenant, key))
            held = self._holds.last(tenant, key, who)
        own, shared, rates = self._counters.of(tenant, run_id) if spent else _UNASKED
        return made(Memory, (entry, held, own, shared, rates))

    async def admit(self, request: Admit) -> Admission:
        return self._obstacle(request) or self._counters.spend(request) or self._take_in(request)

    def _obstacle(self, request: Admit) -> Admission | None:
        """The first thing that has changed since the decision, and forbids it now."""
        if request.epoch != len(self._changes):
            return Admission(Refused.EPOCH)
        refused = self._lives.obstacle(request)
        if refused is not None:
            return Admission(refused)
        tenant = request.tenant
        if request.entry is not None:
            there = self._ledger.find((tenant, request.entry.key))
            if there is not None and not reservable(there, request.takes_over):
                return Admission(Refused.DUPLICATE, there)
        if request.approval_id is not None:
            held = self._holds.find((tenant, request.approval_id))
            if held is None or not usable(held, request.now):
                return Admission(Refused.APPROVAL)
        return None

    def _take_in(self, request: Admit) -> Admission:
        tenant = request.tenant
        self._lives.pin(request)
        if request.events:
            self._log.tell(request.events)
        if request.approval_id is not None:
            self._holds.change((tenant, request.approval_id), status=HeldStatus.SPENT)
        if request.entry is None:
            return _ADMITTED
        entry = self._ledger.reserve(request.entry, request.lease, request.resume)
        return made(Admission, (None, entry, None, 0.0, None, 0.0))

    def note(self, event: Event) -> None:
        self._log.note(event)

    async def settle(self, request: Settle) -> bool:
        if request.entry is not None and not self._ledger.settle(request, request.entry):
            return False
        self._lives.advance(request)
        if request.gives_back is not None:
            spent = (request.tenant, request.gives_back)
            held = self._holds.find(spent)
            if held is not None and held.status is HeldStatus.SPENT:
                self._holds.change(spent, status=HeldStatus.APPROVED)
        if request.due:
            self._work.put_down(request.due)
        self._log.tell(request.events)
        return True

    async def renew(self, entries: Sequence[Entry], lease: float) -> Sequence[bool]:
        return [self._ledger.renew(entry, lease) for entry in entries]

    async def wait(self, tenant: str, key: str, seconds: float) -> bool:
        return await self._ledger.wait((tenant, key), seconds)

    # --- requests for approval --------------------------------------------------------------------

    async def hold(
        self, held: Held, events: Sequence[Event], due: Sequence[tuple[float, Due]] = ()
    ) -> Held:
        standing = self._holds.standing(held)
        if standing is not None:
            return standing
        self._holds.add(held)
        self._work.put_down(due)
        self._log.tell(events)
        return held

    async def find_held(self, tenant: str, approval_id: str) -> Held | None:
        return self._holds.find((tenant, approval_id))

    async def list_held(
        self,
        tenant: str | None,
        status: HeldStatus,
        limit: int,
        *,
        after: float | None = None,
        newest_first: bool = False,
        beyond: tuple[float, str] | None = None,
    ) -> Sequence[Held]:
        between = held_between(after, beyond, newest_first=newest_first)
        return self._holds.some(tenant, status, limit, between, newest_first=newest_first)

    async def vote(self, ballot: Ballot) -> Held | None:
        changed = self._holds.vote(ballot)
        if changed is not None:
            self._work.put_down(ballot.due)
            self._log.tell(ballot.events)
        return changed

    async def wait_held(self, tenant: str, approval_id: str, seconds: float) -> bool:
        return await self._holds.wait((tenant, approval_id), seconds)

    async def decide(
        self, tenant: str, approval_id: str, status: HeldStatus, events: Sequence[Event]
    ) -> Held | None:
        changed = self._holds.decide((tenant, approval_id), status)
        if changed is not None:
            self._log.tell(events)
        return changed

    # --- refusals ---------------------------------------------------------------------------------

    async def refuse(
        self,
        tenant: str,
        run_id: str,
        tool: str,
        fingerprints: Sequence[str],
        events: Sequence[Event],
    ) -> Sequence[int]:
        self._log.tell(events)
        return self._lives.refuse((tenant, run_id), tool, fingerprints)

    # --- what is to be done later -----------------------------------------------------------------

    async def claim_orphans(self, claim: Claim) -> Sequence[Kept]:
        return self._ledger.claim(claim)

    async def claim_due(self, claim: Claim) -> Sequence[Due]:
        return self._work.claim(claim)

    async def schedule(self, after: float, work: Due, events: Sequence[Event]) -> bool:
        new = self._work.put_down([(after, work)])
        if new:
            self._log.tell(events)
        return new

    async def finish(self, request: Finish) -> bool:
        if not self._work.finish(request):
            return False
        if request.compensated is not None:
            work = request.work
            self._ledger.compensate((work.tenant, work.key), request.compensated)
        self._log.tell(request.events)
        return True

    async def look_up(self, tenant: str, key: str) -> Kept | None:
        return self._ledger.look_up((tenant, key))

    async def look_up_call(self, tenant: str, call_id: str) -> Kept | None:
        return self._ledger.look_up_call(tenant, call_id)

    async def concerns(self, tenant: str | None = None, limit: int = 100) -> Sequence[Concern]:
        found = self._ledger.concerns(tenant) + self._work.concerns(tenant)
        found.sort(key=lambda one: (one.since, one.tenant, one.kind, one.key))
        return found[:limit]

    async def find_due(self, tenant: str, kind: DueKind, key: str) -> Due | None:
        return self._work.find(tenant, kind, key)

    # --- the registry's stored changes ------------------------------------------------------------

    async def changes(self, after: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
        return [one for one in enumerate(self._changes, 1) if one[0] > after]

    async def change(self, number: int, what: Mapping[str, Any], events: Sequence[Event]) -> bool:
        if number != len(self._changes) + 1:
            return False
        self._changes.append(what)
        self._log.tell(events)
        return True

    # --- sessions ---------------------------------------------------------------------------------

    async def save_session(self, row: SessionRow) -> bool:
        if row.seen_at > row.created_at and row.session not in self._sessions:
            return False
        self._sessions[row.session] = row
        return True

    async def find_session(self, session: str) -> SessionRow | None:
        return self._sessions.get(session)

    async def end_session(self, session: str) -> bool:
        return self._sessions.pop(session, None) is not None

    async def end_sessions(self, user: str) -> int:
        ended = [row.session for row in self._sessions.values() if row.user == user]
        for session in ended:
            del self._sessions[session]
        return len(ended)

    # --- the record -------------------------------------------------------------------------------

    async def keep(self, tenant: str, call_id: str, raw: bytes) -> str:
        return self._vault.keep(tenant, call_id, raw)

    async def fetch(self, tenant: str, pointer: str) -> bytes | None:
        return self._vault.fetch(tenant, pointer)

    async def events(
        self, tenant: str, *, call_id: str | None = None, run_id: str | None = None
    ) -> Sequence[tuple[str, Event]]:
        return self._log.search(tenant, Search(call_id, run_id))

    async def search(self, tenant: str, search: Search) -> Sequence[tuple[str, Event]]:
        return self._log.search(tenant, search)

    async def calls(self, tenant: str, search: Calls) -> Sequence[tuple[str, Event]]:
        return self._log.calls(tenant, search)

    async def tallies(
        self, tenant: str, since: float, until: float, parts: int = 1
    ) -> Sequence[Tallied]:
        return self._log.tallies(tenant, since, until, parts)

    async def tenants(self) -> Sequence[str]:
        sealed = [tenant for tenant, made in self._checkpoints.items() if made]
        return sorted({*self._log.tenants(), *sealed})

    async def recorded(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[Recorded]:
        return self._log.recorded(tenant, after, limit)

    async def heads(self, tenant: str, since: int) -> Mapping[str, Head]:
        return self._log.heads(tenant, since)

    async def checkpoints(self, tenant: str) -> Sequence[Checkpoint]:
        return [one for _, one in sorted(self._checkpoints[tenant].items())]

    async def seal(self, checkpoint: Checkpoint) -> bool:
        sealed = self._checkpoints[checkpoint.tenant]
        return sealed.setdefault(checkpoint.number, checkpoint) is checkpoint

    # --- forgetting -------------------------------------------------------------------------------

    async def expire(self, request: Erasure) -> Mapping[str, int]:
        now, limit = self._clock(), request.limit
        vault = requests = events = 0
        if request.vault_after is not None:
            vault = self._vault.empty(now - request.vault_after, limit)
            requests = self._holds.forget(now - request.vault_after, limit)
        if request.events_after is not None:
            events = self._log.erase(micros(now - request.events_after), limit)
        return {
            "keys": self._ledger.expire(limit, self._work.about()),
            "vault": vault,
            "requests": requests,
            "events": events,
            "counters": self._counters.forget_days(int(now // _DAY) - 2, limit),
            "sessions": self._expire_sessions(now, limit),
        }

    def _expire_sessions(self, now: float, limit: int) -> int:
        over = sorted(
            (row.expires_at, row.session)
            for row in self._sessions.values()
            if row.expires_at <= now
        )
        for _, session in over[:limit]:
            del self._sessions[session]
        return len(over[:limit])

    async def close(self) -> None:
        """Nothing to give back."""
