"""Invariants and correctors: correct, drop, or reject; and the config cascade."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from counterseal import DROP_STEP, ConfigParam, ContractError, Invariant, ProposedCall, tool
from counterseal.contract.invariants import judge
from counterseal.contract.tool_context import NORMALIZERS, resolve_config
from counterseal.testing import fake_tool

EXCLUSIVE = Invariant(
    id="EXCLUSIVE",
    rule="Use id or ids, not both.",
    check=lambda call, state, config: not ("id" in call and "ids" in call),
)
NEEDS_FLAG = Invariant(
    id="NEEDS_FLAG",
    rule="ids need web.",
    check="!has(call.ids) || (has(call.web) && call.web)",
    correct={"set": {"web": True}},
)
ONE_BUNDLE = Invariant(
    id="ONE_BUNDLE",
    rule="One step with ids a plan.",
    check="!has(call.ids) || !earlier.exists(step, has(step.arguments.ids))",
    correct=DROP_STEP,
)
RULES = (EXCLUSIVE, NEEDS_FLAG, ONE_BUNDLE)


def call(earlier=(), **arguments):
    return ProposedCall("retrieve", arguments, tuple(earlier))


def test_a_call_that_satisfies_everything_passes_as_it_is():
    verdict = judge(RULES, call(id="q1"), {}, {})
    assert verdict.ok
    assert verdict.call == call(id="q1")
    assert verdict.corrections == ()


def test_a_breach_without_a_corrector_is_rejected():
    verdict = judge(RULES, call(id="q1", ids=["q2"], web=True), {}, {})
    assert not verdict.ok
    assert [rule.id for rule in verdict.violations] == ["EXCLUSIVE"]


def test_a_correctable_breach_is_corrected_and_recorded():
    verdict = judge(RULES, call(ids=["q1"]), {}, {})
    assert verdict.ok
    assert verdict.call["web"] is True
    (correction,) = verdict.corrections
    assert correction.invariant == "NEEDS_FLAG"
    assert correction.before == {"ids": ["q1"]}
    assert correction.after == {"ids": ["q1"], "web": True}


def test_a_step_that_should_not_be_there_is_dropped():
    verdict = judge(RULES, call(earlier=[call(ids=["q0"])], ids=["q1"], web=True), {}, {})
    assert verdict.call is None
    assert verdict.dropped_by is ONE_BUNDLE
    assert not verdict.ok


def test_a_rejected_call_is_reported_as_it_was_proposed():
    verdict = judge((NEEDS_FLAG, EXCLUSIVE), call(id="a", ids=["b"]), {}, {})
    assert verdict.call == call(id="a", ids=["b"])
    assert [rule.id for rule in verdict.violations] == ["EXCLUSIVE"]


def test_a_contract_lists_the_rules_that_a_call_breaks():
    on_file = Invariant(id="T", rule="As on file.", check="call.id == target.id")
    contract = fake_tool(invariants=[*RULES, on_file], probe=dict).contract
    broken = call(id="q1", ids=["q2"])
    assert contract.violations(broken, {}, {}) == ["Use id or ids, not both.", "ids need web."]
    assert contract.violations({"ids": ["q2"], "web": True}, {}, {}) == []


def test_correctors_that_undo_one_another_end_in_a_violation():
    def setter(value):
        return lambda call, state, config: call.replace(x=value)

    one = Invariant(id="ONE", rule="x is 1", check="call.x == 1", correct=setter(1))
    two = Invariant(id="TWO", rule="x is 2", check="call.x == 2", correct=setter(2))
    verdict = judge((one, two), call(x=0), {}, {})
    assert not verdict.ok
    assert verdict.violations


def test_a_corrector_may_find_that_it_cannot_help():
    helpless = Invariant(id="H", rule="x", check="false", correct=lambda c, s, k: None)
    assert [rule.id for rule in judge((helpless,), call(), {}, {}).violations] == ["H"]


@pytest.mark.parametrize(
    "check", ["call.missing == 1", "call.a", "call.a + 'x' == 'x'", "1 / 0 == 1", "state.x > 0"]
)
def test_a_check_that_gives_no_answer_has_not_passed(check):
    rule = Invariant(id="A", rule="r", check=check)
    assert not rule.holds(call(a=1), {}, {})


def test_a_truthy_answer_of_a_function_is_not_a_yes():
    rule = Invariant(id="A", rule="r", check=lambda c, s, k: "yes")
    assert not rule.holds(call(), {}, {})


def test_checks_see_state_and_config():
    rule = Invariant(id="A", rule="r", check="state.left > 0 && config.mode == 'fast'")
    assert rule.holds(call(), {"left": 1}, {"mode": "fast"})
    assert not rule.holds(call(), {"left": 0}, {"mode": "fast"})


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ("call.a ==", "refused: at 1:"),
        ("tenant == 'a'", "unknown name tenant"),
        ("call.l.map(x, x).size() > 0", "map"),
        ("call.l.filter(x, x > 1).size() > 0", "filter"),
        ("call.l.all(x, call.m.exists(y, y == x))", "macro inside all"),
        ("true // '\n && call.a.all(x, call.b.all(y, x != y)) // '", "macro inside all"),
        ("r'\\' == '' || call.a.map(x, x).size() > 0 || '' == ''", "map"),
        ('""" \' """ == \'\' || call.a.map(x, x).size() > 0 // \'', "map"),
        ("true" + " || true" * 200, "longer than 1000"),
        ("", "refused"),
    ],
)
def test_an_expression_that_cannot_be_trusted_is_refused_when_declared(check, says):
    with pytest.raises(ContractError, match=says):

        @tool(effect="compute", invariants=[{"id": "A", "rule": "r", "check": check}])
        def broken() -> None:
            """Break."""


def test_words_inside_strings_are_not_taken_for_macros():
    assert Invariant(id="A", rule="r", check="call.a != '.map(x) .filter('").holds(
        call(a=""), {}, {}
    )


@pytest.mark.parametrize("corrector", ["drop", {"set": {}}, {"set": 3}, {"unset": ["a"]}, 3])
def test_an_unknown_corrector_is_refused(corrector):
    with pytest.raises(ValueError, match="correct"):
        Invariant(id="A", rule="r", check="true", correct=corrector)


@given(st.dictionaries(st.sampled_from("abc"), st.integers(-5, 5)))
def test_judging_always_ends_and_never_approves_a_breach(arguments):
    below = Invariant(
        id="BELOW",
        rule="a is at most b",
        check="!has(call.a) || !has(call.b) || call.a <= call.b",
        correct=lambda c, s, k: c.replace(a=c["b"]),
    )
    even = Invariant(
        id="EVEN",
        rule="b is even",
        check="!has(call.b) || call.b % 2 == 0",
        correct=lambda c, s, k: c.replace(b=c["b"] - 1),
    )
    verdict = judge((below, even), call(**arguments), {}, {})
    if verdict.ok:
        fixed = verdict.call
        assert "a" not in fixed or "b" not in fixed or fixed["a"] <= fixed["b"]
        assert fixed.get("b", 0) % 2 == 0
    assert verdict.ok


PARAMS = (
    ConfigParam(key="mode", default=" Fast ", normalizer=("strip", "lower")),
    ConfigParam(key="limit", default=10),
    ConfigParam(key="label", normalizer="empty_to_null"),
)


@pytest.mark.parametrize(
    ("call_time", "run", "expected"),
    [
        ({}, {}, {"mode": "fast", "limit": 10, "label": None}),
        ({}, {"mode": "SLOW"}, {"mode": "slow", "limit": 10, "label": None}),
        ({"mode": "X"}, {"mode": "SLOW"}, {"mode": "x", "limit": 10, "label": None}),
        ({"label": ""}, {"label": "a"}, {"mode": "fast", "limit": 10, "label": None}),
        ({"limit": None}, {"limit": 5}, {"mode": "fast", "limit": None, "label": None}),
        ({"unknown": 1}, None, {"mode": "fast", "limit": 10, "label": None}),
    ],
)
def test_config_comes_from_the_call_then_the_run_then_the_default(call_time, run, expected):
    assert resolve_config(PARAMS, call_time, run) == expected


def test_a_value_is_normalized_exactly_once():
    seen = []
    param = ConfigParam(key="a", normalizer=lambda value: seen.append(value) or value)
    resolve_config((param,), {"a": 1})
    assert seen == [1]


def test_an_unknown_normalizer_is_refused_with_the_known_ones():
    with pytest.raises(
        ValueError, match=f"unknown normalizer 'trim'; known are {', '.join(NORMALIZERS)}"
    ):
        ConfigParam(key="a", normalizer="trim")


# --- correctors with a flag, and functions that nobody would await ------------------------------


@pytest.mark.parametrize(
    ("fixed", "becomes"),
    [
        (lambda call, state, config: (call.replace(x=1), True), {"x": 1}),
        (lambda call, state, config: (call.replace(x=1), False), None),
        (lambda call, state, config: (None, True), None),
        (lambda call, state, config: (DROP_STEP, True), "dropped"),
    ],
)
def test_a_corrector_may_say_beside_its_call_whether_it_helped(fixed, becomes):
    rule = Invariant(id="ONE", rule="r", check="call.x == 1", correct=fixed)
    verdict = judge((rule,), call(x=0), {}, {})
    if becomes == "dropped":
        assert verdict.dropped_by is rule
    elif becomes is None:
        assert verdict.violations == (rule,)
    else:
        assert (verdict.ok, verdict.call.arguments) == (True, becomes)


async def waits(call, state, config):
    return True


class Waits:
    async def __call__(self, call, state, config):
        return True


@pytest.mark.parametrize("function", [waits, Waits(), partial(waits, config=None)])
@pytest.mark.parametrize("field", ["check", "correct"])
def test_a_rule_that_would_have_to_be_awaited_is_refused_when_it_is_made(function, field):
    with pytest.raises(ValueError, match=r"must be a plain function; .*aits.* is async"):
        Invariant(**{"id": "A", "rule": "r", "check": "true", field: function})


def test_a_normalizer_that_would_have_to_be_awaited_is_refused_too():
    with pytest.raises(ValueError, match="a normalizer must be a plain function"):
        ConfigParam(key="a", normalizer=waits)


# --- rules that ask -------------------------------------------------------------------------------

SMALL = {"id": "R1", "rule": "At most 100.", "check": "call.n <= 100"}
ASKS = Invariant(**SMALL, otherwise="require_approval")


def test_rule_that_rejects_has_the_record_that_it_always_had():
    assert set(Invariant(**SMALL).model_dump(mode="json")) == {"id", "rule", "check", "correct"}
    asks = Invariant(**SMALL, otherwise="require_approval", approvers=2).model_dump(mode="json")
    assert (asks["otherwise"], asks["approvers"]) == ("require_approval", 2)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"otherwise": "ask"}, "otherwise"),
        ({"approvers": 2}, "needs `otherwise: require_approval`"),
        ({"otherwise": "require_approval", "approvers": 0}, "approvers"),
        ({"check": "target.n > 1", "correct": "drop_step"}, "can't have a corrector"),
    ],
)
def test_rule_that_contradicts_itself_is_refused(more, fault):
    with pytest.raises(ValidationError, match=fault):
        Invariant(**{**SMALL, **more})


def test_corrector_comes_before_the_question():
    def halve(call, state, config):
        return call.replace(n=call["n"] // 2)

    rule = ASKS.model_copy(update={"correct": halve})
    judged = judge([rule], ProposedCall("t", {"n": 150}), {}, {})
    assert (judged.ok, judged.asking, judged.call["n"]) == (True, (), 75)


def test_call_that_asks_is_judged_by_the_other_rules_too():
    cap = Invariant(id="R2", rule="Even.", check="call.n % 2 == 0", correct={"set": {"n": 200}})
    judged = judge([ASKS, cap], ProposedCall("t", {"n": 151}), {}, {})
    assert judged.ok
    assert (judged.asking, judged.call["n"]) == ((ASKS,), 200)


def test_check_gets_only_the_facts_that_it_names():
    seen = {}

    def check(call, state, config, now, *, target):
        seen.update(now=now, target=target)
        return True

    rule = Invariant(id="R1", rule="Seen.", check=check)
    facts = {"principal": "p", "now": 5, "target": {"a": 1}}
    assert rule.holds(ProposedCall("t", {}), {}, {}, facts)
    assert rule.of_target
    assert seen == {"now": 5, "target": {"a": 1}}


def test_parameters_of_a_check_are_told_apart_by_place_not_by_name():
    rule = Invariant(id="R1", rule="So.", check=lambda target, now, principal: target["n"] == 1)
    assert not rule.of_target
    assert rule.holds(ProposedCall("t", {"n": 1}), {}, {}, {"target": {}, "now": 0})
