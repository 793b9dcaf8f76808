"""The last gate: are the budgets of run and tenant sufficient, and the rates?

`admit` spends, and checks every limit in one transaction, so that two calls can't spend the same
last unit. Where approval is required, this gate checks the limits as well, on the recalled
counters: no approver should decide on a call that could not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from counterseal.codes import Code
from counterseal.contract.model import Contract
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
    memory, now = ctx.memory, ctx.now
    if memory is None or not (ctx.approvals or ctx.preview):
        return costs.allowed  # `admit` follows, and checks every limit
    for charge in costs.charges:
        counters = memory.run_counters if charge.of_run else memory.tenant_counters
        spent = counters.get(charge.counter, 0.0)
        if charge.exceeds(spent) and not can_ask(ctx, charge):
            return exhausted(charge, spent)
    for rate in costs.rates:
        arrival = memory.rates.get(rate.counter)
        if arrival is not None and rate.wait(arrival, now) > 0:
            return rate_limited(rate.wait(arrival, now))
    return costs.allowed


def can_ask(ctx: GateContext, charge: Charge) -> bool:
    """Return True if approvers may allow one call beyond a budget."""
    budgets = ctx.run.budgets if charge.of_run else ctx.limits
    return budgets is not None and budgets.ask


def exhausted(charge: Charge, spent: float) -> Decision:
    """Return the denial for a budget that is used up, or of which nothing was granted."""
    budget, limit, source = charge.budget, charge.limit, limit_source(charge.budget)
    if limit > 0:
        message = f"budget {budget}: {spent:g} of {limit:g} spent, {charge.amount:g} more asked"
        reason = f"The budget {budget} is spent. An operator can raise it: {source}."
    else:
        message = f"budget {budget}: nothing is granted; {source} grants it"
        reason = f"The budget {budget} grants nothing. An operator grants it with {source}."
    error = FieldError("", message, Code.BUDGET_EXHAUSTED.value, f"at most {limit:g}")
    return deny(NAME, Code.BUDGET_EXHAUSTED, reason, rule=budget, field_errors=(error,))


def limit_source(budget: str) -> str:
    """Return the field that sets the limit of a budget, such as `run.tool.refund`."""
    whose, _, name = budget.partition(".")
    kind, _, subject = name.partition(".")
    if kind == "tool":
        return f"`max_calls_per_run` of the agent's grant for {subject}"
    if budget == "run.deadline":
        return "`deadline` of the run"
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
    granted = grant.max_calls_per_run
    own = contract.budget if granted is None else granted
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
    cost = contract.runtime.cost_profile.cost_per_call
    limits = [(name, 1.0, getattr(budgets, name)) for name in compiled.classes]
    limits.append((f"effect.{effect}", 1.0, budgets.by_effect.get(effect)))
    if cost:
        limits.append(("money", cost, budgets.money))
    for name, amount, limit in limits:
        if limit is not None:
            yield Charge(f"{whose}.{name}", f"{name}{period}", amount, limit, of_run=of_run)


def _rates(contract: Contract) -> tuple[RateLimit, ...]:
    limits = contract.runtime.rate_limits
    interval = limits.window_sec / limits.max_requests
    return (RateLimit(f"tool/{contract.name}", interval, limits.max_requests),)
