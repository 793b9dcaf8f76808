"""The budget gate: which limit is in the way, and how far one may go.

The gate is asked as for a preview, where it looks at every limit itself; that a real call gets the
same answer, wherever it is spent, is shown at the end.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal import Grant, Proposal
from counterseal.codes import Code
from counterseal.execution.executor import Executor
from counterseal.gates.base import GateContext, Learned, Verdict
from counterseal.gates.budget import check, exhausted, rate_limited
from counterseal.ledger.records import Budgets, HeldStatus, RunRecord
from counterseal.ledger.requests import Charge, Memory
from counterseal.runtime import Runtime, Tenant
from counterseal.testing import FakeClock, MemoryStore, fake_tool, runtime_for, someone

COST = {"cost_profile": {"cost_per_call": 0.5}}
PRICED = {"runtime": COST, "cost": {"day": {"USD": 1000}}}
DAY = 86_400


@pytest.fixture
def fresh(context):
    """A context of a tool, with budgets of which nothing is spent."""

    def fresh(tool=None, *, budgets=None, limits=None, grant=None):
        made = tool or fake_tool()
        granted = Grant(agent="agent", tool=made.contract.name, **(grant or {}))
        ctx = context(made.tool, {})
        return ctx.replace(
            preview=True,
            grant=granted,
            limits=limits,
            run=RunRecord(
                tenant="acme",
                run_id="run_1",
                started_at=ctx.now,
                budgets=budgets or Budgets(),
            ),
            memory=Memory(None, None, {}, {}, {}),
        )

    return fresh


def rule_of(ctx):
    """The budget that refuses, or None when all of them allow."""
    said = check(ctx)
    if isinstance(said, Learned):
        assert said.decision.verdict is Verdict.ALLOW
        return None
    assert (said.gate, said.verdict, said.code) == ("budget", Verdict.DENY, Code.BUDGET_EXHAUSTED)
    assert said.rule in said.reason
    assert said.rule in said.field_errors[0].message
    return said.rule


CRITICAL = {"max_calls_per_run": 9}
# The budget's name: the effect of the tool, and what limits it to three calls.
DIMENSIONS = {
    "run.reads": ("read_only", {"budgets": Budgets(reads=3)}),
    "run.writes": ("draft", {"budgets": Budgets(writes=3)}),
    "run.external": ("external_notification", {"budgets": Budgets(external=3)}),
    "run.critical": ("irreversible", {"budgets": Budgets(critical=3), "grant": CRITICAL}),
    "run.effect.compute": ("compute", {"budgets": Budgets(by_effect={"compute": 3})}),
    "run.tool.look_up": ("read_only", {"grant": {"max_calls_per_run": 3}}),
    "tenant.reads": ("read_only", {"limits": Budgets(reads=3)}),
    "tenant.writes": ("draft", {"limits": Budgets(writes=3)}),
    "tenant.external": ("external_notification", {"limits": Budgets(external=3)}),
    "tenant.critical": ("irreversible", {"limits": Budgets(critical=3), "grant": CRITICAL}),
    "tenant.effect.compute": ("compute", {"limits": Budgets(by_effect={"compute": 3})}),
}


def after(ctx, **used):
    """The context, with so much spent of each budget (`run_reads` is the budget run.reads)."""
    own, shared = {}, {}
    for charge in check(ctx).facts["charges"]:
        counters = own if charge.of_run else shared
        counters[charge.counter] = used.pop(charge.budget.replace(".", "_"), 0)
    assert not used, "every budget that is named is charged"
    return ctx.replace(memory=Memory(None, None, own, shared, {}))


@pytest.mark.parametrize("budget", DIMENSIONS)
def test_every_budget_allows_up_to_its_limit_and_names_itself_beyond(fresh, budget):
    effect, limited = DIMENSIONS[budget]
    ctx = fresh(fake_tool(effect=effect), **limited)
    for used, rule in ((0, None), (2, None), (3, budget), (4, budget)):
        assert rule_of(after(ctx, **{budget.replace(".", "_"): used})) == rule


def test_a_contracts_own_budget_stands_where_no_grant_says_otherwise(fresh):
    tool = fake_tool(budget=2)
    assert rule_of(after(fresh(tool), run_tool_look_up=1)) is None
    assert rule_of(after(fresh(tool), run_tool_look_up=2)) == "run.tool.look_up"
    more = fresh(tool, grant={"max_calls_per_run": 3})
    assert rule_of(after(more, run_tool_look_up=2)) is None
    assert rule_of(fresh(tool, grant={"max_calls_per_run": 0})) == "run.tool.look_up"


def test_a_critical_tool_has_no_budget_until_it_is_granted(fresh):
    tool = fake_tool(effect="irreversible")
    assert rule_of(fresh(tool)) == "run.tool.look_up"
    assert rule_of(fresh(tool, grant={"max_calls_per_run": 1})) is None


@pytest.mark.parametrize("whose", ["run", "tenant"])
def test_the_price_of_a_call_is_counted_in_its_currency(fresh, whose):
    window = "run" if whose == "run" else "day"
    limited = {"budgets" if whose == "run" else "limits": Budgets(cost={window: {"USD": 1.25}})}
    ctx, name = fresh(fake_tool(**PRICED), **limited), f"{whose}.cost.{window}.USD"
    assert rule_of(after(ctx, **{name.replace(".", "_"): 750_000})) is None
    assert rule_of(after(ctx, **{name.replace(".", "_"): 1_000_000})) == name


def test_what_costs_nothing_needs_no_money(fresh):
    nothing = Budgets(money={"run": {"USD": 0}}, cost={"run": {"USD": 0}})
    assert rule_of(fresh(budgets=nothing, limits=nothing)) is None


def test_a_run_ends_after_its_seconds(fresh):
    ctx = fresh(budgets=Budgets(seconds=60))
    assert rule_of(ctx.replace(now=ctx.now + 59.5)) is None
    assert rule_of(ctx.replace(now=ctx.now + 60)) == "run.seconds"
    assert rule_of(fresh(budgets=Budgets(seconds=0))) == "run.seconds"


def test_a_tenants_day_begins_anew(fresh):
    ctx = after(fresh(limits=Budgets(reads=1)), tenant_reads=1)
    assert rule_of(ctx) == "tenant.reads"
    assert rule_of(ctx.replace(now=float(DAY))) is None


def test_an_external_critical_write_is_charged_for_all_three(fresh):
    budgets = Budgets(writes=9, external=9, critical=9, by_effect={"irreversible": 9})
    tool = fake_tool(effect="irreversible", **PRICED)
    limits = Budgets(writes=9, cost={"day": {"USD": 9}})
    said = check(fresh(tool, budgets=budgets, limits=limits, grant={"max_calls_per_run": 9}))
    assert {charge.budget: charge.amount for charge in said.facts["charges"]} == {
        "run.tool.look_up": 1,
        "run.effect.irreversible": 1,
        "run.writes": 1,
        "run.external": 1,
        "run.critical": 1,
        "tenant.writes": 1,
        "run.cost.run.USD": 500_000,
        "tenant.cost.day.USD": 500_000,
        "tenant.cost.agent.USD": 500_000,
        "tool.cost.day.USD": 500_000,
    }
    counters = [(charge.counter, charge.of_run) for charge in said.facts["charges"]]
    assert len(set(counters)) == len(counters), "no counter is charged twice by one call"


@given(
    limits=st.lists(st.none() | st.integers(0, 4), min_size=4, max_size=4),
    used=st.lists(st.integers(0, 5), min_size=3, max_size=3),
)
def test_a_call_is_allowed_exactly_when_every_budget_has_room(limits, used):
    own, reads, by_effect, tenant = limits
    runtime = runtime_for(fake_tool(budget=3))
    effects = {} if by_effect is None else {"read_only": by_effect}
    ctx = GateContext(
        proposal=Proposal(tool="look_up", arguments={}),
        principal=someone(),
        call_id="call_1",
        now=0.0,
        registry=runtime.registry,
        executor=Executor(),
        preview=True,
        run=RunRecord(
            tenant="acme",
            run_id="run_1",
            started_at=0.0,
            budgets=Budgets(reads=reads, by_effect=effects),
        ),
        record=runtime.registry.get("look_up", "1.0.0"),
        compiled=runtime.compiled_for(runtime.registry.get("look_up", "1.0.0")),
        grant=Grant(agent="agent", tool="look_up", max_calls_per_run=own),
        limits=None if tenant is None else Budgets(reads=tenant),
        memory=Memory(None, None, {}, {}, {}),
    )
    spending = {
        "run_tool_look_up": used[0],
        "run_reads": None if reads is None else used[1],
        "run_effect_read_only": None if by_effect is None else used[1],
        "tenant_reads": None if tenant is None else used[2],
    }
    room = [
        used[0] < (3 if own is None else own),
        reads is None or used[1] < reads,
        by_effect is None or used[1] < by_effect,
        tenant is None or used[2] < tenant,
    ]
    if 0 in limits:
        assert rule_of(ctx) is not None
    else:
        charged = {name: value for name, value in spending.items() if value is not None}
        assert (rule_of(after(ctx, **charged)) is None) is all(room)


def test_a_refusal_says_how_much_was_spent_and_how_to_get_more():
    decision = exhausted(Charge("run.writes", "writes", 1, 5, of_run=True), 5)
    assert decision.field_errors[0].message == "budget run.writes: 5 of 5 spent, 1 more asked"
    assert "operator" in decision.reason
    assert decision.retry_after is None


def test_too_fast_a_call_is_told_when_to_come_back(fresh):
    limits = {"rate_limits": {"window_sec": 10, "max_requests": 2}}
    ctx = fresh(fake_tool(runtime=limits))
    # One call every five seconds, two at once: the next is due when arrival is five ahead.
    for arrival, wait in ((ctx.now, None), (ctx.now + 5, None), (ctx.now + 8, 3.0)):
        memory = Memory(None, None, {}, {}, {"tool/look_up": arrival})
        said = check(ctx.replace(memory=memory))
        if wait is None:
            assert isinstance(said, Learned)
        else:
            assert (said.code, said.retry_after) == (Code.RATE_LIMITED, wait)
            assert said == rate_limited(wait)


def test_looking_spends_nothing(fresh):
    ctx = after(fresh(), run_tool_look_up=1)
    before = dict(ctx.memory.run_counters)
    for _ in range(3):
        check(ctx)
    assert ctx.memory.run_counters == before


def test_without_a_grant_the_answer_is_no(fresh):
    said = check(fresh().replace(grant=None))
    assert (said.verdict, said.code) == (Verdict.DENY, Code.PERMISSION_DENIED)


@pytest.mark.parametrize("budget", DIMENSIONS)
async def test_a_real_call_is_refused_by_the_same_budget(budget):
    effect, limited = DIMENSIONS[budget]
    tool = fake_tool(effect=effect)
    tenants = {"acme": Tenant(budgets=limited.get("limits"))}
    runtime = Runtime(MemoryStore(), clock=FakeClock(), tenants=tenants)
    grant = Grant(agent="agent", tool="look_up", **limited.get("grant", {}))
    runtime.register(tool.tool, grants=[grant])
    await runtime.run(someone(), "run_1", budgets=limited.get("budgets"))

    async def call(number):
        proposal = Proposal(tool="look_up", arguments={}, run_id="run_1", operation_id=str(number))
        seen = await runtime.submit(proposal, someone())
        if seen.code is not Code.CONFIRMATION_MISSING:
            return seen
        await runtime.store.decide("acme", seen.approval_id, HeldStatus.APPROVED, [])
        return await runtime.submit(proposal, someone())

    seen = [await call(number) for number in range(4)]
    assert [one.ok for one in seen] == [True, True, True, False]
    assert len(tool.calls) == 3
    last = seen[-1]
    assert last.code is Code.BUDGET_EXHAUSTED
    assert (last.decisions[-1].decision.gate, last.decisions[-1].decision.rule) == (
        "budget",
        budget,
    )
    assert budget in last.for_model()
    events = await runtime.store.events("acme", call_id=last.call_id)
    types = [event.type.value for _, event in events]
    assert types == ["gate.budget.refused", "tool.denied", "path.escalate"]


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (
            {"grant": {"max_calls_per_run": 0}},
            "`max_calls_per_run` of the agent's grant for look_up",
        ),
        ({"budgets": Budgets(reads=0)}, "`reads` of the run's budgets"),
        (
            {"budgets": Budgets(by_effect={"read_only": 0})},
            "`by_effect.read_only` of the run's budgets",
        ),
        ({"limits": Budgets(reads=0)}, "`reads` of the tenant's budgets"),
    ],
)
def test_a_budget_of_nothing_says_which_field_grants_it(fresh, limits, field):
    decision = check(fresh(**limits))
    assert decision.code is Code.BUDGET_EXHAUSTED
    (error,) = decision.field_errors
    assert error.message == f"budget {decision.rule}: nothing is granted; {field} grants it"
    assert decision.reason.endswith(f"grants nothing. An operator grants it with {field}.")
    assert "0 of 0" not in error.message + decision.reason
