"""Held proposals: kept for a person, decided once."""

import asyncio

import pytest

from counterseal.audit import EventType
from counterseal.ledger import Status
from counterseal.storage.base import HeldStatus

DECIDED = [HeldStatus.APPROVED, HeldStatus.REJECTED, HeldStatus.EXPIRED]


async def test_a_held_proposal_is_found_under_its_key_with_all_that_was_kept(store, make):
    held = make.held()
    event = make.event(EventType.APPROVAL_REQUIRED)
    assert await store.hold(held, [event]) == held
    assert (await store.recall("acme", "run_1", "k")).held == held
    assert [event.type for _, event in await store.events("acme")] == [EventType.APPROVAL_REQUIRED]


async def test_the_same_question_is_asked_once(store, make, snapshot):
    first = await store.hold(make.held("appr_1"), [])
    before = await snapshot(store)
    event = make.event(EventType.APPROVAL_REQUIRED)
    again = [
        await store.hold(make.held(f"appr_{n}", call_id=f"call_{n}"), [event]) for n in range(2, 5)
    ]
    assert again == [first] * 3
    assert await snapshot(store) == before


async def test_other_arguments_are_another_question(store, make):
    await store.hold(make.held("appr_1"), [])
    other = await store.hold(make.held("appr_2", approval_hash="sha256:b"), [])
    assert other.approval_id == "appr_2"
    assert (await store.recall("acme", "run_1", "k")).held == other


@pytest.mark.parametrize("other", [{"agent": "other"}, {"user": None}, {"approvers": 2}])
async def test_what_somebody_else_asks_is_another_question(store, make, other):
    await store.hold(make.held("appr_1"), [])
    assert (await store.hold(make.held("appr_2", **other), [])).approval_id == "appr_2"


async def test_an_approval_that_was_spent_is_not_handed_out_again(store, make):
    await store.hold(make.held("appr_1"), [])
    await store.decide("acme", "appr_1", HeldStatus.APPROVED, [])
    await store.admit(make.admit(approval_id="appr_1"))
    again = await store.hold(make.held("appr_2"), [])
    assert (again.approval_id, again.status) == ("appr_2", HeldStatus.WAITING)


@pytest.mark.parametrize("status", DECIDED)
async def test_a_decision_is_taken_once(store, make, status):
    await store.hold(make.held(), [])
    granted = make.event(EventType.APPROVAL_GRANTED)
    decided = await store.decide("acme", "appr_1", status, [granted])
    assert (decided.approval_id, decided.status) == ("appr_1", status)
    for other in DECIDED:
        assert await store.decide("acme", "appr_1", other, [granted]) is None
    assert (await store.recall("acme", "run_1", "k")).held.status is status
    assert len(await store.events("acme")) == 1


async def test_of_many_who_decide_at_once_one_does(store, make):
    await store.hold(make.held(), [])
    answers = await asyncio.gather(
        *(store.decide("acme", "appr_1", status, []) for status in DECIDED * 3)
    )
    assert len([one for one in answers if one is not None]) == 1


async def test_nothing_is_decided_that_was_never_asked(store, make):
    event = make.event(EventType.APPROVAL_GRANTED)
    assert await store.decide("acme", "appr_9", HeldStatus.APPROVED, [event]) is None
    assert await store.events("acme") == []


async def test_an_approval_that_was_spent_on_nothing_counts_again(store, make):
    await store.hold(make.held(), [])
    await store.decide("acme", "appr_1", HeldStatus.APPROVED, [])
    entry = (await store.admit(make.admit(entry=make.entry(), approval_id="appr_1"))).entry
    failed = make.done(entry, status=Status.FAILED_RETRYABLE, observation=None)
    assert await store.settle(make.settle(entry=failed, gives_back="appr_1"))
    assert (await store.recall("acme", "run_1", "k")).held.status is HeldStatus.APPROVED
    again = make.admit(entry=make.entry(), approval_id="appr_1")
    assert (await store.admit(again)).refused is None
    assert (await store.recall("acme", "run_1", "k")).held.status is HeldStatus.SPENT


@pytest.mark.parametrize("status", sorted(set(HeldStatus) - {HeldStatus.SPENT}))
async def test_only_a_spent_approval_is_given_back(store, make, status):
    await store.hold(make.held(), [])
    if status is HeldStatus.VOID:
        await store.decide("acme", "appr_1", HeldStatus.APPROVED, [])
    if status is not HeldStatus.WAITING:
        await store.decide("acme", "appr_1", status, [])
    assert await store.settle(make.settle(gives_back="appr_1"))
    assert await store.settle(make.settle(gives_back="appr_none"))
    assert await store.settle(make.settle("other", gives_back="appr_1"))
    assert (await store.recall("acme", "run_1", "k")).held.status is status
