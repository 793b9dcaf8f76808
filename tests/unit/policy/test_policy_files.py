"""From a file to rules: what is refused, all of it at once, and where it stands."""

import json

import pytest

from counterseal.errors import CountersealError
from counterseal.policy import Policy, PolicyError, shown

ASKS = {"then": "require_approval"}
RULE = "  - {id: one, when: call.n > 1, then: deny, reason: Too many.}\n"


def problems(load):
    with pytest.raises(PolicyError) as caught:
        load()
    return caught.value.problems


def test_policy_is_read_from_yaml_and_json_alike(write):
    rules = [{"id": "one", "when": "call.n > 1", "then": "deny", "reason": "Too many."}]
    from_yaml = Policy.load(write("rules:\n" + RULE), default=False)
    from_json = Policy.load(write(json.dumps({"rules": rules}), "policy.json"), default=False)
    from_data = Policy.from_data({"rules": rules}, default=False)
    assert from_yaml.version == from_json.version == from_data.version


def test_everything_wrong_is_reported_at_once_with_its_place(write):
    file = write(
        """\
rules:
  - id: one
    when: call.amount >
    then: deny
    reason: Broken.
  - id: two
    when: customer.tier == 'gold'
    then: maybe
    reason: Unknown.
    because: typo
  - id: one
    when: "true"
    then: allow
    reason: Taken.
  - id: three
    when: contract.efect == 'draft'
    then: allow
    reason: Misspelt.
"""
    )
    found = problems(lambda: Policy.load(file))
    text = [f"{p.source.line}:{p.source.column} {p.message}" for p in found]
    assert [line.split()[0] for line in text] == ["3:5", "10:5", "8:5", "7:5", "16:5"]
    assert all(p.source.file == str(file) for p in found)
    joined = "\n".join(text)
    assert "the condition is refused" in joined
    assert "because is not a field of a rule" in joined
    assert "then must be one of allow, require_approval, deny, not 'maybe'" in joined
    assert "unknown name customer" in joined
    assert "contract has no efect" in joined
    assert "Did you mean contract.effect?" in [p.fix for p in found]


def test_error_lists_its_problems(write):
    file = write("rules:\n" + RULE + RULE)
    with pytest.raises(
        CountersealError, match=r"1 problem\n.*policy.yaml:3:5.*the id one is already used"
    ):
        Policy.load(file)


def test_id_may_not_stand_in_two_files(write):
    first, second = write("rules:\n" + RULE), write("rules:\n" + RULE, "other.yaml")
    (problem,) = problems(lambda: Policy.load(first, second))
    assert problem.source.file == str(second)
    assert str(first) in problem.message


@pytest.mark.parametrize("name", ["default.critical", "asked", "nothing"])
def test_overlay_lifts_no_question(write, name):
    ask = {"id": "asked", "then": "require_approval", "reason": "So."}
    lift = {"id": "lift", "then": "allow", "instead_of": [name], "reason": "The author says so."}
    policy = write(json.dumps({"rules": [ask]}), "policy.json")
    overlay = write(json.dumps({"server": "git", "rules": [lift]}), "git.json")
    with pytest.raises(PolicyError, match="an overlay can't stand instead of other rules") as error:
        Policy.load(policy, overlays={"git": overlay})
    assert "Write the rule into a policy file of the project." in str(error.value)


def test_id_of_a_default_rule_is_taken():
    rule = {"id": "default.meta", "then": "allow", "reason": "No."}
    assert "is already used" in problems(lambda: Policy.from_data({"rules": [rule]}))[0].message
    Policy.from_data({"rules": [rule]}, default=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, "id must be a text, not empty"),
        ({"id": "1st"}, "'1st' is not a valid id"),
        ({"id": "no-rule"}, "the id no-rule is reserved"),
        ({"reason": ""}, "reason must be a text, not empty"),
        ({"reason": "x" * 501}, "at most 500"),
        ({"then": None}, "then must be one of"),
        ({"then": ["deny"]}, "then must be one of allow, require_approval, deny, not a list"),
        ({"when": True}, "when must be a text, not true or false"),
        ({"when": "  "}, "when must be a text"),
        ({"when": "call.a.map(x, x) == []"}, "map() is not allowed"),
        ({"when": "call.a.all(x, call.b.all(y, x == y))"}, "macro inside all()"),
        ({"when": "true || " * 200 + "true"}, "longer than 1000"),
        ({"when": "principal.role == 'x'"}, "principal has no role"),
        ({"when": "call.name.lowerAscii() == 'x'"}, "unknown function lowerAscii"),
        ({"tools": "send_*"}, "tools must be a list with at least one text"),
        ({"tools": []}, "tools must be a list with at least one text"),
        ({"tools": [1]}, "tools must be a list with at least one text"),
        ({"effects": ["delete"]}, "an effect must be one of"),
        ({"approvers": 2}, "a rule with the verdict deny needs no approval"),
        ({"then": "require_approval", "approvers": 0}, "approvers must be a number, 1 or more"),
        ({"then": "require_approval", "approvers": True}, "approvers must be a number, 1 or more"),
        ({"then": "require_approval", "approvers": "two"}, "approvers must be a number, 1 or more"),
        ({"then": "require_approval", "approvers": 1.5}, "approvers must be a number, 1 or more"),
        ({"approval": {"roles": ["lead"]}}, "a rule with the verdict deny needs no approval"),
        ({**ASKS, "approval": "dual_control"}, "approval must be a mapping, not a text"),
        ({**ASKS, "approval": {"quorum": 2}}, "quorum is not a field of approval"),
        ({**ASKS, "approval": {"pattern": "majority"}}, "pattern: input should be 'user_consent'"),
        ({**ASKS, "approval": {"roles": "lead"}}, "roles: input should be a valid tuple"),
        ({**ASKS, "approval": {"roles": ["lead", ""]}}, "a role has no name"),
        ({**ASKS, "approval": {"expires_seconds": 5}}, "can stay open from 30 seconds to 30 days"),
        ({**ASKS, "approval": {"pattern": "compliance_gate"}}, "needs an accountable owner"),
        (
            {**ASKS, "approvers": 1, "approval": {"pattern": "dual_control"}},
            "approvers is 1, but dual control needs two people",
        ),
        (
            {**ASKS, "approvers": 2, "approval": {"pattern": "user_consent"}},
            "approvers is 2, but only one person",
        ),
    ],
)
def test_rule_that_makes_no_sense_is_refused(change, message):
    rule = {"id": "one", "then": "deny", "reason": "So.", **change}
    found = problems(lambda: Policy.from_data({"rules": [rule]}))
    assert message in found[0].message


@pytest.mark.parametrize("field", ["id", "then", "reason"])
def test_rule_needs_its_fields(field):
    rule = {"id": "one", "then": "deny", "reason": "So."}
    del rule[field]
    assert field in problems(lambda: Policy.from_data({"rules": [rule]}))[0].message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "a policy must be a mapping, not a list"),
        (None, "a policy must be a mapping, not empty"),
        ({}, "the policy has no rules"),
        ({"rules": {}}, "rules must be a list, not a mapping"),
        ({"rules": None}, "rules must be a list, not empty"),
        ({"rules": ["deny all"]}, "a rule must be a mapping, not a text"),
        ({"rules": [], "rulez": []}, "rulez is not a field of a policy"),
    ],
)
def test_document_that_is_no_policy_is_refused(data, message):
    assert message in problems(lambda: Policy.from_data(data))[0].message


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("rules: [", "policy.yaml", "not YAML"),
        ("rules: []\nrules: []\n", "policy.yaml", "twice"),
        ("x", "policy.txt", "suffix"),
    ],
)
def test_file_that_cannot_be_read_is_refused(write, text, name, message):
    file = write(text, name)
    (problem,) = problems(lambda: Policy.load(file))
    assert message in problem.message
    assert problem.source.file == str(file)


def test_missing_file_and_bad_rule_are_reported_together(write, tmp_path):
    bad = write("rules:\n  - {id: one, then: no, reason: So.}\n")
    found = problems(lambda: Policy.load(tmp_path / "none.yaml", bad))
    assert len({problem.source.file for problem in found}) == 2


# Versions ----------------------------------------------------------------------------------------


def test_version_is_the_hash_of_the_rules_and_not_of_the_file(write):
    plain = Policy.load(write("rules:\n" + RULE))
    commented = Policy.load(write("# A comment.\nrules:\n" + RULE + "tests: []\n", "other.yaml"))
    assert plain.version == commented.version
    assert plain.version.startswith("sha256:")
    assert shown(plain.version) == plain.version[:19]


@pytest.mark.parametrize(
    "change",
    [
        {"id": "two"},
        {"when": "call.n > 2"},
        {"then": "require_approval"},
        {"reason": "Other."},
        {"tools": ["x"]},
        {"effects": ["draft"]},
        {**ASKS, "approvers": 2},
        {**ASKS, "approval": {"roles": ["lead"]}},
        {**ASKS, "approval": {"pattern": "review_queue"}},
    ],
)
def test_every_part_of_a_rule_changes_the_version(change):
    rule = {"id": "one", "when": "call.n > 1", "then": "deny", "reason": "So."}
    before = Policy.from_data({"rules": [rule]})
    assert Policy.from_data({"rules": [{**rule, **change}]}).version != before.version


def test_a_rule_without_terms_has_the_version_that_it_always_had():
    rule = {"id": "one", "then": "require_approval", "reason": "So."}
    bare = Policy.from_data({"rules": [rule]})
    empty = Policy.from_data({"rules": [{**rule, "approval": {}}]})
    assert bare.version == empty.version
    assert "approval" not in bare.rules[-1].record()
    how = {"pattern": "dual_control", "roles": ["lead"]}
    told = Policy.from_data({"rules": [{**rule, "approval": how}]}).rules[-1]
    assert told.record()["approval"] == how
    assert told.approvers == 2


def test_terms_that_are_wrong_are_reported_where_they_stand(write):
    file = write(
        """\
rules:
  - id: one
    then: require_approval
    reason: So.
    approval:
      expires_seconds: 5
      roles: [""]
"""
    )
    found = problems(lambda: Policy.load(file))
    assert [problem.source.line for problem in found] == [7, 6]


def test_layers_are_part_of_the_version(write):
    file = write("rules:\n" + RULE)
    assert Policy.load(file).version != Policy.load(file, default=False).version
    assert Policy.load().version == Policy.default().version


def test_rules_that_are_tried_keep_the_rules_of_overlays(tmp_path):
    overlay = tmp_path / "git.yaml"
    overlay.write_text(
        "rules: [{id: no-push, tools: [push], then: deny, reason: Not from here.}]", "utf-8"
    )
    current = Policy.load(overlays={"git": overlay})
    tried = Policy.from_data({"rules": []}, overlays_of=current)
    assert [rule.id for rule in tried.rules] == [rule.id for rule in current.rules]
    assert "no-push" in [rule.id for rule in tried.rules]
    assert "no-push" not in [rule.id for rule in Policy.from_data({"rules": []}).rules]
