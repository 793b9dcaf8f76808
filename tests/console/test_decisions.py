"""What an approver reads before a decision, and what comes of it: true, readable, to its end."""

import re
from html import unescape
from typing import Annotated

import pytest
from playwright.async_api import expect
from pydantic import Field

from counterseal import Grant, tool
from counterseal.operations.approver import ApprovalError, Voter
from counterseal.reconcile import Reconciler
from tests.console.conftest import client_of
from tests.console.rooms.test_looking import said
from tests.console.test_sign_in import csrf_of
from tests.console.world import Text

Cents = Annotated[int, Field(ge=0, le=100_000, description="In cents.")]
LETTER = "Dear Ann,\n\nyour card has been replaced.\n  The bank"
WHY = "It sends twice."


def sections_of(page):
    """What the navigation says."""
    nav = page.text.partition('<nav id="sections"')[2].partition("</nav>")[0].partition(">")[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", nav)).split())


@pytest.fixture
async def credit(bank):
    """A refund whose contract says what becomes of the status, and of nothing else."""

    @tool(
        effect="internal_mutation",
        version="1.0.0",
        owner="payments",
        approvers=1,
        consequence="{cents|money:EUR} are paid back for invoice {invoice}.",
        resource="invoice:{invoice}",
        probe=lambda invoice: {
            "version": 1,
            "status": "paid",
            "refunded_cents": 0,
            "currency": "EUR",
        },
        expected={"status": "refunded", "currency": "EUR"},
        spends={"amount": "/cents", "scale": 2, "currency": "EUR"},
        money={"day": {"EUR": 5000}},
    )
    async def credit(invoice: Text, cents: Cents) -> dict[str, str]:
        """Pay money back."""
        return {"refunded": invoice}

    bank.runtime.register(
        credit, grants=[Grant(agent="assistant", tool="credit", max_calls_per_run=9)]
    )
    return await bank.ask("credit", {"invoice": "inv_7", "cents": 60000})


async def decided(client, approval_id, **fields):
    path = f"/approvals/{approval_id}"
    fields["csrf"] = csrf_of(await client.get(path))
    return await client.post(f"{path}/decision", data=fields)


async def stop(bank, name="send_notice"):
    await bank.runtime.operator("root").kill(tool=name, reason=WHY)


# --- what is read ---------------------------------------------------------------------------------


async def test_a_field_that_the_contract_does_not_name_is_not_said_to_stay(bank, ann, credit):
    page = said(await ann.get(f"/approvals/{credit}"))
    assert "600.00 EUR are paid back for invoice inv_7" in page
    assert "status paid refunded" in page
    assert "refunded_cents 0 not stated" in page
    assert "the contract does not say what becomes of these fields" in page
    assert "1 field expected to stay as it is currency EUR" in page
    assert "unchanged" not in page
    assert "as before" not in page


async def test_amount_and_what_was_spent_are_on_packet_and_run_page(bank, ann, credit):
    packet = said(await ann.get(f"/approvals/{credit}"))
    assert "Amount 600.00 EUR" in packet
    assert "0.00 EUR of 5,000.00 EUR spent before (tool.money.day.EUR)" in packet
    await decided(ann, credit, choice="approve")
    await Reconciler(bank.runtime).at_once()
    run = said(await ann.get("/runs/run_1"))
    assert "Money spent 600.00 EUR no limit" in run
    assert "Money spent, tool credit 600.00 EUR 5,000.00 EUR" in run


async def test_text_is_shown_as_text(bank, ann):
    text = (await ann.get(f"/approvals/{await bank.notice(text=LETTER)}")).text
    assert f'<bdi class="value block">{LETTER}</bdi>' in text
    assert "\\n" not in text.partition("<main")[2]


@pytest.mark.slow
async def test_lines_of_a_text_are_lines_on_the_page(bank, visitor):
    page = await visitor("ann")
    await page.goto(f"/approvals/{await bank.notice(text=LETTER)}")
    cell = page.locator(".arguments .value.block")
    assert await cell.inner_text() == LETTER
    assert '"' not in await page.locator("h1").inner_text()


# --- a tool that is stopped -----------------------------------------------------------------------


async def test_a_call_of_a_stopped_tool_is_not_approved(bank, ann):
    approval_id = await bank.notice()
    await stop(bank)
    page = await ann.get(f"/approvals/{approval_id}")
    assert "send_notice was stopped by root: It sends twice." in said(page)
    assert re.search(r'class="approve" disabled aria-describedby="stopped">Approve', page.text)
    assert 'class="reject">Reject' in page.text
    assert "stopped send_notice was stopped by root" in said(await ann.get("/approvals"))
    answer = await decided(ann, approval_id, choice="approve")
    assert answer.status_code == 422
    assert "It can be approved after an operator has restored it." in said(answer)
    assert await bank.status(approval_id) == "waiting"
    answer = await decided(ann, approval_id, choice="reject", comment="Not now.")
    assert answer.status_code == 303
    assert await bank.status(approval_id) == "rejected"


async def test_a_stopped_tool_can_not_be_approved_by_another_route(bank):
    approval_id = await bank.notice()
    bob = Voter(user="bob", tenant="acme", roles=frozenset({"approver"}))
    await stop(bank)
    with pytest.raises(ApprovalError, match="was stopped by root") as refused:
        await bank.runtime.approvals.decide(approval_id, bob, "approve")
    assert refused.value.why == "stopped"
    await bank.runtime.operator("root").disable("refund", "1.0.0", reason="old")
    stop_reason = bank.runtime.approvals.stop_reason
    assert stop_reason("acme", "refund", "1.0.0") == "refund 1.0.0 is disabled."
    assert stop_reason("acme", "close_account", "1.0.0") is None
    assert stop_reason("acme", "unknown", "1.0.0") is None


@pytest.mark.slow
async def test_an_open_page_learns_that_its_tool_is_stopped_and_restored(bank, visitor):
    page = await visitor("ann")
    await page.goto(f"/approvals/{await bank.notice()}")
    approve = page.get_by_role("button", name="Approve", exact=True)
    await expect(approve).to_be_enabled()
    await stop(bank)
    await expect(approve).to_be_disabled()
    await expect(page.locator("#stopped")).to_contain_text(WHY.rstrip("."))
    (kill,) = bank.runtime.registry.kills
    await bank.runtime.operator("root").restore(kill, reason="It is mended.")
    await expect(approve).to_be_enabled()


# --- what comes of it -----------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_decision_is_followed_to_the_end_of_its_call(bank, visitor):
    page = await visitor("ann")
    await page.goto(f"/approvals/{await bank.notice()}")
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(page.get_by_role("heading", name="You approved this")).to_be_visible()
    await expect(page.get_by_text("The call is being executed")).to_be_visible()
    await expect(page.get_by_text("This page updates by itself")).to_be_visible()
    await Reconciler(bank.runtime).at_once()
    await expect(page.locator("#result .badge", has_text="Succeeded")).to_be_visible()
    await expect(page.get_by_text("This page updates by itself")).to_have_count(0)
    await page.get_by_role("link", name="Show the call").click()
    await expect(page.locator("h1")).to_contain_text("send_notice")
    await expect(page.locator("main")).to_contain_text("SUCCESS")


async def test_an_approval_shows_what_came_of_its_call(bank, ann, credit):
    await decided(ann, credit, choice="approve")
    path = f"/approvals/{credit}"
    assert "Outcome The call is being executed, exactly as shown." in said(await ann.get(path))
    await bank.runtime.operator("root").kill(tool="credit", reason=WHY)
    await Reconciler(bank.runtime).at_once()
    for shown in (path, f"{path}/result"):
        page = said(await ann.get(shown))
        assert "Not permitted PERMISSION_DENIED" in page
        assert "The agent has no permission for this call, or" in page
        assert "Show the call" in page


# --- lists ----------------------------------------------------------------------------------------


async def test_the_navigation_says_how_much_waits(bank, ann):
    assert sections_of(await ann.get("/")).startswith("Approvals Calls Tools Needs attention Over")
    first = await bank.notice()
    await bank.closing()
    for path in ("/", "/calls", "/audit"):
        assert sections_of(await ann.get(path)).startswith("Approvals 2 waiting Calls")
    await decided(ann, first, choice="reject", comment="No.")
    assert sections_of(await ann.get("/")).startswith("Approvals 1 waiting Calls")
    async with client_of(bank, "zed") as other:
        assert "waiting" not in sections_of(await other.get("/"))


@pytest.mark.slow
async def test_the_count_stays_current(bank, visitor):
    page = await visitor("ann")
    await page.goto("/audit")
    await expect(page.locator("#sections .count")).to_have_count(0)
    await bank.notice()
    await expect(page.get_by_role("link", name="Approvals 1 waiting")).to_be_visible()


async def test_a_request_that_is_not_mine_to_decide_is_marked(bank, ann):
    await bank.notice()
    mine = await ann.get("/approvals")
    assert "not yours to decide" not in said(mine)
    assert "locked" not in mine.text
    await bank.refund()
    closing = await bank.closing()
    await decided(ann, closing, choice="approve", typed="account:acc_4711")
    page = said(await ann.get("/approvals"))
    assert page.count("not yours to decide") == 2
    assert "not yours to decide You have already voted on this request." in page
    assert "not yours to decide You don't have a role that may approve this." in page
    async with client_of(bank, "vic") as viewer:
        page = said(await viewer.get("/approvals"))
        assert page.count("not yours to decide This requires the role approver.") == 3
        assert "not yours" not in said(await viewer.get("/approvals?status=decided"))
