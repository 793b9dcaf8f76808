"""The event catalogue, and that what ends a call is on record in its words."""

import json
from collections import UserDict
from datetime import UTC, datetime
from types import MappingProxyType

import pytest

from counterseal import Grant, Proposal
from counterseal.audit import CallFields, Event, EventType, columns_of, event_of
from counterseal.canonical import freeze
from counterseal.codes import Code, Path
from counterseal.contract.invariants import Invariant
from counterseal.gates import GATES
from counterseal.ledger.records import Budgets, HeldStatus
from counterseal.policy import Policy
from counterseal.testing import fake_tool, runtime_for, someone

SECRET = "hunter2-the-value"
SCHEMA = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "maxLength": 40, "description": "A note."},
        "count": {"type": "integer", "minimum": 0, "description": "How many."},
    },
    "additionalProperties": False,
}


def ask(tool="look_up", arguments=None, **more):
    return Proposal(
        tool=tool,
        arguments={"note": SECRET} if arguments is None else arguments,
        run_id="run_1",
        **more,
    )


async def recorded(runtime, **which):
    return [event for _, event in await runtime.store.events("acme", **which)]


# --- as a store keeps it --------------------------------------------------------------------------


class Lazy(UserDict):
    """A mapping that no writer of JSON knows."""


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, None),
        (1.5, 1.5),
        (Path.RETRY, "retry"),
        (("a", Path.RETRY), ["a", "retry"]),
        (Lazy(a=1), {"a": 1}),
        (MappingProxyType({"a": {"b": 1}}), {"a": {"b": 1}}),
        (freeze({"a": [{"b": None}]}), {"a": [{"b": None}]}),
        (Lazy(a=Lazy(b=MappingProxyType({"c": 1}))), {"a": {"b": {"c": 1}}}),
        ([Lazy(a=Lazy(b=1))], [{"a": {"b": 1}}]),
    ],
)
def test_a_body_is_kept_as_json_whatever_its_mappings_are(value, kept):
    caller = CallFields("acme", "run_1", "call_1", "save", "1.0.0", "bot", None, "0" * 32)
    for body in ({"it": value, "n": 1}, MappingProxyType({"it": value, "n": 1})):
        event = Event(EventType.STARTED, caller, 1.5, "allow", body=body)
        assert event_of(columns_of(event)).body == {"it": kept, "n": 1}


@pytest.mark.parametrize("value", [object(), [object()], {"a": object()}])
def test_what_is_no_json_is_refused(value):
    caller = CallFields("acme", "run_1", "call_1", "save", "1.0.0", "bot", None, "0" * 32)
    with pytest.raises((TypeError, ValueError)):
        columns_of(Event(EventType.STARTED, caller, 1.5, "allow", body={"it": value}))


# --- the catalogue --------------------------------------------------------------------------------


def test_what_can_be_on_record_is_a_calls_life_and_one_more_for_every_path_and_gate():
    life = {
        "tool.requested",
        "tool.denied",
        "approval.required",
        "approval.voted",
        "approval.granted",
        "approval.rejected",
        "approval.expired",
        "approval.void",
        "approval.unproven",
        "tool.corrected",
        "tool.dropped",
        "approval.not_executed",
        "tool.started",
        "tool.succeeded",
        "tool.failed",
        "tool.replayed",
        "tool.reconciled",
        "tool.compensated",
        "tool.verified",
        "tool.unverified",
        "tool.overtaken",
        "compensation.required",
        "compensation.failed",
    }
    upstream = {"tool.quarantined", "tool.released", "mcp.passed_on"}
    people = {"person.signed_in", "person.refused"}
    looks = {"arguments.read", "arguments.erased"}
    others = (
        {"registry.changed", "registry.version_held", "audit.erased"} | upstream | people | looks
    )
    refusals = {f"gate.{gate.name}.refused" for gate in GATES}
    paths = {f"path.{path.value}" for path in Path}
    assert {kind.value for kind in EventType} == life | others | paths | refusals
    assert len(EventType) == len(life) + len(others) + len(Path) + len(GATES)


@pytest.mark.parametrize("gate", [gate.name for gate in GATES])
def test_every_gate_finds_its_event(gate):
    assert EventType.refused_by(gate).value == f"gate.{gate}.refused"


def test_a_gate_that_does_not_exist_has_no_event():
    with pytest.raises(ValueError, match="ledger"):
        EventType.refused_by("ledger")


def test_a_record_is_json_and_names_all_parties():
    who = ("agent", None, "0" * 32, "call_0", "wf_1", "conv_1", "session_1")
    caller = CallFields("acme", "run_1", "call_1", "save", "1.0.0", *who)
    event = Event(EventType.DENIED, caller, 0.5, "deny", "sha256:p", "ref_1", {"fields": ["/a"]})
    record = event.record("evt_1")
    assert (
        json.loads(json.dumps(record))
        == record
        == {
            "event_id": "evt_1",
            "type": "tool.denied",
            "tenant": "acme",
            "run_id": "run_1",
            "call_id": "call_1",
            "tool": "save",
            "version": "1.0.0",
            "agent": "agent",
            "user": None,
            "trace_id": "0" * 32,
            "caller_call_id": "call_0",
            "workflow_id": "wf_1",
            "conversation_id": "conv_1",
            "session_id": "session_1",
            "occurred_at": datetime.fromtimestamp(0.5, UTC).isoformat(),
            "decision": "deny",
            "policy_version": "sha256:p",
            "external_ref": "ref_1",
            "body": {"fields": ["/a"]},
        }
    )


# --- refusals -------------------------------------------------------------------------------------


async def refused_by_parse():
    return runtime_for(fake_tool(input_schema=SCHEMA)), ask(arguments=f'{{"note": "{SECRET}"')


async def refused_by_schema():
    return runtime_for(fake_tool(input_schema=SCHEMA)), ask(arguments={"count": SECRET})


async def refused_by_scope():
    return runtime_for(fake_tool(input_schema=SCHEMA), agent="somebody-else"), ask()


async def refused_by_semantics():
    rule = Invariant(id="NEVER", rule="Not this.", check="call.note == ''")
    return runtime_for(fake_tool(input_schema=SCHEMA, invariants=[rule])), ask()


async def refused_by_policy():
    rule = {"id": "no", "then": "deny", "when": "call.note != ''", "reason": "Forbidden."}
    return runtime_for(
        fake_tool(input_schema=SCHEMA), policy=Policy.from_data({"rules": [rule]})
    ), ask()


async def refused_by_state():
    return runtime_for(fake_tool(input_schema=SCHEMA, probe=lambda: None)), ask()


async def refused_by_approval():
    tool = fake_tool("send", effect="external_notification", input_schema=SCHEMA)
    runtime = runtime_for(tool)
    held = await runtime.submit(ask("send"), someone())
    await runtime.store.decide("acme", held.approval_id, HeldStatus.REJECTED, [])
    return runtime, ask("send", call_id="call_refused")


async def refused_by_budget():
    runtime = runtime_for(fake_tool(input_schema=SCHEMA))
    await runtime.run(someone(), "run_1", budgets=Budgets(reads=0))
    return runtime, ask()


REFUSALS = {
    "parse": (refused_by_parse, Code.SYNTACTIC_PARSE_FAIL),
    "schema": (refused_by_schema, Code.TYPE_MISMATCH),
    "scope": (refused_by_scope, Code.PERMISSION_DENIED),
    "semantics": (refused_by_semantics, Code.SEMANTIC_INVALIDITY),
    "policy": (refused_by_policy, Code.POLICY_VIOLATION),
    "state": (refused_by_state, Code.STALE_STATE),
    "approval": (refused_by_approval, Code.CONFIRMATION_MISSING),
    "budget": (refused_by_budget, Code.BUDGET_EXHAUSTED),
}


def test_every_gate_is_tried():
    assert list(REFUSALS) == [gate.name for gate in GATES]


@pytest.mark.parametrize("gate", REFUSALS)
async def test_a_refusal_is_on_record_as_its_gates_and_as_the_calls_end(gate):
    arrange, code = REFUSALS[gate]
    runtime, proposal = await arrange()
    seen = await runtime.submit(proposal, someone())
    assert seen.code is code
    events = await recorded(runtime, call_id=seen.call_id)
    assert [event.type for event in events][:2] == [EventType.refused_by(gate), EventType.DENIED]
    path = [f"path.{seen.path}"] if seen.path and seen.path is not Path.RETRY else []
    assert [event.type for event in events][2:] == path
    events = events[:2]
    for event in events:
        assert event.decision == "deny"
        assert event.body["gate"] == gate
        assert event.body["code"] == code.value
        assert event.caller == CallFields(
            "acme",
            "run_1",
            seen.call_id,
            proposal.tool,
            "1.0.0",
            "agent",
            "u_1",
            seen.trace_id,
            proposal.call_id,
        )


@pytest.mark.parametrize("gate", REFUSALS)
async def test_no_record_of_a_refusal_holds_a_value_of_the_arguments(gate):
    arrange, _ = REFUSALS[gate]
    runtime, proposal = await arrange()
    await runtime.submit(proposal, someone())
    for event_id, event in await runtime.store.events("acme"):
        assert SECRET not in json.dumps(event.record(event_id))


async def test_a_key_that_is_used_for_something_else_is_denied_on_record():
    runtime = runtime_for(fake_tool("save", effect="draft", input_schema=SCHEMA))
    await runtime.submit(ask("save", {"note": "one"}, key="k"), someone())
    seen = await runtime.submit(ask("save", key="k"), someone())
    events = await recorded(runtime, call_id=seen.call_id)
    assert [event.type for event in events] == [EventType.DENIED]
    assert events[0].body["gate"] == "ledger"


# --- calls that were made -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "kinds"),
    [
        ("read_only", ["tool.succeeded"]),
        ("draft", ["tool.requested", "tool.started", "tool.succeeded"]),
    ],
)
async def test_a_change_is_announced_and_a_read_is_told_by_its_end(effect, kinds):
    runtime = runtime_for(fake_tool(effect=effect, input_schema=SCHEMA))
    await runtime.submit(ask(), someone())
    events = await recorded(runtime)
    assert [event.type.value for event in events] == kinds
    assert events[-1].decision == "SUCCESS"
    assert {event.policy_version for event in events} == {runtime.policy.version}
    assert SECRET not in str(events)


async def test_a_failure_is_on_record_by_its_code_and_not_by_its_message():
    runtime = runtime_for(fake_tool("look_up", RuntimeError(SECRET), input_schema=SCHEMA))
    await runtime.submit(ask(), someone())
    event, way_on = await recorded(runtime)
    assert way_on.type is EventType.ESCALATED
    assert (event.type, event.decision) == (EventType.FAILED, "UNKNOWN_ERROR")
    assert SECRET not in json.dumps(event.record("evt_1"))


async def test_a_question_to_a_person_is_on_record_once():
    tool = fake_tool("send", effect="external_notification", input_schema=SCHEMA)
    runtime = runtime_for(tool)
    for _ in range(2):
        seen = await runtime.submit(ask("send"), someone())
    (event,) = await recorded(runtime)
    assert (event.type, event.decision) == (EventType.APPROVAL_REQUIRED, "require_approval")
    assert event.body["rule"] == "default.external"
    assert event.body["approval_id"] == seen.approval_id


async def test_a_replay_is_on_record_as_the_call_that_it_repeats():
    runtime = runtime_for(fake_tool("save", effect="draft", input_schema=SCHEMA))
    await runtime.submit(ask("save"), someone())
    before = await recorded(runtime)
    assert (await runtime.submit(ask("save"), someone())).idempotency_hit
    *others, event = await recorded(runtime)
    assert others == before
    assert (event.type, event.decision) == (EventType.REPLAYED, "SUCCESS")
    assert event.caller.call_id != before[-1].caller.call_id == event.body["of"]


async def test_a_correction_is_an_event_and_is_counted_at_the_end():
    rule = Invariant(
        id="N", rule="A count.", check="has(call.count)", correct={"set": {"count": 7}}
    )
    runtime = runtime_for(fake_tool(input_schema=SCHEMA, invariants=[rule]))
    await runtime.submit(ask(), someone())
    corrected, event = await recorded(runtime)
    assert corrected.body == {"invariant": "N", "before": {}, "after": {"count": 7}}
    assert event.body["corrections"] == 1
    assert 7 not in event.body.values()


async def test_every_event_of_a_call_is_json_with_an_id_of_its_own():
    runtime = runtime_for(fake_tool("save", effect="draft", input_schema=SCHEMA))
    runtime.register(fake_tool("other").tool, grants=[Grant(agent="agent", tool="other")])
    await runtime.submit(ask("save"), someone())
    await runtime.submit(ask("save", {"count": "x"}), someone())
    records = [event.record(event_id) for event_id, event in await runtime.store.events("acme")]
    assert json.loads(json.dumps(records)) == records
    assert len({record["event_id"] for record in records}) == len(records) == 6
