"""The effect table: what each effect and risk class stands for."""

from itertools import pairwise

import pytest

from counterseal import Contract, ContractError, Effect, RiskClass, Trust
from counterseal.contract.approval_terms import PATTERNS, ApprovalTerms, Pattern, Then
from counterseal.contract.effects import EFFECTS, RISKS, Approval, effect_for

SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def contract(**more):
    base = {
        "identity": {"name": "probe_table", "owner": "tests"},
        "affordance": {"model_description": "A tool.", "input_schema": SCHEMA},
        "usage": "In tests.",
    }
    return Contract.model_validate({**base, **more})


# effect, risk class, key, approvers, verification, budget, trust
ROWS = [
    ("read_only", "READ_ONLY", False, 0, False, 100, "trusted"),
    ("retrieve", "READ_ONLY", False, 0, False, 100, "untrusted"),
    ("compute", "READ_ONLY", False, 0, False, 100, "trusted"),
    ("draft", "LOW_RISK_INTERNAL", True, 0, False, 20, "trusted"),
    ("internal_mutation", "MEDIUM_RISK_WRITE", True, 0, True, 10, "trusted"),
    ("external_notification", "HIGH_RISK_EXTERNAL", True, 1, True, 5, "trusted"),
    ("irreversible", "CRITICAL_MUTATION", True, 2, True, 0, "trusted"),
    ("meta", "CRITICAL_MUTATION", True, 2, True, 0, "trusted"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_everything_that_follows_from_an_effect_is_derived(row):
    effect, risk, key, approvers, verification, budget, trust = row
    made = contract(effect=effect)
    assert made.risk == risk
    assert made.idempotency.required is key
    assert made.approvers == approvers
    assert made.transactional.confirmation_required is (approvers > 0)
    assert made.transactional.post_action_verification_required is verification
    assert made.budget == budget
    assert made.trust == trust
    assert made.exposed is (effect != "meta")
    assert made.observability.audit_required is (risk != "READ_ONLY")


def test_an_expected_state_turns_verification_on():
    made = contract(effect="draft", probe="read_draft", expected={"state": "drafted"})
    assert made.transactional.post_action_verification_required
    off = {"post_action_verification_required": False}
    stated = contract(effect="draft", expected={"state": "drafted"}, transactional=off)
    assert not stated.transactional.post_action_verification_required


def test_terms_of_approval_follow_from_how_many_are_asked():
    expected = {0: None, 1: Pattern.OPERATOR_REVIEW, 2: Pattern.DUAL_CONTROL}
    for effect, _, _, approvers, *_ in ROWS:
        made = contract(effect=effect).approval
        assert (made and made.pattern) is expected[approvers]
        assert made is None or (made.expires_seconds, made.then) == (600, Then.EXECUTE)


@pytest.mark.parametrize("pattern", Pattern)
def test_a_pattern_brings_its_own_terms(pattern):
    made = contract(effect="internal_mutation", approval={"pattern": pattern})
    row = PATTERNS[pattern]
    assert made.approvers == row.approvers
    assert made.transactional.confirmation_required
    assert made.approval == ApprovalTerms(
        pattern=pattern,
        expires_seconds=row.expires_after,
        then=row.then,
        justification_required=row.justification,
    )


def test_terms_can_wait_for_a_policy_that_asks():
    made = contract(effect="internal_mutation", approvers=0, approval={"roles": ["lead"]})
    assert (made.approvers, made.transactional.confirmation_required) == (0, False)
    assert made.approval.roles == ("lead",)
    assert made.approval.pattern is Pattern.OPERATOR_REVIEW


def test_what_has_no_key_is_not_carried_out_without_the_agent():
    made = contract(effect="retrieve", approval={"pattern": "operator_review"})
    assert made.approval.then is Then.RESUBMIT


def test_terms_are_read_from_a_value_and_a_wrong_word_is_refused():
    given = ApprovalTerms(pattern=Pattern.REVIEW_QUEUE)
    assert contract(effect="draft", approval=given).approval.expires_seconds == 86_400
    for broken in ({"pattern": "majority"}, {"expires_seconds": "60"}, {"quorum": 2}, "two"):
        with pytest.raises(ContractError, match="approval"):
            contract(effect="draft", approval=broken)


def test_every_effect_and_every_risk_class_has_a_row():
    assert [row[0] for row in ROWS] == [effect.value for effect in Effect]
    assert set(EFFECTS) == set(Effect)
    assert set(RISKS) == set(RiskClass)


@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("risk", RiskClass)
def test_a_stated_risk_class_sets_the_posture_whatever_the_effect(effect, risk):
    made = contract(effect=effect, transactional={"side_effect_class": risk})
    assert made.approvers == RISKS[risk].approval.approvers
    assert made.budget == RISKS[risk].budget
    assert made.idempotency.required is (EFFECTS[effect].mutates or RISKS[risk].key)
    assert made.trust is EFFECTS[effect].trust


def test_risk_classes_are_ordered_by_danger():
    ranked = list(RiskClass)
    assert [risk.rank for risk in ranked] == list(range(6))
    assert RiskClass.EPHEMERAL_WRITE < RiskClass.LOW_RISK_INTERNAL
    assert RiskClass.CRITICAL_MUTATION >= RiskClass.HIGH_RISK_EXTERNAL
    assert not RiskClass.READ_ONLY > RiskClass.READ_ONLY
    assert RiskClass.READ_ONLY <= RiskClass.READ_ONLY


def test_a_higher_risk_class_never_asks_for_less():
    rows = [RISKS[risk] for risk in RiskClass]
    for lower, higher in pairwise(rows):
        assert higher.key >= lower.key
        assert higher.approval.approvers >= lower.approval.approvers
        assert higher.verification >= lower.verification
        assert higher.budget <= lower.budget
        assert higher.audit >= lower.audit


def test_what_the_author_says_wins_over_what_is_derived():
    made = contract(
        effect="draft",
        budget=3,
        trust="untrusted",
        idempotency={"ttl_seconds": 60},
        runtime={"max_retries": 1},
    )
    assert (made.budget, made.trust) == (3, Trust.UNTRUSTED)
    assert (made.idempotency.ttl_seconds, made.idempotency.required) == (60, True)
    assert made.runtime.max_retries == 1


def test_readers_may_be_retried_and_writers_may_not():
    assert contract(effect="retrieve").runtime.max_retries > 0
    assert contract(effect="draft").runtime.max_retries == 0


def test_without_an_effect_the_strictest_posture_holds():
    assert contract().approvers == 2
    assert contract().budget == 0


def test_every_risk_class_stands_for_an_effect_that_is_no_weaker():
    for risk in RiskClass:
        assert EFFECTS[effect_for(risk)].risk >= risk
    assert Approval.CONDITIONAL.approvers == 0
