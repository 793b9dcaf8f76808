"""The operator's list at a desk."""

import pytest

from counterseal.ledger.entry import Status
from counterseal.registry import Grant
from counterseal.testing import fake_tool
from counterseal.views import ACTIONS, NotAllowed, NotThere

EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
KEY = "call:stuck:u"


@pytest.fixture
async def stuck(office):
    """A call of which nobody knows whether it took effect."""
    tool = fake_tool(
        "stuck", TimeoutError(), effect="draft", on_unknown="escalate", input_schema=EMPTY
    )
    office.runtime.register(tool.tool, grants=[Grant(agent="agent", tool="stuck")])
    return await office.call("stuck", {}, key="u")


async def test_what_nobody_knows_is_listed_with_what_can_be_done(office, stuck):
    (row,) = (await office.desk().concerns()).items
    assert (row.kind, row.key, row.call_id) == ("unknown", KEY, stuck.call_id)
    assert row.actions == ACTIONS["unknown"]
    assert row.record()["actions"] == ["happened", "did_not_happen"]


async def test_a_person_says_that_it_happened_and_it_is_a_success_from_then_on(office, stuck):
    desk = office.desk("operator")
    await desk.act("unknown", KEY, "happened", reason="I looked.", data={"id": 7})
    assert (await desk.concerns()).items == []
    page = await desk.call(stuck.call_id)
    assert page.ledger["status"] == Status.COMPLETED
    assert (page.row.code, page.row.agent) == ("TIMEOUT", "agent"), "as the agent was told"
    assert page.observation["result_payload"]["data"] == {"id": 7}


async def test_a_person_says_that_it_did_not_and_the_key_is_free(office, stuck):
    await office.desk("operator").did_not_happen(KEY, reason="I looked.")
    kept = await office.runtime.store.look_up("acme", KEY)
    assert kept.entry.status is Status.FAILED_RETRYABLE


@pytest.mark.parametrize(
    "act",
    [
        lambda desk: desk.happened(KEY, reason="x"),
        lambda desk: desk.did_not_happen(KEY, reason="x"),
        lambda desk: desk.compensate(KEY, reason="x"),
        lambda desk: desk.again("verify", KEY, reason="x"),
        lambda desk: desk.dismiss("verify", KEY, reason="x"),
        lambda desk: desk.act("unknown", KEY, "happened", reason="x"),
    ],
)
async def test_only_operators_do_anything_about_it(office, stuck, act):
    with pytest.raises(NotAllowed, match="operator"):
        await act(office.desk("viewer", "approver"))
    assert len((await office.desk().concerns()).items) == 1


async def test_work_that_failed_is_tried_again_or_dismissed(office):
    for key in ("a", "b", "c"):
        await office.fail(key)
    desk = office.desk("operator")
    first = await desk.concerns(limit=2)
    rest = await desk.concerns(limit=2, cursor=first.next)
    assert [row.key for row in (*first.items, *rest.items)] == ["a", "b", "c"]
    await desk.again("verify", "a", reason="It was slow.")
    await desk.dismiss("verify", "b", reason="Never mind.")
    assert [row.key for row in (await desk.concerns()).items] == ["c"]
    with pytest.raises(NotThere):
        await desk.dismiss("verify", "b", reason="Never mind.")


@pytest.mark.parametrize(
    ("kind", "key", "action"),
    [
        ("unknown", KEY, "dismiss"),
        ("nonsense", KEY, "again"),
        ("verify", "a\0b", "again"),
        ("verify", "x" * 2000, "dismiss"),
        ("unknown", "", "happened"),
        ("unknown", "\ud800", "happened"),
    ],
)
async def test_what_is_not_on_the_list_is_not_there(office, stuck, kind, key, action):
    with pytest.raises(NotThere):
        await office.desk("operator").act(kind, key, action, reason="x")
