"""The operator's list at a view."""

import pytest

from counterseal.ledger.entry import EntryStatus
from counterseal.registry import Grant
from counterseal.testing import fake_tool
from counterseal.views.attention import ACTIONS
from counterseal.views.base import NotFoundError, RoleRequiredError

EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
KEY = "call:stuck:u"


@pytest.fixture
async def stuck(office):
    """A call with an unknown outcome."""
    tool = fake_tool(
        "stuck", TimeoutError(), effect="draft", on_unknown="escalate", input_schema=EMPTY
    )
    office.runtime.register(tool.tool, grants=[Grant(agent="agent", tool="stuck")])
    return await office.call("stuck", {}, key="u")


async def test_an_unknown_outcome_is_listed_with_the_possible_actions(office, stuck):
    (row,) = (await office.view().attention.rows()).items
    assert (row.kind, row.key, row.call_id) == ("unknown", KEY, stuck.call_id)
    assert row.actions == list(ACTIONS["unknown"])
    assert row.model_dump(mode="json")["actions"] == ["happened", "did_not_happen"]


async def test_a_person_says_that_it_happened_and_it_is_a_success_from_then_on(office, stuck):
    view = office.view("operator")
    await view.attention.act("unknown", KEY, "happened", reason="I looked.", data={"id": 7})
    assert (await view.attention.rows()).items == []
    page = await view.calls.page(stuck.call_id)
    assert page.ledger.status == EntryStatus.COMPLETED
    assert (page.call.code, page.call.agent) == ("TIMEOUT", "agent"), "as the agent was told"
    assert page.observation.result_payload.data == {"id": 7}


async def test_a_person_says_that_it_did_not_and_the_key_is_free(office, stuck):
    await office.view("operator").attention.act(
        "unknown", KEY, "did_not_happen", reason="I looked."
    )
    kept = await office.runtime.store.look_up("acme", KEY)
    assert kept.entry.status is EntryStatus.FAILED_RETRYABLE


@pytest.mark.parametrize(
    "act",
    [
        lambda view: view.attention.act("unknown", KEY, "happened", reason="x"),
        lambda view: view.attention.act("unknown", KEY, "did_not_happen", reason="x"),
        lambda view: view.attention.act("verify", KEY, "compensate", reason="x"),
        lambda view: view.attention.act("verify", KEY, "again", reason="x"),
        lambda view: view.attention.act("verify", KEY, "dismiss", reason="x"),
    ],
)
async def test_only_operators_do_anything_about_it(office, stuck, act):
    with pytest.raises(RoleRequiredError, match="operator"):
        await act(office.view("viewer", "approver"))
    assert len((await office.view().attention.rows()).items) == 1


async def test_work_that_failed_is_tried_again_or_dismissed(office):
    for key in ("a", "b", "c"):
        await office.fail(key)
    view = office.view("operator")
    first = await view.attention.rows(limit=2)
    rest = await view.attention.rows(limit=2, cursor=first.next)
    assert [row.key for row in (*first.items, *rest.items)] == ["a", "b", "c"]
    await view.attention.act("verify", "a", "again", reason="It was slow.")
    await view.attention.act("verify", "b", "dismiss", reason="Never mind.")
    assert [row.key for row in (await view.attention.rows()).items] == ["c"]
    with pytest.raises(NotFoundError):
        await view.attention.act("verify", "b", "dismiss", reason="Never mind.")


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
    with pytest.raises(NotFoundError):
        await office.view("operator").attention.act(kind, key, action, reason="x")
