"""What holds for all seven tools: arguments, authority, budgets and the kill switch."""

import pytest

from counterseal import Grant, GrantError, Principal
from tests.examples.case_assistant.office import NORTH, REASON, ROLES, TOOLS, agent, stopped

GOOD = {
    "get_case_summary": {"case_id": "case_100001"},
    "search_case_evidence": {"case_id": "case_100001", "query": "flour"},
    "fetch_policy_excerpt": {"topic": "hearings"},
    "create_notice_draft": {
        "case_id": "case_100001",
        "template": "decision",
        "channel": "email",
        "facts": ["ev_100011"],
    },
    "request_human_approval": {"draft_id": "drf_decision_0123456789ab", "reason": REASON},
    "send_approved_notice": {
        "draft_id": "drf_decision_0123456789ab",
        "recipient": "harbour-street-bakery@register.northshore.example",
    },
    "update_case_status": {
        "case_id": "case_100001",
        "status": "under_review",
        "expected_version": 1,
        "reason": REASON,
    },
}
WRONG_TYPES = {
    "get_case_summary": {"case_id": 100001},
    "search_case_evidence": {"limit": "5"},
    "fetch_policy_excerpt": {"topic": ["hearings"]},
    "create_notice_draft": {"facts": "ev_100011"},
    "request_human_approval": {"reason": True},
    "send_approved_notice": {"recipient": ["harbour-street-bakery@register.northshore.example"]},
    "update_case_status": {"expected_version": "1"},
}
OUT_OF_RANGE = [
    ("get_case_summary", {"case_id": "case_1"}),
    ("get_case_summary", {"case_id": "case_100001' OR '1'='1"}),
    ("search_case_evidence", {"limit": 11}),
    ("search_case_evidence", {"limit": 0}),
    ("search_case_evidence", {"query": "x" * 201}),
    ("fetch_policy_excerpt", {"topic": "everything"}),
    ("fetch_policy_excerpt", {"policy_id": "../secrets", "topic": None}),
    ("create_notice_draft", {"amount_eur": 50_001}),
    ("create_notice_draft", {"facts": []}),
    ("create_notice_draft", {"facts": ["ev_100011", "ev_100011"]}),
    ("create_notice_draft", {"revision": 21}),
    ("request_human_approval", {"draft_id": "drf_apology_0123456789ab"}),
    ("request_human_approval", {"reason": "short"}),
    ("send_approved_notice", {"recipient": "a@b.example, c@d.example"}),
    ("send_approved_notice", {"recipient": "a@b.example\nBcc: c@d.example"}),
    ("update_case_status", {"status": "deleted"}),
    ("update_case_status", {"expected_version": 0}),
]
HOLDERS = {name: [who for who in ROLES if name in ROLES[who].tools] for name in TOOLS}
EVERY = pytest.mark.parametrize("name", TOOLS)


def test_they_are_the_seven_of_the_drill():
    assert list(TOOLS) == list(GOOD)


@EVERY
async def test_a_value_of_a_wrong_type_is_told_by_its_field(office, name):
    ((field, value),) = WRONG_TYPES[name].items()
    seen = await office.call(HOLDERS[name][0], name, **{**GOOD[name], field: value})
    assert (seen.code, seen.path) == ("TYPE_MISMATCH", "repair")
    assert f"/{field}" in {error.field for error in seen.errors}


@EVERY
async def test_a_field_that_is_missing_is_named(office, name):
    for field in TOOLS[name].affordance.input_schema.get("required", ()):
        rest = {key: value for key, value in GOOD[name].items() if key != field}
        seen = await office.call(HOLDERS[name][0], name, **rest)
        assert (seen.code, seen.path) == ("STRUCTURAL_VIOLATION", "repair")
        assert field in seen.for_model()


@pytest.mark.parametrize(("name", "wrong"), OUT_OF_RANGE)
async def test_a_value_out_of_range_is_refused(office, name, wrong):
    given = {key: value for key, value in {**GOOD[name], **wrong}.items() if value is not None}
    seen = await office.call(HOLDERS[name][0], name, **given)
    assert (seen.code, seen.path) == ("OUT_OF_BOUNDS", "repair")


@EVERY
async def test_an_undeclared_field_is_refused(office, name):
    seen = await office.call(HOLDERS[name][0], name, **GOOD[name], tenant="eastvale")
    assert (seen.code, stopped(seen)[1]) == ("STRUCTURAL_VIOLATION", "schema")


@EVERY
async def test_an_agent_without_the_scope_is_refused(office, name):
    for who in HOLDERS[name]:
        without = set(ROLES[who].scopes) - set(TOOLS[name].security.required_scopes)
        seen = await office.call(agent(who, scopes=without), name, **GOOD[name])
        assert stopped(seen) == ("PERMISSION_DENIED", "scope", "scope_missing")


@EVERY
async def test_an_agent_without_a_grant_is_refused(office, name):
    scopes = {scope for contract in TOOLS.values() for scope in contract.security.required_scopes}
    for who in {*ROLES, "stranger"} - set(HOLDERS[name]):
        caller = Principal(tenant=NORTH, agent=who, user="u_1", scopes=scopes)
        seen = await office.call(caller, name, **GOOD[name])
        assert stopped(seen) == ("PERMISSION_DENIED", "scope", "no_grant")


async def test_a_kill_switch_stops_each_tool_and_a_reason_is_kept(own_office):
    operator = own_office.runtime.operator("duty-desk")
    kills = [
        await operator.kill(tool=name, reason="the office is being searched") for name in TOOLS
    ]
    for name in TOOLS:
        seen = await own_office.call(HOLDERS[name][0], name, **GOOD[name])
        assert stopped(seen) == ("PERMISSION_DENIED", "scope", "killed")
    for kill in kills:
        await operator.restore(kill, reason="it is over")
    seen = await own_office.call("intake-agent", "get_case_summary", **GOOD["get_case_summary"])
    assert seen.ok
    told = [event.body for event in await own_office.events("*")]
    assert len([body for body in told if "searched" in str(body)]) == len(TOOLS)


async def test_each_agent_sees_its_own_tools_and_no_others(office):
    for who, role in ROLES.items():
        shown = office.runtime.registry.catalogue(agent(who), "run_1")
        assert {record.name for record in shown} == set(role.tools)


async def test_no_agent_is_granted_a_tool_that_reverses_a_change(office):
    assert not [one for one in office.runtime.registry.grants if one.tool == "restore_case_status"]
    with pytest.raises(GrantError):
        office.runtime.registry.grant(Grant(agent="intake-agent", tool="restore_case_status"))


@EVERY
def test_a_model_is_shown_neither_secrets_nor_who_it_is(name):
    contract = TOOLS[name]
    properties = contract.affordance.input_schema["properties"]
    assert properties.keys().isdisjoint({"tenant", "ctx", "smtp_password", "call_key"})
    assert all(field.get("description") for field in properties.values())
    assert contract.affordance.input_schema["additionalProperties"] is False


@EVERY
async def test_a_budget_of_a_run_is_an_end(office, name):
    """The grant says how often; one more is refused before anything is looked at."""
    who = HOLDERS[name][0]
    (grant,) = [
        one for one in office.runtime.registry.grants if (one.agent, one.tool) == (who, name)
    ]
    assert grant.max_calls_per_run == ROLES[who].tools[name]
    if TOOLS[name].mutates:
        return
    for _ in range(grant.max_calls_per_run):
        assert (await office.call(who, name, run="run_long", **GOOD[name])).ok
    spent = await office.call(who, name, run="run_long", **GOOD[name])
    assert (spent.code, stopped(spent)[1]) == ("BUDGET_EXHAUSTED", "budget")
