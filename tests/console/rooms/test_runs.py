"""What the pages about runs show, and how a call that goes on is followed, over HTTP."""

import re
from html import unescape

from counterseal import Grant
from counterseal.testing import fake_tool
from tests.console.conftest import client_of
from tests.console.rooms.test_looking import rows_of, said


async def test_a_run_shows_what_it_spent_and_its_calls(works, root):
    for _ in range(2):
        await works.call("read_gauge", {"gauge": "g"}, run="run_z")
    page = await root.get("/runs/run_z")
    assert "Calls of read_gauge 2 1,000" in said(page)
    assert len(rows_of(page)) == 2


async def test_a_run_shows_the_limits_of_its_agents_grants(works, root):
    tools = [fake_tool(name, {}, effect="draft") for name in ("twice", "never", "own", "lost")]
    limits = {"twice": 2, "never": 0, "own": None, "lost": 3}
    grants = [
        Grant(agent="shift-bot", tool=name, max_calls_per_run=limit)
        for name, limit in limits.items()
    ]
    works.runtime.register(*(one.tool for one in tools), grants=grants)
    for name in limits:
        await works.call(name, {}, run="run_g")
    works.runtime.registry.revoke(grants[-1])
    page = said(await root.get("/runs/run_g"))
    assert "Calls of twice 1 2" in page
    assert "Calls of own 1 20" in page, "the contract's own"
    assert "no limit" not in page
    assert "Calls of lost 1 no grant" in page
    hint = "Nothing is granted. An operator can raise max_calls_per_run of the agent's grant for"
    assert f"Calls of never {hint} never. 0 none granted" in page
    await works.call("twice", {"again": 1}, run="run_g")
    assert "Calls of twice 1 2" in said(await root.get("/runs/run_g"))


async def test_runs_are_listed_once_each_with_their_latest_call(works, root):
    for run in ("run_a", "run_b", "run_a"):
        await works.call("read_gauge", {"gauge": "g"}, run=run)
    await works.call("read_gauge", {"gauge": 7}, run="run_c", agent="stranger")
    page = await root.get("/runs")
    assert rows_of(page) == ["run_c", "run_a", "run_b"]
    assert re.search(r"run_c .* TYPE_MISMATCH stranger .* run_a .* SUCCESS shift-bot", said(page))
    assert rows_of(await root.get("/runs?agent=shift-bot")) == ["run_a", "run_b"]
    assert "No run matches." in said(await root.get("/runs?agent=nobody"))
    async with client_of(works, "zed") as zed:
        assert rows_of(await zed.get("/runs")) == []


async def test_older_runs_are_on_further_pages(works, root):
    for number in range(52):
        await works.call("read_gauge", {"gauge": "g"}, run=f"run_{number}")
    page = await root.get("/runs?agent=shift-bot")
    more = unescape(re.search(r'href="([^"]+)" rel="next"', page.text)[1])
    assert more.startswith("/runs?agent=shift-bot&cursor=")
    rest = await root.get(more)
    assert rows_of(rest) == ["run_1", "run_0"]
    assert len(rows_of(page)) == 50


async def test_a_run_shows_what_its_tools_have_left_in_it(works, root):
    keeper = fake_tool(
        "keep",
        {"level": {"bar": "<b>4.2</b>"}},
        effect="retrieve",
        state_effects=[{"key": "level"}],
    )
    works.runtime.register(keeper.tool, grants=[Grant(agent="shift-bot", tool="keep")])
    await works.call("keep", {}, run="run_k")
    text = said(await root.get("/runs/run_k"))
    assert "level changed once untrusted" in text
    assert '{ "bar" : "<b>4.2</b>" }' in text
    await works.call("read_gauge", {"gauge": "g"}, run="run_l")
    assert "Empty." in said(await root.get("/runs/run_l"))


async def test_a_call_that_goes_on_is_followed_until_it_is_over(works, root):
    held = await works.call("open_valve", {"valve": "v-7"})
    stuck = await works.stuck()
    done = await works.call("write_note", {"note": "n"})
    for seen, follows in ((held, True), (stuck, True), (done, False)):
        page = await root.get(f"/calls/{seen.call_id}")
        assert ('data-live="record approvals"' in page.text) == follows
        assert ("reload it" in said(page)) == follows
    await works.view().approvals.decide(held.approval_id, "reject")
    assert "data-live-key" not in (await root.get(f"/calls/{held.call_id}")).text
