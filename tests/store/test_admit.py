"""Admission: everything happens together, or nothing does."""

import asyncio
from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal.audit import EventType
from counterseal.ledger.entry import EntryStatus
from counterseal.ledger.records import HeldStatus
from counterseal.ledger.requests import NEW_KEY, AdmissionRefusal, Charge, RateLimit
from tests.waiting import caller


async def test_an_admission_spends_pins_reserves_and_records_at_once(store, make):
    await store.open_run(make.run())
    entry = make.entry()
    request = make.admit(charges=[make.charge()], rates=[make.rate()], entry=entry)
    admission = await store.admit(request)
    assert (admission.refused, admission.entry) == (None, entry)
    memory = await store.recall("acme", "run_1", "k")
    assert memory.entry == entry
    assert memory.run_counters == {"writes": 1}
    assert memory.tenant_counters == {}
    assert memory.rates == {"tool/save": make.now + 1}
    assert (await store.find_run("acme", "run_1")).pins == {"save": "1.0.0"}
    assert [event for _, event in await store.events("acme")] == list(request.events)


async def test_a_call_that_changes_nothing_reserves_nothing(store, make):
    await store.open_run(make.run())
    admission = await store.admit(make.admit(charges=[make.charge()]))
    assert (admission.refused, admission.entry) == (None, None)
    assert (await store.recall("acme", "run_1", "k")).entry is None


# What stands in the way, and how it got there. Each spoils a request that is sound otherwise.
OBSTACLES = {
    "run budget": (AdmissionRefusal.BUDGET, {"charges": "run"}),
    "tenant budget": (AdmissionRefusal.BUDGET, {"charges": "tenant"}),
    "rate": (AdmissionRefusal.RATE, {"rates": "busy"}),
    "duplicate": (AdmissionRefusal.DUPLICATE, {"entry": "taken"}),
    "approval still waiting": (AdmissionRefusal.APPROVAL, {"approval_id": "appr_waiting"}),
    "approval that is nowhere": (AdmissionRefusal.APPROVAL, {"approval_id": "appr_none"}),
    "approval of another tenant": (AdmissionRefusal.APPROVAL, {"approval_id": "appr_other"}),
    "approval spent before": (AdmissionRefusal.APPROVAL, {"approval_id": "appr_spent"}),
    "other version pinned": (AdmissionRefusal.PIN, {"tool": "pinned"}),
}


@pytest.mark.parametrize("name", OBSTACLES)
async def test_one_obstacle_is_enough_and_leaves_everything_as_it_was(store, make, snapshot, name):
    refused, spoiled = OBSTACLES[name]
    await store.open_run(make.run())
    await store.admit(
        make.admit(
            tool="pinned",
            version="0.9.0",
            entry=make.entry("taken"),
            rates=[make.rate("busy", interval=60)],
            charges=[make.charge(9, "spent", 3), make.charge(9, "spent", 3, of_run=False)],
        )
    )
    for held, status in (("waiting", None), ("ready", "approved"), ("spent", "approved")):
        await store.hold(make.held(f"appr_{held}", key=held), [])
        if status:
            await store.decide("acme", f"appr_{held}", HeldStatus(status), [])
    await store.admit(make.admit(approval_id="appr_spent"))
    await store.hold(make.held("appr_other", tenant="other"), [])
    await store.decide("other", "appr_other", HeldStatus.APPROVED, [])

    sound = {
        "charges": [make.charge(10, "a"), make.charge(10, "b", of_run=False)],
        "rates": [make.rate("calm")],
        "entry": make.entry("fresh"),
        "approval_id": "appr_ready",
        "tool": "unpinned",
    }
    broken = {
        "run": [*sound["charges"], make.charge(3, "spent")],
        "tenant": [*sound["charges"], make.charge(3, "spent", of_run=False)],
        "busy": [*sound["rates"], make.rate("busy", interval=60)],
        "taken": make.entry("taken", call_id="call_2"),
    }
    changes = {field: broken.get(value, value) for field, value in spoiled.items()}
    keys = ("fresh", "taken", "waiting", "ready", "spent")
    before = await snapshot(store, keys=keys)
    admission = await store.admit(make.admit(**{**sound, **changes}))
    assert admission.refused is refused
    assert await snapshot(store, keys=keys) == before
    # And nothing but the obstacle was in the way.
    assert (await store.admit(make.admit(**sound))).refused is None


async def test_a_refused_charge_is_named_with_what_was_spent(store, make):
    charge = make.charge(limit=2, amount=2)
    await store.admit(make.admit(charges=[charge]))
    admission = await store.admit(make.admit(charges=[make.charge(counter="calls"), charge]))
    assert (admission.charge, admission.spent) == (charge, 2)


async def test_two_charges_of_one_call_to_one_counter_add_up(store, make):
    once, twice = [make.charge(limit=3)], [make.charge(limit=3)] * 2
    assert (await store.admit(make.admit(charges=twice))).refused is None
    assert (await store.admit(make.admit(charges=twice))).refused is AdmissionRefusal.BUDGET
    assert (await store.admit(make.admit(charges=once))).refused is None
    assert (await store.recall("acme", "run_1", None)).run_counters == {"writes": 3}


async def test_a_refused_rate_says_how_long_to_wait(store, make):
    rate = make.rate(interval=10, burst=2)
    for _ in range(2):
        assert (await store.admit(make.admit(rates=[rate]))).refused is None
    admission = await store.admit(make.admit(rates=[rate], now=make.now + 4))
    assert (admission.rate, admission.retry_after) == (rate, 6)
    again = await store.admit(make.admit(rates=[rate], now=make.now + 10))
    assert again.refused is None


@pytest.mark.parametrize("interval", [10, 1000])
async def test_a_rate_begins_anew_after_a_clock_was_set_back(store, make, interval):
    async def admitted(now):
        return (await store.admit(make.admit(rates=[rate], now=now))).refused is None

    rate, back = make.rate(interval=interval, burst=2), make.now - 86_400
    assert [await admitted(make.now) for _ in range(3)] == [True, True, False]
    assert not await admitted(make.now - 50), "clocks of workers may differ a little"
    assert [await admitted(back), await admitted(back)] == [True, False]
    assert await admitted(back + interval)


@pytest.mark.parametrize("status", EntryStatus)
async def test_a_key_that_was_not_looked_up_must_be_new(store, make, snapshot, status):
    first = await store.admit(make.admit(entry=make.entry(), takes_over=NEW_KEY))
    assert first.refused is None
    await store.settle(make.settle(entry=make.done(first.entry, status=status)))
    before = await snapshot(store)
    asked = make.admit(entry=make.entry(call_id="call_2"), takes_over=NEW_KEY)
    again = await store.admit(asked)
    assert again.refused is AdmissionRefusal.DUPLICATE
    assert again.entry.call_id == first.entry.call_id
    assert await snapshot(store) == before


@pytest.mark.parametrize("status", EntryStatus)
async def test_only_a_retryable_entry_is_reserved_again(store, make, status):
    first = await store.admit(make.admit(entry=make.entry()))
    await store.settle(make.settle(entry=make.done(first.entry, status=status)))
    again = await store.admit(make.admit(entry=make.entry(call_id="call_2")))
    if status is EntryStatus.FAILED_RETRYABLE:
        assert again.refused is None
        assert (again.entry.fence, again.entry.attempts) == (2, 2)
        assert again.entry.status is EntryStatus.PENDING
    else:
        assert again.refused is AdmissionRefusal.DUPLICATE
        assert again.entry.call_id == "call_1", "the one that was there first"
        assert again.entry.status is status


async def test_an_approval_is_spent_by_the_call_that_it_admits(store, make):
    await store.hold(make.held(), [])
    await store.decide("acme", "appr_1", HeldStatus.APPROVED, [])
    answers = await asyncio.gather(
        *(caller(store.admit, make.admit(approval_id="appr_1")) for _ in range(5))
    )
    assert Counter(one.refused for one in answers) == {None: 1, AdmissionRefusal.APPROVAL: 4}
    assert (await store.recall("acme", "run_1", "k")).held.status is HeldStatus.SPENT


async def test_one_key_is_reserved_once_however_many_want_it(store, make):
    wanted = [make.admit(entry=make.entry(call_id=f"call_{n}")) for n in range(8)]
    answers = await asyncio.gather(*map(partial(caller, store.admit), wanted))
    winners = [one for one in answers if one.refused is None]
    assert len(winners) == 1
    assert {one.entry.call_id for one in answers} == {winners[0].entry.call_id}


async def test_a_run_keeps_its_first_version_of_each_tool(store, make):
    await store.open_run(make.run())
    await store.admit(make.admit(tool="save", version="1.0.0"))
    await store.admit(make.admit(tool="send", version="3.0.0"))
    moved = await store.admit(make.admit(tool="save", version="2.0.0"))
    assert moved.refused is AdmissionRefusal.PIN
    assert (await store.find_run("acme", "run_1")).pins == {"save": "1.0.0", "send": "3.0.0"}


amounts = st.integers(1, 4)
requested = st.lists(
    st.tuples(st.sampled_from(["run_1", "run_2"]), amounts, amounts), min_size=1, max_size=30
)


@st.composite
def ordered(draw):
    """Drawn before the test runs: what a draw raises to stop it would end the loop of all tests."""
    requests = draw(requested)
    return requests, draw(st.permutations(range(len(requests))))


@settings(deadline=None)
@given(ordered=ordered(), own=st.integers(0, 12), shared=st.integers(0, 12))
async def test_no_interleaving_overspends_a_budget(new_store, make, ordered, own, shared):
    requests, order = ordered
    async with new_store() as store:

        async def spend(number):
            run_id, amount, cost = requests[number]
            for _ in range(order[number] % 3):
                await asyncio.sleep(0)
            charges = [
                make.charge(own, "writes", amount),
                make.charge(shared, "money", cost, of_run=False),
            ]
            return requests[number], await store.admit(make.admit(run_id=run_id, charges=charges))

        answers = await asyncio.gather(*(spend(number) for number in order))
        admitted = [request for request, answer in answers if answer.refused is None]
        total = 0
        for run_id in ("run_1", "run_2"):
            memory = await store.recall("acme", run_id, None)
            spent = sum(amount for run, amount, _ in admitted if run == run_id)
            assert memory.run_counters.get("writes", 0) == spent <= own
            total = memory.tenant_counters.get("money", 0)
        assert total == sum(cost for _, _, cost in admitted) <= shared
        assert len(await store.events("acme")) == len(admitted)
        # Nobody was refused who would fit now: what is refused is refused for want of room.
        for (_, amount, cost), answer in answers:
            if answer.refused is not None:
                limit = own if answer.charge.of_run else shared
                asked = amount if answer.charge.of_run else cost
                assert answer.spent + asked > limit


@settings(deadline=None)
@given(
    gaps=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    interval=st.integers(1, 20),
    burst=st.integers(1, 6),
    window=st.integers(1, 100),
)
async def test_no_window_holds_more_calls_than_the_rate_allows(
    new_store, make, gaps, interval, burst, window
):
    rate = make.rate(interval=float(interval), burst=burst)
    now, admitted = make.now, []
    async with new_store() as store:
        for gap in gaps:
            now += gap
            answer = await store.admit(make.admit(rates=[rate], now=now))
            if answer.refused is None:
                admitted.append(now)
            else:
                assert answer.refused is AdmissionRefusal.RATE
                assert 0 < answer.retry_after <= interval
                # Who comes back when told to is let in.
                later = now + answer.retry_after
                assert (await store.admit(make.admit(rates=[rate], now=later))).refused is None
                now = later
                admitted.append(now)
    for start in admitted:
        inside = [one for one in admitted if start <= one < start + window]
        assert len(inside) <= burst + window / interval


async def test_a_burst_is_let_through_whole_after_a_rest(store, make):
    rate = make.rate(interval=10, burst=3)
    for rest in (0, 30, 1_000_000):
        at = make.now + rest
        answers = [await store.admit(make.admit(rates=[rate], now=at)) for _ in range(4)]
        assert [one.refused for one in answers] == [None, None, None, AdmissionRefusal.RATE]


async def test_events_of_an_admission_keep_their_order(store, make):
    kinds = [EventType.REQUESTED, EventType.STARTED]
    await store.admit(make.admit(events=[make.event(kind) for kind in kinds]))
    recorded = await store.events("acme", call_id="call_1")
    assert [event.type for _, event in recorded] == kinds
    ids = [event_id for event_id, _ in recorded]
    assert len(set(ids)) == 2


async def test_what_was_spent_is_recalled_only_where_it_is_asked_for(store, make):
    await store.open_run(make.run())
    spent = [Charge("run.writes", "writes", 1, 5, of_run=True)]
    rates = [RateLimit("tool/save", 1.0, 5)]
    await store.admit(make.admit(entry=make.entry(), charges=spent, rates=rates))
    whole = await store.recall("acme", "run_1", "k")
    assert (whole.run_counters, list(whole.rates)) == ({"writes": 1}, ["tool/save"])
    less = await store.recall("acme", "run_1", "k", spent=False)
    assert less == whole._replace(run_counters={}, tenant_counters={}, rates={})
