"""Two offices on one gateway: what is the other's answers exactly like what does not exist."""

import json
import re

import pytest

from tests.examples.case_assistant.office import (
    EAST,
    NORTH,
    PLANTED,
    REASON,
    ROLES,
    agent,
    evidence_of,
    example,
    stopped,
)

UNKNOWN = "case_999999"
THEIRS = {NORTH: "case_200003", EAST: "case_100002"}


def plain(seen):
    """All of an observation but what differs between any two calls: its own ids and times."""
    record = seen.record()
    del record["tool_identity"]["call_id"], record["timestamp"]
    for name in ("timestamp", "latency_ms", "trace_id"):
        del record["execution_metadata"][name]
    for decision in record["decisions"]:
        del decision["microseconds"]
    return json.dumps(record), re.sub(r"[0-9a-f]{16}>>>", "(number)>>>", seen.for_model())


def calls(case_id, draft_id):
    return [
        ("intake-agent", "get_case_summary", {"case_id": case_id}),
        ("intake-agent", "search_case_evidence", {"case_id": case_id, "query": "inspection"}),
        (
            "risk-agent",
            "create_notice_draft",
            {
                "case_id": case_id,
                "template": "decision",
                "channel": "email",
                "facts": [evidence_of(case_id)],
            },
        ),
        ("risk-agent", "request_human_approval", {"draft_id": draft_id, "reason": REASON}),
        (
            "notice-agent",
            "update_case_status",
            {
                "case_id": case_id,
                "status": "under_review",
                "expected_version": 1,
                "reason": REASON,
            },
        ),
    ]


@pytest.mark.parametrize("tenant", [NORTH, EAST])
async def test_a_case_of_the_other_office_is_answered_like_an_unknown_one(office, tenant):
    other = EAST if tenant == NORTH else NORTH
    theirs = THEIRS[tenant]
    made = await office.draft(theirs, who=agent("risk-agent", other))
    assert made.ok
    compared = 0
    for (who, tool, known), (_, _, unknown) in zip(
        calls(theirs, made.data["draft_id"]),
        calls(UNKNOWN, "drf_decision_0123456789ab"),
        strict=True,
    ):
        there = await office.call(agent(who, tenant), tool, **known)
        nowhere = await office.call(agent(who, tenant), tool, **unknown)
        assert not there.ok
        assert plain(there) == plain(nowhere)
        compared += 1
    assert compared == 5


@pytest.mark.parametrize("tenant", [NORTH, EAST])
async def test_a_draft_is_sent_only_by_its_own_office(office, tenant):
    other = EAST if tenant == NORTH else NORTH
    case_id = {NORTH: "case_200005", EAST: "case_100004"}[tenant]
    made = await office.draft(case_id, who=agent("risk-agent", other))
    theirs = {"draft_id": made.data["draft_id"], "recipient": made.data["recipient"]}
    nobody = {"draft_id": "drf_decision_0123456789ab", "recipient": made.data["recipient"]}
    mine = agent("notice-agent", tenant)
    seen = [await office.send(one, who=mine) for one in (theirs, nobody)]
    assert stopped(seen[0])[2] == "office.registered-mailboxes"
    assert plain(seen[0]) == plain(seen[1])


@pytest.mark.parametrize("tenant", [NORTH, EAST])
async def test_nothing_of_one_office_stands_in_what_the_other_reads(office, tenant):
    """All cases of both offices are asked for by both, and everything that comes back is read."""
    other = EAST if tenant == NORTH else NORTH
    marks = example.stock.marks(other)
    assert len(marks) == 36
    own = 0
    for number in (1, 2):
        for index in range(1, 19):
            case_id = f"case_{number}{index:05}"
            intake = agent("intake-agent", tenant)
            asked = {"case_id": case_id, "query": "the"}
            found = await office.call(intake, "search_case_evidence", **asked)
            shown = await office.call(intake, "get_case_summary", case_id=case_id)
            own += found.ok + shown.ok
            text = "".join(one.for_model() + str(one.record()) for one in (found, shown))
            assert not [mark for mark in marks if mark in text]
    assert own == 36


def test_no_argument_of_any_tool_names_a_tenant():
    for tool in example.tools.TOOLS:
        names = set(tool.contract.affordance.input_schema["properties"])
        assert not [name for name in names if "tenant" in name or "office" in name]


@pytest.mark.parametrize("planted", [one for one in PLANTED if one.wants_case])
async def test_an_agent_that_obeys_and_asks_for_a_case_of_the_other_office_learns_nothing(
    office, planted
):
    for who in ROLES:
        seen = await office.call(
            agent(who, planted.tenant), "get_case_summary", case_id=planted.wants_case
        )
        assert (seen.code, seen.data) == ("SEMANTIC_INVALIDITY", {"said": "There is no such case."})


async def test_an_agent_that_obeys_and_uses_what_it_was_not_granted_is_refused(office):
    given = {"draft_id": "drf_decision_0123456789ab", "recipient": "a@b.example"}
    made_up = await office.call("risk-agent", "grant_tool_access", **given)
    assert stopped(made_up) == ("STRUCTURAL_VIOLATION", "schema", "tool-unknown")
    real = await office.call("risk-agent", "send_approved_notice", **given)
    assert stopped(real) == ("PERMISSION_DENIED", "scope", "no_grant")


async def test_a_supervisor_of_one_office_sees_no_request_of_the_other(office):
    notice = await office.in_review("case_100006")
    held = await office.send(notice)
    waiting = {
        tenant: {one.approval_id for one in await office.runtime.approvals.list(tenant)}
        for tenant in (NORTH, EAST)
    }
    assert held.approval_id in waiting[NORTH]
    assert held.approval_id not in waiting[EAST]
