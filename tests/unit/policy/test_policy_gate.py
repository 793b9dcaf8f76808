"""The policy gate: facts of a real context, and the decision that the pipeline sees."""

from datetime import UTC, datetime

import pytest

from counterseal.codes import Code
from counterseal.contract.declare import tool
from counterseal.execution.executor import Executor
from counterseal.gates import compile_record
from counterseal.gates.base import GateContext, Learned, Verdict
from counterseal.gates.policy import check as check_gate
from counterseal.ledger.records import RunRecord
from counterseal.ledger.requests import Memory
from counterseal.policy import Policy, contract_facts
from counterseal.policy.policy_rules import FIELDS
from counterseal.proposal import Principal, Proposal
from counterseal.registry import Registry, RegistryRecord

NOW = datetime(2026, 3, 1, 22, tzinfo=UTC).timestamp()


@tool(effect="read_only", version="1.0.0", owner="cases", scopes=["case:read"])
def read_case(case_id: str) -> str:
    """Read a case."""
    return case_id


@tool(effect="external_notification", version="1.0.0", owner="cases", consequence="It is sent.")
def send_notice(case_id: str) -> str:
    """Send a notice."""
    return case_id


@pytest.fixture
def context():
    def context(policy=None, used=read_case):
        record = RegistryRecord(contract=used.contract, tool=used)
        return GateContext(
            proposal=Proposal(tool=record.name, arguments={}, run_id="run_1", key="k"),
            principal=Principal(tenant="acme", user="u_7", agent="clerk", roles=["b", "a"]),
            call_id="call_1",
            now=NOW,
            run=RunRecord(
                tenant="acme",
                run_id="run_1",
                started_at=NOW - 30,
                objective="close cases",
                allowed_tools=frozenset({"read_case"}),
                state={"step": 2},
            ),
            registry=Registry(),
            executor=Executor(),
            tenant={"residency": "EU"},
            arguments={"case_id": "case_1"},
            record=record,
            compiled=compile_record(record, policy or Policy.default(), Executor()),
            memory=Memory(None, None, {f"tool/{record.name}": 4.0}, {}, {}),
        )

    return context


def check(ctx):
    result = check_gate(ctx)
    return result.decision if isinstance(result, Learned) else result


def rules(then, when):
    return Policy.from_data({"rules": [{"id": "one", "then": then, "when": when, "reason": "So."}]})


def test_allowed_call_names_rule_and_version(context):
    decision = check(context())
    assert (decision.verdict, decision.code) == (Verdict.ALLOW, None)
    assert decision.rule == "default.allowed"
    assert decision.policy_version == Policy.default().version


def test_denied_call_is_a_policy_violation(context):
    policy = rules("deny", "call.case_id == 'case_1'")
    decision = check(context(policy))
    assert (decision.verdict, decision.code) == (Verdict.DENY, Code.POLICY_VIOLATION)
    assert (decision.rule, decision.reason) == ("one", "So.")
    assert decision.policy_version == policy.version


def test_demand_for_approval_is_an_obligation_and_says_how_many(context):
    decision = check(context(used=send_notice))
    assert decision.verdict is Verdict.REQUIRE_APPROVAL
    assert decision.code is Code.CONFIRMATION_MISSING
    assert (decision.rule, decision.approvers) == ("default.external", 1)


def test_rule_that_errs_tells_the_model_nothing_of_the_call(context):
    decision = check(context(rules("deny", "call[call.case_id] == 1")))
    assert (decision.code, decision.rule) == (Code.POLICY_VIOLATION, "one")
    assert "case_1" not in repr(decision)


@pytest.mark.parametrize(
    "when",
    [
        "call.case_id == 'case_1'",
        "proposal.tool == 'read_case' && proposal.run_id == 'run_1' && proposal.has_key",
        "proposal.version == null",
        "principal.roles == ['a', 'b'] && principal.scopes == [] && size(principal) == 6",
        "run.id == 'run_1' && run.objective == 'close cases' && run.age_seconds == 30.0",
        "run.allowed_tools == ['read_case'] && run.state.step == 2 && run.calls == 4",
        "tenant.residency == 'EU'",
        "now == timestamp('2026-03-01T22:00:00Z')",
        "state.step == 2",
        "contract.name == 'read_case' && contract.scopes == ['case:read']",
    ],
)
def test_conditions_see_the_call_as_it_is(context, when):
    assert check(context(rules("deny", when))).rule == "one"


def test_documented_fields_are_all_there(context):
    for name, fields in FIELDS.items():
        for field in fields:
            decision = check(context(rules("deny", f"{name}.{field} == {name}.{field}")))
            assert (decision.rule, decision.reason) == ("one", "So.")


def test_prepared_contract_has_the_documented_facts(context):
    ctx = context()
    assert ctx.compiled.facts == contract_facts(ctx.record.contract)
    assert set(ctx.compiled.facts) == FIELDS["contract"]


def test_state_that_a_rule_reads_is_noted_for_admission(context):
    for when, keys in [("state.step == 2", {"step"}), ("run.state.step == 2", {"*"})]:
        result = check_gate(context(rules("deny", when)))
        assert set(result.facts["state_read"]) == keys


def test_rule_about_the_target_of_a_tool_without_probe_is_a_denial(context):
    decision = check(context(rules("require_approval", "target.status == 'closed'")))
    assert (decision.verdict, decision.rule) == (Verdict.DENY, "one")
    decision = check(context(rules("deny", "contract.probed && target.status == 'closed'")))
    assert decision.verdict is Verdict.ALLOW
