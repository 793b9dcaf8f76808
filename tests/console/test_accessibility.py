"""Every page, in light and in dark, as axe-core sees it. Its script is let past the policy here."""

import re

import pytest

from counterseal.operations.approver import Voter
from tests.console.conftest import sign_in
from tests.console.test_evaluation_page import recorded
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
    "evaluation": "/evaluation",
    "what if": "/what-if",
    "no page": "/nowhere",
}


BY_LOOK = ["color-contrast", "link-in-text-block", "target-size", "scrollable-region-focusable"]
"""Rules whose result depends on colours and sizes; all others read the document alone."""


async def found_by_axe(page):
    """Return the violations that axe finds, as lines: on a dark phone, and on a light wide screen.

    Rules that read the document alone are checked once.
    """
    if not await page.evaluate("'axe' in window"):
        await page.add_script_tag(path=node_packages() / "axe-core" / "axe.min.js")
    lines = []
    for width, scheme, rules in ((380, "dark", None), (1600, "light", BY_LOOK)):
        await page.set_viewport_size({"width": width, "height": 900})
        await page.emulate_media(color_scheme=scheme)
        options = {"resultTypes": ["violations", "incomplete"]}
        if rules is not None:
            options["runOnly"] = {"type": "rule", "values": rules}
        found = await page.evaluate("options => axe.run(document, options)", options)
        assert len(found["passes"]) > (5 if rules is None else 0)
        unsure = [one for one in found["incomplete"] if one["id"] == "color-contrast"]
        lines += [
            f"{scheme}: {one['id']}: {node['target']} {node.get('failureSummary', '')}"
            for one in found["violations"] + unsure
            for node in one["nodes"]
            if not COVERED.search(node.get("failureSummary", ""))
        ]
    return lines


@pytest.fixture
async def ids(bank, tmp_path):
    bob = Voter(user="bob", tenant="acme", roles=frozenset({"approver"}))
    made = {"critical": await bank.closing(), "refund": await bank.refund()}
    made["voted"], made["rejected"] = await bank.closing(), await bank.notice()
    await bank.runtime.approvals.decide(made["voted"], bob, "approve", comment="Yes.")
    await bank.runtime.approvals.decide(made["rejected"], bob, "reject", comment="No.")
    await recorded(bank, tmp_path)
    await bank.runtime.operator("root").kill(tool="refund", reason="An exercise.")
    return made


async def test_axe_finds_nothing_on_any_page(visitor, ids):
    page = await visitor("kim", bypass_csp=True)
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


async def test_axe_finds_nothing_on_the_page_to_sign_in(visitor, bank):
    page = await visitor(bypass_csp=True)
    await page.goto("/sign-in?next=/approvals")
    assert await found_by_axe(page) == []
    await sign_in(page, "ann", "wrong horse battery")
    await page.get_by_role("alert").wait_for()
    assert await found_by_axe(page) == []
