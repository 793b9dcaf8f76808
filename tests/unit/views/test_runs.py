"""Runs at a view: which there were, and what one holds."""

import pytest

from counterseal.ledger.records import Budgets
from counterseal.registry import Grant
from counterseal.testing import fake_tool, someone


async def names(view, **asked):
    """All runs, two at a time."""
    found, cursor = [], None
    while True:
        page = await view.runs.search(limit=2, cursor=cursor, **asked)
        found += [row.run_id for row in page.items]
        cursor = page.next
        if cursor is None:
            return found


async def test_each_run_is_listed_once_where_its_latest_call_is(office):
    for run in ("a", "b", "c", "a", "d", "b", "e"):
        await office.call("look", run_id=f"run_{run}")
    await office.call("look", {"n": "x"}, run_id="run_c")
    assert await names(office.view()) == ["run_c", "run_e", "run_b", "run_d", "run_a"]
    first = (await office.view().runs.search()).items[0]
    assert (first.latest.code, first.latest.tool) == ("TYPE_MISMATCH", "look")
    assert first.started_at is not None


async def test_a_busy_run_hides_no_other(office):
    await office.call("look", run_id="quiet")
    for n in range(105):  # more than are read at once
        await office.call("nothing", {"n": n}, run_id="busy")
    await office.call("look", run_id="last")
    assert await names(office.view()) == ["last", "busy", "quiet"]


async def test_runs_are_narrowed_to_an_agent_and_stand_where_its_own_calls_do(office):
    office.runtime.registry.grant(Grant(agent="other", tool="look"))
    await office.call("look", run_id="shared", agent="other")
    await office.call("look", run_id="own")
    await office.call("look", run_id="shared")
    assert await names(office.view(), agent="agent") == ["shared", "own"]
    (row,) = (await office.view().runs.search(agent="other")).items
    assert (row.run_id, row.latest.agent) == ("shared", "other")
    assert (await office.view().runs.search(agent="nobody")).items == []
    assert (await office.view().runs.search(user="a\0b")).items == []


@pytest.mark.parametrize("cursor", ["x", "WzFd", "WyJ4Il0"])
async def test_a_made_up_cursor_leads_nowhere(office, cursor):
    with pytest.raises(ValueError, match="cursor"):
        await office.view().runs.search(cursor=cursor)


async def test_a_run_shows_what_its_tools_left_and_where_from_without_what_was_redacted(office):
    finder = fake_tool(
        "find",
        {"mail": "ann.lee@example.org", "note": "seen"},
        effect="retrieve",
        redact=["/mail"],
        state_effects=[{"key": "finding"}],
    )
    counter = fake_tool("count", {"count": 7}, effect="compute", state_effects=[{"key": "count"}])
    for one in (finder, counter):
        grant = Grant(agent="agent", tool=one.contract.name, max_calls_per_run=9)
        office.runtime.register(one.tool, grants=[grant])
    for name in ("find", "count", "count"):
        assert (await office.call(name, {}, operation_id=f"{name} once more")).ok
    count, finding = (await office.view().runs.page("run_1")).state
    assert (count.key, count.value, count.changed, count.untrusted) == ("count", 7, 2, False)
    assert (finding.key, finding.changed, finding.untrusted) == ("finding", 1, True)
    assert finding.value == {"mail": "[redacted:contract]", "note": "seen"}
    assert (await office.view().runs.page("run_1")).model_dump(mode="json")["state"][0][
        "value"
    ] == 7


async def test_budgets_of_a_run_have_the_limits_that_apply(office):
    runtime = office.runtime
    budgets = Budgets(writes=3, seconds=600, by_effect={"irreversible": 1})
    await runtime.run(someone("agent", "acme"), "run_b", budgets=budgets)
    erase = fake_tool("erase", effect="irreversible")
    runtime.register(erase.tool, grants=[Grant(agent="agent", tool="erase")])
    await office.call("save", run_id="run_b")
    await office.call("erase", {}, run_id="run_b")
    rows = {row.name: row for row in await office.view().runs.budgets("run_b")}
    assert (rows["writes"].spent, rows["writes"].limit) == (1, 3)
    assert rows["writes"].limit_from == "`writes` of the run's budgets"
    assert rows["effect.irreversible"].limit_from == "`by_effect.irreversible` of the run's budgets"
    assert 0 <= rows["seconds"].spent <= rows["seconds"].limit == 600
    assert (rows["tool/save"].spent, rows["tool/save"].limit) == (1, 9), "its grant's"
    assert (rows["tool/erase"].spent, rows["tool/erase"].limit) == (0, 0), "never granted"
    assert rows["tool/erase"].limit_from == "`max_calls_per_run` of the agent's grant for erase"


async def test_a_tool_whose_grant_is_gone_has_no_limit_to_show(office):
    await office.call("save", run_id="run_b")
    for grant in office.runtime.registry.grants_of("agent", "save"):
        office.runtime.registry.revoke(grant)
    rows = {row.name: row for row in await office.view().runs.budgets("run_b")}
    assert (rows["tool/save"].limit, rows["tool/save"].limit_from) == (None, None)
