"""The semantics gate: a tool's own rules over its calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal import Proposal
from counterseal.codes import Code
from counterseal.contract.invariants import DROP_STEP, Invariant
from counterseal.execution.executor import Executor
from counterseal.gates.base import Decision, GateContext, Learned, Verdict
from counterseal.gates.semantics import check
from counterseal.ledger.records import RunRecord
from counterseal.testing import fake_tool, runtime_for, someone

SCHEMA = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer", "minimum": 0, "maximum": 100, "description": "How much."},
        "note": {"type": "string", "maxLength": 9, "description": "A note."},
    },
    "additionalProperties": False,
}
CAP = Invariant(
    id="CAP", rule="At most ten.", check="call.amount <= 10", correct={"set": {"amount": 10}}
)
NOTED = Invariant(id="NOTED", rule="A note is needed.", check="has(call.note)")


def made(*invariants, **more):
    return fake_tool(input_schema=SCHEMA, invariants=invariants, **more).tool


def run(**more):
    return RunRecord(tenant="acme", run_id="run_1", started_at=0.0, **more)


def test_a_tool_without_rules_allows(context):
    said = check(context(made(), {"amount": 99}))
    decision = said.decision if isinstance(said, Learned) else said
    assert decision.verdict is Verdict.ALLOW


def test_a_call_that_keeps_the_rules_goes_on_as_it_is(context):
    said = check(context(made(CAP), {"amount": 3}))
    assert said.decision.verdict is Verdict.ALLOW
    assert "arguments" not in said.facts
    assert said.decision.warnings == ()


def test_a_correction_is_handed_on_and_shown(context):
    said = check(context(made(CAP), {"amount": 11, "note": "x"}))
    assert said.facts["arguments"] == {"amount": 10, "note": "x"}
    assert [one.invariant for one in said.facts["corrections"]] == ["CAP"]
    assert (said.decision.verdict, said.decision.rule) == (Verdict.ALLOW, "CAP")
    assert said.decision.warnings == ("Corrected: At most ten. (CAP)",)


def test_a_correction_leaves_the_proposal_as_it_was(context):
    proposed = {"amount": 11}
    ctx = context(made(CAP), proposed)
    check(ctx)
    assert proposed == {"amount": 11} == ctx.arguments


def test_a_violated_rule_that_is_not_repairable_is_named(context):
    decision = check(context(made(CAP, NOTED), {"amount": 3}))
    assert decision.verdict is Verdict.DENY
    assert (decision.code, decision.rule) == (Code.SEMANTIC_INVALIDITY, "NOTED")
    assert decision.reason == "A note is needed."
    assert [(error.message, error.code) for error in decision.field_errors] == [
        ("A note is needed.", "NOTED")
    ]


def test_every_broken_rule_is_listed(context):
    other = Invariant(id="EVEN", rule="Even numbers only.", check="call.amount % 2 == 0")
    decision = check(context(made(NOTED, other), {"amount": 3}))
    assert [error.code for error in decision.field_errors] == ["NOTED", "EVEN"]


def test_a_call_that_is_refused_is_not_corrected_either(context):
    said = check(context(made(CAP, NOTED), {"amount": 11}))
    assert isinstance(said, Decision)
    assert said.verdict is Verdict.DENY


@pytest.mark.parametrize("drop", ["drop_step", DROP_STEP, lambda call, state, config: DROP_STEP])
def test_a_step_that_should_not_be_taken_says_so(context, drop):
    never = Invariant(id="NEVER", rule="Not on Sundays.", check="false", correct=drop)
    decision = check(context(made(never), {}))
    assert (decision.code, decision.next_action) == (Code.SEMANTIC_INVALIDITY, "drop_step")
    assert decision.rule == "NEVER"
    assert "Not on Sundays." in decision.reason


@pytest.mark.parametrize("smuggled", [101, -1, "10", None, [10]])
def test_a_correction_can_not_smuggle_a_call_past_the_schema(context, smuggled):
    rule = Invariant(
        id="S",
        rule="r",
        check=lambda call, state, config: call.get("amount") != 5,
        correct={"set": {"amount": smuggled}},
    )
    decision = check(context(made(rule), {"amount": 5}))
    assert (decision.verdict, decision.code) == (Verdict.DENY, Code.SEMANTIC_INVALIDITY)


def test_a_correction_can_not_add_an_argument_that_is_not_declared(context):
    rule = Invariant(id="S", rule="r", check="has(call.admin)", correct={"set": {"admin": "yes"}})
    assert check(context(made(rule), {})).verdict is Verdict.DENY


def test_correctors_that_undo_one_another_end_in_a_refusal(context):
    up = Invariant(id="UP", rule="r", check="call.amount == 1", correct={"set": {"amount": 1}})
    down = Invariant(id="DOWN", rule="r", check="call.amount == 2", correct={"set": {"amount": 2}})
    decision = check(context(made(up, down), {"amount": 0}))
    assert (decision.verdict, decision.code) == (Verdict.DENY, Code.SEMANTIC_INVALIDITY)


def test_rules_see_what_the_run_has_left_behind(context):
    rule = Invariant(id="ONCE", rule="Once only.", check="!has(state.done)")
    assert isinstance(check(context(made(rule), {}, run=run())), Learned)
    refused = check(context(made(rule), {}, run=run(state={"done": True})))
    assert refused.decision.verdict is Verdict.DENY
    assert refused.facts["state_read"] == {"done": 0}  # kept, so that it can be decided again


def test_rules_see_config_from_the_call_then_the_run_then_the_default(context):
    rule = Invariant(id="R", rule="r", check="config.region == 'eu'")
    tool = made(rule, config_params=[{"key": "region", "default": "EU", "normalizer": "lower"}])
    ctx = context(tool, {})
    assert check(ctx).facts["config"] == {"region": "eu"}
    other = check(ctx.replace(run=run(config={"region": "us"})))
    assert (other.decision.verdict, other.facts["config"]) == (Verdict.DENY, {"region": "us"})


def test_config_is_resolved_for_a_tool_without_rules_too(context):
    tool = made(config_params=[{"key": "region", "default": "eu"}])
    assert check(context(tool, {})).facts["config"] == {"region": "eu"}


def test_a_rule_that_can_not_be_answered_is_broken(context):
    rule = Invariant(id="R", rule="r", check="call.nothing > 3")
    assert check(context(made(rule), {})).verdict is Verdict.DENY


@given(amount=st.integers(0, 100))
def test_whatever_goes_on_keeps_every_rule_and_the_schema(amount):
    runtime = runtime_for(fake_tool(input_schema=SCHEMA, invariants=[CAP]))
    compiled = runtime.compiled_for(runtime.registry.get("look_up", "1.0.0"))
    ctx = GateContext(
        proposal=Proposal(tool="look_up", arguments={}),
        principal=someone(),
        call_id="call_1",
        now=0.0,
        registry=runtime.registry,
        executor=Executor(),
        run=run(),
        record=runtime.registry.get("look_up", "1.0.0"),
        compiled=compiled,
        arguments={"amount": amount},
    )
    said = check(ctx)
    final = said.facts.get("arguments", ctx.arguments)
    assert final["amount"] == min(amount, 10)
    assert compiled.input.is_valid(final)
    assert bool(said.facts.get("corrections")) == (amount > 10)


# --- what a rule can't do -------------------------------------------------------------------------

NESTED = {
    "type": "object",
    "properties": {
        "list": {
            "type": "array",
            "items": {"type": "integer"},
            "maxItems": 2,
            "description": "Numbers.",
        }
    },
    "additionalProperties": False,
}


def meddle(call, state, config):
    call["list"].append(7)
    state["notes"].append("forged")
    config["modes"].append("forged")
    return True


def meddle_and_keep(call, state, config):
    meddle(call, state, config)
    return call.replace(list=[2])


@pytest.mark.parametrize(
    "rule",
    [
        Invariant(id="M", rule="r", check=meddle),
        Invariant(
            id="M",
            rule="r",
            check=lambda call, state, config: call["list"] == [2],
            correct=meddle_and_keep,
        ),
    ],
)
async def test_a_rule_changes_nothing_by_looking(rule):
    witness = Invariant(id="W", rule="w", check="call.list.size() == 1 && config.modes == ['a']")
    made = fake_tool(
        "act",
        input_schema=NESTED,
        invariants=[rule, witness],
        config_params=[{"key": "modes"}],
        state_reads=[{"key": "notes"}],
    )
    note = fake_tool("note", {"notes": "x"}, state_effects=[{"key": "notes", "merge": "append"}])
    runtime = runtime_for(made, note)
    session = await runtime.run(someone(), "run_1", config={"modes": ["a"]})
    await session.submit("note")
    assert (await session.submit("act", {"list": [2]})).ok
    assert made.calls == [{"list": [2]}]
    assert await session.state() == {"notes": ["x"]}
    assert (await session.refresh()).config == {"modes": ["a"]}


async def test_a_corrector_that_keeps_its_call_can_not_change_it_afterwards():
    kept = []

    def correct(call, state, config):
        kept.append(call.replace(list=[1]))
        return kept[-1]

    def check(call, state, config):
        for one in kept:
            one["list"].append(7)
        return call["list"] == [1]

    rule = Invariant(id="K", rule="r", check=check, correct=correct)
    made = fake_tool("act", input_schema=NESTED, invariants=[rule])
    seen = await runtime_for(made).submit(
        Proposal(tool="act", arguments={"list": [2]}, run_id="run_1"), someone()
    )
    assert (seen.ok, made.calls) == (True, [{"list": [1]}])


async def test_a_normalizer_changes_neither_the_run_nor_the_default():
    def grow(value):
        value.append("more")
        return value

    params = [{"key": "a", "default": [], "normalizer": grow}, {"key": "b", "normalizer": grow}]
    made = fake_tool("act", config_params=params)
    runtime = runtime_for(made)
    session = await runtime.run(someone(), "run_1", config={"b": []})
    for _ in range(2):
        assert (await session.submit("act")).ok
    _, event = (await runtime.store.events("acme"))[-1]
    assert event.body["config"] == {"a": ["more"], "b": ["more"]}
    assert (await session.refresh()).config == {"b": []}


def test_a_corrector_that_returns_no_call_is_a_mistake_and_no_way_around(context):
    rule = Invariant(id="R", rule="r", check="false", correct=lambda call, state, config: {"a": 1})
    with pytest.raises(TypeError, match="the corrector of R returned dict, not a call"):
        check(context(made(rule), {}))
