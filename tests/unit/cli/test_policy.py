"""`counterseal policy`: PASS lines, coverage, exit codes."""

import json

import pytest

POLICY = """\
rules:
  - {id: large, when: call.amount > 100, then: require_approval, reason: Large.}
  - {id: bots, when: principal.agent == 'bot', then: deny, reason: No bots.}
tests:
  - {name: small is fine, call: {amount: 1}, expect: allow}
  - {name: large is not, call: {amount: 200}, expect: {verdict: require_approval, rule: large}}
"""
FAILING = "  - {name: no call, expect: allow}\n"


def test_passing_cases_and_coverage_are_printed(run, write):
    write("policy.yaml", POLICY)
    result = run("policy", "test", "policy.yaml")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "PASS small is fine",
        "PASS large is not",
        "",
        "2 cases, 0 failed; 1 of 2 rules matched",
        "never matched: bots (policy.yaml:3:5)",
    ]


def test_failing_case_says_what_was_expected_and_fails(run, write):
    write("policy.yaml", POLICY + FAILING)
    result = run("policy", "test", "policy.yaml")
    assert result.exit_code == 1
    assert "FAIL no call: expected allow, got deny (large): no value for 'amount'" in result.stdout


def test_uncovered_rule_fails_on_demand(run, write):
    write("policy.yaml", POLICY)
    assert run("policy", "test", "policy.yaml", "--require-coverage").exit_code == 1
    beside = "tests:\n  - {name: b, call: {amount: 1}, principal: {agent: bot}, expect: deny}\n"
    write("policy.tests.yaml", beside)
    assert run("policy", "test", "policy.yaml", "--require-coverage").exit_code == 0


def test_built_in_policy_is_tested_when_none_is_named(run):
    result = run("policy", "test", "--require-coverage")
    assert result.exit_code == 0
    assert "FAIL" not in result.stdout


def test_built_in_rules_can_be_left_out(run, write):
    write("policy.yaml", POLICY)
    result = run("policy", "test", "policy.yaml", "--no-default")
    assert result.exit_code == 1
    assert "FAIL small is fine: expected allow, got deny (no-rule)" in result.stdout
    assert run("policy", "test", "--no-default").exit_code == 2


def test_json_says_the_same(run, write):
    write("policy.yaml", POLICY + FAILING)
    result = run("policy", "test", "policy.yaml", "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["summary"] == {"cases": 3, "failed": 1, "rules": 2, "matched": 1}
    assert data["uncovered"] == ["bots"]
    assert [case["passed"] for case in data["cases"]] == [True, True, False]
    assert data["cases"][1] | {"file": None} == {
        "name": "large is not",
        "passed": True,
        "expected": {"verdict": "require_approval", "rule": "large", "approvers": None},
        "verdict": "require_approval",
        "rule": "large",
        "approvers": 1,
        "matched": ["default.allowed", "large"],
        "error": None,
        "file": None,
        "line": 6,
    }


@pytest.mark.parametrize("command", ["test", "show"])
def test_every_problem_of_a_policy_is_printed_with_its_place(run, write, command):
    write("policy.yaml", "rules:\n  - {id: a, then: maybe, reason: x}\n  - {id: b, then: deny}\n")
    result = run("policy", command, "policy.yaml")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "policy.yaml:2:13: then must be one of" in result.stderr
    assert "policy.yaml:3:5: reason is missing" in result.stderr
    assert "Error: 2 problems" in result.stderr


def test_problem_of_a_case_is_printed_with_its_place(run, write):
    write("policy.yaml", POLICY + "  - {name: c}\n")
    result = run("policy", "test", "policy.yaml")
    assert result.exit_code == 1
    assert "policy.yaml:7:5: expect is missing" in result.stderr


def test_policy_without_cases_is_not_passed_in_silence(run, write):
    write("policy.yaml", "rules:\n  - {id: a, then: deny, reason: x}\n")
    result = run("policy", "test", "policy.yaml")
    assert result.exit_code == 2
    assert "There are no cases." in result.stderr


def test_rules_and_version_are_shown(run, write):
    write("policy.yaml", POLICY)
    shown = run("policy", "show", "policy.yaml", "--no-default")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[1:] == [
        "",
        "large: require_approval, 1 approver",
        "    when    call.amount > 100",
        "    reason  Large.",
        "",
        "bots: deny",
        "    when    principal.agent == 'bot'",
        "    reason  No bots.",
    ]
    data = json.loads(run("policy", "show", "policy.yaml", "--no-default", "--json").stdout)
    assert shown.stdout.startswith(f"version {data['version'][:19]}, 2 rules\n")
    assert [rule["id"] for rule in data["rules"]] == ["large", "bots"]


def test_rule_is_shown_with_how_people_are_asked(run, write):
    how = "{pattern: dual_control, roles: [cfo], expires_seconds: 3600, then: resubmit}"
    rule = f"{{id: a, then: require_approval, approvers: 2, reason: Large., approval: {how}}}"
    write("policy.yaml", f"rules:\n  - {rule}\n")
    assert run("policy", "show", "policy.yaml", "--no-default").stdout.endswith(
        "    asked   dual control; by cfo; open for 1 hour; then the agent sends it again\n"
    )


def test_built_in_policy_is_shown_when_none_is_named(run):
    stdout = run("policy", "show").stdout
    assert "default.meta: deny\n    effects meta" in stdout
    assert "default.contract: require_approval, as many approvers as the contract says" in stdout


# In a project ------------------------------------------------------------------------------------

EFFECT = "external_notification\nconsequence: A letter about {order_id} is sent."
RULES = """\
rules:
  - {id: at-night, when: now.getHours() < 6, then: deny, reason: Nobody is here.}
tests:
  - name: a letter
    contract: {name: send_letter}
    expect: {verdict: require_approval, rule: default.external}
  - {name: at night, contract: {name: send_letter}, now: "2026-01-01T03:00:00Z", expect: deny}
"""
CONTRADICTION = "  - {name: x, contract: {name: send_letter, effect: draft}, expect: allow}\n"


@pytest.fixture
def project(write, good):
    write("counterseal.toml", "[tools]\npaths = ['tools']\n[policy]\npaths = ['rules.yaml']\n")
    letter = good.replace("find_order", "send_letter").replace("read_only", EFFECT)
    write("tools/letter.yaml", letter)
    write("rules.yaml", RULES)


def test_policy_of_the_project_is_shown_with_the_rules_of_each_tool(run, project):
    data = json.loads(run("policy", "show", "--json").stdout)
    assert data["rules"][-1]["id"] == "at-night"
    (tool,) = data["contracts"]
    assert tool == {
        "tool": "send_letter",
        "version": "1.0.0",
        "always": ["default.external", "default.contract"],
        "depending_on_call": ["at-night"],
    }
    assert run("policy", "show").stdout.endswith(
        "send_letter 1.0.0\n    always  default.external, default.contract\n    by call at-night\n"
    )


def test_policy_of_the_project_is_tested_with_its_contracts(run, project):
    result = run("policy", "test", "--require-coverage")
    assert result.stdout.splitlines()[:2] == ["PASS a letter", "PASS at night"]
    assert (result.exit_code, "1 of 1 rules matched" in result.stdout) == (0, True)


def test_case_that_says_something_else_of_a_contract_is_refused(run, project, write):
    write("rules.yaml", RULES + CONTRADICTION)
    result = run("policy", "test")
    assert result.exit_code == 1
    assert "effect of send_letter is 'external_notification' in this project" in result.stderr


def test_broken_setting_of_the_project_is_named(run, project, write):
    write("counterseal.toml", "[policy]\npaths = ['none.yaml']\n")
    result = run("policy", "show")
    assert result.exit_code == 2
    assert "policy.paths: 'none.yaml' does not exist" in result.stderr


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("then: allow, instead_of: [default.externl]", "there is no rule 'default.externl' before"),
        ("then: allow, instead_of: [default.meta]", "default.meta does not require approval"),
        ("then: allow, instead_of: [a]", "there is no rule 'a' before this one"),
        ("then: deny, instead_of: [default.external]", "remove instead_of"),
    ],
)
def test_exception_to_a_rule_that_can_not_be_lifted_is_refused(run, write, rule, message):
    write("policy.yaml", f"rules:\n  - {{id: a, {rule}, reason: x}}\n")
    result = run("policy", "show", "policy.yaml")
    assert result.exit_code == 1
    assert message in result.stderr
