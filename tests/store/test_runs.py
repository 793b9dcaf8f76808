"""Runs, refusals, events and the vault; and that tenants have nothing in common."""

import pytest

from counterseal.audit import EventType
from counterseal.errors import CountersealError
from counterseal.ledger.changes import IDLE_SECONDS
from counterseal.ledger.entry import Phase
from counterseal.ledger.records import Budgets, HeldStatus
from counterseal.ledger.requests import AdmissionRefusal
from counterseal.storage import open_store
from tests.store.kept import keep


def test_a_store_of_an_unknown_kind_is_refused():
    with pytest.raises(CountersealError, match="paper"):
        open_store("paper://desk")


async def test_a_run_is_found_as_it_was_opened_first(store, make):
    assert await store.find_run("acme", "run_1") is None
    first = make.run(
        objective="close cases",
        allowed_tools=frozenset({"save"}),
        budgets=Budgets(writes=3, by_effect={"draft": 2}),
        config={"region": "eu"},
    )
    assert await store.open_run(first) == first
    assert await store.open_run(make.run(objective="anything")) == first
    assert await store.find_run("acme", "run_1") == first


async def test_what_happened_in_a_run_survives_opening_it_again(store, make):
    await store.open_run(make.run())
    await store.admit(make.admit(charges=[make.charge()]))
    await store.settle(make.settle(state=[("n", "replace", 1)], seen={"case:1": 1}))
    again = await store.open_run(make.run())
    assert (again.pins, again.state, again.seen) == ({"save": "1.0.0"}, {"n": 1}, {"case:1": 1})


async def test_runs_of_one_tenant_count_for_themselves(store, make):
    charges = [make.charge(1), make.charge(9, "money", 2, of_run=False)]
    for run_id in ("run_1", "run_2"):
        admission = await store.admit(make.admit(run_id=run_id, charges=charges))
        assert admission.refused is None
    memory = await store.recall("acme", "run_2", None)
    assert (memory.run_counters, memory.tenant_counters) == ({"writes": 1}, {"money": 4})


async def test_an_unknown_run_has_no_entry_request_or_counters(store):
    memory = await store.recall("acme", "run_1", "k")
    assert (memory.entry, memory.held) == (None, None)
    assert (dict(memory.run_counters), dict(memory.tenant_counters), dict(memory.rates)) == (
        {},
        {},
        {},
    )


async def test_refusals_are_counted_by_run_tool_and_kind(store, make):
    await store.open_run(make.run())

    async def refuse(*kinds, run_id="run_1", tool="save"):
        event = make.event(EventType.DENIED, run_id=run_id)
        return list(await store.record_and_count("acme", run_id, tool, kinds, [event]))

    assert [await refuse("payload/1", "tool") for _ in range(2)] == [[1, 1], [2, 2]]
    assert await refuse("payload/2", "tool") == [1, 3]
    assert await refuse("tool", run_id="run_2") == [1]
    assert await refuse("tool", tool="send") == [1]
    assert len(await store.events("acme")) == 5
    assert (await store.find_run("acme", "run_1")).refused == {"save", "send"}


async def test_refusals_are_forgotten_when_the_tool_succeeds(store, make):
    await store.open_run(make.run())
    for tool in ("save", "send"):
        await store.record_and_count("acme", "run_1", tool, ["tool"], [])
    await store.settle(make.settle(mended="save"))
    assert (await store.find_run("acme", "run_1")).refused == {"send"}
    assert list(await store.record_and_count("acme", "run_1", "save", ["tool"], [])) == [1]
    assert list(await store.record_and_count("acme", "run_1", "send", ["tool"], [])) == [2]


async def test_what_is_counted_for_the_run_is_every_tools_and_not_forgotten(store, make):
    await store.open_run(make.run())
    assert list(
        await store.record_and_count("acme", "run_1", "save", ["run/repairs", "tool"], [])
    ) == [1, 1]
    assert list(await store.record_and_count("acme", "run_1", "send", ["run/repairs"], [])) == [2]
    assert (await store.find_run("acme", "run_1")).refused == {"save"}
    await store.settle(make.settle(mended="save"))
    assert list(
        await store.record_and_count("acme", "run_1", "save", ["run/repairs", "tool"], [])
    ) == [3, 1]
    assert list(await store.record_and_count("acme", "run_1", "save", ["tool"] * 3, []))[-1] == 4
    assert list(await store.record_and_count("acme", "run_1", "save", [], [make.event()])) == []


async def test_a_settlement_that_comes_too_late_ends_no_count(store, make):
    await store.open_run(make.run())
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    await store.record_and_count("acme", "run_1", "save", ["tool"], [])
    late = make.done(entry)._replace(fence=entry.fence - 1)
    assert await store.settle(make.settle(entry=late, mended="save")) is False
    assert list(await store.record_and_count("acme", "run_1", "save", ["tool"], [])) == [2]


async def test_state_from_outside_is_marked_until_something_trusted_takes_its_place(store, make):
    await store.open_run(make.run())

    async def left(*state, untrusted):
        await store.settle(make.settle(state=state, untrusted=untrusted))
        return (await store.find_run("acme", "run_1")).untrusted

    outside = [("a", "replace", 1), ("b", "append", 1), ("c", "merge_dict", {"x": 1})]
    assert await left(*outside, untrusted=True) == {"a", "b", "c"}
    kept = [("b", "append", 2), ("c", "merge_dict", {})]
    assert await left(*kept, untrusted=False) == {"a", "b", "c"}
    assert await left(("a", "replace", 2), ("d", "append", 1), untrusted=False) == {"b", "c"}
    assert (await store.new_turn("acme", "run_1", ["a", "c"])).untrusted == {"c"}


async def test_who_names_no_run_stays_in_one_until_they_are_idle(store):
    async def used(now, agent="agent", user="u_1"):
        run = await store.implicit_run("acme", agent, user, now)
        assert run == await store.find_run("acme", run.run_id)
        return run.run_id, run.started_at

    first = await used(1000.0)
    assert first[1] == 1000.0
    assert await used(1000.0 + IDLE_SECONDS) == first
    assert await used(1000.0 + 2 * IDLE_SECONDS) == first, "using it keeps it"
    later = await used(1001.0 + 3 * IDLE_SECONDS)
    assert later[1] == 1001.0 + 3 * IDLE_SECONDS
    others = [await used(1000.0, agent="other"), await used(1000.0, user=None)]
    assert len({run_id for run_id, _ in (first, later, *others)}) == 4


async def test_looking_for_an_implicit_run_does_not_use_it(store):
    async def found(now):
        run = await store.find_implicit_run("acme", "agent", "u_1", now)
        return None if run is None else run.run_id

    assert await found(1000.0) is None
    opened = await store.implicit_run("acme", "agent", "u_1", 1000.0)
    assert await found(1000.0 + IDLE_SECONDS) == opened.run_id
    assert await found(1001.0 + IDLE_SECONDS) is None
    assert await store.find_implicit_run("other", "agent", "u_1", 1000.0) is None


async def test_another_turn_forgets_what_is_not_kept(store, make):
    await store.open_run(make.run(state={"a": 1, "b": 2}))
    turned = await store.new_turn("acme", "run_1", {"b", "c"})
    assert (turned.turn, turned.state) == (2, {"b": 2})
    assert (turned.state_versions["a"], turned.state_versions.get("b", 0)) == (1, 0)
    assert await store.find_run("acme", "run_1") == turned
    assert await store.new_turn("acme", "run_9", ()) is None


async def test_a_decision_that_rests_on_changed_state_is_not_admitted(store, make):
    await store.open_run(make.run())
    assert (await store.admit(make.admit(reads={"a": 0, "*": 0}))).refused is None
    await store.settle(make.settle(state=[("a", "replace", 1)]))
    assert (await store.admit(make.admit(reads={"a": 0}))).refused is AdmissionRefusal.STATE
    assert (await store.admit(make.admit(reads={"*": 0}))).refused is AdmissionRefusal.STATE
    assert (await store.admit(make.admit(reads={"b": 0}))).refused is None
    assert (await store.admit(make.admit(reads={"a": 1, "*": 1}))).refused is None


async def test_an_unknown_entry_is_taken_over_by_its_fence_only(store, make):
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    again = make.admit(entry=make.entry(call_id="call_2"), takes_over=entry.fence)
    assert (await store.admit(again)).refused is AdmissionRefusal.DUPLICATE, "it is still running"
    unknown = entry._replace(phase=Phase.UNKNOWN, unknown_since=1000.0)
    assert await store.settle(make.settle(entry=unknown))
    assert (
        await store.admit(again._replace(takes_over=None))
    ).refused is AdmissionRefusal.DUPLICATE
    taken = await store.admit(again)
    assert (taken.refused, taken.entry.fence) == (None, entry.fence + 1)
    assert (await store.admit(again)).refused is AdmissionRefusal.DUPLICATE, "once"


async def test_events_are_found_by_call_and_by_run_oldest_first(store, make):
    for number in range(4):
        run_id, call_id = f"run_{number % 2}", f"call_{number}"
        await store.settle(make.settle(events=[make.event(run_id=run_id, call_id=call_id)]))
    calls = [event.caller.call_id for _, event in await store.events("acme")]
    assert calls == [f"call_{n}" for n in range(4)]
    of_run = await store.events("acme", run_id="run_1")
    assert [event.caller.call_id for _, event in of_run] == ["call_1", "call_3"]
    assert [event.caller.run_id for _, event in await store.events("acme", call_id="call_2")] == [
        "run_0"
    ]
    assert await store.events("acme", call_id="call_1", run_id="run_0") == []
    ids = [event_id for event_id, _ in await store.events("acme")]
    assert len(set(ids)) == 4


async def test_ids_of_events_do_not_change_when_more_are_recorded(store, make):
    await store.settle(make.settle())
    before = await store.events("acme")
    await store.settle(make.settle("other"))
    await store.settle(make.settle())
    assert (await store.events("acme"))[:1] == before


async def test_an_event_without_a_waiter_is_on_record_with_the_next_commit(store, make):
    store.note(make.event(EventType.SUCCEEDED, call_id="call_1"))
    await store.settle(make.settle(events=[make.event(call_id="call_2")]))
    recorded = [event.caller.call_id for _, event in await store.events("acme")]
    assert recorded == ["call_1", "call_2"]


async def test_a_raw_result_is_kept_behind_a_pointer_that_does_not_hold_it(store):
    pointer = keep(store, "acme", b'{"password": "hunter2"}')
    assert isinstance(pointer, str)
    assert "hunter2" not in pointer


# --- tenants --------------------------------------------------------------------------------------


async def fill(store, make, tenant):
    """Leave a mark in everything that a store keeps."""
    await store.open_run(make.run(tenant=tenant))
    entry = make.entry(tenant=tenant)
    charges = [make.charge(1), make.charge(1, "money", of_run=False)]
    admission = await store.admit(
        make.admit(tenant, charges=charges, rates=[make.rate(interval=60)], entry=entry)
    )
    assert admission.refused is None
    await store.settle(
        make.settle(
            tenant,
            entry=make.done(admission.entry),
            seen={"case:1": 1},
            state=[("n", "replace", tenant)],
        )
    )
    assert (await store.hold(make.held(tenant=tenant), [])).tenant == tenant
    assert list(
        await store.record_and_count(tenant, "run_1", "save", ["f"], [make.event(tenant=tenant)])
    ) == [1]
    store.note(make.event(tenant=tenant))
    keep(store, tenant, tenant.encode())


async def test_tenants_have_nothing_in_common(store, make, snapshot):
    nothing = await snapshot(store)
    await fill(store, make, "other")
    assert await snapshot(store) == nothing
    before = await snapshot(store, "other")
    # The same names, keys, counters and rates again: no budget is short, no key is taken.
    await fill(store, make, "acme")
    assert await snapshot(store, "other") == before
    assert (await store.find_run("acme", "run_1")).state == {"n": "acme"}


async def test_an_approval_of_another_tenant_is_neither_decided_nor_spent(store, make, snapshot):
    await store.hold(make.held(tenant="other"), [])
    before = await snapshot(store, "other")
    assert await store.decide("acme", "appr_1", HeldStatus.APPROVED, []) is None
    assert await snapshot(store, "other") == before
    await store.decide("other", "appr_1", HeldStatus.APPROVED, [])
    admission = await store.admit(make.admit(approval_id="appr_1"))
    assert admission.refused is AdmissionRefusal.APPROVAL


async def test_an_entry_of_another_tenant_is_not_settled(store, make, snapshot):
    entry = (await store.admit(make.admit("other", entry=make.entry(tenant="other")))).entry
    before = await snapshot(store, "other")
    assert await store.settle(make.settle("acme", entry=make.done(entry), events=())) is False
    assert await snapshot(store, "other") == before
