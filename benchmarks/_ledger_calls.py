"""The calls that the ledger's benchmark makes, and which rows each of them leaves behind.

A call is made once through the runtime. What it asks of the store is kept as a sample, and every
other call is a copy with a key and an id of its own: so the store alone is asked the same thing
again and again, and a loop by hand can write the very rows that the store writes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import count
from random import Random
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from counterseal import Grant, Principal, Proposal, tool
from counterseal.audit import Event
from counterseal.ledger.records import Budgets, RunRecord
from counterseal.ledger.requests import Admission, AdmissionRequest, SettlementRequest
from counterseal.ledger.rows import new_pointer
from counterseal.runtime import Runtime
from counterseal.storage.memory import MemoryStore
from counterseal.storage.store import Store

AGENT, NAME = "case-assistant", "save_note"
PLENTY = 10**9
BEGAN = int(time.time() * 1000)
"""When the callers' runs did, in milliseconds."""


@tool(
    effect="draft",
    version="1.0.0",
    owner="bench",
    runtime={"rate_limits": {"window_sec": 1, "max_requests": 1_000_000}},
)
async def save_note(
    case_id: Annotated[str, Field(max_length=40, description="The case.")],
    text: Annotated[str, Field(max_length=200, description="What to note.")],
) -> dict[str, str]:
    """Save a note beside a case."""
    return {"note_id": "note_1", "case_id": case_id, "length": str(len(text))}


class Slot(NamedTuple):
    """Who makes a call: one caller at a time."""

    tenant: str
    run_id: str


def slots(number: int, *, tenants: bool = False) -> list[Slot]:
    """Callers with a run each: of one tenant, or of a tenant each."""
    return [Slot(f"tenant_{n if tenants else 0}", run_of(n)) for n in range(number)]


def run_of(number: int) -> str:
    """As the ids of runs are that begin now."""
    return f"run_{BEGAN:011x}{number:013x}"


class Call(NamedTuple):
    """What a store is asked before and after a tool runs."""

    admit: AdmissionRequest
    settle: SettlementRequest

    async def on(self, store: Store) -> None:
        admitted = await store.admit(self.admit)
        if admitted.refused is not None or not await store.settle(self.settle):
            sys.exit(f"a call was refused: {admitted}")


class _Tap(MemoryStore):
    """Remembers what it was asked."""

    def admit(self, request: AdmissionRequest) -> asyncio.Future[Admission]:
        self.admitted = request
        return super().admit(request)

    def settle(self, request: SettlementRequest) -> asyncio.Future[bool]:
        self.settled = request
        return super().settle(request)


_numbers = count(1)
_random = Random(20)  # noqa: S311 - keys that are spread out, and no secret


async def sample() -> Call:
    """What one call through the runtime asks of its store."""
    store = _Tap()
    async with runtime_on(store) as runtime:
        slot = Slot("tenant_0", run_of(0))
        await ready(store, [slot])
        await submit(runtime, *proposed(slot))
    return Call(store.admitted, store.settled)


def copies(of: Call, where: Sequence[Slot], number: int) -> list[Call]:
    """So many other calls, of each of these callers in turn."""
    return [_copy(of, where[n % len(where)]) for n in range(number)]


def _copy(of: Call, slot: Slot) -> Call:
    admit, settle = of
    key, call_id, now = new_key(), new_call_id(), time.time()
    own: dict[str, Any] = {**slot._asdict(), "call_id": call_id}

    def events(them: Sequence[Event]) -> list[Event]:
        return [one._replace(caller=one.caller._replace(**own)) for one in them]

    captured = admit.captured
    if captured is not None:
        captured = captured._replace(tenant=slot.tenant, pointer=new_pointer(call_id, now))
    reserved = admit.entry._replace(key=key, **own) if admit.entry else None
    outcome = settle.entry._replace(key=key, **own) if settle.entry else None
    here = {**slot._asdict(), "now": now}
    return Call(
        admit._replace(entry=reserved, events=events(admit.events), captured=captured, **here),
        settle._replace(entry=outcome, events=events(settle.events), **here),
    )


def new_key() -> str:
    """As keys are derived: when the run began, and a digest."""
    return f"run:{BEGAN:011x}{_random.getrandbits(256):064x}"


def new_call_id() -> str:
    """In the order of time, as the runtime's."""
    return f"call_{next(_numbers):011x}{_random.getrandbits(52):013x}"


# --- through the runtime --------------------------------------------------------------------------


def runtime_on(store: Store) -> Runtime:
    made = Runtime(store)
    made.register(save_note, grants=[Grant(agent=AGENT, tool=NAME, max_calls_per_run=PLENTY)])
    return made


def proposed(slot: Slot) -> tuple[Proposal, Principal]:
    """A call with arguments that no other call has, and who makes it."""
    arguments = f'{{"case_id": "case_{next(_numbers):09d}", "text": "The payment was late."}}'
    who = Principal(tenant=slot.tenant, user="u_1", agent=AGENT)
    return Proposal(tool=NAME, arguments=arguments, run_id=slot.run_id), who


async def submit(runtime: Runtime, proposal: Proposal, principal: Principal) -> None:
    seen = await runtime.submit(proposal, principal)
    if not seen.ok:
        sys.exit(f"a call was refused: {seen.for_model()}")


async def ready(store: Store, where: Sequence[Slot], of: Call | None = None) -> None:
    """Open the callers' runs; with a sample, each makes its first call, which pins and counts."""
    await store.ready()
    now, plenty = time.time(), Budgets(writes=PLENTY)
    opened = [RunRecord(**one._asdict(), started_at=now, budgets=plenty) for one in where]
    await asyncio.gather(*(store.open_run(run) for run in opened))
    if of is not None:
        await asyncio.gather(*(_copy(of, one).on(store) for one in where))


# --- rows -----------------------------------------------------------------------------------------

KEYS = {
    "ledger": ("tenant", "key"),
    "events": ("tenant", "number", "segment"),
    "counters": ("tenant", "run_id", "name"),
    "rates": ("tenant", "name"),
    "runs": ("tenant", "run_id"),
    "vault": ("tenant", "pointer"),
    "due": ("tenant", "kind", "key"),
}
"""Every table that a call can touch, and what identifies a row of it."""

Found = Mapping[str, Sequence[Mapping[str, Any]]]
"""All rows of these tables, column by column."""


class Write(NamedTuple):
    """A row that was written: a new one, or other values in one that was there."""

    table: str
    where: Mapping[str, Any]
    """What identifies the row; empty for a new one."""
    values: Mapping[str, Any]


def written(before: Found, after: Found) -> list[Write]:
    """What must be done to get from one to the other."""
    writes = []
    for table, names in KEYS.items():
        old = {tuple(row[name] for name in names): row for row in before[table]}
        for row in after[table]:
            was = old.get(tuple(row[name] for name in names))
            if was is None:
                writes.append(Write(table, {}, row))
            elif changed := {name: value for name, value in row.items() if value != was[name]}:
                writes.append(Write(table, {name: row[name] for name in names}, changed))
    return writes
