"""Votes on a request: each counts once, and only on top of those that were seen."""

import asyncio

import pytest

from counterseal.audit import EventType
from counterseal.ledger.records import DueKind, HeldStatus
from counterseal.storage import open_store
from tests.store.same import DURABLE

ROUNDS = 12


async def test_votes_add_up_until_they_decide(store, make):
    held = await store.hold(make.held(approvers=2), [])
    one = await store.vote(make.ballot("ann"))
    assert (one.status, one.votes, one.token) == (HeldStatus.WAITING, (VOTES[0],), None)
    both = await store.vote(make.ballot("ann", "bob", status=HeldStatus.APPROVED, token="t.1"))
    assert (both.status, both.votes, both.token) == (HeldStatus.APPROVED, VOTES, "t.1")
    assert await store.find_held("acme", "appr_1") == both
    assert (await store.recall("acme", "run_1", "k")).held == both
    assert both.sealed == held.sealed
    assert (await store.admit(make.admit(approval_id="appr_1"))).refused is None
    assert (await store.find_held("acme", "appr_1")).token == "t.1"


VOTES = tuple({"voter": name, "yes": True, "roles": ["ops"]} for name in ("ann", "bob"))


async def test_what_follows_from_a_vote_is_put_down_with_it(store, make):
    await store.hold(make.held(), [], [(1e6, make.due("appr_1", DueKind.NOTIFY))])
    due = [(0, make.due(kind=DueKind.EXECUTE)), (0, make.due("appr_1", DueKind.NOTIFY))]
    granted = make.event(EventType.APPROVAL_GRANTED)
    ballot = make.ballot("ann", status=HeldStatus.APPROVED, due=due, events=[granted])
    assert await store.vote(ballot) is not None
    assert [event for _, event in await store.events("acme")] == [granted]
    assert [work.kind for work in await store.claim_due(make.claim())] == [DueKind.EXECUTE], (
        "the other one was there, and is not due yet"
    )


@pytest.mark.parametrize("seen", [0, 2])
async def test_a_vote_on_top_of_others_than_there_are_changes_nothing(store, make, snapshot, seen):
    await store.hold(make.held(), [])
    await store.vote(make.ballot("ann"))
    before = await snapshot(store)
    due = [(0, make.due())]
    ballot = make.ballot("bob", seen=seen, status=HeldStatus.REJECTED, due=due)
    assert await store.vote(ballot._replace(events=[make.event()])) is None
    assert await snapshot(store) == before
    assert await store.find_due("acme", DueKind.VERIFY, "k") is None


@pytest.mark.parametrize("status", sorted(set(HeldStatus) - {HeldStatus.WAITING}))
async def test_a_decided_request_takes_no_vote(store, make, snapshot, status):
    await store.hold(make.held(), [])
    if status in (HeldStatus.SPENT, HeldStatus.VOID):
        await store.decide("acme", "appr_1", HeldStatus.APPROVED, [])
    if status is HeldStatus.SPENT:
        await store.admit(make.admit(approval_id="appr_1"))
    else:
        await store.decide("acme", "appr_1", status, [])
    before = await snapshot(store)
    assert await store.vote(make.ballot("ann", status=HeldStatus.APPROVED)) is None
    assert await snapshot(store) == before


async def test_an_unknown_request_or_one_of_another_tenant_takes_no_vote(store, make, snapshot):
    await store.hold(make.held(), [])
    before = await snapshot(store)
    assert await store.vote(make.ballot("ann", approval_id="appr_2")) is None
    assert await store.vote(make.ballot("ann", tenant="other")) is None
    assert await snapshot(store) == before


async def test_of_many_who_vote_at_once_one_does(store, make):
    await store.hold(make.held(approvers=2), [])
    ballots = [make.ballot(f"v_{number}", events=[make.event()]) for number in range(8)]
    answers = await asyncio.gather(*map(store.vote, ballots))
    (won,) = [one for one in answers if one is not None]
    assert await store.find_held("acme", "appr_1") == won
    assert len(won.votes) == len(await store.events("acme")) == 1


async def test_of_a_vote_and_a_decision_at_once_one_counts(store, make):
    for number in range(ROUNDS):
        await store.hold(make.held(f"appr_{number}", key=f"k{number}"), [])
        ballot = make.ballot("ann", approval_id=f"appr_{number}", status=HeldStatus.APPROVED)
        asked = [
            store.vote(ballot),
            store.decide("acme", f"appr_{number}", HeldStatus.EXPIRED, []),
        ]
        answers = await asyncio.gather(*(asked if number % 2 else reversed(asked)))
        (won,) = [one for one in answers if one is not None]
        assert await store.find_held("acme", f"appr_{number}") == won


# --- two stores -----------------------------------------------------------------------------------


@pytest.fixture(params=DURABLE)
async def stores(request):
    """Two workers' stores on one file, or on one database."""
    place, _ = DURABLE[request.param]
    with place() as url:
        stores = [open_store(url), open_store(url)]
        yield stores
        for store in stores:
            await store.close()


async def test_of_two_who_vote_at_once_by_two_stores_one_does(stores, make):
    for number in range(ROUNDS):
        name = f"appr_{number}"
        await stores[number % 2].hold(make.held(name, key=name, approvers=2), [])
        ballots = [make.ballot(voter, approval_id=name, events=[make.event()]) for voter in "ab"]
        asked = [store.vote(one) for store, one in zip(stores, ballots, strict=True)]
        answers = await asyncio.gather(*asked)
        (won,) = [one for one in answers if one is not None]
        assert [await store.find_held("acme", name) for store in stores] == [won, won]
    assert len(await stores[0].events("acme")) == ROUNDS


@pytest.mark.parametrize("by_vote", [True, False])
async def test_who_waits_is_woken_by_another_store(stores, make, by_vote):
    ours, theirs = stores
    await ours.hold(make.held(approvers=2), [])
    waiting = [asyncio.create_task(ours.wait_held("acme", "appr_1", 1e6)) for _ in range(2)]
    assert await ours.wait_held("acme", "appr_1", 0.05) is False
    await theirs.vote(make.ballot("ann"))
    assert await ours.wait_held("acme", "appr_1", 0.05) is False, "one vote is not enough"
    assert not any(one.done() for one in waiting)
    if by_vote:
        await theirs.vote(make.ballot("ann", "bob", status=HeldStatus.APPROVED))
    else:
        await theirs.decide("acme", "appr_1", HeldStatus.EXPIRED, [])
    assert await asyncio.wait_for(asyncio.gather(*waiting), 60) == [True, True]
    assert await ours.wait_held("acme", "appr_1", 0) is True
