"""Runs, refusals, events and the vault; and that tenants have nothing in common."""

import pytest

from counterseal.audit import EventType
from counterseal.errors import CountersealError
from counterseal.storage import open_store
from counterseal.storage.base import Budgets, HeldStatus, Refused


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


async def test_a_run_that_nobody_knows_has_nothing_to_remember(store):
    memory = await store.recall("acme", "run_1", "k")
    assert (memory.entry, memory.held) == (None, None)
    assert (dict(memory.run_counters), dict(memory.tenant_counters), dict(memory.rates)) == (
        {},
        {},
        {},
    )


async def test_refusals_are_counted_by_run_and_kind(store, make):
    async def refuse(run_id="run_1", fingerprint="save/PERMISSION_DENIED/no_grant"):
        event = make.event(EventType.DENIED, run_id=run_id)
        return await store.refuse("acme", run_id, fingerprint, [event])

    assert [await refuse() for _ in range(3)] == [1, 2, 3]
    assert await refuse(run_id="run_2") == 1
    assert await refuse(fingerprint="save/TYPE_MISMATCH/None") == 1
    assert await refuse() == 4
    assert len(await store.events("acme")) == 6


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


async def test_an_event_that_nobody_waits_for_is_on_record_with_the_next_commit(store, make):
    store.note(make.event(EventType.SUCCEEDED, call_id="call_1"))
    await store.settle(make.settle(events=[make.event(call_id="call_2")]))
    recorded = [event.caller.call_id for _, event in await store.events("acme")]
    assert recorded == ["call_1", "call_2"]


async def test_a_raw_result_is_kept_behind_a_pointer_that_does_not_hold_it(store):
    pointer = await store.keep("acme", "call_1", b'{"password": "hunter2"}')
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
    assert await store.refuse(tenant, "run_1", "f", [make.event(tenant=tenant)]) == 1
    store.note(make.event(tenant=tenant))
    await store.keep(tenant, "call_1", tenant.encode())


async def test_tenants_have_nothing_in_common(store, make, snapshot):
    nothing = await snapshot(store)
    await fill(store, make, "other")
    assert await snapshot(store) == nothing
    before = await snapshot(store, "other")
    # The same names, keys, counters and rates again: no budget is short, no key is taken.
    await fill(store, make, "acme")
    assert await snapshot(store, "other") == before
    assert (await store.find_run("acme", "run_1")).state == {"n": "acme"}


async def test_nobody_decides_or_spends_anothers_approval(store, make, snapshot):
    await store.hold(make.held(tenant="other"), [])
    before = await snapshot(store, "other")
    assert await store.decide("acme", "appr_1", HeldStatus.APPROVED, []) is None
    assert await snapshot(store, "other") == before
    await store.decide("other", "appr_1", HeldStatus.APPROVED, [])
    admission = await store.admit(make.admit(approval_id="appr_1"))
    assert admission.refused is Refused.APPROVAL


async def test_nobody_settles_anothers_entry(store, make, snapshot):
    entry = (await store.admit(make.admit("other", entry=make.entry(tenant="other")))).entry
    before = await snapshot(store, "other")
    assert await store.settle(make.settle("acme", entry=make.done(entry), events=())) is False
    assert await snapshot(store, "other") == before
