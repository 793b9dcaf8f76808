"""Every page of the other rooms, in light and in dark, as axe-core sees it."""

import pytest

from tests.console.plant import HELD
from tests.console.test_accessibility import found_by_axe

pytestmark = pytest.mark.slow

PAGES = {
    "calls": "/calls",
    "no call": "/calls?tool=nothing",
    "call": "/calls/{noted}",
    "refused call": "/calls/{refused}",
    "held call": "/calls/{held}",
    "unknown call": "/calls/{stuck}",
    "behind a number": "/calls?metric=validation_failure_rate",
    "runs": "/runs",
    "run": "/runs/run_1",
    "tools": "/tools",
    "tool": "/tools/write_note",
    "rollout": "/tools/write_note/rollout?version=1.0.0&percentage=5",
    "quarantine": f"/tools/{HELD}",
    "kill": "/kill?scope=everything",
    "needs attention": "/operator",
    "overview": "/overview",
    "audit": "/audit",
    "events": "/audit/events",
}


@pytest.fixture
async def ids(works):
    made = {
        "noted": await works.call("write_note", {"note": "n"}),
        "refused": await works.call("read_gauge", {"gauge": 7}),
        "held": await works.call("open_valve", {"valve": "v"}),
        "stuck": await works.stuck(),
    }
    await works.fail("f")
    works.clock.now += 60
    await works.runtime.operator("root").kill(tool="open_valve", reason="An exercise.")
    return {name: seen.call_id for name, seen in made.items()}


async def test_axe_finds_nothing_on_any_page(visitor, ids):
    page = await visitor("root", bypass_csp=True)
    wrong = {}
    for name, path in PAGES.items():
        await page.goto(path.format(**ids))
        await page.evaluate("document.querySelectorAll('main details').forEach(d => d.open = true)")
        wrong[name] = await found_by_axe(page)
    await page.goto("/audit")
    await page.get_by_role("button", name="Verify the record").click()
    await page.get_by_text("are unchanged.").wait_for()
    wrong["checked"] = await found_by_axe(page)
    assert {name: lines for name, lines in wrong.items() if lines} == {}
