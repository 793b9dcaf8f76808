"""What becomes of calls whose worker is gone, of after-checks, and of reversals."""

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from counterseal import Context, Grant, Proposal, tool
from counterseal.accounts.users import Person
from counterseal.call.recall import compensation_key
from counterseal.codes import Code
from counterseal.errors import CountersealError, StoreError
from counterseal.ledger.entry import EntryStatus, Phase
from counterseal.ledger.records import DueKind, HeldStatus
from counterseal.observation import Redactor
from counterseal.operations.attention import NeedsAttention
from counterseal.reconcile import Reconciler
from counterseal.runtime import Runtime
from counterseal.storage.memory import MemoryStore
from counterseal.storage.sqlite import SqliteStore
from counterseal.testing import FakeClock, someone
from counterseal.views import TenantView
from tests.waiting import turns, until

WRITES = {"effect": "draft", "version": "1.0.0", "owner": "tests"}
Amount = Annotated[int, Field(ge=1, le=100, description="How much.")]
Which = Annotated[str, Field(max_length=40, description="Which charge.")]
KEY = "call:charge:k"


class Charged(BaseModel):
    charged: int
    charge_id: str


class Bank:
    """Somebody else's service: what it did, by key, and what its account holds."""

    def __init__(self):
        self.charges = {}
        self.requests = 0
        self.refunds = []
        self.lies = self.down = self.broken = False

    def charge(self, key, amount):
        self.requests += 1
        if self.broken:
            raise RuntimeError("the bank is broken")
        self.charges.setdefault(key, amount)
        return {"charged": amount, "charge_id": f"ch_{len(self.charges)}"}

    def find(self, ctx: Context):
        self._answer()
        found = self.charges.get(ctx.key)
        return None if found is None else {"charged": found, "charge_id": "ch_1"}

    def account(self):
        self._answer()
        last = list(self.charges.values())[-1] if self.charges else None
        return {"version": len(self.charges), "last": 0 if self.lies else last}

    def _answer(self):
        if self.down:
            raise ConnectionError


class Worker:
    """A process with the store; once it is `dead`, nothing more of it is written down."""

    def __init__(self, store):
        self._store = store
        self.dead = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def settle(self, request):
        if self.dead:
            raise StoreError("this process is gone")
        return await self._store.settle(request)

    async def close(self):
        """The next worker goes on with it."""


async def no_pause(_seconds):
    pass


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path, clock):
    memory = request.param == "memory"
    store = MemoryStore(clock) if memory else SqliteStore(tmp_path / "s.db", clock=clock)
    yield store
    await store.close()


@pytest.fixture
def bank():
    return Bank()


@pytest.fixture
def worker(store, bank, clock):
    """Opens a runtime on the store, as a process of its own would."""

    def worker(*more_tools, dead=False, **declared):
        async def charge(amount: Amount, ctx: Context) -> Charged:
            """Charge an amount."""
            return bank.charge(ctx.key, amount)

        charges = tool(**{**WRITES, **declared})(charge)
        runtime = Runtime(
            Worker(store), lease=30.0, pause=no_pause, clock=clock, steady=clock.steady
        )
        runtime.store.dead = dead
        tools = (charges, *more_tools)
        grants = [Grant(agent="agent", tool=t.contract.name) for t in tools if t.contract.exposed]
        runtime.register(*tools, grants=grants)
        return runtime

    return worker


def ask(amount=7, **more):
    return Proposal(tool="charge", arguments={"amount": amount}, run_id="run_1", key="k", **more)


async def entry_of(store):
    return (await store.recall("acme", "run_1", KEY)).entry


async def types_of(store):
    return [event.type.value for _, event in await store.events("acme")]


# --- a worker that is gone ------------------------------------------------------------------------


async def test_what_could_not_be_settled_is_told_as_unknown_and_not_done_twice(worker, store, bank):
    first = await worker(dead=True).submit(ask(), someone())
    assert (first.code, first.ok) == (Code.DEPENDENCY_UNAVAILABLE, False)
    assert first.next_action == "escalate"
    again = await worker().submit(ask(), someone())
    assert (again.code, again.retry_after) == (Code.IDEMPOTENCY_CONFLICT, 1.0)
    assert bank.requests == 1
    entry = await entry_of(store)
    assert (entry.status, entry.phase, entry.held) == (EntryStatus.PENDING, Phase.RESERVED, True)


async def test_a_destination_that_honours_the_key_is_asked_to_do_it_again(
    worker, store, bank, clock
):
    declared = {"on_unknown": "retry_same_key"}
    await worker(dead=True, **declared).submit(ask(), someone())
    clock.advance(31)  # its lease is over
    done = await Reconciler(worker(**declared)).once()
    assert done == {"retried": 1}
    assert (bank.requests, list(bank.charges.values())) == (2, [7])
    entry = await entry_of(store)
    assert (entry.status, entry.attempts, entry.fence) == (EntryStatus.COMPLETED, 2, 2)
    replay = await worker(**declared).submit(ask(), someone())
    assert (replay.ok, replay.idempotency_hit, replay.data["charged"]) == (True, True, 7)
    assert bank.requests == 2
    assert "tool.reconciled" in await types_of(store)


async def test_a_worker_that_ends_anothers_call_says_what_its_capture_lacks(
    worker, store, bank, clock
):
    declared = {"on_unknown": "retry_same_key", "keep_arguments_days": 0}
    await worker(dead=True, **declared).submit(ask(), someone())
    clock.advance(31)  # its lease is over
    assert await Reconciler(worker(**declared)).once() == {"retried": 1}
    bodies = {event.type.value: event.body for _, event in await store.events("acme")}
    assert "resumed" in bodies["tool.reconciled"]
    for name in ("tool.requested", "tool.reconciled"):
        assert bodies[name]["not_captured"] == "opted_out", name


@pytest.mark.parametrize("on_unknown", ["escalate", "retry_same_key", "read_back"])
async def test_after_a_crash_the_calls_page_still_shows_what_its_gates_decided(
    worker, store, bank, clock, on_unknown
):
    declared = {"on_unknown": on_unknown}
    if on_unknown == "read_back":
        declared["read_back"] = bank.find
    seen = await worker(dead=True, **declared).submit(ask(), someone())
    runtime = worker(**declared)
    view = TenantView(runtime, Person(name="ann", tenant="acme", roles=frozenset({"viewer"})))
    for reconciled in (False, True):
        if reconciled:
            clock.advance(31)
            assert await Reconciler(runtime).once()
        gates = (await view.calls.page(seen.call_id)).gates
        assert {gate.verdict for gate in gates} == {"allow"}
        assert [gate.microseconds for gate in gates if gate.gate == "parse"] > [0]


async def test_what_the_call_itself_has_changed_does_not_keep_it_from_being_tried_again(
    worker, store, bank, clock
):
    rule = {"id": "EMPTY", "rule": "The account is empty.", "check": "target.version == 0"}
    declared = {"probe": bank.account, "resource": "account:1", "invariants": [rule]}
    runtime = worker(on_unknown="retry_same_key", dead=True, **declared)
    await runtime.submit(ask(expected_version=0), someone())  # charged, and never written down
    clock.advance(31)
    runtime = worker(on_unknown="retry_same_key", **declared)
    again = await runtime.submit(ask(expected_version=0), someone())
    assert again.ok
    assert list(bank.charges.values()) == [7]


async def test_a_destination_that_can_be_asked_is_asked_and_not_called_again(
    worker, store, bank, clock
):
    declared = {"on_unknown": "read_back", "read_back": bank.find}
    await worker(dead=True, **declared).submit(ask(), someone())
    clock.advance(31)  # its lease is over
    assert await Reconciler(worker(**declared)).once() == {"found": 1}
    assert bank.requests == 1
    assert (await entry_of(store)).status is EntryStatus.COMPLETED
    assert (await worker(**declared).submit(ask(), someone())).data["charged"] == 7


async def test_what_the_destination_does_not_know_after_a_while_was_not_done(
    worker, store, bank, clock
):
    declared = {"on_unknown": "read_back", "read_back": bank.find}
    await worker(dead=True, **declared).submit(ask(), someone())
    clock.advance(31)  # its lease is over
    bank.charges.clear()  # as if the process had died before it could send anything
    assert await Reconciler(worker(**declared)).once() == {"resting": 1}
    assert (await entry_of(store)).phase is Phase.UNKNOWN
    clock.advance(3600)
    later = worker(**declared)
    first = await later.submit(ask(), someone())  # how long ago that was, it can't know for certain
    assert (first.code, first.retry_after) == (Code.IDEMPOTENCY_CONFLICT, 30)
    clock.advance(30)
    answer = await later.submit(ask(), someone())  # who comes first finds out
    assert answer.ok
    assert list(bank.charges.values()) == [7]


async def test_who_can_only_ask_a_person_asks_one(worker, store, bank, clock):
    await worker(dead=True).submit(ask(), someone())
    clock.advance(31)  # its lease is over
    runtime = worker()
    refused = await runtime.submit(ask(), someone())
    assert (refused.code, refused.next_action) == (Code.IDEMPOTENCY_CONFLICT, "escalate")
    assert await Reconciler(runtime).once() == {"escalated": 1}
    assert (await entry_of(store)).phase is Phase.ESCALATED
    (concern,) = await store.concerns("acme")
    assert (concern.kind, concern.tool, concern.key) == ("unknown", "charge", KEY)
    assert await Reconciler(runtime).once() == {}
    assert bank.requests == 1


async def test_a_person_says_that_it_happened(worker, store, bank, clock):
    await worker(dead=True).submit(ask(), someone())
    clock.advance(31)  # its lease is over
    runtime = worker()
    await Reconciler(runtime).once()
    people = NeedsAttention(runtime, by="u_ops")
    await people.happened("acme", KEY, reason="Seen in the bank's report.", data={"charged": 7})
    replay = await runtime.submit(ask(), someone())
    assert (replay.ok, replay.data, replay.idempotency_hit) == (True, {"charged": 7}, True)
    assert bank.requests == 1
    assert await people.list() == []
    with pytest.raises(CountersealError, match="does not need attention"):
        await people.did_not_happen("acme", KEY, reason="Changed my mind.")
    told = [event for _, event in await store.events("acme")][-2]
    assert (told.decision, told.caller.user) == ("happened", "u_ops")
    assert told.body["reason"] == "Seen in the bank's report."


async def test_a_person_says_that_it_did_not_happen(worker, store, bank, clock):
    await worker(dead=True).submit(ask(), someone())
    clock.advance(31)  # its lease is over
    bank.charges.clear()
    runtime = worker()
    await Reconciler(runtime).once()
    await NeedsAttention(runtime, by="u_ops").did_not_happen(
        "acme", KEY, reason="Not in the report."
    )
    assert (await runtime.submit(ask(), someone())).ok
    assert list(bank.charges.values()) == [7]


async def test_a_kill_keeps_it_from_being_run_again(worker, store, bank, clock):
    declared = {"on_unknown": "retry_same_key"}
    await worker(dead=True, **declared).submit(ask(), someone())
    clock.advance(31)  # its lease is over
    runtime = worker(**declared)
    await runtime.operator("u_ops").kill(tool="charge", reason="The bank called.")
    assert await Reconciler(runtime).once() == {"escalated": 1}
    assert bank.requests == 1


@pytest.mark.slow
async def test_a_live_worker_keeps_what_takes_longer_than_its_lease(tmp_path):
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(**WRITES, on_unknown="retry_same_key")
    async def slow(ctx: Context) -> dict[str, str | None]:
        """Take a while."""
        begun.set()
        await go_on.wait()
        return {"key": ctx.key}

    async def workers(number):
        for _ in range(number):
            runtime = await stack.enter_async_context(Runtime.open(url, lease=0.3))
            runtime.register(slow, grants=[Grant(agent="agent", tool="slow")])
            yield runtime

    url = f"sqlite:///{tmp_path}/s.db"
    async with AsyncExitStack() as stack:
        runtime, other = [one async for one in workers(2)]
        renewals, renew = [], runtime.store.renew

        async def renewed(*request):
            renewals.append(request)
            return await renew(*request)

        runtime.store.renew = renewed
        proposal = Proposal(tool="slow", arguments={}, run_id="run_1")
        call = asyncio.ensure_future(runtime.submit(proposal, someone()))
        await begun.wait()
        await until(lambda: len(renewals) == 5)  # that is longer than a lease
        assert await Reconciler(other).once() == {}
        go_on.set()
        assert (await call).ok


# --- waiting for the first one --------------------------------------------------------------------


async def test_who_waits_gets_the_first_ones_observation(worker, store, bank):
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(**WRITES)
    async def slow() -> dict[str, bool]:
        """Take a while."""
        begun.set()
        await go_on.wait()
        return {"done": True}

    runtime, other = worker(slow), worker(slow)
    proposal = Proposal(tool="slow", arguments={}, run_id="run_1", key="k")
    first = asyncio.ensure_future(runtime.submit(proposal, someone()))
    await begun.wait()
    second = asyncio.ensure_future(other.submit(proposal, someone(), wait=30.0))
    conflict = await other.submit(proposal, someone(), wait=0.01)
    assert (conflict.code, conflict.retry_after) == (Code.IDEMPOTENCY_CONFLICT, 1.0)
    go_on.set()
    one, two = await asyncio.gather(first, second)
    assert (one.ok, one.idempotency_hit) == (True, False)
    assert (two.ok, two.idempotency_hit, two.data) == (True, True, one.data)


async def test_waiting_takes_seconds(worker):
    with pytest.raises(ValueError, match="wait must be 0 or more seconds"):
        await worker().submit(ask(), someone(), wait=-1)


# --- verification ---------------------------------------------------------------------------------

LOOKED_AT = {
    "expected": {"last": "{amount}"},
    "resource": "account:1",
}


async def test_the_world_is_looked_at_afterwards(worker, store, bank):
    runtime = worker(probe=bank.account, **LOOKED_AT)
    seen = await runtime.submit(ask(), someone())
    assert seen.verification.required
    assert seen.verification.expected_state == {"last": 7}
    assert await Reconciler(runtime).once() == {"verified": 1}
    assert (await types_of(store))[-1] == "tool.verified"
    assert await Reconciler(runtime).once() == {}


async def test_a_world_that_is_otherwise_goes_on_the_operators_list(worker, store, bank, clock):
    runtime = worker(probe=bank.account, **LOOKED_AT)
    await runtime.submit(ask(), someone())
    bank.lies = True
    for _ in range(2):
        assert await Reconciler(runtime).once() == {"resting": 1}
        clock.advance(61)
    assert await Reconciler(runtime).once() == {"unverified": 1}
    (concern,) = await store.concerns()
    assert (concern.kind, concern.reason) == ("verify", "not as expected: /last")
    last = [event for _, event in await store.events("acme")][-1]
    assert (last.type.value, last.body["wrong"]) == ("tool.unverified", ["/last"])
    assert last.body["code"] == "STALE_STATE"
    people = NeedsAttention(runtime, by="u_ops")
    bank.lies = False
    await people.again("acme", DueKind.VERIFY, KEY, reason="The bank had an outage.")
    assert await Reconciler(runtime).once() == {"verified": 1}
    assert await people.list() == []


async def test_a_resource_changed_by_another_party_is_neither_verified_nor_wrong(
    worker, store, bank
):
    runtime = worker(probe=bank.account, version_from="/charged", **LOOKED_AT)
    await runtime.submit(ask(1), someone())
    bank.charges.update(later=9, last=8)  # version 3: two more than what the call has left
    assert await Reconciler(runtime).once() == {"overtaken": 1}
    assert await store.concerns() == []
    last = [event for _, event in await store.events("acme")][-1]
    assert (last.type.value, last.body["wrong"]) == ("tool.overtaken", ["/last"])


async def test_an_older_version_than_the_call_has_left_is_wrong(worker, store, bank):
    runtime = worker(probe=bank.account, version_from="/charged", **LOOKED_AT)
    await runtime.submit(ask(7), someone())
    bank.lies = True  # and the probe tells version 1, where the call spoke of 7
    assert await Reconciler(runtime).once() == {"resting": 1}


async def test_a_probe_that_fails_is_tried_again_and_given_up_in_the_end(
    worker, store, bank, clock
):
    runtime = worker(probe=bank.account, **LOOKED_AT)
    await runtime.submit(ask(), someone())
    bank.down = True
    for _ in range(9):
        assert await Reconciler(runtime).once() == {"resting": 1}
        clock.advance(61)
    assert await Reconciler(runtime).once() == {"unverified": 1}
    (concern,) = await store.concerns()
    assert concern.reason == "its state could not be read"
    people = NeedsAttention(runtime, by="u_ops")
    await people.dismiss("acme", DueKind.VERIFY, KEY, reason="Looked by hand.")
    assert await people.list() == []


# --- compensation ---------------------------------------------------------------------------------


def refund_tool(bank, **more):
    async def refund(charge_id: Which) -> dict[str, str]:
        """Give back what was charged."""
        if bank.broken:
            raise ValueError("no")
        bank.refunds.append(charge_id)
        return {"refunded": charge_id}

    return tool(**{**WRITES, **more})(refund)


async def test_what_a_call_did_is_reversed_once(worker, store, bank):
    runtime = worker(refund_tool(bank), compensation_tool="refund")
    await runtime.submit(ask(), someone())
    people = NeedsAttention(runtime, by="u_ops")
    await people.compensate("acme", KEY, reason="Charged by mistake.")
    await people.compensate("acme", KEY, reason="Charged by mistake.")  # asked twice, meant once
    assert await Reconciler(runtime).once() == {"compensated": 1}
    assert bank.refunds == ["ch_1"]
    assert (await entry_of(store)).status is EntryStatus.COMPENSATED
    replay = await runtime.submit(ask(), someone())
    assert (replay.ok, replay.code, replay.idempotency_hit) == (False, Code.STALE_STATE, True)
    assert replay.data["compensated"]
    assert replay.verification.required
    assert {"compensation.required", "tool.compensated"} <= set(await types_of(store))
    with pytest.raises(CountersealError, match="COMPENSATED"):
        await people.compensate("acme", KEY, reason="Once more.")
    assert bank.refunds == ["ch_1"]


async def test_a_reversal_that_died_half_way_is_not_made_twice(worker, store, bank, clock):
    declared = {"compensation_tool": "refund"}
    runtime = worker(refund_tool(bank), **declared)
    await runtime.submit(ask(), someone())
    await NeedsAttention(runtime, by="u_ops").compensate("acme", KEY, reason="By mistake.")
    finish, calls = store.finish, []

    async def die(request):
        calls.append(request)
        raise StoreError("this process is gone")

    runtime.store.finish = die
    assert await Reconciler(runtime).once() == {"failed": 1}
    assert bank.refunds == ["ch_1"]
    del runtime.store.finish
    assert finish is not die
    clock.advance(31)
    assert await Reconciler(worker(refund_tool(bank), **declared)).once() == {"compensated": 1}
    assert bank.refunds == ["ch_1"]


async def test_a_reversal_that_fails_goes_on_the_operators_list(worker, store, bank, clock):
    runtime = worker(refund_tool(bank, on_unknown="escalate"), compensation_tool="refund")
    await runtime.submit(ask(), someone())
    bank.broken = True
    await NeedsAttention(runtime, by="u_ops").compensate("acme", KEY, reason="By mistake.")
    done = await Reconciler(runtime).once()
    for _ in range(12):
        if "compensation_failed" in done:
            break
        clock.advance(61)
        done = await Reconciler(runtime).once()
    assert done["compensation_failed"] == 1
    kinds = {concern.kind for concern in await store.concerns()}
    assert "compensate" in kinds
    assert (await types_of(store)).count("compensation.failed") == 1
    assert (await entry_of(store)).status is EntryStatus.COMPLETED


UNDO_KEY = f"undo:refund:{compensation_key(KEY)}"


async def reversal_without_an_answer(worker, bank, clock):
    """A call whose reversal may have taken effect: it broke off, and a person has to find out."""
    runtime = worker(refund_tool(bank, on_unknown="escalate"), compensation_tool="refund")
    await runtime.submit(ask(), someone())
    bank.broken = True
    people = NeedsAttention(runtime, by="u_ops")
    await people.compensate("acme", KEY, reason="By mistake.")
    while "compensation_failed" not in await Reconciler(runtime).once():
        clock.advance(61)
    bank.broken = False
    return runtime, people


async def test_a_call_whose_reversal_is_unknown_is_not_repeated_as_a_success(
    worker, store, bank, clock
):
    runtime, _ = await reversal_without_an_answer(worker, bank, clock)
    repeat = await runtime.submit(ask(), someone())
    assert (repeat.code, repeat.next_action) == (Code.IDEMPOTENCY_CONFLICT, "escalate")
    assert repeat.decisions[-1].decision.rule == "reversal-unknown"
    assert bank.requests == 1
    preview = await runtime.preview(ask(), someone())
    assert preview.code == Code.IDEMPOTENCY_CONFLICT


async def test_a_call_whose_reversal_did_not_happen_is_a_success_again(worker, store, bank, clock):
    runtime, people = await reversal_without_an_answer(worker, bank, clock)
    await people.dismiss("acme", DueKind.COMPENSATE, KEY, reason="Leave it.")
    assert (await runtime.submit(ask(), someone())).code is Code.IDEMPOTENCY_CONFLICT
    await people.did_not_happen("acme", UNDO_KEY, reason="Looked at the account.")
    repeat = await runtime.submit(ask(), someone())
    assert (repeat.ok, repeat.idempotency_hit) == (True, True)


async def test_a_call_whose_reversal_happened_is_told_as_reversed(worker, store, bank, clock):
    runtime, people = await reversal_without_an_answer(worker, bank, clock)
    await people.happened("acme", UNDO_KEY, reason="Looked at the account.")
    assert (await runtime.submit(ask(), someone())).code is Code.IDEMPOTENCY_CONFLICT
    await people.again("acme", DueKind.COMPENSATE, KEY, reason="It happened.")
    assert (await Reconciler(runtime).once())["compensated"] == 1
    assert (await runtime.submit(ask(), someone())).code is Code.STALE_STATE


async def test_a_call_that_is_being_reversed_is_not_repeated_as_a_success(worker, store, bank):
    began, may_end = asyncio.Event(), asyncio.Event()

    @tool(**WRITES)
    async def refund(charge_id: Which) -> dict[str, str]:
        """Give back what was charged."""
        began.set()
        await may_end.wait()
        return {"refunded": charge_id}

    runtime = worker(refund, compensation_tool="refund")
    await runtime.submit(ask(), someone())
    await NeedsAttention(runtime, by="u_ops").compensate("acme", KEY, reason="By mistake.")
    reversing = asyncio.ensure_future(Reconciler(runtime).once())
    await began.wait()
    assert (await runtime.submit(ask(), someone())).code is Code.IDEMPOTENCY_CONFLICT
    may_end.set()
    assert (await reversing)["compensated"] == 1
    assert (await runtime.submit(ask(), someone())).code is Code.STALE_STATE


async def test_the_originals_approval_covers_its_reversal(worker, store, bank):
    """And where nobody approved the original, somebody is asked about the reversal."""
    asks = {"effect": "external_notification"}
    undo = refund_tool(bank, **asks)
    runtime = worker(undo, compensation_tool="refund", **asks)
    held = await runtime.submit(ask(), someone())
    assert held.code is Code.CONFIRMATION_MISSING
    await store.decide("acme", held.approval_id, HeldStatus.APPROVED, [])
    assert (await runtime.submit(ask(), someone())).ok
    await NeedsAttention(runtime, by="u_ops").compensate("acme", KEY, reason="By mistake.")
    assert (await Reconciler(runtime).once())["compensated"] == 1
    assert bank.refunds == ["ch_1"]


async def test_a_reversal_that_no_approval_covers_waits_for_one(worker, store, bank):
    runtime = worker(refund_tool(bank, effect="external_notification"), compensation_tool="refund")
    await runtime.submit(ask(), someone())
    await NeedsAttention(runtime, by="u_ops").compensate("acme", KEY, reason="By mistake.")
    assert (await Reconciler(runtime).once())["waiting"] == 1
    assert bank.refunds == []
    required = [e for _, e in await store.events("acme") if e.type.value == "approval.required"]
    assert len(required) == 1


async def test_an_approval_comes_back_when_nothing_was_done(worker, store, bank, clock):
    declared = {
        "effect": "external_notification",
        "approval": {"expires_seconds": 86_400},
        "on_unknown": "read_back",
        "read_back": bank.find,
    }
    runtime = worker(**declared)
    held = await runtime.submit(ask(), someone())
    await store.decide("acme", held.approval_id, HeldStatus.APPROVED, [])
    await worker(dead=True, **declared).submit(ask(), someone())
    clock.advance(31)  # its lease is over
    bank.charges.clear()  # died with the approval spent and nothing sent
    assert (await store.recall("acme", "run_1", KEY)).held.status is HeldStatus.SPENT
    assert await Reconciler(runtime).once() == {"resting": 1}
    clock.advance(3600)
    assert await Reconciler(runtime).once() == {"not_done": 1}
    assert (await store.recall("acme", "run_1", KEY)).held.status is HeldStatus.APPROVED
    assert (await runtime.submit(ask(), someone())).ok
    assert list(bank.charges.values()) == [7]
    assert (await store.recall("acme", "run_1", KEY)).held.status is HeldStatus.SPENT


# --- what an audit found --------------------------------------------------------------------------


async def test_a_call_is_not_repeated_while_its_thread_may_still_run(store, clock):
    begun, go_on, effects = threading.Event(), threading.Event(), []

    @tool(
        effect="draft",
        version="1.0.0",
        owner="tests",
        on_unknown="read_back",
        read_back=lambda: effects[-1] if effects else None,
        runtime={"timeout_ms": 50},
    )
    def slow(ctx: Context) -> dict[str, str | None]:
        """Take too long, and act in the end."""
        begun.set()
        go_on.wait(30)
        effects.append({"key": ctx.key})
        return effects[-1]

    def opened():
        runtime = Runtime(
            Worker(store), lease=30.0, pause=no_pause, clock=clock, steady=clock.steady
        )
        runtime.register(slow, grants=[Grant(agent="agent", tool="slow")])
        return runtime

    one, other = opened(), opened()
    proposal = Proposal(tool="slow", arguments={}, run_id="run_1", key="k")
    late = await one.submit(proposal, someone())
    assert (late.ok, begun.is_set()) == (False, True)
    clock.advance(20)
    assert await Reconciler(other).once() == {}
    again = await other.submit(proposal, someone())
    assert again.code is Code.IDEMPOTENCY_CONFLICT
    go_on.set()

    async def is_unknown():
        entry = (await store.recall("acme", "run_1", "call:slow:k")).entry
        return entry.phase is Phase.UNKNOWN

    await until(is_unknown)
    clock.advance(3600)
    assert await Reconciler(other).once() == {"found": 1}
    assert len(effects) == 1


async def test_a_reversal_gets_what_the_call_returned_and_not_what_the_agent_saw(worker, store):
    reversed_for = []

    @tool(**WRITES, compensation_tool="uninvite")
    async def invite() -> dict[str, str]:
        """Invite somebody."""
        return {"address": "somebody@example.org"}

    @tool(**WRITES)
    async def uninvite(address: Which) -> dict[str, bool]:
        """Take it back."""
        reversed_for.append(address)
        return {"done": True}

    runtime = worker(invite, uninvite)
    runtime.redactor = Redactor(pii=("email",))
    seen = await runtime.submit(
        Proposal(tool="invite", arguments={}, run_id="run_1", key="i"), someone()
    )
    assert "somebody" not in str(seen.data)
    people = NeedsAttention(runtime, by="u_ops")
    await people.compensate("acme", "call:invite:i", reason="By mistake.")
    assert (await Reconciler(runtime).once())["compensated"] == 1
    assert reversed_for == ["somebody@example.org"]


async def test_an_agent_can_not_take_the_key_of_a_reversal(worker, store, bank):
    runtime = worker(refund_tool(bank), compensation_tool="refund")
    await runtime.submit(ask(), someone())
    await NeedsAttention(runtime, by="u_ops").compensate("acme", KEY, reason="By mistake.")
    work = await store.find_due("acme", DueKind.COMPENSATE, KEY)
    taken = Proposal(
        tool="refund",
        arguments={"charge_id": "ch_9"},
        run_id="run_1",
        key=compensation_key(work.key),
    )
    assert (await runtime.submit(taken, someone())).ok
    assert (await Reconciler(runtime).once())["compensated"] == 1
    assert bank.refunds == ["ch_9", "ch_1"]


async def test_a_worker_of_another_version_leaves_a_reversal_to_others(worker, store, bank, clock):
    runtime = worker(refund_tool(bank), compensation_tool="refund")
    await runtime.submit(ask(), someone())
    await NeedsAttention(runtime, by="u_ops").compensate("acme", KEY, reason="By mistake.")
    newer = worker(refund_tool(bank), compensation_tool="refund", version="2.0.0")
    assert await Reconciler(newer).once() == {"resting": 1}
    clock.advance(61)
    assert await Reconciler(runtime).once() == {"compensated": 1}


async def test_work_for_a_tool_that_no_worker_has_goes_on_the_operators_list(
    worker, store, bank, clock
):
    runtime = worker(refund_tool(bank), compensation_tool="refund")
    await runtime.submit(ask(), someone())
    await NeedsAttention(runtime, by="u_ops").compensate("acme", KEY, reason="By mistake.")
    stranger = Runtime(Worker(store), lease=30.0, pause=no_pause, clock=clock, steady=clock.steady)
    assert await Reconciler(stranger).once() == {}
    clock.advance(700)
    assert await Reconciler(stranger).once() == {"abandoned": 1}
    (concern,) = await store.concerns()
    assert concern.reason == "no worker holds charge 1.0.0"


async def test_a_reversal_that_failed_for_good_can_be_begun_anew(worker, store, bank, clock):
    tries = []

    @tool(**WRITES)
    async def refund(charge_id: Which) -> dict[str, bool]:
        """Give back what was charged."""
        tries.append(charge_id)
        if len(tries) == 1:
            raise PermissionError
        return {"done": True}

    runtime = worker(refund, compensation_tool="refund")
    await runtime.submit(ask(), someone())
    people = NeedsAttention(runtime, by="u_ops")
    await people.compensate("acme", KEY, reason="By mistake.")
    for _ in range(12):
        if "compensation_failed" in await Reconciler(runtime).once():
            break
        clock.advance(61)
    with pytest.raises(CountersealError, match="failed before"):
        await people.compensate("acme", KEY, reason="By mistake.")
    await people.again("acme", DueKind.COMPENSATE, KEY, reason="They have mended it.")
    assert await Reconciler(runtime).once() == {"compensated": 1}
    assert tries == ["ch_1", "ch_1"]


async def test_what_a_call_leaves_to_be_done_does_not_wait_for_the_next_pass(worker, store, bank):
    runtime = worker(probe=bank.account, **LOOKED_AT)
    passes, claim = [], runtime.store.claim_due

    async def claimed(request):
        found = await claim(request)
        passes.append(found)
        return found

    async def verified():
        return "tool.verified" in await types_of(store)

    runtime.store.claim_due = claimed
    async with Reconciler(runtime).running(every=3600):
        await until(lambda: passes)  # the next one is an hour away
        await turns()
        await runtime.submit(ask(), someone())
        await until(verified)


async def test_a_reconciler_runs_in_the_background_and_survives_what_goes_wrong(
    worker, store, bank
):
    runtime = worker(probe=bank.account, **LOOKED_AT)
    wrong, claim = [], store.claim_due

    async def fails_once(request):
        if not wrong:
            wrong.append(request)
            raise RuntimeError("whatever it is")
        return await claim(request)

    async def verified():
        return "tool.verified" in await types_of(store)

    runtime.store.claim_due = fails_once
    async with Reconciler(runtime).running(every=0.01):
        await runtime.submit(ask(), someone())
        await until(verified)
    assert wrong
