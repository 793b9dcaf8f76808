"""`runtime.approvals` where requests can't be shown, ids are none, and words hold too much."""

import pytest

from counterseal import Proposal
from counterseal.ledger.records import HeldStatus
from counterseal.operations.approver import ApprovalError, Voter
from counterseal.testing import FakeClock, fake_tool, runtime_for, someone

ALICE = Voter(user="alice", tenant="acme")
SECRET = "ghp_" + "a1B2" * 9
SURROGATE = "\udcff"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def runtime(clock):
    made = fake_tool("send", effect="external_notification", consequence="So.", approvers=1)
    return runtime_for(made, clock=clock)


@pytest.fixture
def elsewhere(runtime, clock):
    """A worker on the same store that does not hold the tool."""
    bare = runtime_for(clock=clock)
    bare.store = runtime.store
    return bare


def sending(key="k"):
    return Proposal(tool="send", arguments={}, run_id="run_1", key=key)


async def asked(runtime, key="k"):
    return (await runtime.submit(sending(key), someone())).approval_id


async def told(runtime, kind):
    found = await runtime.store.events("acme")
    return [event for _, event in found if event.type.value == kind]


def spoil(runtime, approval_id, **changes):
    runtime.store._backend.change_held(("acme", approval_id), **changes)


async def test_a_no_takes_no_contract(runtime, elsewhere):
    it = await asked(runtime)
    with pytest.raises(ApprovalError) as found:
        await elsewhere.approvals.decide(it, ALICE, "approve")
    assert found.value.why == "contract"
    assert await elsewhere.approvals.decide(it, ALICE, "reject", comment="No.") is None
    assert (await elsewhere.approvals.find("acme", it)).status is HeldStatus.REJECTED
    assert "The approver says: No." in (await runtime.submit(sending(), someone())).for_model()


async def test_what_is_damaged_is_unreadable_and_can_be_rejected(runtime):
    it = await asked(runtime)
    spoil(runtime, it, sealed=b"{}")
    for attempt in (
        runtime.approvals.get("acme", it),
        runtime.approvals.decide(it, ALICE, "approve"),
    ):
        with pytest.raises(ApprovalError) as found:
            await attempt
        assert found.value.why == "unreadable"
    assert await runtime.approvals.decide(it, ALICE, "reject") is None


@pytest.mark.parametrize("damage", [{"votes": (7,)}, {"votes": ({},)}, {"demand": {}}])
async def test_votes_and_terms_that_make_no_sense_are_unreadable(runtime, damage):
    it = await asked(runtime)
    spoil(runtime, it, **damage)
    with pytest.raises(ApprovalError) as found:
        await runtime.approvals.decide(it, ALICE, "reject")
    assert found.value.why == "unreadable"


@pytest.mark.parametrize("wrong", ["", "a\0b", SURROGATE, "x" * 5000])
async def test_what_can_be_no_id_names_no_request(runtime, wrong):
    it = await asked(runtime)
    for tenant, approval_id in (("acme", wrong), (wrong, it)):
        with pytest.raises(ApprovalError) as found:
            await runtime.approvals.get(tenant, approval_id)
        assert found.value.why == "unknown"
    assert await runtime.approvals.list(wrong) == []


async def test_texts_are_redacted_once_and_alike_for_all_readers(runtime):
    it = await asked(runtime)
    said = f"Not with {SECRET}, {SURROGATE}\0."
    packet = await runtime.approvals.decide(it, ALICE, "reject", comment=said, justification=said)
    (vote,) = packet.votes
    (event,) = await told(runtime, "approval.voted")
    (stored,) = (await runtime.approvals.find("acme", it)).votes
    assert vote.comment == stored["comment"] == event.body["comment"]
    assert vote.justification == vote.comment
    seen = await runtime.submit(sending(), someone())
    for text in (vote.comment, seen.for_model()):
        assert not any(one in text for one in (SECRET, SURROGATE, "\0"))
        assert "Not with [redacted:" in text


async def test_looking_writes_nothing_and_what_is_over_is_not_in_the_way(runtime, clock):
    for number in range(5):
        await asked(runtime, f"old{number}")
    clock.advance(600)
    it = await asked(runtime, "new")
    assert [held.approval_id for held in await runtime.approvals.list(limit=1)] == [it]
    assert await told(runtime, "approval.expired") == []
    assert await runtime.approvals.expire() == 5


async def test_what_was_decided_last_is_listed_first(runtime, clock):
    decided = []
    for number in range(3):
        decided.append(await asked(runtime, f"k{number}"))
        await runtime.approvals.decide(decided[-1], ALICE, "reject")
        clock.advance(1)
    listed = await runtime.approvals.list("acme", status="rejected", limit=2)
    assert [held.approval_id for held in listed] == [decided[2], decided[1]]


async def test_an_unused_approval_is_void_on_record(runtime, clock):
    it = await asked(runtime)
    await runtime.approvals.decide(it, ALICE, "approve")
    clock.advance(600)
    assert await runtime.approvals.expire() == 0  # its own run is still told that it has expired
    clock.advance(600)
    assert (await runtime.approvals.expire(), await runtime.approvals.expire()) == (1, 0)
    assert (await runtime.approvals.find("acme", it)).status is HeldStatus.VOID
    (event,) = await told(runtime, "approval.void")
    assert event.body["reason"] == "It was not used in time."


@pytest.mark.parametrize(
    ("ending", "first"),
    [("rejected", "A person has rejected this call."), ("expired", "not approved in time")],
)
async def test_an_agent_is_told_first_how_it_ended(runtime, clock, ending, first):
    it = await asked(runtime)
    waiting = await runtime.submit(sending(), someone())
    assert "A person must approve this call." in waiting.for_model().splitlines()[0]
    if ending == "rejected":
        await runtime.approvals.decide(it, ALICE, "reject", comment="Wrong address.")
    else:
        clock.advance(600)
    seen = await runtime.submit(sending(), someone())
    assert first in seen.for_model().splitlines()[0]
    assert "A person must approve" not in seen.for_model()
    (error,) = seen.errors
    said = "Wrong address." if ending == "rejected" else ""
    assert (error.code, error.actual) == (ending, said)
    assert seen.for_model().count("Wrong address.") == (1 if said else 0)
