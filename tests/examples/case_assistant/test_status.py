"""update_case_status: step by step, in the version that was read, verified, and reversible."""

import asyncio

import pytest

from counterseal import ApprovalError, NeedsAttention, Proposal
from counterseal.ledger.entry import derive_key
from tests import waiting
from tests.examples.case_assistant.office import (
    EAST,
    NORTH,
    OFFICER,
    SUPERVISOR,
    TOOLS,
    Office,
    agent,
    example,
    stopped,
    until,
)


async def history(office, case_id):
    found = office.rows("SELECT * FROM status_history WHERE case_id = ? ORDER BY version", case_id)
    return [(row["previous"], row["status"], row["version"]) for row in found]


async def test_a_case_moves_on_and_its_history_with_it(office):
    seen = await office.move("case_100001", "under_review", who="intake-agent")
    assert seen.data == {
        "case_id": "case_100001",
        "previous_status": "open",
        "status": "under_review",
        "version": 2,
    }
    assert office.case("case_100001")["version"] == 2
    assert await history(office, "case_100001") == [("open", "under_review", 2)]


async def test_the_same_change_again_is_made_once(office):
    first = await office.move("case_100002", "under_review", version=1)
    again = await office.move("case_100002", "under_review", version=1)
    assert (again.data, again.idempotency_hit) == (first.data, True)
    assert len(await history(office, "case_100002")) == 1


async def test_a_version_that_is_gone_is_refused_read_again_and_then_taken(office):
    read = {"case_id": "case_100003", "run": "run_seen"}
    await office.call("notice-agent", "get_case_summary", **read)
    office.change("case_100003", "awaiting_reply")
    stale = await office.move("case_100003", "decided", version=1, run="run_seen")
    assert (stale.code, stale.next_action) == ("STALE_STATE", "refresh_state_and_replan")
    again = await office.call("notice-agent", "get_case_summary", **read)
    assert again.data["version"] == 2
    assert (await office.move("case_100003", "decided", version=2, run="run_seen")).ok


async def test_a_version_that_was_never_read_is_refused_without_an_approval_request(office):
    office.change("case_100004", "decided")
    for status in ("under_review", "closed"):
        for version in (1, 7):
            seen = await office.move("case_100004", status, version=version)
            assert stopped(seen) == ("STALE_STATE", "state", None)
            assert seen.approval_id is None
    assert await history(office, "case_100004") == [("under_review", "decided", 2)]


async def test_the_office_itself_would_not_change_another_version(office):
    """The last line, should the gate before it be gone."""
    rows = example.casework.Office(office.database, NORTH)
    with pytest.raises(example.rows.StaleError) as refused:
        rows.change_status(
            example.rows.By("x", "k"), "case_100015", "under_review", expected_version=3, reason="."
        )
    assert refused.value.words == "The case is at version 1, not 3. Read it again."
    assert await history(office, "case_100015") == []


@pytest.mark.parametrize("status", ["awaiting_reply", "decided", "closed", "open"])
async def test_no_step_is_left_out(office, status):
    """Nobody is asked about a change that can't be made."""
    seen = await office.move("case_100005", status)
    assert stopped(seen) == ("SEMANTIC_INVALIDITY", "state", "STEP_BY_STEP")
    assert seen.approval_id is None
    assert await history(office, "case_100005") == []


async def test_intake_takes_a_case_in_and_no_further(office):
    for case_id, status in (("case_100006", "closed"), ("case_100009", "decided")):
        seen = await office.move(case_id, status, who="intake-agent")
        assert stopped(seen) == ("POLICY_VIOLATION", "policy", "office.intake-takes-in")
        assert await history(office, case_id) == []


async def test_an_unknown_case_is_not_changed(office):
    for case_id in ("case_999999", "case_200001"):
        seen = await office.move(case_id, "under_review", version=1)
        assert stopped(seen) == ("STALE_STATE", "state", None)
    assert office.case("case_200001")["status"] == "open"


async def test_several_at_once_under_one_version_make_one_change(office):
    """Each in a run of its own and to another status, so that only the version keeps them apart."""
    wanted = ["awaiting_reply", "decided"] * 3
    moves = [office.move("case_100017", status, version=1) for status in wanted]
    seen = await asyncio.gather(*moves)
    assert len(await history(office, "case_100017")) == 1
    done = {one.data["status"] for one in seen if one.ok}
    assert done == {office.case("case_100017")["status"]}


async def test_a_change_that_timed_out_is_made_once(office):
    with office.locked():
        seen = await office.move("case_100007", "under_review", version=1, seconds=0.8)
        assert (seen.code, seen.next_action) == ("TIMEOUT", "retry_same_key")

    async def again():
        return await office.move("case_100007", "under_review", version=1)

    assert (await until(lambda seen: seen.ok, again)).data["version"] == 2
    assert await history(office, "case_100007") == [("open", "under_review", 2)]


# --- closing needs a person -----------------------------------------------------------------------


async def test_closing_waits_for_a_supervisor_and_for_no_other_role(office):
    held = await office.move("case_100008", "closed")
    assert (held.code, held.next_action) == ("CONFIRMATION_MISSING", "await_approval")
    packet = await office.runtime.approvals.get(NORTH, held.approval_id)
    assert packet.demand.rule == "office.closing-asks"
    assert packet.consequence.startswith(
        'Case case_100008 of "Cape Relay Electric", now decided, becomes closed: '
    )
    assert packet.record()["changes"][0] == {
        "pointer": "/status",
        "before": "decided",
        "after": "closed",
    }
    with pytest.raises(ApprovalError) as refused:
        await office.approve(held, OFFICER)
    assert refused.value.why == "role"
    assert office.case("case_100008")["status"] == "decided"
    await office.approve(held, SUPERVISOR)
    assert (await office.reconcile())["executed"] == 1
    assert office.case("case_100008")["status"] == "closed"


async def test_an_approval_is_void_once_the_case_has_changed(office):
    held = await office.move("case_100014", "closed")
    await office.approve(held, SUPERVISOR)
    office.change("case_100014", "under_review")
    office.change("case_100014", "decided")
    await office.reconcile()
    assert office.case("case_100014")["status"] == "decided"
    kinds = [event.type.value for event in await office.events()]
    assert "approval.void" in kinds


# --- afterwards -----------------------------------------------------------------------------------


async def test_a_change_is_verified_by_reading_it_back(own_office):
    await own_office.move("case_100001", "under_review")
    assert (await own_office.reconcile())["verified"] == 1
    kinds = [event.type.value for event in await own_office.events()]
    assert kinds[:4] == ["tool.requested", "tool.started", "tool.succeeded", "tool.verified"]


async def test_a_change_that_did_not_last_is_found_out(tmp_path):
    async with Office(tmp_path, lease=1.0) as office:  # so that it is soon looked at again
        await office.move("case_100001", "under_review")
        with office.database.writing() as db:
            db.execute("UPDATE cases SET status = 'open' WHERE case_id = 'case_100001'")
        people = NeedsAttention(office.runtime, by="duty-desk")

        async def listed():
            await office.reconcile()
            return await people.list()

        assert len(await waiting.until(listed)) == 1
        every = await office.events()
    (unverified,) = [event for event in every if event.type.value == "tool.unverified"]
    assert unverified.body["wrong"] == ["/became"]


async def test_a_change_that_others_have_built_upon_is_verified_all_the_same(own_office):
    await own_office.move("case_100001", "under_review")
    own_office.change("case_100001", "decided")
    assert (await own_office.reconcile())["verified"] == 1


async def test_a_person_has_a_change_taken_back_and_the_history_says_so(own_office):
    await own_office.move("case_100001", "under_review", who="intake-agent")
    (entry,) = own_office.rows("SELECT * FROM status_history")
    people = NeedsAttention(own_office.runtime, by="duty-desk")
    key = _key("case_100001", "under_review", 1)
    await people.compensate(NORTH, key, reason="It was the wrong case.")
    assert (await own_office.reconcile())["compensated"] == 1
    assert await history(own_office, "case_100001") == [
        ("open", "under_review", 2),
        ("under_review", "open", 3),
    ]
    last = own_office.rows("SELECT * FROM status_history WHERE version = 3")[0]
    assert (last["changed_by"], entry["changed_by"]) == ("counterseal.compensation", "intake-agent")
    again = await own_office.move("case_100001", "under_review", who="intake-agent", version=1)
    assert again.code == "STALE_STATE"


async def test_what_has_moved_on_is_not_taken_back(own_office):
    await own_office.move("case_100001", "under_review")
    await own_office.reconcile()
    own_office.change("case_100001", "decided")
    people = NeedsAttention(own_office.runtime, by="duty-desk")
    key = _key("case_100001", "under_review", 1)
    await people.compensate(NORTH, key, reason="Too late.")
    done = await own_office.reconcile()
    assert done["compensation_failed"] == 1
    assert own_office.case("case_100001")["status"] == "decided"


async def test_each_office_changes_its_own(office):
    east = agent("intake-agent", EAST)
    assert (await office.move("case_200001", "under_review", who=east)).ok
    assert office.case("case_200001")["status"] == "under_review"


def _key(case_id, status, version):
    """Under which the ledger keeps a change."""
    named = {"case_id": case_id, "status": status, "expected_version": version}
    proposal = Proposal(tool="update_case_status", arguments=named)
    who = agent("intake-agent")
    return derive_key(TOOLS["update_case_status"], proposal, who, "run_1", 0.0, named)
