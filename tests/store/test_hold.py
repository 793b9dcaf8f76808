"""Requests for approval: asked once, found, listed, decided once, spent in time."""

import asyncio

import pytest

from counterseal.audit import EventType
from counterseal.ledger.entry import EntryStatus
from counterseal.ledger.records import DueKind, HeldStatus
from counterseal.ledger.requests import AdmissionRefusal

DECIDED = [HeldStatus.APPROVED, HeldStatus.REJECTED, HeldStatus.EXPIRED]


async def test_a_held_proposal_is_found_under_its_key_with_all_that_was_kept(store, make):
    everything = {"votes": ({"voter": "ü"},), "token": "t", "rule": None, "user": None}
    held = make.held(sealed=bytes(range(256)), expires_at=make.now + 0.1, **everything)
    event = make.event(EventType.APPROVAL_REQUIRED)
    assert await store.hold(held, [event]) == held
    assert (await store.recall("acme", "run_1", "k")).held == held
    assert await store.find_held("acme", "appr_1") == held
    assert await store.find_held("other", "appr_1") is None
    assert await store.find_held("acme", "appr_2") is None
    assert [event.type for _, event in await store.events("acme")] == [EventType.APPROVAL_REQUIRED]


async def test_the_same_question_is_asked_once(store, make, snapshot):
    first = await store.hold(make.held("appr_1"), [])
    before = await snapshot(store)
    event = make.event(EventType.APPROVAL_REQUIRED)
    again = [
        await store.hold(make.held(f"appr_{n}", call_id=f"call_{n}"), [event], [(0, make.due())])
        for n in range(2, 5)
    ]
    assert [*again, await store.hold(first, [event], [(0, make.due())])] == [first] * 4
    assert await snapshot(store) == before
    assert await store.find_due("acme", DueKind.VERIFY, "k") is None, "nothing follows twice"


async def test_other_arguments_are_another_question(store, make):
    await store.hold(make.held("appr_1"), [])
    other = await store.hold(make.held("appr_2", approval_hash="sha256:b"), [])
    assert other.approval_id == "appr_2"
    assert (await store.recall("acme", "run_1", "k")).held == other


async def test_the_reason_of_a_request_is_no_part_of_its_identity(store, make):
    first = await store.hold(make.held("appr_1", demand={"roles": [["a"]], "reason": "x"}), [])
    again = make.held("appr_2", demand={"roles": [["a"]], "reason": "y", "rule": "z"})
    assert await store.hold(again, []) == first


async def test_work_that_follows_is_put_down_with_a_new_request(store, make):
    notice = make.due("appr_1", DueKind.NOTIFY, body={"channel": 0})
    await store.hold(make.held(), [], [(0, notice), (0, make.due("other"))])
    (work, other) = await store.claim_due(make.claim())
    assert (work.kind, work.key, work.body) == (DueKind.NOTIFY, "appr_1", {"channel": 0})
    assert other.key == "other"


OTHERS = [
    {"agent": "other"},
    {"user": None},
    {"approvers": 2},
    {"contract_hash": "sha256:d"},
    {"demand": {"pattern": "dual_control"}},
]


@pytest.mark.parametrize("other", OTHERS)
async def test_a_request_of_another_caller_is_another_request(store, make, other):
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
    failed = make.done(entry, status=EntryStatus.FAILED_RETRYABLE, observation=None)
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


async def test_a_spent_approval_that_is_given_back_counts_only_in_time(store, make):
    await store.hold(make.held(), [])
    await store.decide("acme", "appr_1", HeldStatus.APPROVED, [])
    await store.admit(make.admit(approval_id="appr_1"))
    await store.settle(make.settle(gives_back="appr_1"))
    late = make.admit(approval_id="appr_1", now=make.now + 600)
    assert (await store.admit(late)).refused is AdmissionRefusal.APPROVAL


async def test_an_approval_is_spent_before_it_ends_or_never(store, make, snapshot):
    await store.hold(make.held(expires_at=make.now + 10), [])
    await store.decide("acme", "appr_1", HeldStatus.APPROVED, [])
    before = await snapshot(store)
    for late in (10.0, 11.0):
        admission = await store.admit(make.admit(approval_id="appr_1", now=make.now + late))
        assert admission.refused is AdmissionRefusal.APPROVAL
    assert await snapshot(store) == before
    assert (await store.admit(make.admit(approval_id="appr_1", now=make.now + 9.9))).refused is None


# --- lists ----------------------------------------------------------------------------------------


@pytest.fixture
def listed(store):
    """The ids that a list names."""

    async def listed(tenant=None, status=HeldStatus.WAITING, limit=100):
        return [one.approval_id for one in await store.list_held(tenant, status, limit)]

    return listed


async def test_requests_are_listed_by_when_they_end_and_then_by_id(store, make, listed):
    ends = {"d": 5, "a": 9, "c": 7, "b": 7, "e": 1}
    for name, end in ends.items():
        tenant = "other" if name == "e" else "acme"
        held = make.held(name, tenant=tenant, key=name, expires_at=make.now + end)
        await store.hold(held, [])
    assert await listed("acme") == ["d", "b", "c", "a"]
    assert await listed("acme", limit=2) == ["d", "b"]
    assert await listed() == ["e", "d", "b", "c", "a"]
    assert await listed(limit=1) == ["e"]
    assert await listed("other") == ["e"]
    assert await listed("nobody") == []
    assert (await store.list_held("acme", HeldStatus.WAITING, 9))[0] == await store.find_held(
        "acme", "d"
    )


@pytest.mark.parametrize("tenant", ["acme", None])
async def test_requests_are_listed_by_what_became_of_them(store, make, listed, tenant):
    for status in HeldStatus:
        await store.hold(make.held(status.value, key=status.value), [])
        if status in (HeldStatus.SPENT, HeldStatus.VOID):
            await store.decide("acme", status.value, HeldStatus.APPROVED, [])
        if status is HeldStatus.SPENT:
            await store.admit(make.admit(approval_id=status.value))
        elif status is not HeldStatus.WAITING:
            await store.decide("acme", status.value, status, [])
    for status in HeldStatus:
        assert await listed(tenant, status) == [status.value]
