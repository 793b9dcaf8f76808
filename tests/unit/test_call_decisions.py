"""What a call keeps of its gates' decisions, and how a single step is run by itself."""

import pytest

from counterseal import Proposal
from counterseal.call.decide import new_call, receive, run_gates
from counterseal.codes import Code
from counterseal.gates import gates_for
from counterseal.gates.base import Gate, Learned, TimedDecision, allow, deny, require_approval
from counterseal.ledger.records import Budgets, HeldStatus, RunRecord
from counterseal.testing import fake_tool, runtime_for, someone

RUN = RunRecord(tenant="acme", run_id="run_1", started_at=0.0)


def a_call(runtime, **fields):
    return new_call(Proposal(**{"tool": "look_up", "arguments": {}, **fields}), someone(), runtime)


def gate(result, name="gate"):
    return Gate(name, lambda _ctx: result)


def test_a_denial_ends_the_gates_and_is_the_last_decision():
    runtime = runtime_for()
    call = a_call(runtime)
    denial = deny("policy", Code.POLICY_VIOLATION, "no")
    gates = [gate(allow("scope")), gate(denial, "policy"), gate(allow("budget"))]
    assert run_gates(call, gates, runtime) is denial
    assert [timed.decision.gate for timed in call.decisions] == ["scope", "policy"]


def test_a_required_approval_lets_the_later_gates_run():
    runtime = runtime_for()
    call = a_call(runtime)
    by_policy, by_gate = require_approval("policy", "ask"), require_approval("approval", "ask")
    gates = [gate(by_policy), gate(by_gate), gate(allow("budget"))]
    assert run_gates(call, gates, runtime) is None
    assert (call.ctx.requirements, call.approval_requirement) == ((by_policy,), by_gate)
    assert len(call.decisions) == 3


def test_what_a_gate_learns_is_in_a_new_context():
    runtime = runtime_for()
    call = a_call(runtime)
    before = call.ctx
    run_gates(call, [gate(Learned(allow("parse"), {"arguments": {"n": 1}}))], runtime)
    assert (dict(before.arguments), call.ctx.arguments) == ({}, {"n": 1})


@pytest.mark.parametrize("field", ["arguments", "memory", "anything"])
def test_a_context_can_not_be_changed(field):
    ctx = a_call(runtime_for()).ctx
    with pytest.raises(AttributeError):
        setattr(ctx, field, {"amount": 1})


def test_only_an_allowance_without_a_rule_is_plain():
    runtime = runtime_for()
    call = a_call(runtime)
    results = [allow("a"), allow("b", rule="notes"), require_approval("c", "ask")]
    run_gates(call, [gate(result) for result in results], runtime)
    assert [timed.decision.plain for timed in call.decisions] == [True, False, False]


def test_an_overruled_gate_has_one_decision_wherever_it_stands():
    runtime = runtime_for()
    call = a_call(runtime)
    run_gates(call, [gate(allow(name)) for name in ("scope", "budget", "later")], runtime)
    denial = deny("budget", Code.BUDGET_EXHAUSTED, "spent")
    assert call.overrule(denial) is denial
    assert [timed.decision for timed in call.decisions] == [allow("scope"), denial, allow("later")]


def test_decisions_are_taken_back_to_where_decide_began():
    runtime = runtime_for()
    call = a_call(runtime)
    call.add_decision(allow("scope"))
    call.first_decision = 1
    run_gates(call, [gate(require_approval("approval", "ask"))], runtime)
    call.forget_decisions()
    assert [timed.decision.gate for timed in call.decisions] == ["scope"]
    assert call.approval_requirement is None


def test_a_step_takes_a_call_that_was_made_by_hand():
    runtime = runtime_for(fake_tool())
    call = a_call(runtime, version="9.9.9")
    denied = receive(call, RUN, runtime)
    assert (denied.gate, call.ctx.record) == ("scope", None)


def test_a_gate_with_nothing_to_check_has_a_constant_answer():
    gates = gates_for(fake_tool().contract)
    answers = [one.decision for one in gates if isinstance(one, TimedDecision)]
    assert answers == [allow("semantics"), allow("state")]


@pytest.mark.parametrize("effect", ["read_only", "draft", "external_notification"])
async def test_an_observation_lists_the_decisions_in_the_order_of_the_gates(effect):
    runtime = runtime_for(fake_tool("act", effect=effect))
    await runtime.run(someone(), "run_1", budgets=Budgets(reads=2, writes=2))
    call = Proposal(tool="act", arguments={}, run_id="run_1", key="k")
    answer = await runtime.submit(call, someone())
    if answer.approval_id is not None:
        await runtime.store.decide("acme", answer.approval_id, HeldStatus.APPROVED, [])
        answer = await runtime.submit(call, someone())
    gates = [timed.decision.gate for timed in answer.decisions]
    assert gates == [
        "parse", "schema", "scope", "semantics", "policy", "state", "approval", "budget"
    ]  # fmt: skip


@pytest.mark.parametrize("version", [1, 0, 1.5, True, [], {}, object()])
async def test_version_that_is_no_text_is_refused(version):
    runtime = runtime_for(fake_tool("look_up").tool)
    proposal = Proposal(tool="look_up", arguments={}, version=version, run_id="run_1")
    assert (await runtime.submit(proposal, someone())).code is Code.SYNTACTIC_PARSE_FAIL
