"""Whole plans before anything runs: what is corrected, pruned, rejected, and left untouched."""

import asyncio
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal import DROP_STEP, Budgets, Grant, Invariant, Proposal, Tenant, Tool, load_contracts
from counterseal.ledger.records import HeldStatus
from counterseal.plans import Fate, PlanRule, load_plan_rules
from counterseal.policy import Policy
from counterseal.testing import fake_tool, runtime_for, someone

# A retrieval tool, declared twice: with checks in Python, and in a file with checks in CEL -------

BOTH = "Cannot use both subquestion_id and subquestion_ids in same step"
WEB = "Steps using subquestion_ids must have web_search=True"
ONE_BUNDLE = "At most one retrieval_llm step with subquestion_ids per plan"
UNIQUE = "No duplicate (text, web_search) combinations within plan"

CONTRACT = f"""\
effect: retrieve
identity: {{name: retrieval_llm, version: 1.0.0, owner: evidence}}
usage: When a clinical question needs evidence.
affordance:
  model_description: Retrieve clinical evidence.
  input_schema:
    type: object
    additionalProperties: false
    required: [query]
    properties:
      query: {{type: string, maxLength: 200, description: What to look for.}}
      subquestion_id: {{type: string, maxLength: 20, description: One subquestion.}}
      subquestion_ids:
        type: array
        maxItems: 9
        items: {{type: string, maxLength: 20}}
        description: Several subquestions.
      web_search: {{type: boolean, description: Search the web as well.}}
  output_schema: {{type: object, additionalProperties: false}}
invariants:
  - id: MUTUAL_EXCLUSIVE_SUBQUESTION_FIELDS
    rule: {BOTH}
    check: "!(has(call.subquestion_id) && has(call.subquestion_ids))"
  - id: BUNDLED_REQUIRES_WEB_SEARCH
    rule: {WEB}
    check: "!has(call.subquestion_ids) || (has(call.web_search) && call.web_search)"
    correct: {{set: {{web_search: true}}}}
  - id: SINGLE_BUNDLED_STEP_PER_PLAN
    rule: {ONE_BUNDLE}
    check: >-
      !has(call.subquestion_ids) || !earlier.exists(step,
      step.tool == "retrieval_llm" && has(step.arguments.subquestion_ids))
    correct: drop_step
  - id: NO_DUPLICATE_IDENTICAL_CALLS
    rule: {UNIQUE}
    check: >-
      !earlier.exists(step, step.tool == "retrieval_llm"
      && step.arguments.query == call.query
      && (has(step.arguments.web_search) && step.arguments.web_search)
      == (has(call.web_search) && call.web_search))
    correct: drop_step
"""


def bundles(call):
    return "subquestion_ids" in call


def same(one, other):
    return one["query"] == other["query"] and bool(one.get("web_search")) == bool(
        other.get("web_search")
    )


def retrievals(call):
    return [step for step in call.earlier if step.tool == call.tool]


IN_PYTHON = [
    Invariant(
        id="MUTUAL_EXCLUSIVE_SUBQUESTION_FIELDS",
        rule=BOTH,
        check=lambda call, state, config: not (bundles(call) and "subquestion_id" in call),
    ),
    Invariant(
        id="BUNDLED_REQUIRES_WEB_SEARCH",
        rule=WEB,
        check=lambda call, state, config: not bundles(call) or call.get("web_search") is True,
        correct=lambda call, state, config: call.replace(web_search=True),
    ),
    Invariant(
        id="SINGLE_BUNDLED_STEP_PER_PLAN",
        rule=ONE_BUNDLE,
        check=lambda call, state, config: (
            not bundles(call) or not any(map(bundles, retrievals(call)))
        ),
        correct=lambda call, state, config: DROP_STEP,
    ),
    Invariant(
        id="NO_DUPLICATE_IDENTICAL_CALLS",
        rule=UNIQUE,
        check=lambda call, state, config: not any(same(step, call) for step in retrievals(call)),
        correct=lambda call, state, config: DROP_STEP,
    ),
]


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    file = tmp_path_factory.mktemp("contracts") / "retrieval_llm.yaml"
    file.write_text(CONTRACT)
    (contract,) = load_contracts(file)
    return {"cel": contract, "python": contract.model_copy(update={"invariants": tuple(IN_PYTHON)})}


@pytest.fixture(params=["python", "cel"])
def retrieval(request, declared):
    """The tool, and what it was really called with."""
    return made(declared[request.param])


def made(contract):
    calls = []

    async def retrieve(query, subquestion_id=None, subquestion_ids=None, web_search=None):
        calls.append((query, subquestion_ids, web_search))
        return {}

    return Tool.of(contract, retrieve), calls


def ask(query, **more):
    return {"tool": "retrieval_llm", "arguments": {"query": query, **more}}


def bundle(query, **more):
    return ask(query, subquestion_ids=["q1", "q2"], **more)


def fates(plan):
    return [step.fate.value for step in plan.steps]


async def test_mutually_exclusive_fields_are_rejected(retrieval):
    runtime = runtime_for(retrieval[0])
    plan = await runtime.plan([ask("a"), bundle("b", subquestion_id="q1")], someone())
    assert not plan.ok
    assert fates(plan) == ["keep", "reject"]
    rejected = plan.steps[1]
    assert rejected.rule == "MUTUAL_EXCLUSIVE_SUBQUESTION_FIELDS"
    assert (rejected.gate, rejected.code, rejected.reason) == (
        "semantics",
        "SEMANTIC_INVALIDITY",
        BOTH,
    )
    assert rejected.arguments == bundle("b", subquestion_id="q1")["arguments"], "as proposed"


async def test_missing_flag_is_corrected(retrieval):
    runtime = runtime_for(retrieval[0])
    plan = await runtime.plan([bundle("a")], someone())
    assert plan.ok
    (step,) = plan.steps
    assert (step.fate, step.arguments["web_search"]) == (Fate.CORRECT, True)
    assert [one.invariant for one in step.corrections] == ["BUNDLED_REQUIRES_WEB_SEARCH"]
    assert step.record()["corrections"][0]["changes"] == [{"field": "/web_search", "after": True}]


async def test_second_bundled_step_is_pruned(retrieval):
    runtime = runtime_for(retrieval[0])
    plan = await runtime.plan([bundle("a"), ask("b"), bundle("c")], someone())
    assert plan.ok
    assert fates(plan) == ["correct", "keep", "drop"]
    assert plan.steps[2].rule == "SINGLE_BUNDLED_STEP_PER_PLAN"
    assert [one.arguments["query"] for one in plan.proposals] == ["a", "b"]


async def test_duplicate_call_is_removed(retrieval):
    runtime = runtime_for(retrieval[0])
    steps = [ask("a"), ask("a", web_search=True), ask("a", web_search=False), ask("b")]
    plan = await runtime.plan(steps, someone())
    assert plan.ok
    assert fates(plan) == ["keep", "keep", "drop", "keep"]
    assert plan.steps[2].rule == "NO_DUPLICATE_IDENTICAL_CALLS"


async def test_later_steps_see_a_corrected_step_as_corrected(retrieval):
    runtime = runtime_for(retrieval[0])
    plan = await runtime.plan([bundle("a"), ask("a", web_search=True), ask("a")], someone())
    assert fates(plan) == ["correct", "drop", "keep"]


async def test_steps_that_are_not_taken_are_not_seen_by_later_ones(retrieval):
    runtime = runtime_for(retrieval[0])
    steps = [bundle("a", subquestion_id="q1"), bundle("b"), bundle("c"), ask("c", web_search=True)]
    plan = await runtime.plan(steps, someone())
    assert fates(plan) == ["reject", "correct", "drop", "keep"]


async def test_step_that_is_invalid_is_rejected_and_not_pruned(retrieval):
    runtime = runtime_for(retrieval[0])
    plan = await runtime.plan([bundle("a"), bundle("b", subquestion_id="q1")], someone())
    assert fates(plan) == ["correct", "reject"], "it may have meant subquestion_id"


async def test_accepted_plan_runs_as_it_was_judged(retrieval):
    tool, calls = retrieval
    runtime = runtime_for(tool)
    run = await runtime.run(someone(), "run_1")
    plan = await run.plan([bundle("a"), bundle("b"), ask("c")])
    assert calls == []
    for proposal in plan.proposals:
        assert (await runtime.submit(proposal, someone())).ok
    assert calls == [("a", ["q1", "q2"], True), ("c", None, None)]
    assert [one.run_id for one in plan.proposals] == ["run_1", "run_1"]


STEP = st.builds(
    lambda query, given: ask(query, **given),
    st.sampled_from("ab"),
    st.fixed_dictionaries(
        {},
        optional={
            "subquestion_id": st.just("q1"),
            "subquestion_ids": st.just(["q1"]),
            "web_search": st.booleans(),
        },
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["python", "cel"])
@settings(max_examples=40)
@given(steps=st.lists(STEP, max_size=8))
def test_what_is_left_of_a_plan_keeps_every_rule_and_is_left_alone_when_judged_again(
    declared, form, steps
):
    runtime = runtime_for(made(declared[form])[0])
    plan = asyncio.run(runtime.plan(steps, someone()))
    taken = [step.proposal for step in plan.steps if step.kept]
    again = asyncio.run(runtime.plan(taken, someone()))
    left = [dict(one.arguments) for one in taken]
    assert set(fates(again)) <= {"keep"}
    assert [dict(one.arguments) for one in again.proposals] == left
    assert not any("subquestion_id" in one and bundles(one) for one in left)
    assert all(one.get("web_search") is True for one in left if bundles(one))
    assert sum(map(bundles, left)) <= 1
    assert not any(same(one, other) for one, other in itertools.combinations(left, 2))
    assert len(plan.steps) == len(steps)
    meant = ["subquestion_id" in one["arguments"] and bundles(one["arguments"]) for one in steps]
    assert [step.fate is Fate.REJECT for step in plan.steps] == meant


# Rules across tools ------------------------------------------------------------------------------

MEDICAL = """\
plan_rules:
  - id: medical-plans-cite-their-sources
    rule: A medical plan needs retrieval and a source link.
    when: run.objective != null && run.objective.contains("medical")
    check: >-
      steps.exists(step, step.tool == "retrieval_llm") &&
      steps.exists(step, step.tool == "source_link_retrieval")
"""


def in_python(steps, facts):
    return {"retrieval_llm", "source_link_retrieval"} <= {step.tool for step in steps}


@pytest.fixture(params=["python", "cel"])
def medical(request, tmp_path):
    if request.param == "cel":
        (tmp_path / "rules.yaml").write_text(MEDICAL)
        return load_plan_rules(tmp_path / "rules.yaml")
    return (
        PlanRule(
            id="medical-plans-cite-their-sources",
            rule="A medical plan needs retrieval and a source link.",
            when=lambda steps, facts: "medical" in (facts["run"]["objective"] or ""),
            check=in_python,
        ),
    )


@pytest.mark.parametrize(
    ("objective", "tools", "ok"),
    [
        ("a medical question", ["retrieval_llm", "source_link_retrieval"], True),
        ("a medical question", ["retrieval_llm"], False),
        ("a medical question", ["source_link_retrieval"], False),
        ("a medical question", [], False),
        ("the weather", ["retrieval_llm"], True),
        (None, ["retrieval_llm"], True),
    ],
)
async def test_medical_plan_needs_retrieval_and_a_source_link(
    declared, medical, objective, tools, ok
):
    link = fake_tool("source_link_retrieval", effect="retrieve")
    runtime = runtime_for(made(declared["cel"])[0], link, plan_rules=medical)
    run = await runtime.run(someone(), objective=objective)
    steps = [ask("a") if one == "retrieval_llm" else {"tool": one} for one in tools]
    plan = await run.plan(steps)
    assert plan.ok is ok
    assert all(step.kept for step in plan.steps), "no step is wrong in itself"
    assert [one.id for one in plan.broken] == ([] if ok else ["medical-plans-cite-their-sources"])
    assert ("needs retrieval and a source link" in plan.for_model()) is not ok


async def test_plan_rule_counts_only_steps_that_are_left(declared, medical):
    link = fake_tool("source_link_retrieval", effect="retrieve")
    runtime = runtime_for(made(declared["cel"])[0], link, plan_rules=medical)
    run = await runtime.run(someone(), objective="medical")
    plan = await run.plan([bundle("a", subquestion_id="q"), {"tool": "source_link_retrieval"}])
    assert fates(plan) == ["reject", "keep"]
    assert plan.broken, "what was rejected is no retrieval"


async def test_plan_rules_never_stand_on_a_contract_and_never_stop_a_call(declared, medical):
    tool, _ = made(declared["cel"])
    runtime = runtime_for(tool, plan_rules=medical)
    run = await runtime.run(someone(), objective="medical")
    assert (await run.submit("retrieval_llm", {"query": "a"})).ok
    assert "medical" not in json.dumps(tool.contract.record())


# Steps in the light of those before them ---------------------------------------------------------

NOTE = {
    "type": "object",
    "properties": {
        "case": {"type": "string", "maxLength": 9, "description": "The case."},
        "text": {"type": "string", "maxLength": 9, "description": "The text."},
    },
    "additionalProperties": False,
}


def write(case, **more):
    return {"tool": "write", "arguments": {"case": case, **more}}


def writer(**more):
    more = {"effect": "internal_mutation", "input_schema": NOTE, **more}
    return fake_tool("write", **more)


@pytest.mark.parametrize("whose", ["run", "tenant", "grant"])
async def test_budgets_add_up_over_the_steps(whose):
    two = Budgets(writes=2)
    tenants = {"acme": Tenant(budgets=two)} if whose == "tenant" else None
    runtime = runtime_for(writer(), fake_tool("read"), agent="other", tenants=tenants)
    limit = 2 if whose == "grant" else None
    runtime.register(
        grants=[
            Grant(agent="agent", tool="write", max_calls_per_run=limit),
            Grant(agent="agent", tool="read"),
        ]
    )
    run = await runtime.run(someone(), budgets=two if whose == "run" else None)
    read = {"tool": "read"}
    plan = await run.plan([write("a"), {"tool": "gone"}, read, write("b"), write("c"), read])
    assert fates(plan) == ["keep", "reject", "keep", "keep", "reject", "keep"]
    third = plan.steps[4]
    assert (third.gate, third.code) == ("budget", "BUDGET_EXHAUSTED")
    assert "2 of 2 spent" in third.field_errors[0].message


async def test_what_was_spent_before_counts_and_dropped_steps_do_not():
    runtime = runtime_for(writer())
    run = await runtime.run(someone(), budgets=Budgets(writes=2))
    assert (await run.submit("write", {"case": "a"})).ok
    plan = await run.plan([write("b"), write("b"), write("c")])
    assert fates(plan) == ["keep", "drop", "reject"], "the same operation costs nothing"


async def test_policy_counts_the_calls_of_earlier_steps():
    rule = {"id": "once", "when": "run.calls >= 1", "then": "deny", "reason": "Once is enough."}
    runtime = runtime_for(writer(), policy=Policy.from_data({"rules": [rule]}))
    plan = await runtime.plan([write("a"), write("b")], someone())
    assert fates(plan) == ["keep", "reject"]
    assert plan.steps[1].rule == "once"


async def test_world_is_asked_until_a_step_may_have_changed_it():
    probed = []

    def probe(case, text=""):
        probed.append(case)
        return {"version": 1} if case != "gone" else None

    runtime = runtime_for(writer(probe=probe, resource="case:{case}"), fake_tool("read"))
    steps = [write("gone"), {"tool": "read"}, write("a"), write("b"), {"tool": "read"}]
    plan = await runtime.plan(steps, someone())
    assert probed == ["gone", "a"]
    assert fates(plan) == ["reject", "keep", "keep", "keep", "keep"]
    assert [step.unknown for step in plan.steps] == [(), (), (), ("state",), ()]
    assert plan.steps[0].code == "STALE_STATE"
    assert "not known yet: state" in plan.for_model()


NEEDS_RESULTS = [
    Invariant(id="R", rule="Results are needed.", check="state.results.size() > 0"),
    Invariant(id="R", rule="Results are needed.", check="'results' in state && state != {}"),
    Invariant(id="R", rule="Results are needed.", check=lambda c, s, k: len(s["results"]) > 0),
]


@pytest.mark.parametrize("needs", NEEDS_RESULTS)
async def test_rule_about_state_that_an_earlier_step_will_write_is_left_for_later(needs):
    short = Invariant(id="S", rule="Be short.", check="!has(call.text) || call.text != 'long'")
    search = fake_tool("search", {"results": ["x"]}, state_effects=[{"key": "results"}])
    cite = fake_tool("cite", input_schema=NOTE, invariants=[needs, short])
    runtime = runtime_for(search, cite, fake_tool("other", state_effects=[{"key": "notes"}]))
    run = await runtime.run(someone())
    first, then = {"tool": "search"}, {"tool": "cite"}
    plan = await run.plan([then, first, then, {**then, "arguments": {"text": "long"}}])
    assert fates(plan) == ["reject", "keep", "keep", "reject"]
    assert [step.unknown for step in plan.steps] == [(), (), ("semantics",), ()]
    assert plan.steps[3].rule == "S", "what can be known is asked all the same"
    for step in (first, then):
        assert (await run.submit(step["tool"])).ok


async def test_state_that_no_earlier_step_writes_can_be_known():
    cite = fake_tool("cite", invariants=[NEEDS_RESULTS[0]])
    runtime = runtime_for(cite, fake_tool("other", state_effects=[{"key": "notes"}]))
    plan = await runtime.plan([{"tool": "other"}, {"tool": "cite"}], someone())
    assert fates(plan) == ["keep", "reject"]
    assert plan.steps[1].reason == "Results are needed."


async def test_same_operation_is_dropped_and_the_same_key_for_another_is_rejected():
    runtime = runtime_for(writer(business_key=["case"]))
    steps = [write("a"), write("b"), write("a"), write("a", text="other")]
    plan = await runtime.plan(steps, someone())
    assert fates(plan) == ["keep", "keep", "drop", "reject"]
    assert (plan.steps[2].gate, plan.steps[2].rule) == ("ledger", "same-operation")
    assert plan.steps[3].code == "SIGNATURE_MISMATCH"


async def test_steps_that_become_the_same_by_correction_are_the_same_operation():
    lower = Invariant(
        id="LOWER",
        rule="Cases are written small.",
        check="call.case != 'A'",
        correct={"set": {"case": "a"}},
    )
    runtime = runtime_for(writer(invariants=[lower]))
    plan = await runtime.plan([write("a"), write("A")], someone())
    assert fates(plan) == ["keep", "drop"]
    assert plan.steps[1].arguments == {"case": "A"}, "as proposed"


async def test_repeatable_step_must_be_named_to_be_meant_again():
    store = writer(repeatable=True)
    runtime = runtime_for(store)
    named = {**write("a"), "operation_id": "op_2"}
    plan = await runtime.plan([write("a"), write("a"), named], someone())
    assert fates(plan) == ["keep", "reject", "keep"]
    assert plan.steps[1].rule == "repeat-unnamed"
    for step in plan.steps:
        assert step.proposal is None or (await runtime.submit(step.proposal, someone())).ok
    assert len(store.calls) == 2


async def test_what_was_done_before_is_kept_and_what_the_ledger_refuses_is_rejected():
    runtime = runtime_for(writer(business_key=["case"]))
    run = await runtime.run(someone())
    assert (await run.submit("write", {"case": "a"})).ok
    plan = await run.plan([write("a", text="other"), write("a")])
    assert fates(plan) == ["reject", "keep"]
    assert (plan.steps[0].gate, plan.steps[0].code) == ("ledger", "SIGNATURE_MISMATCH")
    assert "it would be answered from the ledger" in plan.steps[1].reason


async def test_step_that_a_person_must_approve_is_held_and_takes_its_share():
    runtime = runtime_for(writer(effect="external_notification"))
    run = await runtime.run(someone(), budgets=Budgets(external=1))
    plan = await run.plan([write("a"), write("b")])
    assert fates(plan) == ["hold", "reject"]
    assert (plan.steps[0].gate, plan.steps[0].code) == ("approval", "CONFIRMATION_MISSING")
    assert [step.proposal is not None for step in plan.steps] == [True, False]


# Nothing happens, and nothing leaks --------------------------------------------------------------


def kept(runtime):
    return repr(vars(runtime.store))


async def test_judging_a_plan_leaves_no_trace():
    send = fake_tool("send", effect="external_notification")
    store = writer()
    runtime = runtime_for(store, send, plan_rules=[PlanRule(id="no", rule="No.", check="false")])
    run = await runtime.run(someone(), "run_1")
    await run.submit("write", {"case": "a"})
    await run.submit("send")
    before = kept(runtime)
    steps = [write("a"), write("b"), write("b"), {"tool": "send"}, {"tool": "gone"}, 7]
    plan = await run.plan(steps)
    assert fates(plan) == ["keep", "keep", "drop", "hold", "reject", "reject"]
    await runtime.plan(steps, someone(), run_id="run_2")
    await runtime.plan(steps, someone(user="another"))
    assert kept(runtime) == before
    assert (len(store.calls), send.calls) == (1, [])


async def test_nothing_of_another_tenant_shows():
    theirs = fake_tool("theirs")
    seen = []
    look = PlanRule(id="look", rule="r", check=lambda s, facts: seen.append(facts) or True)
    runtime = runtime_for(writer(), plan_rules=[look])
    runtime.register(
        theirs.tool, grants=[Grant(agent="agent", tool="theirs")], allowed_tenants=["other"]
    )
    await runtime.run(someone(tenant="other"), "run_1", objective="secret", config={"k": "secret"})
    plan = await runtime.plan([{"tool": "theirs"}, {"tool": "absent"}], someone(), run_id="run_1")
    hidden, absent = (step.record() for step in plan.steps)
    assert {**hidden, "tool": "absent", "step": 2} == absent
    assert "secret" not in str(seen)
    assert "one of: write" in plan.for_model()


async def test_step_of_another_run_is_rejected():
    runtime = runtime_for(writer())
    mine = Proposal(tool="write", arguments={}, run_id="run_1")
    plan = await runtime.plan([mine, Proposal(tool="write", arguments={})], someone())
    assert fates(plan) == ["reject", "keep"]
    assert "another run" in plan.steps[0].reason
    plan = await runtime.plan([mine], someone(), run_id="run_1")
    assert plan.ok
    assert not (await runtime.plan([mine], someone(), run_id="\0")).ok


async def test_proposals_keep_what_was_proposed_beside_the_arguments():
    runtime = runtime_for(writer())
    given = Proposal(tool="write", arguments='{"case": "a"}', key="k", expected_version=3)
    (left,) = (await runtime.plan([given], someone(), run_id="run_1")).proposals
    assert (left.key, left.expected_version, left.run_id) == ("k", 3, "run_1")
    assert left.arguments == {"case": "a"}


async def test_run_bounds_its_plans():
    runtime = runtime_for(writer(), fake_tool("read"))
    run = await runtime.run(someone(), allowed_tools=["read"])
    assert fates(await run.plan([{"tool": "read"}, write("a")])) == ["keep", "reject"]


async def test_plan_keeps_to_the_version_that_its_first_step_uses():
    old, new = fake_tool("read"), fake_tool("read", version="1.1.0")
    runtime = runtime_for(old, new)
    asked = [Proposal(tool="read", arguments={}, version=one) for one in ("1.0.0", "1.1.0", None)]
    plan = await runtime.plan(asked, someone())
    assert fates(plan) == ["keep", "reject", "keep"]
    assert fates(await runtime.plan(asked[1:], someone())) == ["keep", "keep"]


# A plan is a model's text ------------------------------------------------------------------------

CYCLE = {}
CYCLE["a"] = CYCLE


@pytest.mark.parametrize(
    "step",
    [
        None,
        7,
        "write",
        ["write"],
        {},
        {"tool": 7},
        {"tool": ""},
        {"tool": "write" * 1000},
        {"tool": "wr\ud800ite"},
        {"tool": "write", "args": {"case": "a"}},
        {"tool": "write", 10**5000: 1},
        {"tool": "write", "arguments": 7},
        {"tool": "write", "arguments": "{"},
        {"tool": "write", "arguments": {"case": float("nan")}},
        {"tool": "write", "arguments": {"case": object()}},
        {"tool": "write", "arguments": {7: "a"}},
        {"tool": "write", "arguments": CYCLE},
        {"tool": "write", "arguments": {"text": "x" * 300_000}},
        {"tool": "write", "operation_id": ["a"]},
        Proposal(tool=7, arguments={}),
        Proposal(tool="write", arguments=None),
    ],
)
async def test_garbage_is_rejected_and_the_rest_is_judged_all_the_same(step):
    runtime = runtime_for(writer())
    plan = await runtime.plan([step, write("a")], someone())
    assert fates(plan) == ["reject", "keep"]
    data = json.dumps(plan.record(), allow_nan=False, ensure_ascii=False).encode()
    assert len(data) < 3000
    assert plan.for_model().encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
TEXT = st.fixed_dictionaries(
    {"tool": st.sampled_from(["write", "look", "\u202etirw"]) | JSON},
    optional={"arguments": JSON, "operation_id": JSON},
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(TEXT | JSON, max_size=5))
def test_whatever_a_model_writes_is_judged_step_by_step(steps):
    runtime = runtime_for(writer(), fake_tool("look"))
    plan = asyncio.run(runtime.plan(steps, someone()))
    assert [step.number for step in plan.steps] == list(range(1, len(steps) + 1))
    assert json.loads(json.dumps(plan.record(), allow_nan=False))["ok"] is plan.ok
    assert plan.for_model().encode()
    assert len(plan.proposals) == (sum(step.kept for step in plan.steps) if plan.ok else 0)


@pytest.mark.parametrize("steps", [None, 7, "write", b"write", {"steps": []}, object()])
async def test_what_is_no_list_of_steps_is_one_bad_step(steps):
    plan = await runtime_for(writer()).plan(steps, someone())
    assert fates(plan) == ["reject"]


async def test_plan_ends_after_a_hundred_steps():
    runtime = runtime_for(fake_tool("read"))
    endless = ({"tool": "read"} for _ in itertools.count())
    plan = await runtime.plan(endless, someone())
    assert fates(plan) == ["keep"] * 100 + ["reject"]
    assert "at most 100 steps" in plan.steps[100].reason
    assert (await runtime.plan([{"tool": "read"}] * 100, someone())).ok


async def test_arguments_of_all_steps_are_bounded_together():
    text = {"type": "string", "maxLength": 200_000, "description": "Much."}
    long = {"type": "object", "properties": {"text": text}, "additionalProperties": False}
    runtime = runtime_for(fake_tool("read", input_schema=long))
    big = {"tool": "read", "arguments": {"text": "x" * 100_000}}
    plan = await runtime.plan([big, big, big, {"tool": "read"}], someone())
    assert fates(plan) == ["keep", "keep", "reject", "keep"]
    assert plan.steps[2].code == "OUT_OF_BOUNDS"


async def test_check_that_changes_what_it_looks_at_does_not_change_the_plan():
    def meddle(call, state, config):
        for step in call.earlier:
            step["list"].append("meddled")
        return True

    schema = {
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": {"type": "string"}, "description": "Words."}
        },
        "additionalProperties": False,
    }
    rule = Invariant(id="M", rule="r", check=meddle)
    runtime = runtime_for(fake_tool("read", input_schema=schema, invariants=[rule]))
    step = {"tool": "read", "arguments": {"list": ["a"]}}
    plan = await runtime.plan([step, step], someone())
    assert [one.arguments for one in plan.proposals] == [{"list": ["a"]}] * 2
    assert step["arguments"] == {"list": ["a"]}


async def test_plan_rule_that_changes_what_it_sees_does_not_change_the_run():
    def meddle(steps, facts):
        facts["run"]["state"]["notes"] = facts["run"]["config"]["k"] = "meddled"
        return True

    runtime = runtime_for(writer(), plan_rules=[PlanRule(id="m", rule="r", check=meddle)])
    run = await runtime.run(someone(), config={"k": 1})
    assert (await run.plan([write("a")])).ok
    found = await run.refresh()
    assert (found.state, found.config) == ({}, {"k": 1})


# A correction changes what is done, not what was asked ------------------------------------------

LOWER = Invariant(
    id="LOWER",
    rule="Cases are written small.",
    check="call.case == 'a'",
    correct={"set": {"case": "a"}},
)


@pytest.mark.parametrize("declared_with", [{}, {"business_key": ["case"]}])
@pytest.mark.parametrize("named", [{}, {"key": "k_1"}, {"operation_id": "op_1"}])
async def test_corrected_step_and_the_step_as_written_are_one_operation(declared_with, named):
    made = writer(invariants=[LOWER], **declared_with)
    runtime = runtime_for(made)
    run = await runtime.run(someone(), "run_1")
    step = Proposal(tool="write", arguments={"case": "A"}, run_id="run_1", **named)
    (planned,) = (await run.plan([step])).proposals
    assert (planned.arguments, planned.proposed) == ({"case": "a"}, {"case": "A"})
    taken = await runtime.submit(planned, someone())
    assert (taken.ok, taken.idempotency_hit) == (True, False)
    for again in (step, planned):
        seen = await runtime.submit(again, someone())
        assert (seen.ok, seen.idempotency_hit) == (True, True), seen.code
    assert made.calls == [{"case": "a"}]


async def test_step_that_was_taken_is_answered_from_memory_when_it_is_planned_again():
    made = writer(invariants=[LOWER], business_key=["case"])
    runtime = runtime_for(made)
    run = await runtime.run(someone(), "run_1")
    for _ in range(3):
        plan = await run.plan([write("A")])
        for proposal in plan.proposals:
            assert (await runtime.submit(proposal, someone())).ok
    assert plan.steps[0].fate is Fate.KEEP
    assert "it would be answered from the ledger" in plan.steps[0].reason
    assert made.calls == [{"case": "a"}]


async def test_plan_of_a_plan_keeps_what_was_first_proposed():
    runtime = runtime_for(writer(invariants=[LOWER]))
    run = await runtime.run(someone(), "run_1")
    first = await run.plan([write("A")])
    again = await run.plan(first.proposals)
    assert again.proposals == first.proposals


async def test_approval_of_a_corrected_step_counts_for_the_step_as_written():
    made = writer(invariants=[LOWER], effect="external_notification")
    runtime = runtime_for(made)
    run = await runtime.run(someone(), "run_1")
    (planned,) = (await run.plan([write("A")])).proposals
    held = await runtime.submit(planned, someone())
    await runtime.store.decide("acme", held.approval_id, HeldStatus.APPROVED, [])
    assert (await run.submit("write", {"case": "A"})).ok
    assert made.calls == [{"case": "a"}]


@pytest.mark.parametrize("proposed", ["A", {7: 1}, {"case": float("nan")}, CYCLE])
async def test_what_is_no_first_proposal_binds_no_key(proposed):
    made = writer()
    runtime = runtime_for(made)
    odd = Proposal(tool="write", arguments={"case": "a"}, run_id="run_1", proposed=proposed)
    assert (await runtime.submit(odd, someone())).ok
    plain = Proposal(tool="write", arguments={"case": "a"}, run_id="run_1")
    assert (await runtime.submit(plain, someone())).idempotency_hit


# What can't be known yet --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "correct",
    [
        lambda call, state, config: call.replace(text=state.get("results", "none")),
        lambda call, state, config: DROP_STEP if "results" not in state else None,
    ],
)
async def test_correction_that_rests_on_state_to_be_written_is_left_for_later(correct):
    lacks = Invariant(id="TEXT", rule="A text is needed.", check="has(call.text)", correct=correct)
    small = Invariant(
        id="SMALL", rule="Small.", check="call.case == 'a'", correct={"set": {"case": "a"}}
    )
    cite = fake_tool("cite", input_schema=NOTE, invariants=[lacks, small])
    runtime = runtime_for(fake_tool("search", state_effects=[{"key": "results"}]), cite)
    then = {"tool": "cite", "arguments": {"case": "A"}}
    plan = await runtime.plan([{"tool": "search"}, then], someone())
    step = plan.steps[1]
    assert (step.fate, step.unknown) == (Fate.CORRECT, ("semantics",))
    assert step.arguments == {"case": "a"}, "what can be known is corrected"


async def test_state_that_a_rule_reads_only_after_a_correction_counts_too():
    def check(call, state, config):
        return call.get("text") != "b" or state.get("results") == "there"

    follows = Invariant(id="B", rule="Then b.", check=check)
    lacks = Invariant(
        id="T", rule="A text.", check="has(call.text)", correct={"set": {"text": "b"}}
    )
    cite = fake_tool("cite", input_schema=NOTE, invariants=[follows, lacks])
    runtime = runtime_for(fake_tool("search", state_effects=[{"key": "results"}]), cite)
    plan = await runtime.plan([{"tool": "search"}, {"tool": "cite"}], someone())
    assert (plan.ok, plan.steps[1].unknown) == (True, ("semantics",))
    assert not (await runtime.plan([{"tool": "cite"}], someone())).ok


# Half a plan, huge steps, meddling rules ----------------------------------------------------------


async def test_plan_that_is_not_accepted_has_nothing_to_submit():
    runtime = runtime_for(writer())
    plan = await runtime.plan([write("a"), {"tool": "gone"}], someone())
    assert (plan.ok, plan.proposals) == (False, ())
    assert plan.steps[0].proposal.arguments == {"case": "a"}


async def test_record_does_not_repeat_huge_steps_that_are_not_taken():
    text = {"type": "string", "maxLength": 9, "description": "Little."}
    short = {"type": "object", "properties": {"text": text}, "additionalProperties": False}
    runtime = runtime_for(fake_tool("read", input_schema=short))
    big = {"tool": "read", "arguments": {"text": "x" * 100_000}}
    plan = await runtime.plan([big] * 50, someone())
    record = plan.record()
    assert len(json.dumps(record)) < 300_000
    shown = [step["arguments"] is not None for step in record["steps"]]
    assert shown == [True] * 2 + [False] * 48


async def test_plan_rule_that_changes_what_it_sees_fools_no_other_rule():
    def meddle(steps, facts):
        steps[0]["list"].append("b")
        facts["run"]["config"]["k"] = facts["principal"]["agent"] = "meddled"
        return True

    def check(call, state, config):
        for step in call.earlier:
            step["list"].append("b")
        return True

    seen = []
    rules = [
        PlanRule(id="meddle", rule="r", when=meddle, check=meddle),
        PlanRule(
            id="see", rule="r", check=lambda steps, facts: seen.append((steps, facts)) or True
        ),
        PlanRule(id="cel", rule="r", check="steps[0].arguments.list.size() == 1"),
    ]
    lists = {"list": {"type": "array", "items": {"type": "string"}, "description": "Words."}}
    schema = {"type": "object", "properties": lists, "additionalProperties": False}
    meddling = Invariant(id="M", rule="r", check=check)
    made = fake_tool("read", input_schema=schema, invariants=[meddling])
    runtime = runtime_for(made, plan_rules=rules)
    run = await runtime.run(someone(), config={"k": 1})
    step = {"tool": "read", "arguments": {"list": ["a"]}}
    plan = await run.plan([step, step])
    assert plan.ok
    ((steps, facts),) = seen
    assert [one["list"] for one in steps] == [["a"], ["a"]]
    assert (facts["run"]["config"], facts["principal"]["agent"]) == ({"k": 1}, "agent")
