"""Waiting until an entry has no lease, or until a request is decided."""

import asyncio

import pytest

from counterseal.ledger.entry import Phase
from counterseal.ledger.records import HeldStatus
from tests.waiting import turns

FOREVER = 3600.0


async def until_it_waits(store, task):
    """Let a task come to where it waits: whatever it reads first, these reads take as long."""
    for _ in range(5):
        await turns()
        await store.recall("acme", "run_1", "none")
    assert not task.done()


async def test_waiting_for_an_entry_without_a_lease_ends_at_once(store, make, reserve):
    async def free(key):
        return await store.wait("acme", key, 0)

    assert await free("nowhere")
    await reserve("over", lease=0)
    assert await free("over")
    entry = await reserve("done")
    assert await store.wait("other", "done", 0), "another tenant's"
    assert not await free("done")
    await store.settle(make.settle(entry=make.done(entry)))
    assert await free("done")
    for phase in (Phase.UNKNOWN, Phase.ESCALATED):
        entry = await reserve(phase)
        assert not await free(phase)
        await store.settle(make.settle(entry=make.unknown(entry, phase=phase)))
        assert await free(phase)


async def test_who_waits_is_told_when_the_time_is_over(store, reserve):
    await reserve()
    assert await store.wait("acme", "k", 0.02) is False


async def test_who_waits_is_woken_by_the_outcome(store, make, reserve):
    entries = [await reserve(key) for key in "ab"]
    waiting = [asyncio.create_task(store.wait("acme", key, FOREVER)) for key in "aab"]
    await until_it_waits(store, waiting[0])
    await store.settle(make.settle(entry=make.done(entries[0])))
    assert await asyncio.wait_for(asyncio.gather(*waiting[:2]), 60) == [True, True]
    assert not waiting[2].done(), "it waits for another key"
    await store.settle(make.settle(entry=make.unknown(entries[1])))
    assert await asyncio.wait_for(waiting[2], 60) is True


async def test_who_waits_is_woken_when_the_lease_is_over(store, reserve):
    await reserve(lease=0.05)
    assert await asyncio.wait_for(store.wait("acme", "k", FOREVER), 60) is True


async def test_a_renewed_lease_is_waited_for(store, make, reserve):
    entry = await reserve(lease=0)
    assert await store.wait("acme", "k", 0)
    await store.renew([entry], FOREVER)
    assert not await store.wait("acme", "k", 0.02)


async def test_a_waiter_of_an_orphan_is_woken_by_the_worker_that_claimed_it(store, make, reserve):
    await reserve(lease=0)
    (orphan,) = await store.claim_orphans(make.claim())
    waiting = asyncio.create_task(store.wait("acme", "k", FOREVER))
    await until_it_waits(store, waiting)
    await store.settle(make.settle(entry=make.done(orphan.entry)))
    assert await asyncio.wait_for(waiting, 60) is True


async def test_who_stops_waiting_leaves_the_others_waiting(store, make, reserve):
    entry = await reserve()
    gone, stays = (asyncio.create_task(store.wait("acme", "k", FOREVER)) for _ in range(2))
    await until_it_waits(store, stays)
    gone.cancel()
    await asyncio.wait([gone])
    await store.settle(make.settle(entry=make.done(entry)))
    assert await asyncio.wait_for(stays, 60) is True


# --- requests for approval ------------------------------------------------------------------------


async def test_waiting_for_a_decided_or_unknown_request_ends_at_once(store, make):
    assert await store.wait_held("acme", "appr_1", 0) is True
    await store.hold(make.held(), [])
    assert await store.wait_held("acme", "appr_1", 0) is False
    assert await store.wait_held("other", "appr_1", 0) is True, "another tenant's"
    await store.decide("acme", "appr_1", HeldStatus.REJECTED, [])
    assert await store.wait_held("acme", "appr_1", 0) is True


async def test_who_waits_for_people_is_told_when_the_time_is_over(store, make):
    await store.hold(make.held(), [])
    assert await store.wait_held("acme", "appr_1", 0.02) is False


@pytest.mark.parametrize("by_vote", [True, False])
async def test_who_waits_for_people_is_woken_when_they_have_decided(store, make, by_vote):
    for name in "ab":
        await store.hold(make.held(name, key=name, approvers=2), [])
    waiting = [asyncio.create_task(store.wait_held("acme", name, FOREVER)) for name in "aab"]
    await until_it_waits(store, waiting[0])
    await store.vote(make.ballot("ann", approval_id="a"))
    await until_it_waits(store, waiting[0])
    if by_vote:
        ballot = make.ballot("ann", "bob", approval_id="a", status=HeldStatus.APPROVED)
        assert await store.vote(ballot)
    else:
        assert await store.decide("acme", "a", HeldStatus.EXPIRED, [])
    assert await asyncio.wait_for(asyncio.gather(*waiting[:2]), 60) == [True, True]
    assert not waiting[2].done(), "it waits for another one"
    assert await store.decide("acme", "b", HeldStatus.APPROVED, [])
    assert await asyncio.wait_for(waiting[2], 60) is True
