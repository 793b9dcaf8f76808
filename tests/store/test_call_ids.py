"""Ids of calls: ours are unique, callers' are kept as such, and an ambiguous one is refused."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from counterseal import Grant, Proposal, Runtime, tool
from counterseal.accounts.users import Person
from counterseal.audit import CallFields, Event, EventType
from counterseal.ledger.entry import EntryStatus
from counterseal.operations.attention import NeedsAttention
from counterseal.operations.auditor import AmbiguousCallError, find_call, find_entry
from counterseal.reconcile import Reconciler
from counterseal.testing import approver, someone
from counterseal.views import TenantView
from counterseal.views.base import NotFoundError
from counterseal.views.calls import CallSearch

DRAFT = {"effect": "draft", "version": "1.0.0", "owner": "tests"}
Text = Annotated[str, Field(max_length=40, description="Which.")]


class Paid(BaseModel):
    paid: str


@dataclass
class Bank:
    runtime: Runtime
    refunds: list[str]

    async def pay(self, invoice, *, run="run_1", tenant="acme", agent="agent", **more: Any):
        more.setdefault("call_id", "call_0")
        proposal = Proposal(tool="pay", arguments={"invoice": invoice}, run_id=run, **more)
        return await self.runtime.submit(proposal, someone(agent, tenant))

    async def undo(self, call, tenant="acme"):
        await NeedsAttention(self.runtime, by="ops").compensate(tenant, call, reason="Mistake.")
        assert await Reconciler(self.runtime).once() == {"compensated": 1}

    def calls(self, tenant="acme"):
        person = Person(name="ann", tenant=tenant, roles=frozenset({"operator", "viewer"}))
        return TenantView(self.runtime, person).calls


@pytest.fixture
def bank(store):
    refunds = []

    async def pay(invoice: Text) -> Paid:
        """Pay an invoice."""
        return Paid(paid=invoice)

    async def refund(paid: Text) -> dict[str, str]:
        """Take a payment back."""
        refunds.append(paid)
        return {"refunded": paid}

    async def write(invoice: Text) -> Paid:
        """Write to a customer."""
        return Paid(paid=invoice)

    tools = [
        tool(**DRAFT, compensation_tool="refund", external_ref="/paid")(pay),
        tool(**DRAFT)(refund),
        tool(**{**DRAFT, "effect": "external_notification"})(write),
    ]
    runtime = Runtime(store)
    names = ("pay", "refund", "write")
    grants = [Grant(agent=who, tool=name) for who in ("agent", "other") for name in names]
    runtime.register(*tools, grants=grants)
    return Bank(runtime, refunds)


async def test_two_runs_and_two_tenants_that_say_call_0_have_four_calls(bank, store):
    made = [
        await bank.pay(f"{tenant}_{run}", run=run, tenant=tenant)
        for tenant in ("acme", "zeta")
        for run in ("run_1", "run_2")
    ]
    assert len({seen.call_id for seen in made}) == 4
    assert {seen.caller_call_id for seen in made} == {"call_0"}
    assert "call_0" not in str(made[0].envelope())
    for seen, tenant in zip(made, ("acme", "acme", "zeta", "zeta"), strict=True):
        page = await bank.calls(tenant).page(seen.call_id)
        assert (page.call.call_id, page.call.caller_call_id) == (seen.call_id, "call_0")
        assert {event.run_id for event in page.events} == {page.call.run_id}
        assert page.ledger.call_id == seen.call_id
        (kept,) = await store.look_up_call(tenant, seen.call_id)
        assert kept.entry.call_id == seen.call_id


async def test_undo_reverses_the_call_of_our_id_and_no_other(bank, store):
    first, second = await bank.pay("first"), await bank.pay("second", run="run_2")
    await bank.pay("theirs", tenant="zeta")
    await bank.undo(second.call_id)
    assert bank.refunds == ["second"]
    statuses = [
        (await store.look_up_call("acme", seen.call_id))[0].entry.status for seen in (first, second)
    ]
    assert statuses == [EntryStatus.COMPLETED, EntryStatus.COMPENSATED]


async def test_undo_and_show_refuse_an_ambiguous_id_with_the_choices(bank):
    made = [await bank.pay("first"), await bank.pay("second", run="run_2")]
    await bank.pay("theirs", tenant="zeta")
    people = NeedsAttention(bank.runtime, by="ops")
    for look in (
        people.compensate("acme", "call_0", reason="Mistake."),
        bank.calls().page("call_0"),
        bank.calls().events("call_0"),
        bank.calls().arguments("call_0"),
        bank.calls().observation(call_id="call_0"),
    ):
        with pytest.raises(AmbiguousCallError, match="2 calls have the id 'call_0'") as caught:
            await look
        choices = {(one.call_id, one.tool, one.run_id) for one in caught.value.choices}
        assert choices == {
            (seen.call_id, "pay", run) for seen, run in zip(made, ("run_1", "run_2"), strict=True)
        }
        assert all(one.at > 0 for one in caught.value.choices)
        assert all(seen.call_id in str(caught.value) for seen in made)
    assert bank.refunds == []
    await bank.undo("call_0", tenant="zeta")
    assert bank.refunds == ["theirs"], "in this tenant it is the only one"


async def test_a_callers_id_that_one_call_has_finds_it(bank):
    seen = await bank.pay("only", call_id="toolu_1")
    page = await bank.calls().page("toolu_1")
    assert page.call.call_id == seen.call_id
    by_id = await bank.calls().observation(call_id="toolu_1")
    assert by_id["tool_identity"]["call_id"] == seen.call_id
    await bank.undo("toolu_1")
    assert bank.refunds == ["only"]


async def test_tries_of_one_operation_are_one_call(bank):
    first = await bank.pay("same", call_id="toolu_1")
    again = await bank.pay("same", call_id="toolu_1")
    assert again.idempotency_hit
    assert again.call_id == first.call_id
    assert (await bank.calls().page("toolu_1")).call.call_id == first.call_id
    rows = (await bank.calls().search(CallSearch(caller_call_id="toolu_1"))).items
    assert [row.replayed for row in rows] == [True, False]
    await bank.undo("toolu_1")
    assert bank.refunds == ["same"]


async def test_a_repeat_under_another_id_is_undone_as_the_call_that_it_repeats(bank):
    await bank.pay("same", call_id="toolu_1")
    await bank.pay("same", call_id="toolu_2")
    await bank.undo("toolu_2")
    assert bank.refunds == ["same"]


async def test_no_callers_id_stands_in_for_an_id_of_ours(bank):
    victim = await bank.pay("victim")
    posing = await bank.pay("posing", run="run_2", agent="other", call_id=victim.call_id)
    assert posing.call_id != victim.call_id
    assert (await bank.calls().page(victim.call_id)).call.run_id == "run_1"
    await bank.undo(victim.call_id)
    assert bank.refunds == ["victim"]


async def test_an_agents_look_is_limited_to_its_own_calls(bank, store):
    mine = await bank.pay("mine")
    await bank.pay("other's", run="run_2", agent="other")
    assert await find_call(store, "acme", "call_0", ("agent", "u_1")) == mine.call_id
    assert await find_call(store, "acme", "call_0", ("agent", "u_2")) is None
    with pytest.raises(NotFoundError):
        await bank.calls().page("call_0", ("stranger", None))


async def test_an_approved_call_keeps_the_callers_id_whoever_executes_it(bank, store):
    own = {"call_id": "call_0", "workflow_id": "wf", "conversation_id": "conv", "session_id": "s"}
    proposal = Proposal(tool="write", arguments={"invoice": "i"}, run_id="run_1", **own)
    held = await bank.runtime.submit(proposal, someone())
    await bank.runtime.approvals.answer(approver())
    assert (await Reconciler(bank.runtime).once())["executed"] == 1
    page = await bank.calls().page("call_0")
    assert page.call.code == "SUCCESS"
    assert page.call.call_id != held.call_id
    row = page.call
    ids = (row.caller_call_id, row.workflow_id, row.conversation_id, row.session_id)
    assert ids == tuple(own.values())
    events = await store.events("acme", call_id=held.call_id)
    assert {event.caller.session_id for _, event in events if event.caller.trace_id} >= {"s"}


SEARCHES = {
    "workflow": "wf_1",
    "conversation": "conv_1",
    "session": "session_1",
    "external_ref": "a",
    "caller_call_id": "toolu_a",
}


async def test_calls_are_found_by_what_they_belong_to_and_by_version(bank):
    own = {"workflow_id": "wf_1", "conversation_id": "conv_1", "session_id": "session_1"}
    wanted = await bank.pay("a", call_id="toolu_a", **own)
    await bank.pay("b", call_id="toolu_b", workflow_id="wf_2", session_id="session_2")
    await bank.pay("a", tenant="zeta", call_id="toolu_a", **own)
    for name, value in SEARCHES.items():
        found = (await bank.calls().search(CallSearch(**{name: value}))).items
        assert [row.call_id for row in found] == [wanted.call_id], name
        assert not (await bank.calls().search(CallSearch(**{name: "none"}))).items
    both = CallSearch(version="1.0.0", session="session_1", tool="pay")
    assert [row.call_id for row in (await bank.calls().search(both)).items] == [wanted.call_id]
    assert len((await bank.calls().search(CallSearch(version="1.0.0"))).items) == 2
    assert not (await bank.calls().search(CallSearch(version="9.0.0"))).items


async def test_every_event_of_a_call_says_what_it_belongs_to(bank, store):
    own = {"workflow_id": "wf_1", "conversation_id": "conv_1", "session_id": "session_1"}
    seen = await bank.pay("a", **own)
    events = [event for _, event in await store.events("acme", call_id=seen.call_id)]
    assert {event.type for event in events} >= {EventType.REQUESTED, EventType.SUCCEEDED}
    for event in events:
        assert event.caller[-4:] == ("call_0", *own.values()), event.type


async def test_calls_of_an_earlier_version_with_the_same_id_are_told_apart_by_their_keys(
    bank, store, make
):
    for number in (1, 2):
        run = f"run_{number}"
        caller = CallFields(
            *("acme", run, "call_0", "save", "1.0.0", "agent", "u_1", f"{number}" * 32)
        )
        event = Event(EventType.SUCCEEDED, caller, 1e9, "SUCCESS", body={"announced": True})
        entry = make.entry(f"k_{number}", call_id="call_0")
        await store.admit(make.admit(entry=entry, events=[event]))
    with pytest.raises(AmbiguousCallError, match="2 calls have the id 'call_0'"):
        await bank.calls().page("call_0")
    with pytest.raises(AmbiguousCallError, match=r"use the key of the call \(k_1, k_2\)"):
        await find_entry(store, "acme", "call_0")
    assert (await find_entry(store, "acme", "k_2")).entry.key == "k_2"
    new = await bank.pay("new", run="run_9", call_id="call_0")
    with pytest.raises(AmbiguousCallError, match="3 calls have the id 'call_0'"):
        await bank.undo("call_0")
    await bank.undo(new.call_id)
    assert bank.refunds == ["new"]
