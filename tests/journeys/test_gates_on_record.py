"""What gates do beside deciding is on record: corrections, dropped steps, tokens of no approval."""

import json

import pytest

from counterseal import DROP_STEP, Invariant, Proposal
from counterseal.approvals.tokens import Claims, issue
from counterseal.audit import EventType
from counterseal.codes import Code
from counterseal.policy import Policy
from counterseal.testing import fake_tool, runtime_for, someone
from tests.journeys.approvals_worker import key_ring

SECRET = "ghp_" + "a1B2" * 9
SCHEMA = {
    "type": "object",
    "properties": {
        "cents": {"type": "integer", "minimum": 0, "description": "How much."},
        "note": {"type": "string", "maxLength": 20_000, "description": "A note."},
    },
    "additionalProperties": False,
}
CAPPED = Invariant(
    id="CAPPED",
    rule="At most 500 cents.",
    check="call.cents <= 500",
    correct={"set": {"cents": 500}},
)
NOTED = Invariant(
    id="NOTED",
    rule="Every refund has a note.",
    check="has(call.note)",
    correct={"set": {"note": "none given"}},
)
NOTHING = Invariant(
    id="NOTHING_TO_DO",
    rule="A refund of nothing is no refund.",
    check="call.cents > 0",
    correct=lambda call, state, config: DROP_STEP,
)


def refund(effect="draft", invariants=(CAPPED, NOTED, NOTHING), **more):
    return fake_tool("refund", effect=effect, input_schema=SCHEMA, invariants=invariants, **more)


def ask(arguments, **more):
    return Proposal(tool="refund", arguments=arguments, run_id="run_1", **more)


async def recorded(runtime, *kinds, **which):
    events = [event for _, event in await runtime.store.events("acme", **which)]
    return [event for event in events if event.type in kinds]


def bodies(events):
    return [dict(event.body) for event in events]


# --- corrections in a call ------------------------------------------------------------------------

CORRECTED = [
    {"invariant": "CAPPED", "before": {"cents": 900}, "after": {"cents": 500}},
    {"invariant": "NOTED", "before": {}, "after": {"note": "none given"}},
]


@pytest.mark.parametrize("effect", ["draft", "read_only"])
async def test_each_correction_of_a_call_is_an_event(effect):
    runtime = runtime_for(refund(effect))
    seen = await runtime.submit(ask({"cents": 900}), someone())
    events = await recorded(runtime, EventType.CORRECTED, call_id=seen.call_id)
    assert seen.ok
    assert bodies(events) == CORRECTED
    assert {event.decision for event in events} == {"correct"}


async def test_corrections_of_a_call_that_is_refused_afterwards_are_events_too():
    rule = {"id": "no", "then": "deny", "when": "call.cents == 500", "reason": "Not that much."}
    runtime = runtime_for(refund(), policy=Policy.from_data({"rules": [rule]}))
    seen = await runtime.submit(ask({"cents": 900}), someone())
    assert seen.code is Code.POLICY_VIOLATION
    events = await recorded(runtime, EventType.CORRECTED, call_id=seen.call_id)
    assert bodies(events) == CORRECTED


async def test_corrections_of_a_call_that_waits_for_approval_are_events_too():
    runtime = runtime_for(refund("external_notification"))
    seen = await runtime.submit(ask({"cents": 900}), someone())
    assert seen.code is Code.CONFIRMATION_MISSING
    events = await recorded(runtime, EventType.CORRECTED, call_id=seen.call_id)
    assert bodies(events) == CORRECTED


async def test_a_dropped_step_is_an_event_with_what_was_proposed():
    runtime = runtime_for(refund())
    proposed = {"cents": 0, "note": "x"}
    seen = await runtime.submit(ask(proposed), someone())
    assert (seen.code, seen.next_action) == (Code.SEMANTIC_INVALIDITY, "drop_step")
    events = await recorded(runtime, EventType.DROPPED, call_id=seen.call_id)
    assert bodies(events) == [{"invariant": "NOTHING_TO_DO", "before": proposed, "after": None}]


async def test_a_call_without_corrections_has_no_such_event():
    runtime = runtime_for(refund())
    assert (await runtime.submit(ask({"cents": 5, "note": "x"}), someone())).ok
    assert await recorded(runtime, EventType.CORRECTED, EventType.DROPPED) == []


async def test_secrets_are_redacted_and_large_arguments_are_summed_up():
    runtime = runtime_for(refund())
    await runtime.submit(ask({"cents": 0, "note": SECRET}), someone())
    await runtime.submit(ask({"cents": 0, "note": "long " * 4000}), someone())
    secret, large = await recorded(runtime, EventType.DROPPED)
    assert SECRET not in json.dumps(dict(secret.body))
    assert len(json.dumps(dict(large.body))) < 9000
    assert large.body["before"]["truncated"] is True


async def test_where_arguments_are_kept_for_a_limited_time_events_name_fields_only():
    runtime = runtime_for(refund(keep_arguments_days=30))
    await runtime.submit(ask({"cents": 900}), someone())
    await runtime.submit(ask({"cents": 0, "note": "x"}), someone())
    assert bodies(await recorded(runtime, EventType.CORRECTED, EventType.DROPPED)) == [
        {"invariant": "CAPPED", "fields": ["/cents"]},
        {"invariant": "NOTED", "fields": ["/note"]},
        {"invariant": "NOTHING_TO_DO", "fields": ["/cents", "/note"]},
    ]


# --- corrections in a plan ------------------------------------------------------------------------


async def test_corrections_and_dropped_steps_of_a_plan_are_events():
    runtime = runtime_for(refund())
    run = await runtime.run(someone(), "run_1")
    steps = [
        {"tool": "refund", "arguments": {"cents": 900}},
        {"tool": "refund", "arguments": {"cents": 0, "note": "x"}},
        {"tool": "refund", "arguments": {"cents": 7, "note": "y"}},
        {"tool": "refund", "arguments": {"cents": 7, "note": "y"}},
    ]
    plan = await run.plan(steps)
    assert [step.fate for step in plan.steps] == ["correct", "drop", "keep", "drop"]
    events = await recorded(runtime, EventType.CORRECTED, EventType.DROPPED, run_id="run_1")
    (plan_id,) = {event.body["plan"] for event in events}
    assert plan_id.startswith("plan_")
    assert [(event.body["step"], event.decision) for event in events] == [
        (1, "correct"),
        (1, "correct"),
        (2, "drop"),
        (4, "drop"),
    ]
    told = [{**body, "plan": 0, "step": 0} for body in bodies(events)]
    assert told[:2] == [{"plan": 0, "step": 0, **body} for body in CORRECTED]
    assert told[2]["invariant"] == "NOTHING_TO_DO"
    assert told[3] == {
        "plan": 0,
        "step": 0,
        "rule": "same-operation",
        "before": {"cents": 7, "note": "y"},
        "after": None,
    }
    assert {event.caller.call_id for event in events} == {""}, "no call was made"
    assert {event.caller.tool for event in events} == {"refund"}


async def test_events_of_a_plan_without_a_named_run_are_in_the_callers_own_run():
    runtime = runtime_for(refund())
    await runtime.plan([{"tool": "refund", "arguments": {"cents": 900, "note": "x"}}], someone())
    seen = await runtime.submit(Proposal(tool="refund", arguments={"cents": 1}), someone())
    (planned, *_) = await recorded(runtime, EventType.CORRECTED)
    (made,) = await recorded(runtime, EventType.SUCCEEDED, call_id=seen.call_id)
    assert planned.caller.run_id == made.caller.run_id


async def test_a_plan_without_corrections_leaves_nothing():
    runtime = runtime_for(refund())
    await runtime.plan([{"tool": "refund", "arguments": {"cents": 5, "note": "x"}}], someone())
    assert await runtime.store.events("acme") == []


# --- tokens that prove no approval ----------------------------------------------------------------


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    return key_ring(tmp_path_factory.mktemp("ours") / "keys")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return key_ring(tmp_path_factory.mktemp("theirs") / "keys")


def claims(contract, **more):
    known = {
        "approval_id": "appr_1",
        "trace_id": "0" * 32,
        "tenant": "acme",
        "tool_name": contract.name,
        "tool_version": contract.version,
        "contract_hash": contract.hash,
        "payload_hash": "0" * 64,
        "approver_ids": ("ada",),
        "approved_at": 1_800_000_000.0,
        "expires_at": 1_800_003_600.0,
    }
    return Claims(**{**known, **more})


async def unproven(tool, keys, token):
    runtime = runtime_for(tool, keys=keys)
    seen = await runtime.submit(ask({"cents": 5, "note": "x"}, approval=token), someone())
    events = await recorded(runtime, EventType.UNPROVEN, call_id=seen.call_id)
    assert {event.decision for event in events} <= {"refuse"}
    assert token not in json.dumps([dict(event.body) for event in events])
    return seen, [event.body["rule"] for event in events]


async def test_a_forged_token_is_on_record_when_nothing_was_asked_yet(ring, stranger):
    tool = refund("external_notification")
    forged = issue(claims(tool.contract), stranger)
    seen, rules = await unproven(tool, ring, forged)
    assert (seen.code, seen.next_action) == (Code.CONFIRMATION_MISSING, "await_approval")
    assert rules == ["token-unknown-key"]


async def test_a_token_of_another_call_is_on_record_when_nothing_was_asked_yet(ring):
    tool = refund("external_notification")
    _, rules = await unproven(tool, ring, issue(claims(tool.contract), ring))
    assert rules == ["token-payload"]


async def test_a_forged_token_for_a_call_that_needs_no_approval_is_on_record(ring, stranger):
    tool = refund("draft")
    seen, rules = await unproven(tool, ring, issue(claims(tool.contract), stranger))
    assert seen.ok
    assert rules == ["token-unknown-key"]
    seen, rules = await unproven(tool, ring, issue(claims(tool.contract), ring))
    assert (seen.ok, rules) == (True, []), "one of ours, and not needed"


async def test_a_forged_token_of_a_refused_call_is_on_record(ring):
    seen, rules = await unproven(refund(invariants=[NOTHING]), ring, "x.y.z")
    assert (seen.ok, rules) == (True, ["token-malformed"])
    runtime = runtime_for(refund(), keys=ring)
    for arguments in ("not json", {"cents": "x"}, {"cents": 0, "note": ""}):
        seen = await runtime.submit(ask(arguments, approval="x.y.z"), someone())
        events = await recorded(runtime, EventType.UNPROVEN, call_id=seen.call_id)
        assert [event.body["rule"] for event in events] == ["token-malformed"]


async def test_a_token_where_no_key_could_have_signed_it_is_on_record():
    _, rules = await unproven(refund("external_notification"), None, "x.y.z")
    assert rules == ["token-unknown-key"]
