"""Money on every back-end: no interleaving spends more than a limit, and sums are exact."""

import asyncio
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal import Budgets, Code, Grant, Proposal, Runtime, Tenant
from counterseal.contract.money import millionths
from counterseal.testing import FakeClock, fake_tool, someone

NOON = 20_000 * 86_400 + 43_200.0
LATE = 20_001 * 86_400 - 1.0
AMOUNT = {
    "type": "object",
    "properties": {
        "cents": {
            "type": "integer",
            "description": "How much.",
            "minimum": -100,
            "maximum": 10**12,
        },
        "currency": {"type": "string", "description": "In what.", "maxLength": 3},
        "invoice": {"type": "string", "description": "For what.", "maxLength": 600},
    },
    "required": ["cents", "currency", "invoice"],
    "additionalProperties": False,
}


def pays(*answers, **more):
    return fake_tool(
        "pay",
        *answers,
        **{
            "effect": "internal_mutation",
            "input_schema": AMOUNT,
            "budget": 1000,
            "resource": "invoice:{invoice}",
            "spends": {"amount": "/cents", "scale": 2, "currency": "/currency"},
            "money": {"call": {"EUR": 10**6, "JPY": 10**6}},
            "runtime": {"rate_limits": {"max_requests": 100_000}},
            **more,
        },
    )


def shop(store, tool, clock=None, **limits):
    """A runtime in which two agents may pay, within the tenant's limits."""
    tenants = {"acme": Tenant(budgets=Budgets(**limits))}
    runtime = Runtime(store, clock=clock or FakeClock(NOON), tenants=tenants)
    grants = [Grant(agent=agent, tool="pay") for agent in ("agent", "other")]
    runtime.register(tool.tool, grants=grants)
    return runtime


def pay(number, cents, currency="EUR", run="run_1", invoice="inv"):
    arguments = {"cents": cents, "currency": currency, "invoice": invoice}
    return Proposal(tool="pay", arguments=arguments, run_id=run, operation_id=f"op_{number}")


async def test_many_calls_at_once_never_spend_more_than_the_limit(new_store):
    async with new_store() as store:
        tool = pays()
        runtime = shop(store, tool, money={"day": {"EUR": "100.50"}})
        calls = [pay(number, 1005, run=f"run_{number % 7}") for number in range(60)]
        seen = await asyncio.gather(*(runtime.submit(call, someone()) for call in calls))
        codes = [one.code for one in seen]
        assert codes.count(Code.SUCCESS) == 10 == len(tool.calls)
        assert codes.count(Code.BUDGET_EXHAUSTED) == 50
        memory = await store.recall("acme", "run_1", None)
        assert memory.tenant_counters["money.day.EUR/20000"] == 100_500_000
        again = await runtime.submit(calls[codes.index(Code.SUCCESS)], someone())
        assert again.idempotency_hit, "the answer of a repeated call comes from the ledger"
        assert (await store.recall("acme", "run_1", None)).tenant_counters == memory.tenant_counters


async def test_day_ends_at_midnight_in_utc(new_store):
    async with new_store() as store:
        clock = FakeClock(LATE)
        runtime = shop(store, pays(), clock, money={"day": {"EUR": 10}, "run": {"EUR": 25}})
        assert (await runtime.submit(pay(1, 1000), someone())).ok
        refused = await runtime.submit(pay(2, 1), someone())
        assert refused.decisions[-1].decision.rule == "tenant.money.day.EUR"
        clock.advance(1)  # midnight
        assert (await runtime.submit(pay(2, 1000), someone())).ok
        clock.advance(86_400)
        refused = await runtime.submit(pay(3, 501), someone())
        assert refused.decisions[-1].decision.rule == "tenant.money.run.EUR", "a run is no day"
        assert (await runtime.submit(pay(4, 500), someone())).ok


LIMITS = st.decimals(0, 60, places=2)
WINDOWS = ("call", "run", "day", "agent", "resource", "tool", "tool:pay", "agent:other")
CALLS = st.tuples(
    st.integers(0, 3000),
    st.sampled_from(["EUR", "JPY"]),
    st.sampled_from(["run_1", "run_2"]),
    st.sampled_from(["agent", "other"]),
    st.sampled_from(["inv_1", "inv_2"]),
    st.sampled_from([0, 0, 0, 40_000]),
)


@settings(deadline=None, max_examples=40)
@given(
    limits=st.dictionaries(
        st.sampled_from(WINDOWS), st.fixed_dictionaries({"EUR": LIMITS, "JPY": LIMITS}), min_size=1
    ),
    own=st.fixed_dictionaries({"EUR": LIMITS, "JPY": LIMITS}),
    calls=st.lists(CALLS, max_size=25),
)
async def test_admitted_sums_stay_within_every_limit_of_every_window(new_store, limits, own, calls):
    async with new_store() as store:
        clock = FakeClock(NOON)
        tool = pays(money={"day": own})
        runtime = shop(store, tool, clock, money=limits)
        sums: dict[tuple[object, ...], Decimal] = {}
        for number, (cents, currency, run, agent, invoice, later) in enumerate(calls):
            clock.advance(later)
            day, amount = int(clock() // 86_400), Decimal(cents) / 100
            places = {
                "call": (number, currency),
                "run": (run, currency),
                "day": ("day", day, currency),
                "agent": ("agent", agent, day, currency),
                "resource": (invoice, day, currency),
                "tool": ("tool", day, currency),
                "own": ("tool", day, currency),
                "tool:pay": ("tool", day, currency),
                "agent:other": ("agent", "other", day, currency) if agent == "other" else None,
            }
            most = [*limits.items(), ("own", own)]
            fits = all(
                places[key] is None or sums.get(places[key], 0) + amount <= by[currency]
                for key, by in most
            )
            seen = await runtime.submit(
                pay(number, cents, currency, run, invoice), someone(agent=agent)
            )
            assert seen.ok is (fits or not cents), (seen.decisions[-1].decision, sums)
            for place in {*places.values()} - {None} if seen.ok else ():
                sums[place] = sums.get(place, Decimal(0)) + amount
        counters = (await store.recall("acme", "run_1", None)).tenant_counters
        for (kind, *rest), total in sums.items():
            if kind == "day":
                day, currency = rest
                counted = counters.get(f"money.day.{currency}/{day}", 0)
                assert counted == millionths(str(total)), "to the cent"
