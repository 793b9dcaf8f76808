"""The default policy says what the effect table says."""

import pytest

from counterseal.contract.effects import EFFECTS, RISKS, Approval, Effect, RiskClass
from counterseal.contract.model import DataClassification
from counterseal.policy import Policy, PolicyVerdict
from counterseal.policy.policy_files import DEFAULT
from counterseal.policy.policy_tests import read_cases, run_cases

SENSITIVE = (DataClassification.REGULATED, DataClassification.SECRET)


def expected(effect, risk, data):
    """The table's own answer: verdict and number of approvers."""
    if not EFFECTS[effect].exposed:
        return PolicyVerdict.DENY, 0
    # A class below that of the effect counts only after an operator has accepted it.
    approval = RISKS[max(risk, EFFECTS[effect].risk)].approval
    asked = approval.approvers
    if approval is Approval.CONDITIONAL and data in SENSITIVE:
        asked = 1
    return (PolicyVerdict.REQUIRE_APPROVAL, asked) if asked else (PolicyVerdict.ALLOW, 0)


@pytest.mark.parametrize("risk", RiskClass)
@pytest.mark.parametrize("effect", Effect)
def test_default_policy_agrees_with_the_table(facts_of, facts, effect, risk):
    for data in DataClassification:
        contract = facts_of(
            effect,
            transactional={"side_effect_class": risk},
            security={"data_classification": data},
        )
        decision = Policy.default().compile_for(contract).decide(facts())
        assert (decision.verdict, decision.approvers) == expected(effect, risk, data)


def test_contract_can_demand_more_than_the_table(facts_of, facts):
    contract = facts_of("irreversible", approvers=3)
    assert Policy.default().compile_for(contract).decide(facts()).approvers == 3


def test_contract_cannot_demand_less_than_its_risk_class(facts_of, facts):
    contract = facts_of("irreversible", approvers=0, transactional={"confirmation_required": False})
    assert Policy.default().compile_for(contract).decide(facts()).approvers == 2


def test_default_policy_passes_its_own_tests_and_they_reach_every_rule():
    policy = Policy.default()
    report = run_cases(policy, read_cases(DEFAULT), covering=policy.rules)
    assert report.results
    assert not report.failed
    assert not report.uncovered


@pytest.mark.parametrize("effect", Effect)
def test_allowing_everything_on_top_loosens_nothing(facts_of, facts, effect):
    rule = {"id": "anything", "then": "allow", "reason": "Anything goes."}
    for contract in [
        facts_of(effect),
        facts_of(effect, security={"data_classification": "secret"}),
    ]:
        before = Policy.default().compile_for(contract).decide(facts())
        after = Policy.from_data({"rules": [rule]}).compile_for(contract).decide(facts())
        assert (after.verdict, after.approvers) == (before.verdict, before.approvers)
