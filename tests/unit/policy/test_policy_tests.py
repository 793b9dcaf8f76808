"""Cases that lie beside a policy: how they are read, filled in, and judged."""

import pytest

from counterseal.policy import Policy, PolicyError
from counterseal.policy.policy_tests import read_cases, run_cases

POLICY = """\
rules:
  - {id: large, when: call.amount > 100, then: require_approval, approvers: 2, reason: Large.}
  - {id: bots, when: principal.agent == 'bot', then: deny, reason: No bots.}
"""


def report(file):
    policy = Policy.load(file)
    own = [rule for rule in policy.rules if not rule.id.startswith("default.")]
    return run_cases(policy, read_cases(file), covering=own)


def test_cases_stand_in_the_file_or_beside_it(write):
    inside = "tests:\n  - {name: inside, call: {amount: 1}, expect: allow}\n"
    file = write(POLICY + inside)
    write("tests:\n  - {name: beside, call: {amount: 1}, expect: allow}\n", "policy.tests.yaml")
    write(
        '{"tests": [{"name": "json", "call": {"amount": 1}, "expect": "allow"}]}',
        "policy.tests.json",
    )
    write("tests:\n  - {name: other, expect: allow}\n", "other.tests.yaml")
    assert [case.name for case in read_cases(file)] == ["inside", "beside", "json"]


def test_case_passes_only_if_all_that_it_expects_is_so(write):
    file = write(
        POLICY
        + """\
tests:
  - {name: a, call: {amount: 200}, expect: require_approval}
  - {name: b, call: {amount: 200}, expect: {verdict: require_approval, rule: large, approvers: 2}}
  - {name: c, call: {amount: 200}, expect: allow}
  - {name: d, call: {amount: 200}, expect: {verdict: require_approval, rule: default.allowed}}
  - {name: e, call: {amount: 200}, expect: {verdict: require_approval, approvers: 1}}
"""
    )
    results = report(file).results
    assert [result.passed for result in results] == [True, True, False, False, False]
    assert results[2].case.expected == "allow"
    assert results[2].got == "require_approval (large)"
    assert results[4].case.expected == "require_approval by 1"
    assert results[4].got == "require_approval by 2 (large)"


def test_rules_that_no_case_reaches_are_listed(write):
    file = write(POLICY + "tests:\n  - {name: a, call: {amount: 200}, expect: require_approval}\n")
    assert [rule.id for rule in report(file).uncovered] == ["bots"]


def test_rule_that_errs_is_not_covered_by_it(write):
    file = write(POLICY + "tests:\n  - {name: a, call: {}, expect: {verdict: deny, rule: large}}\n")
    made = report(file)
    assert not made.failed
    assert [rule.id for rule in made.uncovered] == ["large", "bots"]
    assert "amount" in made.results[0].decision.error


def test_case_can_set_every_fact(write):
    file = write(
        """\
rules:
  - id: all
    when: >-
      call.n == 1 && principal.roles == ['r'] && run.calls == 3 && tenant.residency == 'EU'
      && proposal.has_key && now.getFullYear() == 2030 && contract.name == 'x'
      && contract.risk_rank == 4 && contract.approvers == 1 && contract.owner == 'me'
    then: deny
    reason: All of it.
tests:
  - name: all
    contract: {effect: internal_mutation, risk: HIGH_RISK_EXTERNAL, name: x, owner: me}
    principal: {roles: [r]}
    call: {n: 1}
    run: {calls: 3}
    tenant: {residency: EU}
    proposal: {has_key: true}
    now: 2030-05-01T00:00:00Z
    expect: {verdict: deny, rule: all}
"""
    )
    assert not report(file).failed


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("[]", "a case must be a mapping"),
        ("{name: a}", "expect is missing"),
        ("{expect: allow}", "name is missing"),
        ("{name: a, expect: maybe}", "expect must be one of allow, require_approval, deny"),
        ("{name: a, expect: {verdict: maybe}}", "verdict must be one of"),
        ("{name: a, expect: {verdict: deny, rul: x}}", "rul is not a field of expect"),
        ("{name: a, expect: {verdict: deny, approvers: x}}", "approvers must be a number"),
        ("{name: a, expect: {verdict: deny, rule: 5}}", "rule must be a text"),
        ("{name: a, expect: deny, calls: {}}", "calls is not a field of a case"),
        ("{name: a, expect: deny, call: 5}", "call must be a mapping, not a number"),
        ("{name: a, expect: deny, principal: {role: x}}", "role is not a field of principal"),
        ("{name: a, expect: deny, principal: {roles: x}}", "roles must be a list"),
        ("{name: a, expect: deny, contract: {effect: delete}}", "effect must be one of"),
        ("{name: a, expect: deny, contract: {risk: HUGE}}", "risk must be one of"),
        ("{name: a, expect: deny, contract: {risk_rank: 4}}", "risk_rank is derived from risk"),
        ("{name: a, expect: deny, contract: {residency: EU}}", "residency must be a list"),
        ("{name: a, expect: deny, contract: {approvers: true}}", "approvers must be a number"),
        ("{name: a, expect: deny, now: noon}", "now must be a time"),
        (
            "{name: a, expect: deny, now: 2026-01-01T12:00:00}",
            "now must be a time with a time zone",
        ),
    ],
)
def test_case_that_makes_no_sense_is_refused_with_its_place(write, case, message):
    file = write(POLICY + f"tests:\n  - {case}\n")
    with pytest.raises(PolicyError) as caught:
        read_cases(file)
    first = caught.value.problems[0]
    assert message in first.message
    assert (first.source.file, first.source.line) == (str(file), 5)


def test_problems_of_all_test_files_come_at_once(write):
    file = write(POLICY + "tests:\n  - {name: a}\n")
    write("rules: []\ntests: {}\n", "policy.tests.yaml")
    write("{", "policy.tests.json")
    with pytest.raises(PolicyError) as caught:
        read_cases(file)
    messages = " ".join(problem.message for problem in caught.value.problems)
    assert "expect is missing" in messages
    assert "rules is not a field of a test file" in messages
    assert "tests must be a list" in messages
    assert "not JSON" in messages
