"""Every page, in light and in dark, as axe-core sees it. Its script is let past the policy here."""

import re

import pytest

from counterseal.operations.approver import Voter
from tests.console.conftest import sign_in
from tests.node_tools import node_packages

pytestmark = pytest.mark.slow

COVERED = re.compile("(overlapped|obscured) by another element")
"""An open menu covers something, and the header on a phone scrolls: nothing can be told of that."""

PAGES = {
    "inbox": "/approvals",
    "nothing found": "/approvals?text=nothing",
    "decided": "/approvals?status=decided",
    "critical": "/approvals/{critical}",
    "by compliance": "/approvals/{refund}",
    "voted on": "/approvals/{voted}",
    "rejected": "/approvals/{rejected}",
    "result": "/approvals/{voted}/result",
    "no page": "/nowhere",
}


async def found_by_axe(page):
    """What axe has to say, as lines."""
    if not await page.evaluate("'axe' in window"):
        await page.add_script_tag(path=node_packages() / "axe-core" / "axe.min.js")
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations', 'incomplete']})")
    assert len(found["passes"]) > 5
    unsure = [one for one in found["incomplete"] if one["id"] == "color-contrast"]
    return [
        f"{one['id']}: {node['target']} {node.get('failureSummary', '')}"
        for one in found["violations"] + unsure
        for node in one["nodes"]
        if not COVERED.search(node.get("failureSummary", ""))
    ]


@pytest.fixture
async def ids(bank):
    bob = Voter(user="bob", tenant="acme", roles=frozenset({"approver"}))
    made = {"critical": await bank.closing(), "refund": await bank.refund()}
    made["voted"], made["rejected"] = await bank.closing(), await bank.notice()
    await bank.runtime.approvals.decide(made["voted"], bob, "approve", comment="Yes.")
    await bank.runtime.approvals.decide(made["rejected"], bob, "reject", comment="No.")
    await bank.runtime.operator("root").kill(tool="refund", reason="An exercise.")
    return made


@pytest.mark.parametrize(("width", "scheme"), [(380, "dark"), (1600, "light")])
async def test_axe_finds_nothing_on_any_page(visitor, ids, scheme, width):
    looks = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
    page = await visitor("kim", bypass_csp=True, **looks)
    wrong = {}
    for name, path in PAGES.items():
        await page.goto(path.format(**ids))
        wrong[name] = await found_by_axe(page)
    await page.goto("/approvals")
    await page.locator("summary", has_text="kim").click()
    wrong["menu"] = await found_by_axe(page)
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    wrong["keys"] = await found_by_axe(page)
    await page.goto(PAGES["critical"].format(**ids))
    await page.get_by_label("To approve").fill("wrong")
    await page.get_by_role("button", name="Approve", exact=True).click()
    await page.get_by_role("alert").wait_for()
    wrong["refused"] = await found_by_axe(page)
    assert {name: lines for name, lines in wrong.items() if lines} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_at_the_door(visitor, bank, scheme):
    page = await visitor(bypass_csp=True, color_scheme=scheme)
    await page.goto("/sign-in?next=/approvals")
    assert await found_by_axe(page) == []
    await sign_in(page, "ann", "wrong horse battery")
    await page.get_by_role("alert").wait_for()
    assert await found_by_axe(page) == []
