"""What a policy decides: the strictest rule, and a denial whenever it can't be told."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.approvals.terms import Pattern, Terms
from counterseal.policy import CompiledPolicy, Policy, PolicyVerdict
from counterseal.policy.policy_rules import MAX_CALLERS, MAX_VALUES

ALLOW = ("allow", "true")


# The strictest wins ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thens", "verdict", "rule"),
    [
        (["allow"], "allow", "r0"),
        (["allow", "require_approval"], "require_approval", "r1"),
        (["require_approval", "allow", "deny"], "deny", "r2"),
        (["deny", "require_approval"], "deny", "r0"),
        (["allow", "allow"], "allow", "r0"),
    ],
)
def test_strictest_of_the_rules_that_hold_wins(decide, thens, verdict, rule):
    decision = decide(*((then, "true") for then in thens))
    assert (decision.verdict, decision.rule) == (verdict, rule)
    assert decision.reason == f"Because of {rule}."


def test_order_of_the_file_does_not_change_the_verdict(decide):
    rules = [ALLOW, ("require_approval", "call.n > 1"), ("deny", "call.n > 2")]
    for n, verdict in [(1, "allow"), (2, "require_approval"), (3, "deny")]:
        assert decide(*rules, call={"n": n}).verdict == verdict
        assert decide(*reversed(rules), call={"n": n}).verdict == verdict


def test_call_that_no_rule_allows_is_denied(decide):
    decision = decide(("allow", "call.n > 1"), ("deny", "call.n > 5"), call={"n": 1})
    assert (decision.verdict, decision.rule) == ("deny", "no-rule")


def test_policy_without_rules_denies(facts, facts_of):
    compiled = Policy.from_data({"rules": []}, default=False).compile_for(facts_of())
    assert compiled.decide(facts()).rule == "no-rule"


def test_demand_for_approval_needs_no_allowing_rule_beside_it(decide):
    assert decide(("require_approval", "true")).verdict is PolicyVerdict.REQUIRE_APPROVAL


def test_demand_that_asks_the_most_people_is_named(decide):
    decision = decide(
        ALLOW,
        ("require_approval", "true"),
        {"then": "require_approval", "approvers": 3},
        {"then": "require_approval", "approvers": 2, "when": "call.n == 1"},
        call={"n": 1},
    )
    assert (decision.rule, decision.approvers) == ("r2", 3)


def test_every_rule_that_demands_approval_adds_its_terms(decide):
    decision = decide(
        ALLOW,
        {
            "then": "require_approval",
            "approvers": 3,
            "approval": {"roles": ["lead"], "expires_seconds": 900},
        },
        {
            "then": "require_approval",
            "when": "call.n == 1",
            "approval": {
                "pattern": "compliance_gate",
                "accountable_owner": "dpo",
                "jurisdiction": "EU",
                "roles": ["dpo", "counsel"],
            },
        },
        {"then": "require_approval", "when": "call.n == 2", "approval": {"roles": ["never"]}},
        call={"n": 1},
    )
    terms = decision.terms
    assert (decision.rule, decision.approvers) == ("r1", 3)
    assert (terms.rule, terms.reason, terms.approvers) == ("r1", "Because of r1.", 3)
    assert terms.pattern is Pattern.COMPLIANCE_GATE
    assert terms.roles == {frozenset({"lead"}), frozenset({"dpo", "counsel"})}
    assert (terms.expires_after, terms.justification_required) == (900, True)
    assert (terms.jurisdictions, terms.accountable_owners) == ({"EU"}, {"dpo"})
    assert hash(decision)


def test_a_demand_without_terms_leaves_them_open(decide):
    terms = decide(("require_approval", "true")).terms
    assert terms == Terms(approvers=1, rule="r0", reason="Because of r0.")
    assert decide(ALLOW).terms is None
    assert decide(("deny", "true")).terms is None


def test_dual_control_takes_two_whatever_the_contract_asks(policy, facts, facts_of):
    rules = policy(
        {
            "then": "require_approval",
            "approvers": "contract",
            "approval": {"pattern": "dual_control"},
        }
    )
    decision = rules.compile_for(facts_of(approvers=1)).decide(facts())
    assert (decision.approvers, decision.terms.approvers) == (2, 2)


def test_approvers_of_the_contract_are_at_least_one(policy, facts, facts_of):
    rules = policy({"then": "require_approval", "approvers": "contract"})
    for declared, asked in [(0, 1), (1, 1), (4, 4)]:
        compiled = rules.compile_for(facts_of(approvers=declared))
        assert compiled.decide(facts()).approvers == asked


def test_decision_names_every_rule_that_held_in_order(decide):
    decision = decide(
        ("deny", "call.n == 1"), ALLOW, ("deny", "false"), ("deny", "true"), call={"n": 1}
    )
    assert decision.matched == ("r0", "r1", "r3")


def test_decision_carries_the_version_of_the_policy(policy, facts, facts_of):
    rules = policy(ALLOW, ("deny", "call.n > 1"))
    compiled = rules.compile_for(facts_of())
    for call in ({"n": 1}, {"n": 2}, {}, {"n": [0] * 2000}):
        assert compiled.decide(facts(call=call)).version == rules.version


# Failing is a denial -----------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["allow", "deny", "require_approval"])
@pytest.mark.parametrize(
    "when",
    {
        "missing key": "call.nothing == 1",
        "missing key inside": "call.inner.nothing == 1",
        "wrong type": "call.text > 5",
        "no truth value": "call.text",
        "number for a truth value": "call.number + 1",
        "bad pattern": "call.text.matches('[')",
        "division by zero": "1 / call.zero == 1",
        "argument of a wrong type": "call.text.startsWith(1)",
    }.values(),
)
def test_rule_that_errs_denies_and_is_named(decide, then, when):
    call = {"text": "card 4111", "number": 1, "zero": 0, "inner": {}}
    decision = decide(ALLOW, (then, when), ("allow", "call.zero == 0"), call=call)
    assert (decision.verdict, decision.rule) == ("deny", "r1")
    assert decision.error


def test_reason_of_a_rule_that_errs_holds_no_value_of_the_call(decide):
    decision = decide(ALLOW, ("deny", "call[call.secret] == 1"), call={"secret": "hunter2"})
    assert (decision.verdict, decision.rule) == ("deny", "r1")
    assert "hunter2" not in decision.reason
    assert "hunter2" in decision.error


def test_error_that_does_not_matter_is_none(decide):
    decision = decide(ALLOW, ("deny", "call.kind == 'x' && call.nothing > 1"), call={"kind": "y"})
    assert decision.verdict is PolicyVerdict.ALLOW


def test_more_values_than_can_be_checked_are_denied(decide):
    rules = [ALLOW, ("deny", "call.items.exists(i, i < 0)")]
    fits, too_many = [0] * (MAX_VALUES - 1), [0] * MAX_VALUES
    assert decide(*rules, call={"items": fits}).verdict is PolicyVerdict.ALLOW
    assert decide(*rules, call={"items": too_many}).rule == "too-large"


@pytest.mark.parametrize(
    "value",
    [[[0] * 600, [0] * 600], {"a": [0] * 600, "b": {"c": [0] * 600}}],
    ids=["lists", "mappings"],
)
def test_values_are_counted_however_they_nest(decide, value):
    decision = decide(ALLOW, ("deny", "size(call.items) == 0"), call={"items": value})
    assert decision.rule == "too-large"


def test_values_that_no_rule_looks_at_are_not_counted(decide):
    call = {"items": [0] * 5000, "n": 1}
    assert decide(ALLOW, ("deny", "call.n > 1"), call=call).verdict is PolicyVerdict.ALLOW


def test_facts_that_are_no_data_deny(decide):
    decision = decide(ALLOW, ("deny", "tenant.region == 'EU'"), tenant={"region": object()})
    assert (decision.verdict, decision.rule) == ("deny", "unreadable")


def test_facts_that_are_not_brought_deny(policy, facts_of):
    compiled = policy(ALLOW, ("deny", "call.n > 1")).compile_for(facts_of())
    assert compiled.decide({}).rule == "unreadable"


# Who is asked what -------------------------------------------------------------------------------


def test_rule_for_some_tools_leaves_others_alone(policy, facts, facts_of):
    rules = policy(ALLOW, {"then": "deny", "tools": ["write_*", "read_case"]})
    for name, verdict in [("read_case", "deny"), ("write_x", "deny"), ("read_cases", "allow")]:
        contract = facts_of(identity={"name": name})
        assert rules.compile_for(contract).decide(facts()).verdict == verdict


def test_rule_for_some_effects_leaves_others_alone(decide):
    rules = [ALLOW, {"then": "deny", "effects": ["draft", "irreversible"]}]
    assert decide(*rules, effect="draft").verdict is PolicyVerdict.DENY
    assert decide(*rules, effect="compute").verdict is PolicyVerdict.ALLOW


@pytest.mark.parametrize(
    "when",
    [
        "call.amount > 100 && call.to.endsWith('@example.org')",
        "proposal.tool == 'read_case' && !proposal.has_key && proposal.version == null",
        "contract.effect == 'read_only' && contract.risk_rank == 0 && !contract.mutates",
        "principal.tenant == 'acme' && 'clerk' in principal.roles && principal.user != 'u_8'",
        "principal.scopes.all(s, s.startsWith('case:'))",
        "run.age_seconds < 60.0 && run.objective == null && run.state.step == 2",
        "run.calls == 0 && run.id == 'run_1'",
        "tenant.residency == 'EU'",
        "now.getHours() == 22 && now > timestamp('2026-01-01T00:00:00Z')",
        "'amount' in call && has(call.to) && !has(call.cc)",
        "size(call) == 2 // all of it, isn't it",
        "call . amount == 120 && call\n.to != ''",
        "call.all(key, key != 'cc')",
        "'''it's call.x''' != call.to && r'\\' != call.to && \"call.y\" != call.to",
    ],
)
def test_conditions_see_the_facts(decide, when):
    more = {
        "call": {"amount": 120, "to": "a@example.org"},
        "principal": {"roles": ["clerk"], "scopes": ["case:read"]},
        "run": {"state": {"step": 2}},
        "tenant": {"residency": "EU"},
        "now": datetime(2026, 3, 1, 22, tzinfo=UTC),
    }
    assert decide(("allow", when), **more).error == ""
    assert decide(("allow", when), **more).verdict is PolicyVerdict.ALLOW


def test_only_facts_that_a_rule_reads_are_asked_for(policy, facts_of):
    rules = policy(ALLOW, ("deny", "call.n > 1"), ("deny", "contract.mutates && run.calls > 1"))
    compiled = rules.compile_for(facts_of())
    assert compiled.names == {"call"}
    assert compiled.decide({"call": {"n": 1}}).verdict is PolicyVerdict.ALLOW


def test_contract_that_settles_every_rule_asks_for_nothing(policy, facts_of):
    compiled = policy(ALLOW, ("deny", "contract.mutates && call.n > 1")).compile_for(facts_of())
    assert compiled.names == frozenset()
    assert compiled.decide({}).verdict is PolicyVerdict.ALLOW


def test_callers_are_told_apart(policy, facts, facts_of):
    compiled = policy(
        ALLOW,
        ("deny", "principal.agent == 'bot' && call.n > 1"),
        ("deny", "'x' in principal.roles"),
    ).compile_for(facts_of())

    def verdict(n, **principal):
        return compiled.decide(facts(call={"n": n}, principal=principal)).verdict

    for _ in range(2):
        assert verdict(2, agent="bot") == "deny"
        assert verdict(1, agent="bot") == "allow"
        assert verdict(2, agent="clerk") == "allow"
        assert verdict(1, agent="clerk", roles=["y", "x"]) == "deny"
        assert verdict(1, agent="clerk", roles=["y"]) == "allow"


def test_more_callers_than_are_remembered_are_still_told_apart(policy, facts, facts_of):
    rules = policy(ALLOW, ("deny", "principal.user == 'u_0' && call.n > 1"))
    compiled = rules.compile_for(facts_of())
    for number in [*range(MAX_CALLERS + 10), 0]:
        decision = compiled.decide(facts(call={"n": 2}, principal={"user": f"u_{number}"}))
        assert decision.verdict == ("deny" if number == 0 else "allow")


def test_many_long_rules_are_all_asked(decide):
    rules = [("deny", f"call.n == {i} && call.text != '{'x' * 300}'") for i in range(50)]
    for n, rule in [(0, "r0"), (17, "r17"), (49, "r49"), (50, "r50")]:
        assert decide(*rules, ALLOW, call={"n": n, "text": ""}).rule == rule


def test_rule_that_ends_in_a_comment_does_not_hide_the_next(decide):
    rules = [ALLOW, ("deny", "call.n > 5 // it's large"), ("deny", "call.n > 1")]
    assert decide(*rules, call={"n": 2}).rule == "r2"


# Layers ------------------------------------------------------------------------------------------

RULES = st.lists(
    st.tuples(
        st.sampled_from(["allow", "require_approval", "deny"]),
        st.sampled_from(
            [
                "true",
                "false",
                "call.n > 1",
                "call.n > 2 && principal.agent == 'clerk'",
                "principal.agent != 'clerk'",
                "contract.mutates",
                "contract.mutates || call.n == 2",
                "call.missing == 1",
                "has(call.missing)",
                "'x' in principal.roles || call.text == 'a'",
            ]
        ),
    ),
    max_size=6,
)
CALLS = st.fixed_dictionaries(
    {
        "n": st.sampled_from([0, 2, 3]),
        "agent": st.sampled_from(["clerk", "bot"]),
        "roles": st.sampled_from([[], ["x"], ["y", "x"]]),
        "effect": st.sampled_from(["read_only", "draft"]),
    }
)
ORDER = ["allow", "require_approval", "deny"]


def _facts(call):
    principal = {"tenant": "t", "user": None, "agent": call["agent"], "scopes": []}
    return {
        "call": {"n": call["n"], "text": "a"},
        "principal": {**principal, "roles": call["roles"]},
    }


def _contract(call):
    mutates = call["effect"] == "draft"
    return {"name": "t", "effect": call["effect"], "mutates": mutates, "approvers": 0}


def _verdict(rules, call):
    named = [
        {"id": f"r{i}", "reason": "So.", "then": then, "when": when}
        for i, (then, when) in enumerate(rules)
    ]
    policy = Policy.from_data({"rules": named}, default=False)
    return policy.compile_for(_contract(call)).decide(_facts(call)).verdict


@given(RULES, RULES, CALLS)
def test_more_rules_that_restrict_never_loosen(rules, more, call):
    restricting = [rule for rule in more if rule[0] != "allow"]
    before = _verdict(rules, call)
    after = _verdict(rules + restricting, call)
    # A demand for approval is the one way out of "no rule allows this".
    asked_instead = before == "deny" and after == "require_approval"
    assert asked_instead or ORDER.index(after) >= ORDER.index(before)
    if asked_instead:
        assert _verdict([*rules, ("allow", "true")], call) != "deny"


@given(RULES, RULES, CALLS)
def test_more_rules_that_allow_never_override_the_others(rules, more, call):
    allowing = [rule for rule in more if rule[0] == "allow"]
    demanded = _verdict([*rules, ("allow", "true")], call)
    after = _verdict(rules + allowing, call)
    assert ORDER.index(after) >= ORDER.index(demanded)


@given(RULES, CALLS)
def test_preparing_rules_does_not_change_what_they_say(rules, call):
    facts = {**_facts(call), "contract": _contract(call)}
    held, erred = [], False
    for then, when in rules:
        rule = {"id": "r", "reason": "So.", "then": then, "when": when}
        expression = Policy.from_data({"rules": [rule]}, default=False).rules[0].when
        try:
            if expression.holds(facts):
                held.append(then)
        except Exception:  # noqa: BLE001 - whatever it is, it means no answer
            erred = True
    plain = "deny" if erred or not held else max(held, key=ORDER.index)
    assert _verdict(rules, call) == plain


def test_policy_can_be_prepared_for_many_contracts(policy, facts_of):
    rules = policy(ALLOW)
    compiled = [rules.compile_for(facts_of(identity={"name": f"tool_{i}"})) for i in range(3)]
    assert all(isinstance(one, CompiledPolicy) for one in compiled)
    assert len({one.version for one in compiled}) == 1


def test_rule_that_reads_nothing_and_fails_is_a_denial(decide):
    decision = decide(ALLOW, ("deny", "1 / 0 == 1"))
    assert (decision.verdict, decision.rule) == ("deny", "r1")
