"""Work that is due: put down with an outcome, claimed by one, and what comes of it."""

import asyncio

import pytest

from counterseal.audit import EventType
from counterseal.ledger.entry import EntryStatus, Phase
from counterseal.ledger.records import DueKind
from counterseal.ledger.requests import FinishRequest

FOREVER = 3600.0


@pytest.fixture
def claim(store, make):
    async def claim(lease=FOREVER, **more):
        return await store.claim_due(make.claim(lease=lease, **more))

    return claim


@pytest.fixture
def scheduled(store, make):
    async def scheduled(key="k", after=0, **more):
        work = make.due(key, **more)
        assert await store.schedule(after, work, [])
        return work

    return scheduled


def without_time(work):
    return work._replace(since=0.0)


async def test_work_is_put_down_with_an_outcome_and_claimed_when_its_time_has_come(
    store, make, claim
):
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    now = make.due(body={"n": [1, None], "text": "ü"})
    later = make.due(kind=DueKind.COMPENSATE)
    assert await store.settle(make.settle(entry=make.done(entry), due=[(0, now), (FOREVER, later)]))
    (work,) = await claim()
    assert without_time(work) == now._replace(fence=1, tries=1)
    assert work.since > 0
    assert await claim() == [], "it is taken, and the other one is not due"
    assert without_time(await store.find_due("acme", DueKind.COMPENSATE, "k")) == later


async def test_there_is_one_of_a_kind_for_a_key(store, make, scheduled):
    first = await scheduled(body={"n": 1})
    event = make.event()
    assert await store.schedule(0, make.due(body={"n": 2}), [event]) is False
    assert await store.events("acme") == [], "nothing happened"
    assert await store.settle(make.settle(due=[(0, make.due(body={"n": 3}))], events=()))
    assert (await store.find_due("acme", DueKind.VERIFY, "k")).body == first.body
    for other in (
        make.due(kind=DueKind.EXECUTE),
        make.due(key="k2"),
        make.due(tenant="other"),
    ):
        assert await store.schedule(0, other, [event]) is True
    assert len(await store.events("acme")) == 3


async def test_work_that_was_not_scheduled_is_not_found(store, scheduled):
    await scheduled()
    assert await store.find_due("acme", DueKind.VERIFY, "k2") is None
    assert await store.find_due("acme", DueKind.EXECUTE, "k") is None
    assert await store.find_due("other", DueKind.VERIFY, "k") is None


async def test_work_is_claimed_oldest_first_and_not_more_than_asked_for(claim, scheduled):
    for key in ("c", "a", "b"):
        await scheduled(key)
    assert [[work.key for work in await claim(limit=n)] for n in (0, 2, 2, 2)] == [
        [],
        ["c", "a"],
        ["b"],
        [],
    ]


async def test_a_claim_can_be_narrowed_to_tools_and_to_what_has_waited_long(claim, scheduled):
    await scheduled("a", tool="save")
    await scheduled("b", tool="send")
    assert await claim(lapsed_for=FOREVER) == []
    assert await claim(tools=()) == []
    assert [work.key for work in await claim(tools={"send"})] == ["b"]
    assert [work.key for work in await claim(lapsed_for=-1)] == ["a"]


async def test_work_that_no_worker_serves_delays_no_other_work(store, make, claim, scheduled):
    for number in range(40):
        await scheduled(f"a{number}", tool="send")
    for key in ("b", "c"):
        await scheduled(key, tool="save")
    narrow = {"tools": {"save", "sen", "end"}}
    assert [work.key for work in await claim(limit=1, **narrow)] == ["b"]
    assert [work.key for work in await claim(**narrow)] == ["c"]
    assert await claim(**narrow) == []
    assert len(await claim(limit=100, tools=["send", "save"])) == 40


async def test_no_two_workers_get_the_same_work(store, make, scheduled):
    for number in range(12):
        await scheduled(f"k{number}")
    claims = [make.claim(f"w_{n}", limit=5) for n in range(6)]
    claimed = await asyncio.gather(*map(store.claim_due, claims))
    keys = [work.key for some in claimed for work in some]
    assert sorted(keys) == sorted({f"k{number}" for number in range(12)})


async def test_work_whose_worker_is_gone_is_claimed_again_and_the_old_one_ends_nothing(
    store, make, claim, scheduled
):
    await scheduled()
    (old,) = await claim(lease=0)
    (new,) = await claim()
    assert (old.fence, old.tries, new.fence, new.tries) == (1, 1, 2, 2)
    late = FinishRequest(
        old, compensated={"n": 0}, due=[(0, make.due("k2"))], events=[make.event()], failed="x"
    )
    assert await store.finish(late) is False
    assert await store.finish(late._replace(failed=None, again_after=0)) is False
    assert await store.find_due("acme", DueKind.VERIFY, "k") == new
    assert await store.find_due("acme", DueKind.VERIFY, "k2") is None
    assert await store.events("acme") == []
    assert await store.finish(FinishRequest(new)) is True


async def test_work_that_is_done_is_gone_with_what_follows_from_it(store, make, claim, scheduled):
    await scheduled()
    (work,) = await claim()
    after = make.due(kind=DueKind.COMPENSATE)
    event = make.event(EventType.UNVERIFIED)
    assert await store.finish(FinishRequest(work, due=[(0, after)], events=[event])) is True
    assert await store.find_due("acme", DueKind.VERIFY, "k") is None
    assert [told for _, told in await store.events("acme")] == [event]
    assert [without_time(one) for one in await claim()] == [after._replace(fence=1, tries=1)]
    assert await store.finish(FinishRequest(work)) is False, "once"


async def test_work_can_be_put_off(store, claim, scheduled):
    await scheduled()
    (work,) = await claim()
    assert await store.finish(FinishRequest(work, again_after=FOREVER))
    assert await claim() == []
    assert await store.find_due("acme", DueKind.VERIFY, "k") == work
    assert await store.finish(FinishRequest(work, again_after=0))
    (again,) = await claim()
    assert (again.fence, again.tries) == (2, 2)


async def test_failed_work_stays_on_the_operators_list_until_it_is_ended(
    store, make, claim, scheduled
):
    await scheduled()
    (work,) = await claim(lease=0)
    assert await store.finish(FinishRequest(work, failed="it does not answer"))
    assert await claim() == [], "nobody tries again"
    parked = await store.find_due("acme", DueKind.VERIFY, "k")
    assert parked == work._replace(failed="it does not answer", since=parked.since)
    (concern,) = await store.concerns()
    assert (concern.kind, concern.key, concern.reason) == ("verify", "k", "it does not answer")
    assert (concern.call_id, concern.run_id, concern.tool, concern.version) == work[3:7]
    assert (concern.since, concern.fence) == (parked.since, work.fence)
    assert await store.schedule(0, make.due(), []) is False, "it is still there"
    assert await store.finish(FinishRequest(parked)) is True
    assert await store.concerns() == []
    assert await store.find_due("acme", DueKind.VERIFY, "k") is None


async def test_work_that_failed_can_be_tried_once_more(store, claim, scheduled):
    await scheduled()
    (work,) = await claim()
    await store.finish(FinishRequest(work, failed="no"))
    parked = await store.find_due("acme", DueKind.VERIFY, "k")
    assert await store.finish(FinishRequest(parked, again_after=0)) is True
    assert await store.concerns() == []
    (again,) = await claim()
    assert (again.failed, again.tries) == (None, 2)


# --- compensation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", EntryStatus)
async def test_what_was_done_and_nothing_else_can_be_reversed(
    store, make, claim, scheduled, status
):
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    settled = make.done(entry, status=status)
    await store.settle(make.settle(entry=settled))
    await scheduled(kind=DueKind.COMPENSATE)
    (work,) = await claim()
    assert await store.finish(FinishRequest(work, compensated={"undone": True})) is True
    found = (await store.recall("acme", "run_1", "k")).entry
    if status is EntryStatus.COMPLETED:
        undone = {"status": EntryStatus.COMPENSATED, "observation": {"undone": True}}
        assert found == make.done(entry, **undone)
    else:
        assert found == settled
    assert await store.find_due("acme", DueKind.COMPENSATE, "k") is None


# --- the operator's list --------------------------------------------------------------------------


async def test_the_operators_list_is_oldest_first_and_holds_both_kinds(
    store, make, claim, scheduled
):
    for key, since in (("b", 20.0), ("a", 10.0), ("c", None)):
        entry = (await store.admit(make.admit(entry=make.entry(key)))).entry
        escalated = make.unknown(entry, phase=Phase.ESCALATED, unknown_since=since)
        await store.settle(make.settle(entry=escalated))
    entry = (await store.admit(make.admit(entry=make.entry("d")))).entry
    await store.settle(make.settle(entry=make.unknown(entry)))
    await scheduled("e", tenant="other")
    (work,) = await claim()
    await store.finish(FinishRequest(work, failed="no"))

    listed = await store.concerns()
    assert [(one.kind, one.key) for one in listed] == [
        ("unknown", "c"),
        ("unknown", "a"),
        ("unknown", "b"),
        ("verify", "e"),
    ]
    unknown = listed[1]
    assert (unknown.tenant, unknown.call_id, unknown.run_id) == ("acme", "call_1", "run_1")
    assert (unknown.tool, unknown.version, unknown.fence) == ("save", "1.0.0", 1)
    assert (unknown.since, listed[0].since) == (10.0, 0.0)
    assert "not known" in unknown.reason
    assert list(await store.concerns("acme")) == list(listed[:3])
    assert list(await store.concerns("other")) == list(listed[3:])
    assert list(await store.concerns(limit=2)) == list(listed[:2])
    assert await store.concerns("nobody") == []


async def test_an_entry_leaves_the_operators_list_when_it_is_settled(store, make):
    entry = (await store.admit(make.admit(entry=make.entry()))).entry
    escalated = make.unknown(entry, phase=Phase.ESCALATED)
    await store.settle(make.settle(entry=escalated))
    assert len(await store.concerns()) == 1
    assert await store.settle(make.settle(entry=make.done(entry)))
    assert await store.concerns() == []
