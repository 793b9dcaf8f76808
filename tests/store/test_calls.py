"""Calls found by what is known of them, and events counted by what they count as."""

import time

import pytest

from counterseal.audit import CallFields, Event, EventType
from counterseal.audit.events import CallFact, read_tally
from counterseal.errors import CountersealError
from counterseal.ledger.records import HeldStatus
from counterseal.ledger.requests import CallFilter, ExpiryRequest

ENDS = {
    "SUCCESS": (EventType.SUCCEEDED, "SUCCESS", {"announced": True, "cost": 0.25}),
    "TIMEOUT": (EventType.FAILED, "TIMEOUT", {"mutates": True}),
    "PERMISSION_DENIED": (EventType.DENIED, "deny", {"code": "PERMISSION_DENIED", "gate": "scope"}),
}


def ended(call_id, code="SUCCESS", tenant="acme", **who):
    kind, decision, body = ENDS[code]
    told = {"run_id": "run_1", "tool": "save", "agent": "bot", "user": "u_1", **who}
    caller = CallFields(
        tenant,
        told["run_id"],
        call_id,
        told["tool"],
        "1.0.0",
        told["agent"],
        told["user"],
        "0" * 32,
    )
    return Event(kind, caller, 1.0, decision, body=body)


def begun(call_id, tenant="acme"):
    return ended(call_id, tenant=tenant)._replace(type=EventType.STARTED, body={})


@pytest.fixture
def record(store):
    async def record(*events):
        for event in events:
            await store.record_and_count(
                event.caller.tenant, event.caller.run_id, "save", (), [event]
            )

    return record


async def ids(store, tenant="acme", **search):
    return [event.caller.call_id for _, event in await store.calls(tenant, CallFilter(**search))]


async def test_calls_come_newest_first_each_by_the_event_that_ended_it(store, record):
    await record(begun("call_1"), ended("call_1"), begun("call_2"), ended("call_2", "TIMEOUT"))
    found = await store.calls("acme", CallFilter())
    assert [(one.caller.call_id, one.type) for _, one in found] == [
        ("call_2", EventType.FAILED),
        ("call_1", EventType.SUCCEEDED),
    ]


async def test_a_call_that_ended_twice_is_found_once_by_its_last_end(store, record):
    await record(ended("call_1", "TIMEOUT"), ended("call_2"), ended("call_1"))
    assert await ids(store) == ["call_1", "call_2"]
    assert await ids(store, code="TIMEOUT") == []
    assert await ids(store, tool="save", code="SUCCESS") == ["call_1", "call_2"]


async def test_every_way_to_narrow_down_narrows(store, record):
    await record(
        ended("call_1"),
        ended("call_2", tool="send"),
        ended("call_3", agent="other"),
        ended("call_4", user="u_2"),
        ended("call_5", run_id="run_2"),
        ended("call_6", "PERMISSION_DENIED"),
        ended("call_7", user=None),
    )
    assert await ids(store, tool="send") == ["call_2"]
    assert await ids(store, agent="other") == ["call_3"]
    assert await ids(store, user="u_2") == ["call_4"]
    assert await ids(store, run_id="run_2") == ["call_5"]
    assert await ids(store, code="PERMISSION_DENIED") == ["call_6"]
    assert await ids(store, code="SUCCESS", user="u_1", tool="save") == [
        "call_5",
        "call_3",
        "call_1",
    ]
    assert await ids(store, agent="other", tool="send") == []


async def test_pages_go_on_where_the_last_one_ended(store, record):
    await record(*(ended(f"call_{number}") for number in range(7)))
    seen, after = [], None
    for _ in range(4):
        page = await store.calls("acme", CallFilter(tool="save", after=after, limit=2))
        seen += [event.caller.call_id for _, event in page]
        after = page[-1][0]
    assert seen == [f"call_{number}" for number in reversed(range(7))]
    assert await store.calls("acme", CallFilter(after=after)) == []


async def test_what_no_search_gave_out_is_no_place_to_go_on_from(store):
    with pytest.raises(CountersealError, match="after"):
        await store.calls("acme", CallFilter(after="call_1"))


async def test_another_tenants_calls_are_neither_found_nor_counted(store, record):
    await record(ended("call_1"), ended("call_1", "TIMEOUT", tenant="zeta"))
    assert await ids(store) == ["call_1"]
    now = time.time()
    sums = await store.tallies("acme", now - 60, now + 60)
    assert [read_tally(one.tally)[1] for one in sums] == ["SUCCESS"]


async def test_a_window_holds_what_was_recorded_in_it(store, record):
    await record(ended("call_1"))
    now = time.time()
    assert await ids(store, since=now - 60, until=now + 60) == ["call_1"]
    assert await ids(store, since=now + 60) == []
    assert await ids(store, until=now - 60) == []
    assert await store.tallies("acme", now + 60, now + 120) == []


async def test_events_are_added_up_by_what_they_count_as(store, record):
    await record(ended("call_1"), ended("call_2"), begun("call_3"), ended("call_3", "TIMEOUT"))
    now = time.time()
    found = await store.tallies("acme", now - 60, now + 60)
    sums = {read_tally(one.tally)[:2]: (one.times, one.cost) for one in found}
    assert sums == {
        ("tool.succeeded", "SUCCESS"): (2, 0.5),
        ("tool.failed", "TIMEOUT"): (1, 0.0),
        ("tool.started", None): (1, 0.0),
    }
    facts = {read_tally(one.tally)[0]: read_tally(one.tally)[2] for one in found}
    assert facts["tool.failed"] & CallFact.MUTATES
    assert not facts["tool.succeeded"] & CallFact.MUTATES


async def test_the_parts_of_a_window_add_up_to_the_whole(store, record):
    await record(*(ended(f"call_{number}") for number in range(9)))
    now = time.time()
    whole = await store.tallies("acme", now - 7, now + 1)
    parts = await store.tallies("acme", now - 7, now + 1, 8)
    assert sum(one.times for one in parts) == sum(one.times for one in whole) == 9
    assert {one.part for one in parts} <= set(range(8))
    assert {one.part for one in whole} == {0}


async def test_what_was_erased_is_neither_found_nor_counted(store, record):
    await record(ended("call_1"))
    while (await store.expire(ExpiryRequest(events_after=-60)))["events"]:
        pass
    now = time.time()
    assert await ids(store) == []
    assert await store.tallies("acme", now - 60, now + 60) == []


async def test_an_entry_is_found_by_its_call(store, make, reserve):
    await reserve("k_1", call_id="call_1")
    await reserve("k_2", call_id="call_2")
    await reserve("k_3", call_id="call_1")  # as earlier versions did, where the caller said so
    assert list(await store.look_up_call("acme", "call_2")) == [await store.look_up("acme", "k_2")]
    same = [one.entry.key for one in await store.look_up_call("acme", "call_1")]
    assert same == ["k_1", "k_3"]
    assert not await store.look_up_call("acme", "call_3")
    assert not await store.look_up_call("zeta", "call_2")


@pytest.mark.parametrize("newest_first", [False, True])
async def test_requests_can_be_paged_through_also_where_several_end_at_once(
    store, make, newest_first
):
    for number in range(6):
        ends = make.now + 600 + number // 3
        held = make.held(f"appr_{number}", key=f"k_{number}", expires_at=ends)
        await store.hold(held, [])
    seen, beyond = [], None
    while True:
        page = await store.list_held(
            "acme", HeldStatus.WAITING, 2, newest_first=newest_first, beyond=beyond
        )
        if not page:
            break
        seen += [held.approval_id for held in page]
        beyond = (page[-1].expires_at, page[-1].approval_id)
    ordered = [f"appr_{number}" for number in range(6)]
    assert seen == (ordered[::-1] if newest_first else ordered)
