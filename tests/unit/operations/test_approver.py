"""`runtime.approvals`: what it refuses, and what it does when others decide at the same time."""

from dataclasses import replace

import pytest

from counterseal import Proposal
from counterseal.ledger.records import DueKind, HeldStatus
from counterseal.operations.approver import ApprovalError, Voter, work_for
from counterseal.testing import FakeClock, fake_tool, runtime_for, someone

ALICE = Voter(user="alice", tenant="acme")
BOB = Voter(user="bob", tenant="acme")


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def runtime(clock):
    made = fake_tool("send", effect="external_notification", approvers=2, consequence="So.")
    return runtime_for(made, clock=clock)


async def asked(runtime):
    proposal = Proposal(tool="send", arguments={}, run_id="run_1", key="k")
    return (await runtime.submit(proposal, someone())).approval_id


async def refused(runtime, approval_id, voter=ALICE, decision="approve"):
    with pytest.raises(ApprovalError) as found:
        await runtime.approvals.decide(approval_id, voter, decision)
    return found.value.why


async def test_what_is_not_there_can_be_neither_shown_nor_decided(runtime):
    assert await refused(runtime, "appr_0") == "unknown"
    with pytest.raises(ApprovalError, match="no such request"):
        await runtime.approvals.get("acme", "appr_0")
    it = await asked(runtime)
    with pytest.raises(ApprovalError, match="no such request"):
        await runtime.approvals.get("globex", it)


async def test_a_decision_is_yes_or_no(runtime):
    it = await asked(runtime)
    assert await refused(runtime, it, decision="perhaps") == "decision"
    with pytest.raises(ValueError, match="soon"):
        await runtime.approvals.list(status="soon")


async def test_what_can_not_be_shown_here_can_not_be_decided_here(runtime, clock):
    it = await asked(runtime)
    newer = fake_tool("send", effect="external_notification", approvers=2, consequence="Now.")
    other = runtime_for(newer, clock=clock)
    other.store = runtime.store
    assert await refused(other, it) == "contract"
    assert await refused(runtime_on(runtime.store, clock), it) == "contract"
    assert (await runtime.approvals.get("acme", it)).status == "waiting"


def runtime_on(store, clock):
    bare = runtime_for(clock=clock)
    bare.store = store
    return bare


async def test_a_vote_that_another_came_before_is_cast_again(runtime, monkeypatch):
    it = await asked(runtime)
    real, seen = runtime.store.vote, []

    async def vote(ballot):
        seen.append(ballot.seen)
        if len(seen) == 1:
            await runtime.approvals.decide(it, BOB, "approve")
        return await real(ballot)

    monkeypatch.setattr(runtime.store, "vote", vote)
    packet = await runtime.approvals.decide(it, ALICE, "approve")
    assert (packet.status, packet.so_far, seen) == ("approved", "2 of 2", [0, 0, 1])
    due = await runtime.store.find_due("acme", DueKind.EXECUTE, it)
    assert due is not None


async def test_who_never_gets_through_is_told_so(runtime, monkeypatch):
    it = await asked(runtime)

    async def never(ballot):
        return None

    monkeypatch.setattr(runtime.store, "vote", never)
    assert await refused(runtime, it) == "busy"


async def test_an_expiry_is_put_on_record_once_however_it_is_noticed(runtime, clock):
    it = await asked(runtime)
    clock.advance(600)
    assert await refused(runtime, it) == "expired"
    assert await runtime.approvals.expire() == 0
    assert (await runtime.approvals.wait("acme", it, 1)).status == "expired"
    assert await refused(runtime, it) == "decided"
    told = [event.type.value for _, event in await runtime.store.events("acme")]
    assert told.count("approval.expired") == 1


async def test_long_words_are_cut(runtime):
    it = await asked(runtime)
    await runtime.approvals.decide(it, ALICE, "approve", comment="x" * 9999)
    assert len((await runtime.approvals.get("acme", it)).votes[0].comment) == 2000


async def test_due_work_about_a_request_goes_by_its_id(runtime):
    held = await runtime.store.find_held("acme", await asked(runtime))
    work = work_for(DueKind.EXECUTE, held)
    assert (work.key, work.tool, work.version) == (held.approval_id, "send", "1.0.0")
    assert work_for(DueKind.NOTIFY, replace(held, status=HeldStatus.VOID)).kind is DueKind.NOTIFY
