"""What people do at the console, in a real browser."""

import re

import pytest
from playwright.async_api import expect

from tests.console.conftest import sign_in
from tests.console.world import PASSWORD

pytestmark = pytest.mark.slow


async def decide(page, button):
    await page.get_by_role("button", name=button, exact=True).click()


async def test_a_user_signs_in_and_out(bank, visitor):
    page = await visitor()
    await page.goto("/approvals?tool=refund")
    await expect(page).to_have_title(re.compile("Sign in"))
    await page.get_by_label("Name").fill("ann")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{bank.url}/approvals?tool=refund")
    await page.locator("summary", has_text="ann").click()
    await page.get_by_role("button", name="Sign out", exact=True).click()
    await expect(page).to_have_url(f"{bank.url}/sign-in")
    await page.goto("/approvals")
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_a_wrong_password_is_said_to_be_wrong_and_locks_the_door_in_the_end(bank, visitor):
    page = await visitor()
    await sign_in(page, "ann", "wrong horse battery")
    await expect(page.get_by_role("alert")).to_have_text("Wrong name or password.")
    await expect(page.get_by_label("Name")).to_have_value("ann")
    await expect(page.get_by_label("Password")).to_have_value("")
    for _ in range(6):
        await page.get_by_label("Password").fill("wrong horse battery")
        await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("Too many failed attempts.")


async def test_a_critical_call_is_approved_by_typing_what_it_acts_on(bank, visitor):
    approval_id = await bank.closing()
    page = await visitor("ann")
    await page.get_by_role("link", name=re.compile("Account acc_4711")).click()
    await expect(page.locator("h1")).to_have_text(
        "Account acc_4711 of Ann Lee is closed; 1,204.50 EUR are paid out."
    )
    await expect(page.locator("del", has_text="open")).to_be_visible()
    await expect(page.locator("ins", has_text="closed")).to_be_visible()
    typed = page.get_by_label("To approve, type account:acc_4711")
    await typed.fill("account:acc_4712")
    await page.get_by_label("Comment").fill("Asked the customer.")
    await decide(page, "Approve")
    await expect(page.get_by_role("alert")).to_contain_text("type account:acc_4711")
    await expect(page.get_by_role("alert")).to_be_focused()
    await expect(page.get_by_label("Comment")).to_have_value("Asked the customer.")
    await typed.fill("account:acc_4711")
    await decide(page, "Approve")
    await expect(page.get_by_role("heading", name="You approved this")).to_be_visible()
    await expect(page.get_by_text("one more approval is needed")).to_be_visible()
    packet = await bank.packet(approval_id)
    assert [(vote.approver, vote.comment) for vote in packet.votes] == [
        ("ann", "Asked the customer.")
    ]
    await page.get_by_role("link", name="Back to the inbox").click()
    await expect(page.locator("[data-row]")).to_contain_text("1 of 2 approved")


async def test_a_call_is_rejected_with_a_reason(bank, visitor):
    approval_id = await bank.notice()
    page = await visitor("ann")
    await page.goto(f"/approvals/{approval_id}")
    await decide(page, "Reject")  # the browser asks for the reason
    assert await bank.status(approval_id) == "waiting"
    await page.get_by_label("Reason for rejecting").fill("Wrong address.")
    await decide(page, "Reject")
    await expect(page.get_by_role("heading", name="You rejected this")).to_be_visible()
    packet = await bank.packet(approval_id)
    assert (packet.status, packet.votes[0].comment) == ("rejected", "Wrong address.")


async def test_two_people_approve_in_two_browsers_and_each_sees_the_others_vote(bank, visitor):
    approval_id = await bank.closing()
    ann, kim = await visitor("ann"), await visitor("kim")
    for page in (ann, kim):
        await page.goto(f"/approvals/{approval_id}")
    await kim.get_by_label("To approve").fill("account:acc_4711")
    await ann.get_by_label("To approve").fill("account:acc_4711")
    await decide(ann, "Approve")
    await expect(kim.get_by_text("1 of 2 approved")).to_be_visible()
    await expect(kim.locator(".votes")).to_contain_text("ann approved")
    needed = "An approver with the role compliance is still needed."
    await expect(kim.get_by_text(needed)).to_be_visible()
    await expect(ann.get_by_text(f"one more approval is needed. {needed}")).to_be_visible()
    await expect(kim.get_by_label("To approve")).to_have_value("account:acc_4711")
    await decide(kim, "Approve")
    await expect(kim.get_by_text("The call is being executed")).to_be_visible()
    assert await bank.status(approval_id) == "approved"
    await expect(ann.locator("#result .badge")).to_have_text("approved")


async def test_an_open_inbox_and_its_second_tab_stay_current(bank, visitor):
    page = await visitor("ann")
    second = await page.context.new_page()
    second.faults = []
    await second.goto("/approvals")
    for tab in (page, second):
        await expect(tab.get_by_text("No request waits for a decision.")).to_be_visible()
    approval_id = await bank.notice()
    for tab in (page, second):
        await expect(tab.locator(f"[data-row={approval_id}]")).to_be_visible()
    await page.locator("[data-open]").click()
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(second.get_by_text("No request waits for a decision.")).to_be_visible()
    kill = await bank.runtime.operator("root").kill(tool="refund", reason="An exercise.")
    for tab in (page, second):
        await expect(tab.locator(".kill")).to_contain_text("An exercise.")
    await bank.runtime.operator("root").restore(kill.id, reason="Over.")
    await expect(second.locator(".kill")).to_have_count(0)


async def test_a_decision_by_another_approver_removes_the_forms(bank, visitor):
    approval_id = await bank.notice()
    ann, bob = await visitor("ann"), await visitor("bob")
    for page in (ann, bob):
        await page.goto(f"/approvals/{approval_id}")
    await decide(bob, "Approve")
    await expect(ann.get_by_text("This request has already been decided.")).to_be_visible()
    await expect(ann.get_by_role("button", name="Approve", exact=True)).to_have_count(0)


async def test_everything_fits_on_a_phone(bank, visitor):
    await bank.notice(to=f"{'x' * 200}@example.org", text="long " * 90)
    ids = [await bank.closing(account="9" * 300), await bank.refund()]
    page = await visitor("ann", viewport={"width": 380, "height": 780}, has_touch=True)
    await bank.runtime.operator("root").kill(tool="refund", reason="x" * 300)
    paths = ["/", "/approvals?status=decided", "/nowhere"]
    paths += [f"/approvals/{one}" for one in ids] + [f"/approvals/{ids[0]}/result"]
    for path in paths:
        await page.goto(path)
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 380, path
    await page.goto(f"/approvals/{ids[0]}")
    await page.get_by_role("link", name="Reject…").tap()
    await expect(page.get_by_label("Reason for rejecting")).to_be_in_viewport()
    await page.get_by_label("Reason for rejecting").fill("No.")
    await page.get_by_role("button", name="Reject", exact=True).tap()
    await expect(page.get_by_role("heading", name="You rejected this")).to_be_visible()


async def test_a_keyboard_is_enough(bank, visitor):
    first, second = await bank.closing(), await bank.notice()
    page = await visitor("ann")
    press = page.keyboard.press
    await press("?")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await press("j")
    await expect(page.locator(f"[data-row={first}] a")).to_be_focused()
    await press("j")
    await press("j")  # the last one stays
    await expect(page.locator(f"[data-row={second}] a")).to_be_focused()
    await press("k")
    await press("a")
    await page.wait_for_url(f"**/approvals/{first}")
    await expect(page.get_by_label("To approve")).to_be_focused()
    await page.keyboard.type("account:acc_4711")  # letters are letters here
    await press("Enter")
    await expect(page.get_by_role("heading", name="You approved this")).to_be_visible()
    await press("u")
    await page.wait_for_url("**/approvals")
    await press("j")
    await press("j")
    await press("r")
    await expect(page.get_by_label("Reason for rejecting")).to_be_focused()
    await page.keyboard.type("No.")
    await press("Tab")
    await press("Enter")
    await expect(page.get_by_role("heading", name="You rejected this")).to_be_visible()
    assert await bank.status(second) == "rejected"
    await page.goto("/approvals")
    await press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    await press("/")
    await expect(page.get_by_label("Search")).to_be_focused()


async def test_without_javascript_people_read_and_decide(bank, visitor):
    one, two = await bank.closing(), await bank.notice()
    page = await visitor("ann", java_script_enabled=False)
    await page.get_by_role("link", name=re.compile("Account acc_4711")).click()
    await expect(page.get_by_text("0 of 2 approved")).to_be_visible()
    await expect(page.get_by_role("button", name=re.compile("Copy"))).to_have_count(0)
    await page.get_by_label("To approve").fill("account:acc_4711")
    await decide(page, "Approve")
    await expect(page.get_by_role("heading", name="You approved this")).to_be_visible()
    await page.goto(f"/approvals/{two}")
    await page.get_by_label("Reason for rejecting").fill("No.")
    await decide(page, "Reject")
    await expect(page.get_by_role("heading", name="You rejected this")).to_be_visible()
    assert (await bank.packet(one)).so_far == "1 of 2"
    assert await bank.status(two) == "rejected"


async def test_a_user_switches_the_tenant_and_open_pages_of_the_other_say_so(bank, visitor):
    here, there = await bank.notice(), await bank.notice(tenant="zeta")
    page = await visitor("eve")
    await expect(page.locator(f"[data-row={here}]")).to_be_visible()
    left = await page.context.new_page()
    left.faults = []
    await left.goto("/approvals")
    await page.locator("summary", has_text="eve").click()
    await page.get_by_label("Tenant").select_option("zeta")
    await page.get_by_role("button", name="Switch").click()
    await expect(page.locator(f"[data-row={there}]")).to_be_visible()
    await expect(page.locator(f"[data-row={here}]")).to_have_count(0)
    await bank.notice()
    await expect(left.get_by_text("You are now in zeta; this page shows acme.")).to_be_visible()
    await expect(left.locator(f"[data-row={here}]")).to_be_visible()


async def test_a_page_says_when_its_session_is_over(bank, visitor):
    page = await visitor("ann")
    await expect(page.get_by_text("No request waits for a decision.")).to_be_visible()
    bank.clock.advance(3601)
    await bank.notice()
    await expect(page.get_by_text("You are signed out.")).to_be_visible()
    await page.locator("#notice").get_by_role("link", name="Sign in").click()
    await page.get_by_label("Name").fill("ann")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator("[data-row]")).to_have_count(1)


async def test_hostile_arguments_and_comments_run_nothing(bank, visitor):
    hostile = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'
    approval_id = await bank.closing(account=hostile)
    ann, bob = await visitor("ann"), await visitor("bob")
    await bob.goto(f"/approvals/{approval_id}")
    await ann.goto(f"/approvals/{approval_id}")
    word = await ann.locator(".typed").inner_text()
    await ann.get_by_label("To approve").fill(word)
    await ann.get_by_label("Comment").fill(hostile)
    await decide(ann, "Approve")
    await expect(bob.locator(".votes")).to_contain_text("onerror")  # it came in while it was open
    for page in (ann, bob):
        await page.goto(f"/approvals/{approval_id}")
        assert await page.evaluate("window.hit") is None
        assert await page.locator("main img, main script").count() == 0
