"""Requests for approval at a view."""

import pytest

from counterseal.accounts import People
from counterseal.accounts.users import Passwords
from counterseal.operations.approver import ApprovalError
from counterseal.views.approvals import confirmation
from counterseal.views.base import NotFoundError, RoleRequiredError


async def test_the_inbox_shows_what_waits_with_its_consequence(office):
    seen = await office.call("send")
    (row,) = (await office.view().approvals.search()).items
    assert row.approval_id == seen.approval_id
    assert (row.tool, row.status, row.approved, row.approvers) == ("send", "waiting", 0, 1)
    assert "send" in row.consequence


async def test_the_inbox_can_be_narrowed_and_paged_through(office):
    for n in range(5):
        await office.call("send", {"n": n})
    await office.call("send", {"n": 9}, agent="other")
    view = office.view()
    seen, cursor = [], None
    while True:
        page = await view.approvals.search(tool="send", agent="agent", limit=2, cursor=cursor)
        seen += [row.approval_id for row in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 5
    assert (await view.approvals.search(text="N 3")).items[0].consequence.endswith("n 3.")
    assert (await view.approvals.search(risk="READ_ONLY")).items == []


async def test_who_only_looks_can_not_vote_and_who_votes_is_on_record(office):
    seen = await office.call("send")
    with pytest.raises(RoleRequiredError, match="approver"):
        await office.view("viewer").approvals.decide(seen.approval_id, "approve")
    packet = await office.view("approver", name="bea").approvals.decide(seen.approval_id, "approve")
    assert packet.status == "approved"
    assert [vote.approver for vote in packet.votes] == ["bea"]
    (row,) = (await office.view().approvals.search("decided")).items
    assert (row.approval_id, row.status) == (seen.approval_id, "approved")
    assert (await office.view().approvals.search()).items == []


async def test_the_reason_why_a_person_can_not_vote_is_shown_beforehand(office):
    seen = await office.call("send")
    packet = await office.view().approvals.packet(seen.approval_id)
    assert "approver" in office.view("viewer").approvals.objection(packet)
    assert office.view("approver", name="bea").approvals.objection(packet) is None
    assert office.view("approver", name="u_1").approvals.objection(packet)
    voted = await office.view("approver", name="bea").approvals.decide(seen.approval_id, "reject")
    assert office.view("approver", name="cid").approvals.objection(voted)


@pytest.mark.parametrize("typed", ["", "case:2", "CASE:1", "wipe", "yes"])
async def test_what_is_critical_is_not_approved_without_typing_its_target(office, typed):
    seen = await office.call("wipe")
    view = office.view("approver", name="bea")
    packet = await view.approvals.packet(seen.approval_id)
    assert confirmation(packet) == view.approvals.page_of(packet).confirmation == "case:1"
    with pytest.raises(ApprovalError, match="case:1") as refused:
        await view.approvals.decide(seen.approval_id, "approve", typed=typed)
    assert refused.value.why == "typed"
    assert (await view.approvals.packet(seen.approval_id)).so_far == "0 of 2"


async def test_two_people_who_type_the_target_approve_it(office):
    seen = await office.call("wipe")
    for name, role in (("bea", "approver"), ("cid", "compliance")):
        view = office.view("approver", role, name=name)
        packet = await view.approvals.decide(
            seen.approval_id, "approve", typed=" case:1 ", comment="ok"
        )
    assert (packet.status, packet.so_far) == ("approved", "2 of 2")


@pytest.mark.parametrize(
    ("name", "tenants", "active", "known"),
    [
        ("cid", {"acme": ["approver", "compliance"]}, True, True),
        ("cid", {"acme": ["approver"], "*": ["compliance"]}, True, True),
        ("cid", {"acme": ["approver", "compliance"]}, False, False),
        ("cid", {"zeta": ["approver", "compliance"]}, True, False),
        ("cid", {"acme": ["compliance"]}, True, False),
        ("cid", {"acme": ["approver"]}, True, False),
        ("u_1", {"acme": ["approver", "compliance"]}, True, False),  # the requester
    ],
)
async def test_role_that_nobody_known_could_approve_with_is_named(
    office, name, tenants, active, known
):
    passwords = Passwords(time_cost=1, memory_kib=8)
    accounts = People(office.runtime, passwords=passwords).accounts("root")
    await accounts.add(name, "correct horse battery", tenants, reason="x")
    if not active:
        await accounts.set_active(name, active=False, reason="x")
    seen = await office.call("wipe")
    view = office.view("approver", name="bea")
    (row,) = (await view.approvals.search()).items
    page = await view.approvals.page(seen.approval_id)
    nobody = " No known person who can approve it has that role."
    said = "An approver with the role compliance is still needed."
    assert row.needed == page.needed == said + ("" if known else nobody)
    assert page.approval.including == [["compliance"]]
    voted = await office.view("approver", "compliance", name="dee").approvals.decide(
        seen.approval_id, "approve", typed="case:1"
    )
    assert view.approvals.page_of(voted).needed == ""


async def test_a_rejection_needs_no_typed_confirmation(office):
    seen = await office.call("wipe")
    packet = await office.view("approver", name="bea").approvals.decide(seen.approval_id, "reject")
    assert packet.status == "rejected"


async def test_nothing_must_be_typed_for_what_is_not_critical(office):
    seen = await office.call("send")
    assert confirmation(await office.view().approvals.packet(seen.approval_id)) is None


async def test_waiting_ends_with_the_decision(office):
    import asyncio

    seen = await office.call("send")
    waiting = asyncio.create_task(office.view().approvals.wait(seen.approval_id, 60))
    await asyncio.sleep(0)
    await office.view("approver", name="bea").approvals.decide(seen.approval_id, "approve")
    assert (await waiting).status == "approved"


async def test_a_wrong_choice_or_status_is_named(office):
    seen = await office.call("send")
    with pytest.raises(ApprovalError, match="decision"):
        await office.view("approver", name="bea").approvals.decide(seen.approval_id, "perhaps")
    with pytest.raises(ValueError, match="nonsense"):
        await office.view().approvals.search("nonsense")
    with pytest.raises(NotFoundError):
        await office.view().approvals.packet("appr_none")


async def test_the_decided_are_paged_through_newest_end_first(office):
    for n in range(5):
        seen = await office.call("send", {"n": n})
        await office.view("approver", name="bea").approvals.decide(seen.approval_id, "reject")
    first = await office.view().approvals.search("decided", limit=3)
    rest = await office.view().approvals.search("decided", limit=3, cursor=first.next)
    ends = [row.expires_at for row in [*first.items, *rest.items]]
    assert len(ends) == 5
    assert ends == sorted(ends, reverse=True)
    assert rest.next is None
