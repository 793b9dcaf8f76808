"""What agents, tools and people can make a page say stays text, on every page it gets to."""

from html.parser import HTMLParser

import pytest
from playwright.async_api import expect

from counterseal import Grant
from counterseal.operations.approver import Voter
from counterseal.testing import fake_tool
from tests.console.plant import HELD, Held, definition
from tests.console.test_sign_in import sent

BAIT = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>\'>{{ 7 * 7 }}\u202e'
PLAIN = BAIT.replace("\u202e", "")
"""As a contract can say it: what nobody sees is refused there."""
NAME = "<img src=x onerror=window.hit=1>"


class Seen(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.names, self.leads = set(), set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.leads |= {value for name, value in attrs if name in ("href", "src", "action")}


@pytest.fixture
async def paths(works):
    """Bait everywhere, and the pages that it gets to."""
    runtime = works.runtime
    takes = {name: {"type": "string", "description": PLAIN} for name in ("t", NAME)}
    schema = {"type": "object", "properties": takes, "additionalProperties": False}
    words = {"model_description": PLAIN, "allowed_use_cases": [PLAIN], "input_schema": schema}
    echo = fake_tool("echo", {"said": BAIT}, effect="draft", usage=PLAIN, affordance=words)
    runtime.register(echo.tool, grants=[Grant(agent=NAME, tool="echo", max_calls_per_run=99)])
    bait = {"agent": NAME, "run": NAME}
    told = await works.call("echo", {"t": BAIT}, call_id=NAME, **bait)
    assert told.ok, told
    refused = await works.call("read_gauge", {NAME: BAIT}, **bait)
    held = await works.call("open_valve", {"valve": BAIT}, run=NAME)
    voter = Voter(user="bob", tenant="acme", roles=frozenset({"approver"}))
    await runtime.approvals.decide(held.approval_id, voter, "approve", comment=BAIT)
    await works.stuck(BAIT, run=NAME, key=NAME)
    await works.fail(NAME, why=BAIT)
    operator = runtime.operator(NAME)
    await operator.kill(tool="order_part", reason=BAIT)
    await operator.disable("write_note", reason=BAIT)
    await operator.enable("write_note", reason=BAIT)
    await operator.grant(Grant(agent=NAME, tool="write_note", tenant="acme"), reason=BAIT)
    works.kept.held = [Held(definition(BAIT), definition(f"{BAIT} {NAME}", [NAME]), why=BAIT)]
    quoted = "%3Cimg%20src%3Dx%20onerror%3Dwindow.hit%3D1%3E"
    return [
        "/calls",
        f"/calls?agent={quoted}&run={quoted}&user={quoted}",
        f"/calls/{quoted}",
        f"/calls/{refused.call_id}",
        f"/calls/{held.call_id}",
        f"/runs/{quoted}",
        f"/tools?text={quoted}",
        "/tools",
        "/tools/echo",
        "/tools/write_note",
        f"/tools/{HELD}",
        "/kill",
        "/kill?tool=echo",
        "/operator",
        "/overview",
        "/audit",
        "/audit/events",
        f"/audit/events?tool={quoted}&call={quoted}&run={quoted}",
    ]


async def test_what_others_say_is_text_on_every_page(works, root, paths):
    for path in paths:
        page = (await root.get(path)).text
        assert "<img src=x" not in page, path
        assert "<script>" not in page, path
        assert "\u202e" not in page, path
        seen = Seen()
        seen.feed(page)
        assert not {"style", "iframe", "object", "embed", "base"} & seen.tags, path
        assert not [name for name in seen.names if name == "style" or name.startswith("on")], path
        assert all(one.startswith(("/", "#")) for one in seen.leads), path
        if path != "/tools":
            assert "&lt;img src=x onerror" in page or path in ("/overview", "/audit"), path
    assert "{{ 7 * 7 }}" in (await root.get("/tools/echo")).text
    assert "[U+202E]" in (await root.get("/kill")).text


async def test_what_was_written_into_a_form_comes_back_as_text(works, root):
    forms = {
        "/kill": {"tool": "read_gauge", "reason": f"{BAIT}\0"},
        "/tools/read_gauge/grant": {"agent": NAME, "version": BAIT, "reason": BAIT},
        "/tools/read_gauge/use": {"action": "disable", "reason": f"{BAIT}\0"},
        "/operator": {"kind": "unknown", "key": "k", "action": "happened", "data": BAIT},
    }
    for path, fields in forms.items():
        answer = await sent(root, path, **fields)
        assert answer.status_code == 422, path
        assert "<img src=x" not in answer.text
        assert "<script>" not in answer.text


@pytest.mark.slow
async def test_nothing_of_it_runs_in_a_browser(works, visitor, paths):
    page = await visitor("root")
    for path in paths:
        await page.goto(path)
        await expect(page.locator("main h1")).to_be_visible()
        assert await page.evaluate("window.hit") is None, path
        assert await page.locator("main img, main script, main style").count() == 0, path
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, path
