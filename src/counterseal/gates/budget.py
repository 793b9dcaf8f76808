"""The budget gate: are the budgets of run and tenant sufficient, and the rates?

`admit` spends, and checks every limit in one transaction, so that two calls can't spend the same
last unit. Where approval is required, this gate checks the limits as well, on the recalled
counters: no approver should decide on a call that could not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from hashlib import sha256
from math import ceil, inf
from typing import Final

from counterseal.codes import Code
from counterseal.contract.fill import resource_of
from counterseal.contract.model import Contract
from counterseal.contract.money import Amount, Limits, limits_for
from counterseal.gates.base import CompiledContract, Decision, GateContext, Learned, allow, deny
from counterseal.ledger.records import Budgets
from counterseal.ledger.requests import Charge, RateLimit
from counterseal.observation.envelope import FieldError
from counterseal.registry import Grant

NAME: Final = "budget"
ALLOW: Final = allow(NAME)


def check(ctx: GateContext) -> Decision | Learned:
    """Return what the call costs, or a denial if a budget or rate is exhausted."""
    if ctx.grant is None:
        return deny(NAME, Code.PERMISSION_DENIED, "The tool can't be used.")
    run, lasted = ctx.run, ctx.now - ctx.run.started_at
    seconds = run.budgets.seconds
    if seconds is not None and lasted >= seconds:
        return exhausted(Charge("run.seconds", "", 0, seconds, of_run=True), lasted)
    if run.deadline is not None and ctx.now >= run.deadline:
        limit = run.deadline - run.started_at
        return exhausted(Charge("run.deadline", "", 0, limit, of_run=True), lasted)
    costs = _costs(ctx, ctx.resolved, ctx.grant)
    if not ctx.resolved.takes_money:
        return _obstacle(ctx, costs.charges, costs.rates) or costs.allowed
    money = tuple(money_charges(ctx))
    for charge in money:
        if not charge.counter and charge.exceeds(0):
            return exhausted(charge, 0)
    charges = (*costs.charges, *(charge for charge in money if charge.counter))
    facts = {"charges": charges, "rates": costs.rates}
    return _obstacle(ctx, charges, costs.rates) or Learned(ALLOW, facts)


def _obstacle(
    ctx: GateContext, charges: Iterable[Charge], rates: Iterable[RateLimit]
) -> Decision | None:
    """Return a denial if a recalled counter leaves no room, where `admit` does not follow."""
    memory, now = ctx.memory, ctx.now
    if memory is None or not (ctx.requirements or ctx.preview):
        return None  # `admit` follows, and checks every limit
    for charge in charges:
        counters = memory.run_counters if charge.of_run else memory.tenant_counters
        spent = counters.get(charge.counter, 0)
        if charge.exceeds(spent) and not can_ask(ctx, charge):
            return exhausted(charge, spent)
    for rate in rates:
        arrival = memory.rates.get(rate.counter)
        if arrival is not None and rate.wait(arrival, now) > 0:
            return rate_limited(rate.wait(arrival, now))
    return None


def can_ask(ctx: GateContext, charge: Charge) -> bool:
    """Return True if approvers may allow one call beyond a budget. A contract's limit stands."""
    whose = charge.budget.partition(".")[0]
    budgets = {"run": ctx.run.budgets, "tenant": ctx.limits}.get(whose)
    return budgets is not None and budgets.ask


def exhausted(charge: Charge, spent: float) -> Decision:
    """Return the denial for a budget that is used up, or of which nothing was granted."""
    budget, source = charge.budget, limit_source(charge.budget)
    limit = charge.words(charge.limit)
    state = f"{charge.words(spent)} of {limit} spent, {charge.words(charge.amount)} more asked"
    if not charge.limit > 0:
        message = f"budget {budget}: nothing is granted; {source} grants it"
        reason = f"The budget {budget} grants nothing. An operator grants it with {source}."
    elif charge.currency or spent < charge.limit:
        message = f"budget {budget}: {state}"
        reason = f"The budget {budget} is too small: {state}. An operator can raise it: {source}."
    else:
        message = f"budget {budget}: {state}"
        reason = f"The budget {budget} is spent. An operator can raise it: {source}."
    error = FieldError("", message, Code.BUDGET_EXHAUSTED.value, f"at most {limit}")
    return deny(NAME, Code.BUDGET_EXHAUSTED, reason, rule=budget, field_errors=(error,))


def limit_source(budget: str) -> str:
    """Return the field that sets the limit of a budget, such as `run.tool.refund`."""
    whose, _, name = budget.partition(".")
    kind, _, subject = name.partition(".")
    if kind == "tool":
        return f"`max_calls_per_run` of the agent's grant for {subject}"
    if budget == "run.deadline":
        return "`deadline` of the run"
    if whose == "tool":
        return f"`{name}` of the tool's contract"
    field = f"by_effect.{subject}" if kind == "effect" else name
    return f"`{field}` of the {'run' if whose == 'run' else 'tenant'}'s budgets"


def rate_limited(wait: float) -> Decision:
    """Return the denial for an exceeded rate, with the seconds to wait."""
    reason = "Too many calls in a short time."
    return deny(NAME, Code.RATE_LIMITED, reason, rule="rate", retry_after=wait)


class _Costs:
    """The charges of a call of one tool, under one grant, in one kind of run. Computed once."""

    __slots__ = ("allowed", "charges", "parts", "rates")

    def __init__(
        self, charges: tuple[Charge, ...], rates: tuple[RateLimit, ...], parts: tuple[object, ...]
    ) -> None:
        self.charges = charges
        self.rates = rates
        # Kept alive, so that their ids, which are the cache key, are not reused.
        self.parts = parts
        self.allowed = Learned(ALLOW, {"charges": charges, "rates": rates})


def _costs(ctx: GateContext, compiled: CompiledContract, grant: Grant) -> _Costs:
    """Return the cached costs for this tool, grant and kind of run; all are frozen."""
    budgets, limits = ctx.run.budgets, ctx.limits
    day = 0 if limits is None else int(ctx.now // 86_400)
    key = (id(grant), id(budgets), id(limits), day)
    cache: dict[tuple[int, ...], _Costs] = compiled.costs
    costs = cache.get(key)
    if costs is None:
        if len(cache) >= _MAX_CACHED:
            cache.clear()
        charges = tuple(_charges(compiled, grant, budgets, limits, day))
        costs = cache[key] = _Costs(charges, _rates(compiled.contract), (grant, budgets, limits))
    return costs


_MAX_CACHED = 256


def _charges(
    compiled: CompiledContract, grant: Grant, run: Budgets, tenant: Budgets | None, day: int
) -> Iterator[Charge]:
    contract = compiled.contract
    own = grant.calls_per_run(contract)
    yield Charge(f"run.tool.{contract.name}", f"tool/{contract.name}", 1, own, of_run=True)
    yield from _limits("run", run, compiled, "", of_run=True)
    if tenant is not None:
        yield from _limits("tenant", tenant, compiled, f"/{day}", of_run=False)


def _limits(
    whose: str, budgets: Budgets, compiled: CompiledContract, period: str, *, of_run: bool
) -> Iterator[Charge]:
    """Yield what one call is charged against these budgets."""
    contract = compiled.contract
    effect = contract.effect.value if contract.effect else "irreversible"
    limits = [(name, 1, getattr(budgets, name)) for name in compiled.classes]
    limits.append((f"effect.{effect}", 1, budgets.by_effect.get(effect)))
    limits.append(("tokens", 0, budgets.tokens))
    for name, amount, limit in limits:
        if limit is not None:
            yield Charge(f"{whose}.{name}", f"{name}{period}", amount, limit, of_run=of_run)


def _rates(contract: Contract) -> tuple[RateLimit, ...]:
    limits = contract.runtime.rate_limits
    interval = limits.window_sec / limits.max_requests
    return (RateLimit(f"tool/{contract.name}", interval, limits.max_requests),)


# --- money ----------------------------------------------------------------------------------------


def price_of(contract: Contract) -> Amount | None:
    """Return what an attempt costs, rounded up to a millionth; None if nothing."""
    cost = contract.runtime.cost_profile
    exact = Decimal(repr(cost.cost_per_call)).scaleb(6)
    return Amount(ceil(exact), cost.currency) if exact else None


def money_charges(ctx: GateContext) -> Iterator[Charge]:
    """Yield what a call is charged in money: what it costs, and what it spends.

    A charge without a counter is the limit of a single call.
    """
    contract = ctx.resolved.contract
    # The semantics gate has refused a call with an amount that can't be used.
    spent = None if contract.spends is None else contract.spends.of(ctx.arguments)
    for kind, amount in (("cost", price_of(contract)), ("money", spent)):
        if amount is None or not amount.millionths:
            continue
        declared: dict[str, Limits] = {
            "tool": getattr(contract, kind) or {},
            "run": getattr(ctx.run.budgets, kind),
            "tenant": {} if ctx.limits is None else getattr(ctx.limits, kind),
        }
        currency = amount.currency
        charges = [
            Charge(f"{whose}.{kind}.{field}", "", amount.millionths, limit, False, currency)
            for whose, limits in declared.items()
            for field, limit in limits_for(limits, "call", "", currency)
        ]
        charges += _windows(ctx, kind, amount, declared)
        if kind == "money" and all(charge.limit == inf for charge in charges):
            # An agent that names the currency could name one that has no limit.
            budget = f"tenant.money.day.{currency}"
            charges = [Charge(budget, "", amount.millionths, 0, False, currency)]
        yield from charges


def _windows(
    ctx: GateContext, kind: str, amount: Amount, declared: Mapping[str, Limits]
) -> Iterator[Charge]:
    """Yield one charge for each counter, with its strictest limit.

    Totals are counted with or without a limit, because policy rules and people see them. Resources
    are counted only under a limit, because there may be many.
    """
    places, tool = windows(ctx), windows(ctx)["tool"][0]
    agent, resource = places["agent"][0], places["resource"][0]
    counted: dict[tuple[str, bool], tuple[float, str]] = {}
    for whose, window, (counter, of_run), always in (
        ("run", "run", places["run"], True),
        *(("tenant", window, place, window != "resource") for window, place in places.items()),
        ("tool", "run", (tool, True), False),
        ("tool", "day", (tool, False), False),
        ("tool", "agent", (f"{tool}.{agent}", False), False),
        ("tool", "resource", (resource and f"{tool}.{resource}", False), False),
    ):
        subject = counter.partition(":")[2] if whose == "tenant" else ""
        limits: list[tuple[float, str]] = [
            (limit, f"{whose}.{kind}.{field}")
            for field, limit in limits_for(declared[whose], window, subject, amount.currency)
        ]
        if always:
            limits.append((inf, f"{whose}.{kind}.{window}.{amount.currency}"))
        if limits and counter:
            place = (counter, of_run)
            counted[place] = min(*limits, counted.get(place, (inf, "~")))
    for (counter, of_run), (limit, budget) in counted.items():
        name = counter_name(ctx, kind, counter, amount.currency, of_run=of_run)
        yield Charge(budget, name, amount.millionths, limit, of_run, amount.currency)


def windows(ctx: GateContext) -> dict[str, tuple[str, bool]]:
    """Return the windows in which money is counted: the counter, and whether it is the run's."""
    contract = ctx.resolved.contract
    resource = resource_of(contract, ctx.arguments)
    if resource is not None and len(resource) > _MAX_NAME:
        resource = sha256(resource.encode()).hexdigest()
    return {
        "run": ("run", True),
        "day": ("day", False),
        "agent": (f"agent:{ctx.principal.agent}", False),
        "tool": (f"tool:{contract.name}", False),
        "resource": (f"resource:{resource}" if resource else "", False),
    }


def counter_name(ctx: GateContext, kind: str, counter: str, currency: str, *, of_run: bool) -> str:
    """Return the full name of a counter of money; a tenant's is for a day, in UTC."""
    name = f"{kind}.{counter}.{currency}"
    return name if of_run else f"{name}/{int(ctx.now // 86_400)}"


_MAX_NAME = 200
