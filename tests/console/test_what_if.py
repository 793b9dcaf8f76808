"""The page on which an operator tries another policy on recorded calls."""

import re

import pytest

from counterseal.ledger.requests import EventFilter
from tests.console.conftest import client_of

POLICY = """
rules:
  - id: no-refunds
    tools: [refund]
    when: "true"
    then: deny
    reason: Not today.
"""


def form_of(page, **values):
    token = re.search(r'name="csrf" value="([^"]+)"', page)[1]
    return {"csrf": token, "days": "7", **values}


async def test_an_operator_sees_which_calls_another_policy_refuses(bank):
    await bank.refund()
    async with client_of(bank, "oli") as oli:
        page = (await oli.get("/what-if")).text
        answer = await oli.post("/what-if", data=form_of(page, policy=POLICY))
        assert answer.status_code == 200
        assert "1 would now be refused" in answer.text
        assert "policy no-refunds" in answer.text
    read = EventFilter(types=["arguments.read"])
    ((_, event),) = await bank.runtime.store.search("acme", read)
    assert (event.body["by"], event.body["exported"]) == ("oli", "replay of the last 7 days")


@pytest.mark.parametrize("policy", ["", "rules: [", "rules:\n  - id: 1\n", "- a"])
async def test_a_policy_that_can_not_be_read_is_said_and_nothing_is_replayed(bank, policy):
    async with client_of(bank, "oli") as oli:
        page = (await oli.get("/what-if")).text
        answer = await oli.post("/what-if", data=form_of(page, policy=policy))
        assert answer.status_code == 422
        assert 'role="alert"' in answer.text
        assert "would now be" not in answer.text


async def test_others_than_operators_get_no_form_and_no_answer(bank, ann):
    page = (await ann.get("/what-if")).text
    assert "requires the role operator" in page
    assert "<textarea" not in page
    token = re.search(r'name="csrf" value="([^"]+)"', page)
    data = {"csrf": token[1] if token else "", "days": "7", "policy": POLICY}
    assert (await ann.post("/what-if", data=data)).status_code == 403


@pytest.mark.slow
async def test_in_a_browser_the_page_fits_a_phone_and_leads_to_the_calls(bank, visitor):
    await bank.refund()
    page = await visitor("oli", viewport={"width": 380, "height": 800})
    await page.goto("/calls")
    await page.get_by_role("link", name="What if…").click()
    await page.get_by_label("Policy, in YAML").fill(POLICY)
    await page.get_by_role("button", name="Decide again").click()
    result = page.get_by_role("region", name="Changes")
    assert "refund" in await result.inner_text()
    width = await page.evaluate("document.documentElement.scrollWidth")
    assert width <= 380
    await result.get_by_role("link", name=re.compile("call_")).first.click()
    await page.wait_for_url("**/calls/call_*")
