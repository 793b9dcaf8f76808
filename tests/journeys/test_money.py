"""Money through the public API: amounts, currencies, prices, policy, approval, tokens."""

import time
from types import SimpleNamespace
from typing import Annotated

import pytest
from pydantic import Field

from counterseal import (
    Budgets,
    Code,
    Context,
    Grant,
    Invariant,
    Proposal,
    RunError,
    Runtime,
    Tenant,
    tool,
)
from counterseal.accounts import Person
from counterseal.contract.money import AmountError, Spends, money_text
from counterseal.errors import ContractError
from counterseal.ledger.records import RunRecord
from counterseal.policy import Policy
from counterseal.storage.encoding import _budgets, opened_run_columns
from counterseal.testing import FakeClock, MemoryStore, fake_tool, someone
from counterseal.views.calls import RunViews, budget_lines
from counterseal.views.metrics import metric_rows, prometheus
from tests.store.test_money import NOON, pay, pays


def opened(tool, *, budgets=None, policy=None, store=None, **grant):
    tenants = {"acme": Tenant(budgets=budgets)} if budgets else {}
    runtime = Runtime(store or MemoryStore(), clock=FakeClock(NOON), tenants=tenants, policy=policy)
    runtime.register(tool.tool, grants=[Grant(agent="agent", tool="pay", **grant)])
    return runtime


def rule_of(seen):
    return seen.decisions[-1].decision.rule


@pytest.mark.parametrize(
    ("cents", "words"),
    [
        (-1, "negative"),
        (None, "missing"),
        ("ten", "not a decimal"),
        (True, "not a decimal"),
        ("1e3", "not a decimal"),
        ("0.12345", "at most 4 decimals"),
        (10**18, "below a trillion"),
    ],
)
def test_amount_that_is_not_clear_is_refused(cents, words):
    spends = Spends(amount="/cents", scale=2, currency="EUR")
    with pytest.raises(AmountError, match=words):
        spends.of({"cents": cents})


async def test_refused_amount_has_a_code_a_rule_and_its_place():
    seen = await opened(pays()).submit(pay(1, -1), someone())
    assert (seen.code, rule_of_semantics(seen)) == (Code.SEMANTIC_INVALIDITY, "amount")
    assert seen.errors[-1].field == "/cents"
    seen = await opened(pays()).submit(pay(1, 1, "eur"), someone())
    assert (seen.code, seen.errors[-1].field) == (Code.SEMANTIC_INVALIDITY, "/currency")


def rule_of_semantics(seen):
    return next(one.decision.rule for one in seen.decisions if one.decision.gate == "semantics")


async def test_amount_is_that_of_the_call_as_it_is_executed():
    halve = Invariant(
        id="HALF",
        rule="At most 10 in one call.",
        check="call.cents <= 1000",
        correct={"set": {"cents": 1000}},
    )
    store = MemoryStore()
    runtime = opened(
        pays(invariants=[halve]), budgets=Budgets(money={"day": {"EUR": 10}}), store=store
    )
    assert (await runtime.submit(pay(1, 5000), someone())).ok
    counters = (await store.recall("acme", "run_1", None)).tenant_counters
    assert counters["money.day.EUR/20000"] == 10_000_000


async def test_currency_that_has_no_limit_is_refused():
    seen = await opened(pays(money={"day": {"EUR": 5}})).submit(pay(1, 1, "USD"), someone())
    assert (seen.code, rule_of(seen)) == (Code.BUDGET_EXHAUSTED, "tenant.money.day.USD")
    assert "grants nothing" in seen.decisions[-1].decision.reason
    others = Budgets(money={"agent:other": {"USD": 5}})
    seen = await opened(pays(money={"day": {"EUR": 5}}), budgets=others).submit(
        pay(1, 1, "USD"), someone()
    )
    assert seen.code is Code.BUDGET_EXHAUSTED, "another agent's limit is none for this one"


async def test_euros_and_yen_are_never_added_up():
    limits = Budgets(money={"day": {"EUR": 10, "JPY": 10}})
    runtime = opened(pays(), budgets=limits)
    assert (await runtime.submit(pay(1, 1000, "EUR"), someone())).ok
    assert (await runtime.submit(pay(2, 1000, "JPY"), someone())).ok
    assert rule_of(await runtime.submit(pay(3, 1, "JPY"), someone())) == "tenant.money.day.JPY"


async def test_contracts_own_limits_hold_whatever_a_run_may_ask():
    tool = pays(money={"run": {"EUR": 10}, "agent": {"EUR": 15}, "resource": {"EUR": 12}})
    runtime = opened(tool)
    await runtime.run(someone(), "run_1", budgets=Budgets(ask=True))
    assert (await runtime.submit(pay(1, 1000), someone())).ok
    assert rule_of(await runtime.submit(pay(2, 1), someone())) == "tool.money.run.EUR"
    over = await runtime.submit(pay(3, 201, run="run_2"), someone())
    assert rule_of(over) == "tool.money.resource.EUR"
    over = await runtime.submit(pay(4, 501, run="run_2", invoice="x" * 500), someone())
    assert rule_of(over) == "tool.money.agent.EUR"


async def test_run_has_limits_of_its_own_and_of_its_tenant():
    runtime = opened(pays(), budgets=Budgets(money={"run": {"EUR": 9}}))
    strict = Budgets(money={"run": {"EUR": 5}, "call": {"EUR": 4}})
    await runtime.run(someone(), "run_1", budgets=strict)
    assert rule_of(await runtime.submit(pay(1, 401), someone())) == "run.money.call.EUR"
    assert (await runtime.submit(pay(1, 400), someone())).ok
    assert rule_of(await runtime.submit(pay(2, 101), someone())) == "run.money.run.EUR"
    assert (await runtime.submit(pay(3, 900, run="run_2"), someone())).ok
    assert (
        rule_of(await runtime.submit(pay(4, 1, run="run_2"), someone())) == "tenant.money.run.EUR"
    )
    with pytest.raises(RunError, match="day is a limit of a tenant"):
        await runtime.run(someone(), "run_3", budgets=Budgets(money={"day": {"EUR": 5}}))


async def test_failed_call_gives_nothing_back_and_another_attempt_spends_once():
    store, attempts = MemoryStore(), []

    @tool(
        effect="internal_mutation",
        version="1.0.0",
        owner="tests",
        on_unknown="retry_same_key",
        spends={"amount": "/cents", "scale": 2, "currency": "EUR"},
        money={"day": {"EUR": 100}},
        cost={"day": {"EUR": 100}},
        runtime={"cost_profile": {"cost_per_call": 1, "currency": "EUR"}, "max_retries": 1},
    )
    async def pay(cents: Annotated[int, Field(le=10**6, description="How much.")], ctx: Context):
        """Pay."""
        attempts.append(ctx.key)
        raise TimeoutError("no answer")

    call = Proposal(tool="pay", arguments={"cents": 1000}, run_id="run_1")
    seen = await opened(SimpleNamespace(tool=pay), store=store).submit(call, someone())
    assert (seen.ok, len(attempts)) == (False, 2)
    counters = (await store.recall("acme", "run_1", None)).tenant_counters
    assert counters["money.day.EUR/20000"] == 10_000_000, "spent once, and kept"
    assert counters["cost.day.EUR/20000"] == 2_000_000, "each attempt has its price"


RULES = Policy.from_data(
    {
        "rules": [
            {
                "id": "two",
                "when": "spends.EUR > 500",
                "then": "require_approval",
                "approvers": 2,
                "reason": "Two people above 500 EUR.",
            },
            {
                "id": "enough",
                "when": "spent.day.EUR + spends.EUR > 900 || spent.agent.JPY > 5",
                "then": "deny",
                "reason": "Enough for a day.",
            },
        ]
    }
)


async def test_policy_sees_what_a_call_spends_and_what_was_spent():
    runtime = opened(pays(), policy=RULES)
    assert (await runtime.submit(pay(1, 50_000), someone())).ok
    asked = await runtime.submit(pay(2, 50_001), someone())
    assert asked.code is Code.POLICY_VIOLATION, "500.00 + 500.01 are more than 900"
    assert (await runtime.submit(pay(3, 40_000), someone())).ok
    assert (await runtime.submit(pay(4, 1), someone())).code is Code.POLICY_VIOLATION
    assert (await opened(pays(), policy=RULES).submit(pay(2, 50_001), someone())).code is (
        Code.CONFIRMATION_MISSING
    )


async def test_rule_about_money_leaves_other_tools_alone():
    tool = fake_tool("pay")
    runtime = opened(tool, policy=RULES)
    assert (await runtime.submit(Proposal(tool="pay", arguments={}), someone())).ok


async def test_approvers_see_the_amount_and_what_was_spent():
    runtime = opened(pays(), policy=RULES, budgets=Budgets(money={"day": {"EUR": 1000}}))
    assert (await runtime.submit(pay(1, 30_000), someone())).ok
    held = await runtime.submit(pay(2, 60_000), someone())
    packet = await runtime.approvals.get("acme", held.approval_id)
    assert packet.record()["spends"] == {
        "amount": "600.00 EUR",
        "spent": ["300.00 EUR of 1,000.00 EUR spent before (tenant.money.day.EUR)"],
    }


async def test_approvers_can_allow_one_call_beyond_a_days_limit():
    runtime = opened(pays(), budgets=Budgets(money={"day": {"EUR": 10}}, ask=True))
    held = await runtime.submit(pay(1, 1001), someone())
    assert held.code is Code.CONFIRMATION_MISSING
    packet = await runtime.approvals.get("acme", held.approval_id)
    assert "0.00 EUR of 10.00 EUR, and this call takes 10.01 EUR more" in packet.demand.reason


async def test_tokens_beyond_the_budget_end_a_run_and_repairs_are_counted_apart():
    runtime = opened(pays())
    run = await runtime.run(someone(), "run_1", budgets=Budgets(tokens=100))
    wrong = {"cents": "x", "currency": "EUR", "invoice": "i"}
    assert (await run.submit("pay", wrong, tokens=40)).code is Code.TYPE_MISMATCH
    right = {**wrong, "cents": 5}
    assert (await run.submit("pay", right, tokens=50)).ok, "a repair"
    over = await run.submit("pay", {**right, "cents": 6}, tokens=11)
    assert (over.code, rule_of(over)) == (Code.BUDGET_EXHAUSTED, "run.tokens")
    assert "90 of 100 spent, 11 more asked" in over.errors[0].message
    unreported = await run.submit("pay", {**right, "cents": 7})
    assert (unreported.code, rule_of(unreported)) == (Code.BUDGET_EXHAUSTED, "run.tokens")
    counters = (await runtime.store.recall("acme", "run_1", None)).run_counters
    assert (counters["tokens"], counters["tokens.repairs"]) == (101, 50)
    assert await run.report_tokens(9) == 110
    with pytest.raises(ValueError, match="whole number from 0"):
        await run.report_tokens(-1)
    odd = await run.submit("pay", right, tokens="many")
    assert odd.code is Code.SYNTACTIC_PARSE_FAIL


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (5, "expected limits by currency"),
        ({"week": {"EUR": 5}}, "'week' is not what a limit can be for"),
        ({"day:monday": {"EUR": 5}}, "is not what a limit can be for"),
        ({"day": 5}, "expected an amount for each currency"),
        ({"day": {"euro": 5}}, "is not a currency"),
        ({"day": {"EUR": -1}}, "a number from 0 on"),
        ({"day": {"EUR": "0.0000001"}}, "at most 6 decimals"),
    ],
)
def test_limit_that_would_limit_nothing_is_refused(limits, words):
    with pytest.raises(ValueError, match=words):
        Budgets(money=limits)
    with pytest.raises(ContractError, match="money"):
        pays(money=limits)


def test_decimal_texts_and_fractions_are_exact():
    assert Spends(amount="/a", currency="EUR").of({"a": 0.1}).millionths == 100_000
    assert Spends(amount="/a", currency="EUR").of({"a": "123456789.123456"}).millionths == (
        123_456_789_123_456
    )
    assert Spends(amount="/a", scale=2, currency="EUR").of({"a": 10**13}).millionths == 10**17
    assert money_text(1_234_500_000, "EUR") == "1,234.50 EUR"
    assert money_text(5_000_000, "JPY") == "5 JPY"
    assert money_text(2_000, "EUR") == "0.002 EUR"


async def test_costs_in_two_currencies_have_a_metric_each():
    clock = FakeClock(NOON)
    runtime = Runtime(MemoryStore(), clock=clock)
    for name, currency, price in (("a", "EUR", 0.5), ("b", "JPY", 30)):
        profile = {"cost_profile": {"cost_per_call": price, "currency": currency}}
        made = fake_tool(name, runtime=profile, cost={"day": {currency: 1000}})
        runtime.register(made.tool, grants=[Grant(agent="agent", tool=name)])
        assert (await runtime.submit(Proposal(tool=name, arguments={}), someone())).ok
    rows = await metric_rows(runtime.store, "acme", "24h", time.time() + 1)
    costs = [row for row in rows if row.name == "tool_cost_per_successful_action"]
    assert [(row.currency, row.numerator, row.denominator) for row in costs] == [
        ("EUR", 0.5, 2),
        ("JPY", 30, 2),
    ]
    text = prometheus([("acme", rows)])
    assert 'action_numerator{tenant="acme",window="24h",currency="JPY"} 30\n' in text


async def test_day_of_a_tenant_is_told_to_prometheus_with_its_limits():
    runtime = opened(pays(), budgets=Budgets(money={"day": {"EUR": 50}, "agent": {"EUR": 20}}))
    assert (await runtime.submit(pay(1, 1234), someone())).ok
    rows = await RunViews(runtime, Person(name="ann", tenant="acme")).budgets("run_1")
    shown = {(row.of, row.name): (row.spent, row.limit, row.limit_from) for row in rows}
    assert shown["tenant", "money.day.EUR"] == (
        12.34,
        50,
        "`money.day.EUR` of the tenant's budgets",
    )
    assert shown["tenant", "money.agent:agent.EUR"][1] == 20
    assert shown["run", "money.run.EUR"][:2] == (12.34, None)
    text = budget_lines({"acme": [row for row in rows if row.of == "tenant"]})
    labels = '{tenant="acme",budget="money.day.EUR",currency="EUR"}'
    assert f"counterseal_budget_spent{labels} 12.34" in text
    assert f"counterseal_budget_limit{labels} 50\n" in text


def test_run_that_was_stored_with_a_plain_number_keeps_its_limit():
    assert _budgets('{"reads": 3, "money": 1.5}') == Budgets(reads=3, cost={"run": {"USD": 1.5}})
    assert _budgets('{"reads": 3, "money": null}') == Budgets(reads=3)
    kept = Budgets(money={"run": {"EUR": "0.10"}}, tokens=5)
    columns = opened_run_columns(RunRecord(tenant="t", run_id="r", started_at=0.0, budgets=kept))
    assert _budgets(columns[5]) == kept
