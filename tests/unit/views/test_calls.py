"""Calls at a view: which there were, and one call's whole story."""

import asyncio

import pytest

from counterseal import Grant
from counterseal.reconcile import Reconciler
from counterseal.testing import HANG, fake_tool
from counterseal.views.base import NotFoundError
from counterseal.views.calls import CallSearch
from tests.unit.views.conftest import NUMBER, OUTPUT
from tests.waiting import until


async def test_a_row_says_what_became_of_a_call(office):
    await office.call("look")
    await office.call("save", {"n": "x"})
    await office.call("send")
    rows = (await office.view().calls.search()).items
    assert [(row.tool, row.code, row.gate) for row in rows] == [
        ("send", "CONFIRMATION_MISSING", None),
        ("save", "TYPE_MISMATCH", "schema"),
        ("look", "SUCCESS", None),
    ]
    assert rows[0].approval_id is not None


async def test_pages_follow_one_another_and_searches_narrow(office):
    for n in range(5):
        await office.call("look", {"n": n})
    await office.call("nothing")
    view = office.view()
    first = await view.calls.search(CallSearch(tool="look", limit=3))
    rest = await view.calls.search(CallSearch(tool="look", limit=3, cursor=first.next))
    assert (len(first.items), len(rest.items), rest.next) == (3, 2, None)
    assert not {row.call_id for row in first.items} & {row.call_id for row in rest.items}
    refused = await view.calls.search(CallSearch(code="STRUCTURAL_VIOLATION"))
    assert [row.tool for row in refused.items] == ["nothing"]


@pytest.mark.parametrize("cursor", ["", "x", "e30", "W10", "WzFd", "WyJ4Il0", "é", "A" * 5000])
async def test_a_made_up_cursor_is_named_and_leads_nowhere(office, cursor):
    with pytest.raises(ValueError, match="cursor"):
        await office.view().calls.search(CallSearch(cursor=cursor))


@pytest.mark.parametrize(
    "search",
    [{"code": "NO_SUCH"}, {"since": float("nan")}, {"until": float("inf")}, {"since": 1e300}],
)
async def test_what_no_search_can_be_made_of_names_the_field(office, search):
    with pytest.raises(ValueError, match=next(iter(search))):
        await office.view().calls.search(CallSearch(**search))


@pytest.mark.parametrize("value", ["a\0b", "\ud800", "x" * 5000, ""])
async def test_what_no_store_can_hold_is_simply_not_found(office, value):
    view = office.view()
    assert (await view.calls.search(CallSearch(tool=value))).items == []
    with pytest.raises(NotFoundError):
        await view.calls.page(value)


async def test_a_search_is_a_url_and_back(office):
    search = CallSearch(tool="look", code="SUCCESS", since=0.0, limit=10)
    assert search.query() == {
        "tool": "look",
        "code": "SUCCESS",
        "since": "1970-01-01T00:00:00+00:00",
        "limit": "10",
    }
    assert CallSearch().query() == {}


async def test_the_gates_are_told_with_verdicts_and_microseconds(office):
    seen = await office.call("save")
    page = await office.view().calls.page(seen.call_id)
    names = ["parse", "schema", "scope", "semantics", "policy", "state", "approval", "budget"]
    assert [gate.gate for gate in page.gates] == names
    assert {gate.verdict for gate in page.gates} == {"allow"}
    took = {gate.gate: gate.microseconds for gate in page.gates}
    assert min(took[one] for one in ("parse", "schema", "scope", "policy", "budget")) > 0
    assert min(took.values()) >= 0  # what has nothing to look at takes no time


async def test_the_gate_that_refused_says_why_and_those_behind_it_were_not_asked(office):
    seen = await office.call("save", {"n": "x"})
    page = await office.view().calls.page(seen.call_id)
    told = {gate.gate: gate for gate in page.gates}
    assert (told["schema"].verdict, told["schema"].code) == ("deny", "TYPE_MISMATCH")
    assert told["schema"].reason
    assert told["budget"].verdict is told["budget"].microseconds is None
    assert (page.observation, page.text) == (None, None)
    assert "refus" in page.not_kept


async def test_a_change_shows_the_ledger_and_what_the_model_got(office):
    seen = await office.call("save", key="k")
    page = await office.view().calls.page(seen.call_id)
    assert page.ledger.status == "COMPLETED"
    assert page.ledger.key == "call:save:k"
    assert page.observation.result_payload.data == {"ok": True}
    assert "decisions" not in page.observation
    assert page.text == seen.for_model()
    assert [(one.number, one.code) for one in page.attempts] == [(1, "SUCCESS")]
    assert page.trace_id == seen.trace_id
    assert page.not_kept == ""


async def test_a_replay_is_a_row_of_its_own_that_leads_to_what_the_first_call_did(office):
    first = await office.call("save", key="k")
    assert (await office.call("save", key="k")).idempotency_hit
    again, original = (await office.view().calls.search()).items
    assert (again.replayed, original.replayed) == (True, False)
    page = await office.view().calls.page(again.call_id)
    assert page.ledger.call_id == first.call_id != again.call_id
    assert page.text == first.for_model()


async def test_a_replayed_call_has_come_to_its_end_and_tells_of_the_first_calls_verification(
    office,
):
    record = fake_tool(
        "record",
        {"ok": True},
        effect="internal_mutation",
        input_schema=NUMBER,
        output_schema=OUTPUT,
        probe=lambda n: {"ok": True},
        expected={"ok": True},
    )
    office.runtime.register(record.tool, grants=[Grant(agent="agent", tool="record")])
    first = await office.call("record", key="k")
    again = await office.call("record", key="k")
    assert again.idempotency_hit
    view = office.view()
    (row,) = [row for row in (await view.calls.search()).items if row.replayed]
    assert (await view.calls.page(row.call_id)).in_progress, "the verification is due"
    assert (await Reconciler(office.runtime).once())["verified"] == 1
    for call_id in (first.call_id, row.call_id):
        page = await view.calls.page(call_id)
        assert (page.verification.state, page.in_progress) == ("verified", False)


async def test_a_call_that_only_its_caller_can_verify_has_come_to_its_end(office):
    office.runtime.register(
        fake_tool("tell", effect="internal_mutation", input_schema=NUMBER).tool,
        grants=[Grant(agent="agent", tool="tell")],
    )
    seen = await office.call("tell")
    page = await office.view().calls.page(seen.call_id)
    assert (page.verification.state, page.in_progress) == ("required", False)


async def test_a_call_in_progress_shows_the_decisions_of_its_gates(office):
    slow = fake_tool("slow", HANG, effect="draft", input_schema=NUMBER, output_schema=OUTPUT)
    office.runtime.register(slow.tool, grants=[Grant(agent="agent", tool="slow")])
    call = asyncio.ensure_future(office.call("slow"))
    await until(lambda: slow.calls)
    _, event = (await office.runtime.store.events("acme"))[0]
    page = await office.view().calls.page(event.caller.call_id)
    assert page.in_progress
    assert {gate.verdict for gate in page.gates} == {"allow"}
    call.cancel()
    await asyncio.wait({call})


async def test_what_was_held_shows_its_request_and_its_votes(office):
    seen = await office.call("send")
    view = office.view("approver", name="bea")
    await view.approvals.decide(seen.approval_id, "reject", comment="No.")
    page = await view.calls.page(seen.call_id)
    assert page.approval.status == "rejected"
    assert [(vote.approver, vote.decision) for vote in page.votes] == [("bea", "reject")]


async def test_every_page_is_plain_json(office):
    import json

    seen = await office.call("save")
    page = (await office.view().calls.page(seen.call_id)).model_dump(mode="json")
    assert json.loads(json.dumps(page)) == page
    assert seen.call_id in page["copy_as"]["cli"]
    assert page["copy_as"]["curl"].endswith(f"/v1/calls/{seen.call_id}'")


async def test_copied_commands_name_the_unique_id_not_what_a_caller_wrote(office):
    wicked = "x'; rm -rf ~ #"
    seen = await office.call("look", call_id=wicked)
    page = await office.view().calls.page(wicked)
    assert page.copy_as.cli.endswith(f"show {seen.call_id} --tenant acme")
    assert ";" not in page.copy_as.curl


async def test_an_observation_is_found_by_call_by_ledger_key_and_by_the_callers_own(office):
    seen = await office.call("save", key="k")
    view = office.view()
    by_call = await view.calls.observation(call_id=seen.call_id)
    assert by_call == await view.calls.observation(key="call:save:k")
    assert by_call == await view.calls.observation(key="k", tool="save")
    assert by_call["text"] == seen.for_model()
    for missing in ({"call_id": "call_x"}, {"key": "k"}, {"key": "a\0"}, {}):
        with pytest.raises(NotFoundError):
            await view.calls.observation(**missing)


async def test_a_run_shows_what_it_spent_and_its_calls(office):
    await office.call("save")
    page = await office.view().runs.page("run_1")
    assert [row.tool for row in page.calls.items] == ["save"]
    assert page.pins == {"save": "1.0.0"}
    spent = {row.name: row.spent for row in page.budgets}
    assert spent["tool/save"] == 1
    assert page.model_dump(mode="json")["run_id"] == "run_1"
