"""Replay: the same rules decide as recorded, other rules are compared, nothing is guessed."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterseal import Budgets, Grant, Principal, Proposal, Runtime
from counterseal.approvals.terms import Voter
from counterseal.call.call import Tenant
from counterseal.contract.invariants import Invariant
from counterseal.evaluation.incidents import check_incident, incident_text
from counterseal.evaluation.playback import Playback, recorded_run
from counterseal.evaluation.recording import read_calls
from counterseal.evaluation.replay import Rules, judge
from counterseal.evaluation.what_if import replay
from counterseal.ledger.requests import EventFilter
from counterseal.operations.approver import ApprovalError
from counterseal.policy import Policy
from counterseal.testing import FakeClock, fake_tool

SCHEMA = {
    "type": "object",
    "properties": {
        "case_id": {"type": "string", "maxLength": 6, "description": "The case."},
        "cents": {"type": "integer", "minimum": 0, "maximum": 1000, "description": "Amount."},
    },
    "required": ["case_id"],
    "additionalProperties": False,
}
CAP = Invariant(
    id="CAP",
    rule="At most 500.",
    check="!('cents' in call) || call.cents <= 500",
    correct={"set": {"cents": 500}},
)
ONCE = Invariant(id="ONCE", rule="Not after it was closed.", check="!('closed' in state)")
OPEN = Invariant(id="OPEN", rule="The case must be open.", check="target.status == 'open'")


def tools(world):
    def probe(case_id):
        return world.get(case_id)

    return [
        fake_tool("look", input_schema=SCHEMA, invariants=[CAP]).tool,
        fake_tool("note", input_schema=SCHEMA, effect="draft", invariants=[ONCE], budget=3).tool,
        fake_tool(
            "close", input_schema=SCHEMA, effect="internal_mutation", probe=probe,
            resource="case:{case_id}", invariants=[OPEN], scopes=["case:write"],
            state_effects=[{"key": "closed", "type_hint": "object"}],
        ).tool,
        fake_tool("send", input_schema=SCHEMA, effect="external_notification").tool,
    ]  # fmt: skip


def policy_of(tmp_path, *rules):
    if not rules:
        return Policy.default()
    file = tmp_path / f"policy_{abs(hash(rules))}.yaml"
    lines = ["rules:"]
    for number, (when, then) in enumerate(rules):
        approvers = ", approvers: 1" if then == "require_approval" else ""
        lines.append(
            f"  - {{id: r{number}, when: {when!r}, then: {then}, reason: As said.{approvers}}}"
        )
    file.write_text("\n".join(lines) + "\n")
    return Policy.load(file)


CONDITIONS = (
    "has(call.cents) && call.cents > 300",
    "principal.risk_level == 'high'",
    "run.calls >= 2",
    "tenant.tier == 'gold'",
    "contract.mutates && has(state.closed)",
    "has(target.status) && target.status == 'held'",
    "run.age_seconds > 50.0",
)
VERDICTS = ("deny", "require_approval", "allow")
RULES = st.lists(
    st.tuples(st.sampled_from(CONDITIONS), st.sampled_from(VERDICTS)), max_size=3, unique=True
)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["look", "note", "close", "send", "unknown"]),
        st.one_of(
            st.fixed_dictionaries(
                {"case_id": st.sampled_from(["c1", "c2", "c3"])},
                optional={"cents": st.sampled_from([0, 250, 501, 900, 2000, 2**60])},
            ),
            st.sampled_from(["{", "[]", '{"case_id": 1}', "{}"]),
        ),
        st.sampled_from([None, "run_1", "run_2"]),
        st.sampled_from(["agent", "parented", "high", "scopeless", "stranger"]),
        st.sampled_from([0.0, 20.0]),
    ),
    min_size=1,
    max_size=8,
)
WHO = {
    "agent": Principal(tenant="acme", agent="agent", user="u_1", scopes=["case:write"]),
    "parented": Principal(
        tenant="acme", agent="agent", user="u_1", scopes=["case:write"], parents=["boss"]
    ),
    "high": Principal(
        tenant="acme", agent="agent", user="u_1", scopes=["case:write"], risk_level="high"
    ),
    "scopeless": Principal(tenant="acme", agent="agent", user="u_1"),
    "stranger": Principal(tenant="acme", agent="stranger", user="u_1"),
}


def runtime_with(policy, world, clock):
    runtime = Runtime.open(
        "memory:",
        policy=policy,
        clock=clock,
        tenants={"acme": Tenant(budgets=Budgets(writes=4), facts={"tier": "gold"})},
    )
    names = ("look", "note", "close", "send")
    grants = [Grant(agent="agent", tool=name, max_calls_per_run=3) for name in names]
    grants.append(Grant(agent="boss", tool="look"))
    runtime.register(*tools(world), grants=grants)
    return runtime


def rules_of(runtime, **more):
    return Rules(runtime.policy, [one.contract for one in runtime.registry.records], **more)


async def everything(runtime, rules=None, tenant="acme", **more):
    search = EventFilter()
    return await replay(
        runtime.store, runtime.vault, tenant, rules or rules_of(runtime), search, **more
    )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rules=RULES, calls=CALLS)
def test_what_was_just_recorded_is_decided_as_it_was(tmp_path, rules, calls):
    async def scenario():
        world = {"c1": {"status": "open", "version": 1}, "c2": {"status": "held", "version": 7}}
        clock = FakeClock()
        async with runtime_with(policy_of(tmp_path, *rules), world, clock) as runtime:
            for tool, arguments, run_id, who, seconds in calls:
                clock.advance(seconds)
                proposal = Proposal(tool=tool, arguments=arguments, run_id=run_id)
                seen = await runtime.submit(proposal, WHO[who])
                if seen.approval_id and seconds:
                    voter = Voter(user="chief", tenant="acme", roles=frozenset({"approver"}))
                    with suppress(ApprovalError):  # it was decided before
                        await runtime.approvals.decide(seen.approval_id, voter, "approve")
            report = await everything(runtime)
            assert not report.changed, (rules, calls, report.record()["changes"])
            assert not report.not_judged
            assert report.same == report.calls > 0

    asyncio.run(scenario())


# --- other rules ----------------------------------------------------------------------------------


@pytest.fixture
async def recorded():
    """A runtime with a few recorded calls: a read, three notes, one more than the grant allows."""
    runtime = runtime_with(Policy.default(), {"c1": {"status": "open"}}, FakeClock())
    async with runtime:
        for tool, arguments in [
            ("look", {"case_id": "c1", "cents": 900}),
            ("note", {"case_id": "c1", "cents": 10}),
            ("note", {"case_id": "c2", "cents": 400}),
            ("note", {"case_id": "c3", "cents": 20}),
            ("note", {"case_id": "c1", "cents": 30}),
            ("send", {"case_id": "c1"}),
        ]:
            proposal = Proposal(tool=tool, arguments=arguments, run_id="run_1")
            await runtime.submit(proposal, WHO["agent"])
        yield runtime


async def test_a_stricter_policy_says_which_calls_it_refuses_and_asks_about(recorded, tmp_path):
    policy = policy_of(
        tmp_path,
        ("contract.name == 'note' && call.cents > 300", "deny"),
        ("contract.name == 'look'", "require_approval"),
    )
    contracts = [one.contract for one in recorded.registry.records]
    report = await everything(recorded, Rules(policy, contracts, same=False))
    told = report.record()
    assert (told["refused"], told["asked"], told["allowed"]) == (1, 1, 0)
    assert {(one["tool"], one["rule"]) for one in told["changes"]} == {
        ("note", "policy r0"),
        ("look", "approval r1"),
    }
    assert report.sentence() == (
        "Of 6 calls, 1 would now be refused, 0 newly allowed, 1 newly asked."
    )


async def test_sequential_gives_back_what_a_refused_call_would_not_have_spent(recorded, tmp_path):
    policy = policy_of(tmp_path, ("contract.name == 'note' && call.cents > 300", "deny"))
    contracts = [one.contract for one in recorded.registry.records]
    rules = Rules(policy, contracts, same=False)
    assert (await everything(recorded, rules)).count("allowed") == 0
    report = await everything(recorded, rules, sequential=True)
    assert (report.count("refused"), report.count("allowed")) == (1, 1)
    (change,) = [one for one in report.changes.values() if one.kind == "allowed"]
    assert (change.tool, change.rule) == ("note", "budget run.tool.note")


async def test_sequential_with_the_same_rules_changes_nothing(recorded):
    report = await everything(recorded, sequential=True)
    assert (report.changed, report.same) == (0, 6)


async def test_another_contract_decides_about_all_calls_of_its_tool(recorded):
    narrow = {**SCHEMA, "properties": {**SCHEMA["properties"]}}
    narrow["properties"]["cents"] = {**SCHEMA["properties"]["cents"], "maximum": 15}
    new = fake_tool("note", input_schema=narrow, effect="draft", invariants=[ONCE], budget=3)
    report = await everything(recorded, rules_of(recorded, instead=[new.contract], same=False))
    assert {(one.kind, one.tool, one.rule) for one in report.changes.values()} == {
        ("refused", "note", "schema"),
        ("other", "note", "schema"),
    }


async def test_what_a_new_rule_needs_and_is_not_on_record_is_not_guessed(recorded, tmp_path):
    policy = policy_of(
        tmp_path,
        ("contract.name == 'send' && has(state.seen)", "deny"),
        ("contract.name == 'look' && run.calls > 1", "deny"),
    )
    contracts = [one.contract for one in recorded.registry.records]
    report = await everything(recorded, Rules(policy, contracts, same=False))
    assert report.not_judged == {
        "the run's state under 'seen' is not recorded": 1,
        "the counters that a policy rule reads are not recorded": 1,
    }


async def test_a_call_of_another_policy_or_an_unknown_contract_is_not_judged(recorded, tmp_path):
    other = policy_of(tmp_path, ("has(call.cents) && call.cents > 300", "deny"))
    contracts = [one.contract for one in recorded.registry.records]
    report = await everything(recorded, Rules(other, contracts))
    assert report.not_judged == {"it was decided under another policy": 6}
    report = await everything(recorded, Rules(recorded.policy, []))
    assert sum(report.not_judged.values()) == 6
    assert all("is not here" in why for why in report.not_judged)


async def test_a_decision_that_is_not_as_recorded_is_named(recorded):
    """As if a gate decided otherwise today: the record of one call is changed."""
    async for batch in read_calls(recorded.store, recorded.vault, "acme", EventFilter()):
        call = next(one for one in batch if one.tool == "note")
    capture = call.capture._replace(arguments={"case_id": "far too long"})
    judged = judge(call._replace(capture=capture), rules_of(recorded))
    assert judged.differs == ("schema", "allow", "deny")
    assert str(judged.now) == "refused by schema"


# --- incidents and playback -----------------------------------------------------------------------


async def test_every_recorded_call_is_a_test_that_passes(recorded, tmp_path):
    rules = rules_of(recorded, instead=[one.contract for one in recorded.registry.records])
    async for batch in read_calls(recorded.store, recorded.vault, "acme", EventFilter()):
        for number, call in enumerate(batch):
            file = tmp_path / f"{number}.yaml"
            file.write_text(incident_text(call))
            judged = check_incident(file, rules)
            assert judged.now == call.outcome


async def test_an_incident_that_should_have_been_decided_otherwise_fails(recorded, tmp_path):
    async for batch in read_calls(recorded.store, recorded.vault, "acme", EventFilter()):
        text = incident_text(batch[0])
    file = tmp_path / "incident.yaml"
    file.write_text(text.replace("verdict: allow", "verdict: deny"))
    judged = check_incident(file, rules_of(recorded))
    assert judged.now.verdict == "allow"
    assert judged.now != judged.call.outcome


async def test_an_agent_gets_the_recorded_answers_and_its_first_divergence_is_reported(recorded):
    said = []
    calls = await recorded_run(recorded, "acme", "run_1", rules_of(recorded))
    playback = Playback(calls, said.append)
    assert "Budget" in playback.calls[4].text or "budget" in playback.calls[4].text
    first = playback.answer("note", {"case_id": "c1", "cents": 10})
    then = f"look ({calls[0].call_id})"
    assert said == [f"call 1: the recording has {then}, the agent called note, which came later"]
    assert (first.text, first.ok) == (calls[1].text, True)
    assert not playback.answer("note", {"case_id": "c9"}).ok
    assert playback.divergence == said[0]
    assert len(said) == 1


async def test_a_run_that_is_made_again_in_the_same_way_does_not_diverge(recorded):
    playback = Playback(await recorded_run(recorded, "acme", "run_1", rules_of(recorded)))
    answers = [playback.answer(call.tool, call.arguments) for call in playback.calls]
    assert playback.divergence is None
    assert [one.ok for one in answers[1:4]] == [True, True, True]
    assert not any(one.ok for one in answers[4:])  # refused, and held for approval
