"""The state gate: is the world as the proposal takes it to be?"""

import asyncio
from dataclasses import replace

import pytest

from counterseal import Proposal
from counterseal.canonical import digest
from counterseal.codes import Code
from counterseal.gates import compile_record
from counterseal.gates.approval import demand_of
from counterseal.gates.base import Decision, Learned, Verdict
from counterseal.gates.state import check as decide
from counterseal.gates.state import look, resource_of, state_seen
from counterseal.ledger.records import Held, HeldStatus, RunRecord
from counterseal.ledger.requests import Memory
from counterseal.policy import Policy
from counterseal.testing import fake_tool

SCHEMA = {
    "type": "object",
    "properties": {
        "case_id": {"type": "string", "maxLength": 9, "description": "The case."},
        "note": {"type": "string", "maxLength": 9, "description": "A note."},
    },
    "additionalProperties": False,
}
CASE = {"case_id": "case_1", "note": "x"}


def made(probe, **more):
    declared = {"resource": "case:{case_id}", "effect": "internal_mutation", **more}
    return fake_tool("update", input_schema=SCHEMA, probe=probe, **declared).tool


async def check(ctx):
    """Probe the target, and decide from the answer: as a call does."""
    return decide(ctx.replace(probed=await look(ctx)))


def version(number, **more):
    return lambda case_id: {"version": number, **more}


def held(seen, status=HeldStatus.APPROVED):
    known = dict.fromkeys(("key", "call_id", "run_id", "tool", "version"), "")
    return Held(
        **known,
        approval_hash=digest(CASE),
        approval_id="appr_1",
        tenant="acme",
        contract_hash="",
        agent="agent",
        user="u_1",
        reason="",
        rule=None,
        approvers=1,
        risk="MEDIUM_RISK_WRITE",
        demand={},
        version_seen=seen,
        created_at=0.0,
        expires_at=1e12,
        trace_id="",
        sealed=b"",
        status=status,
    )


def remembered(ctx, *, packet=None, expected=None, seen=None, status=HeldStatus.APPROVED):
    """The context with what was approved, what the proposal names, and what the run saw."""
    found = {} if seen is None else {"case:case_1": seen}
    return ctx.replace(
        memory=Memory(
            None,
            None
            if packet is None
            else replace(
                held(packet, status),
                contract_hash=ctx.record.contract.hash,
                demand=demand_of(ctx).record(),
            ),
            {},
            {},
            {},
        ),
        proposal=Proposal(tool="update", arguments={}, expected_version=expected),
        run=RunRecord(tenant="acme", run_id="run_1", started_at=0.0, seen=found),
    )


async def passes(ctx):
    said = await check(ctx)
    if isinstance(said, Learned):
        return True
    assert (said.verdict, said.code) == (Verdict.DENY, Code.STALE_STATE)
    return False


async def test_a_tool_without_a_probe_is_not_asked_about(context):
    said = await check(context(fake_tool().tool, {}))
    assert isinstance(said, Decision)
    assert said.verdict is Verdict.ALLOW


async def test_what_the_probe_saw_is_handed_on(context):
    said = await check(context(made(version(3, status="open")), CASE))
    assert said.facts == {"before": {"version": 3, "status": "open"}, "version_seen": 3}


async def test_a_target_that_is_not_there_is_stale(context):
    decision = await check(context(made(lambda case_id: None), CASE))
    assert (decision.verdict, decision.code) == (Verdict.DENY, Code.STALE_STATE)
    assert decision.field_errors[0].actual == "missing"


@pytest.mark.parametrize("found", [None, {"version": 2}])
async def test_an_approval_of_what_is_gone_or_changed_is_void(context, found):
    ctx = remembered(context(made(lambda case_id: found), CASE), packet=1)
    decision = await check(ctx)
    assert (decision.code, decision.voids, decision.approval_id) == (
        Code.STALE_STATE,
        True,
        "appr_1",
    )
    assert not (await check(remembered(ctx, seen=1))).voids  # where nobody approved anything


async def test_without_a_version_an_approval_is_bound_to_all_that_was_seen(context):
    ctx = context(made(lambda case_id: {"status": "open", "size": 1}), CASE)
    same = state_seen(None, {"size": 1, "status": "open"})
    assert (await check(remembered(ctx, packet=same))).facts["version_seen"] is None
    decision = await check(remembered(ctx, packet=state_seen(None, {"status": "shut", "size": 1})))
    assert (decision.code, decision.voids) == (Code.STALE_STATE, True)


@pytest.mark.parametrize("state", [{}, {"a": float("nan")}, {"a": 10**30}, {"a": "\ud800"}])
def test_any_state_has_a_mark_and_a_version_goes_before_it(state):
    assert state_seen(None, state) == state_seen(None, dict(state)) != state_seen(None, {"b": 1})
    assert state_seen(7, state) == 7
    assert state_seen(None, None) is None


@pytest.mark.parametrize("version", ["\ud800", "v\0", 2**64])
async def test_a_version_that_no_store_could_keep_is_none_that_was_read(context, version):
    decision = await check(context(made(lambda case_id: {"version": version}), CASE))
    assert decision.code is Code.DEPENDENCY_UNAVAILABLE


# The world is at version 2. What was approved goes before what is named before what was seen.
PRECEDENCE = [
    ({}, True),
    ({"seen": 2}, True),
    ({"seen": 1}, False),
    ({"seen": 1, "expected": 2}, True),
    ({"seen": 2, "expected": 1}, False),
    ({"seen": 1, "expected": 1, "packet": 2}, True),
    ({"seen": 2, "expected": 2, "packet": 1}, False),
    ({"seen": 2, "packet": 1, "status": HeldStatus.WAITING}, True),
    ({"seen": 2, "packet": 1, "status": HeldStatus.SPENT}, True),
    ({"seen": 2, "packet": 1, "status": HeldStatus.REJECTED}, True),
    ({"seen": "2"}, False),
]


@pytest.mark.parametrize(("memory", "goes_on"), PRECEDENCE)
async def test_the_packets_version_goes_before_the_proposals_before_the_runs(
    context, memory, goes_on
):
    ctx = remembered(context(made(version(2)), CASE), **memory)
    assert await passes(ctx) is goes_on


async def test_what_the_run_saw_of_another_resource_does_not_matter(context):
    ctx = context(made(version(2)), {"case_id": "case_2"})
    assert await passes(remembered(ctx, seen=1))


async def test_a_refusal_says_neither_version(context):
    ctx = remembered(context(made(version(73_311)), CASE), seen=48_822)
    assert not {"73311", "48822"} & set(str((await check(ctx)).record()).split("'"))


@pytest.mark.parametrize("probe", ["sync", "async"])
async def test_a_probe_by_function_gets_the_arguments_that_it_names(context, probe):
    asked = []

    def look(case_id):
        asked.append(case_id)
        return {"version": 1}

    async def look_later(case_id):
        await asyncio.sleep(0)
        return look(case_id)

    assert await passes(context(made(look if probe == "sync" else look_later), CASE))
    assert asked == ["case_1"]


def with_record(ctx, record):
    compiled = compile_record(record, Policy.default(), ctx.executor)
    return ctx.replace(record=record, compiled=compiled)


async def test_a_probe_by_name_is_that_tool_with_the_arguments_that_it_declares(context):
    only_case = {**SCHEMA, "properties": {"case_id": SCHEMA["properties"]["case_id"]}}
    reader = fake_tool(
        "read_case",
        {"etag": "v7"},
        input_schema=only_case,
        output_schema={"type": "object", "properties": {"etag": {"type": "string"}}},
        version_from="/etag",
    )
    ctx = context(fake_tool().tool, CASE)
    ctx.registry.register(reader.tool, made("read_case"))
    ctx = with_record(ctx, ctx.registry.get("update", "1.0.0"))
    said = await check(ctx)
    assert said.facts == {"before": {"etag": "v7"}, "version_seen": "v7"}
    assert reader.calls == [{"case_id": "case_1"}]


async def test_a_probe_by_name_that_is_stopped_denies(context):
    ctx = context(fake_tool().tool, CASE)
    ctx.registry.register(fake_tool("read_case", input_schema=SCHEMA).tool, made("read_case"))
    ctx = with_record(ctx, ctx.registry.get("update", "1.0.0"))
    ctx.registry.kill(tool="read_case", reason="stop")
    decision = await check(ctx)
    assert (decision.verdict, decision.code) == (Verdict.DENY, Code.DEPENDENCY_UNAVAILABLE)


async def test_a_probe_that_fails_denies_without_its_message(context):
    def broken(case_id):
        raise KeyError("hunter2")

    decision = await check(context(made(broken), CASE))
    assert (decision.verdict, decision.code) == (Verdict.DENY, Code.DEPENDENCY_UNAVAILABLE)
    assert "hunter2" not in str(decision.record())


async def test_a_probe_that_does_not_come_back_denies(context):
    async def hang(case_id):
        await asyncio.Event().wait()

    decision = await check(context(made(hang, timeout_ms=20), CASE))
    assert (decision.verdict, decision.code) == (Verdict.DENY, Code.DEPENDENCY_UNAVAILABLE)


async def test_a_version_that_can_not_be_read_does_not_match_one_that_was_seen(context):
    for state in ({}, {"version": None}, {"version": [2]}, {"version": {"n": 2}}, "text"):
        ctx = context(made(lambda case_id, state=state: state), CASE)
        assert await passes(ctx)
        assert not await passes(remembered(ctx, seen=2))


@pytest.mark.parametrize(
    ("template", "arguments", "resource"),
    [
        ("case:{case_id}", {"case_id": "case_1"}, "case:case_1"),
        ("case:{case_id}/{note}", {"case_id": "c"}, None),
        ("{case_id}", {"case_id": 7}, "7"),
        ("case:{case_id.number}", {"case_id": {"number": 7}}, "case:7"),
        ("everything", {}, "everything"),
        (None, {"case_id": "c"}, None),
    ],
)
def test_a_resource_is_named_from_the_arguments(template, arguments, resource):
    more = {} if template is None else {"resource": template}
    contract = fake_tool("update", input_schema=SCHEMA, **more).contract
    assert resource_of(contract, arguments) == resource
