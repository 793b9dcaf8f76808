"""A plan before anything runs: each step asked of the gates, in the light of those before it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from counterseal.call.deciding import Ahead, as_proposed
from counterseal.call.passage import Passage
from counterseal.call.telling import shown_name
from counterseal.call.trail import Preview
from counterseal.canonical import thaw
from counterseal.codes import Code
from counterseal.contract.invariants import Call
from counterseal.gates.base import GateContext, Verdict
from counterseal.ledger import entry as ledger
from counterseal.plans import Fate, Plan, PlannedStep
from counterseal.plans.plan import MOST_BYTES
from counterseal.proposal import Principal, Proposal
from counterseal.storage.base import RunRecord

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["MOST_STEPS", "judge_plan"]

MOST_STEPS: Final = 100
_FIELDS: Final = ("tool", "arguments", "operation_id")
_FATES: Final = {
    Verdict.ALLOW.value: Fate.KEEP,
    Verdict.REQUIRE_APPROVAL.value: Fate.HOLD,
    Verdict.DENY.value: Fate.REJECT,
}


async def judge_plan(
    runtime: Runtime,
    steps: Iterable[Proposal | Mapping[str, Any]],
    principal: Principal,
    run: RunRecord,
    run_id: str | None = None,
) -> Plan:
    """Nothing is recorded, held, spent or executed. `run_id` is the run as the caller named it."""
    judging = _Judging(runtime, principal, run, run_id)
    judged = [await judging.judge(n, step) for n, step in enumerate(_listed(steps), 1)]
    facts = _facts(principal, run)
    left = tuple(Call(step.tool, step.arguments) for step in judged if step.kept)
    broken = tuple(rule for rule in runtime.plan_rules if rule.broken_by(left, facts))
    return Plan(steps=tuple(judged), broken=broken)


def _listed(steps: Any) -> Iterable[Any]:
    """As many steps as are looked at, and one more. What is no list of steps is one bad step."""
    if isinstance(steps, str | bytes | Mapping) or not isinstance(steps, Iterable):
        return (steps,)
    return islice(steps, MOST_STEPS + 1)


def _facts(principal: Principal, run: RunRecord) -> dict[str, Any]:
    """What plan rules see beside the steps. What nobody set is None."""
    return {
        "run": {
            "id": run.run_id,
            "objective": run.objective,
            "allowed_tools": None if run.allowed_tools is None else sorted(run.allowed_tools),
            "state": thaw(run.state),
            "config": thaw(run.config),
        },
        "principal": {
            "tenant": principal.tenant,
            "user": principal.user,
            "agent": principal.agent,
            "roles": sorted(principal.roles),
            "scopes": sorted(principal.scopes),
        },
    }


class _Judging:
    """What the steps so far come to."""

    def __init__(
        self, runtime: Runtime, principal: Principal, run: RunRecord, run_id: str | None
    ) -> None:
        self._runtime = runtime
        self._principal = principal
        self._run = run
        self._run_id = run_id
        self.earlier: list[Call] = []
        self._pending: frozenset[str] = frozenset()
        self._keys: defaultdict[str, set[bytes]] = defaultdict(set)
        """What each key stands for so far, as proposed and as corrected."""
        self._bytes = 0
        self._ahead = Ahead(defaultdict(float), defaultdict(float), mutates=False)

    async def judge(self, number: int, step: Any) -> PlannedStep:
        await asyncio.sleep(0)  # a long plan must not keep everybody else waiting
        if number > MOST_STEPS:
            reason = f"A plan has at most {MOST_STEPS} steps; from here on nothing was looked at."
            return _unread(number, Code.OUT_OF_BOUNDS, reason)
        proposal = _read(step)
        if isinstance(proposal, str):
            named = step.get("tool") if isinstance(step, Mapping) else ""
            return _unread(number, Code.STRUCTURAL_VIOLATION, proposal, named)
        if proposal.run_id not in (None, self._run_id):
            reason = "The step names another run than the plan."
            return _unread(number, Code.STRUCTURAL_VIOLATION, reason, proposal.tool)
        call = Passage(self._runtime, replace(proposal, run_id=self._run_id), self._principal)
        call.ctx.learn({"earlier": tuple(self.earlier), "pending": self._pending})
        seen = await call.preview(self._run, self._ahead)
        made = _made(number, call, seen)
        if call.ctx.grant is not None:  # the ledger's word comes before that of later gates
            made = self._again(call.ctx, made) or made
        if made.kept:
            made = self._too_much(call.ctx, made) or made
        if made.kept:
            self._take(call.ctx, made)
        return made

    def _too_much(self, ctx: GateContext, made: PlannedStep) -> PlannedStep | None:
        """Every step looks at all before it, so they are bounded together as well."""
        if self._bytes + len(to_json(made.arguments)) <= MOST_BYTES:
            return None
        reason = f"The arguments of all steps are at most {MOST_BYTES:,} bytes together."
        return _overruled(ctx, made, Fate.REJECT, Code.OUT_OF_BOUNDS, reason, gate="parse")

    def _again(self, ctx: GateContext, made: PlannedStep) -> PlannedStep | None:
        """What the ledger would say of a step whose key stands earlier in the plan."""
        operations = self._operations(ctx)
        known = [one for one in operations if one[0] in self._keys]
        if not known:
            return None
        if not any(request in self._keys[key] for key, request in known):
            reason = "An earlier step has the same key, and asks for something else."
            return _overruled(ctx, made, Fate.REJECT, Code.SIGNATURE_MISMATCH, reason)
        proposal = ctx.proposal
        named = proposal.key is not None or proposal.operation_id is not None
        if ctx.record is not None and ctx.record.contract.repeatable and not named:
            reason = "An earlier step is the same. To mean it again, give it an operation_id."
            code = Code.SEMANTIC_INVALIDITY
            return _overruled(ctx, made, Fate.REJECT, code, reason, rule="repeat-unnamed")
        reason = "An earlier step is the same operation."
        return _overruled(ctx, made, Fate.DROP, None, reason, rule="same-operation")

    def _operations(self, ctx: GateContext) -> list[tuple[str, bytes]]:
        """The key of a step and what it asks for under it, as proposed and as corrected.

        The ledger knows it as proposed; but steps that become the same are meant once.
        """
        record, compiled = ctx.record, ctx.compiled
        if record is None or compiled is None or not compiled.keyed:
            return []
        proposal, who = ctx.proposal, self._principal
        run_id, began = self._run.run_id, self._run.started_at
        return [
            (
                ledger.derive_key(record.contract, proposal, who, run_id, began, arguments),
                ledger.request_hash(arguments),
            )
            for arguments in (as_proposed(ctx), ctx.arguments)
        ]

    def _take(self, ctx: GateContext, made: PlannedStep) -> None:
        """Let the steps after this one find what it will leave behind."""
        # A copy: a check that changes what it looks at must not change the plan.
        arguments = MappingProxyType(thaw(made.arguments))
        self._bytes += len(to_json(made.arguments))
        self.earlier.append(Call(made.tool, arguments))
        for key, request in self._operations(ctx):
            self._keys[key].add(request)
        for charge in ctx.charges:
            counters = self._ahead.of_run if charge.of_run else self._ahead.of_tenant
            counters[charge.counter] += charge.amount
        if ctx.compiled is not None:
            contract = ctx.compiled.contract
            pins = {**self._run.pins, contract.name: contract.version}
            self._run = replace(self._run, pins=pins)
            self._pending |= {effect.key for effect in contract.state_effects}
            mutates = self._ahead.mutates or ctx.compiled.mutates
            self._ahead = self._ahead._replace(mutates=mutates)


def _read(step: Any) -> Proposal | str:
    """A step as a proposal, or what is wrong with its form."""
    if isinstance(step, Proposal):
        return step
    if not isinstance(step, Mapping) or not isinstance(step.get("tool"), str):
        return "A step is a tool and its arguments."
    extra = (name for name in step if name not in _FIELDS)
    others = sorted(_named(name)[:40] or "a key that is no text" for name in extra)
    if others:
        return f"A step takes {', '.join(_FIELDS)}; not {', '.join(others[:5])}."
    given = step.get("arguments")
    return Proposal(
        tool=step["tool"],
        arguments={} if given is None else given,
        operation_id=step.get("operation_id"),
    )


def _made(number: int, call: Passage, seen: Preview) -> PlannedStep:
    """What the gates' answers make of a step."""
    ctx, asked = call.ctx, {timed.decision.gate for timed in call.trail}
    said = call.trail[-1].decision
    if seen.verdict == Verdict.REQUIRE_APPROVAL and call.asked is not None:
        said = call.asked
    fate = _FATES[seen.verdict]
    if fate is Fate.REJECT and said.next_action == "drop_step":
        fate = Fate.DROP
    elif fate is Fate.KEEP and ctx.corrections:
        fate = Fate.CORRECT
    # The last gate was asked, so whatever was not was left out on purpose.
    unprobed = ("state",) if "budget" in asked and "state" not in asked else ()
    made = PlannedStep(
        number=number,
        tool=ctx.record.name if ctx.record else _named(ctx.proposal.tool),
        arguments=thaw(ctx.arguments),
        fate=fate,
        reason=seen.reason,
    )
    if made.kept:
        made = replace(
            made,
            corrections=ctx.corrections,
            unknown=(*ctx.unknown, *unprobed),
            proposal=_to_submit(ctx, made.arguments),
        )
    if fate in (Fate.KEEP, Fate.CORRECT):
        return made
    return replace(
        made,
        arguments=made.arguments if made.kept else thaw(as_proposed(ctx)),
        code=None if said.code is None else said.code.value,
        gate=said.gate,
        rule=said.rule,
        field_errors=said.field_errors,
    )


def _overruled(
    ctx: GateContext,
    made: PlannedStep,
    fate: Fate,
    code: Code | None,
    reason: str,
    *,
    gate: str = "ledger",
    rule: str | None = None,
) -> PlannedStep:
    """The gates would let it pass, but not after the steps before it."""
    return PlannedStep(
        number=made.number,
        tool=made.tool,
        arguments=thaw(as_proposed(ctx)),
        fate=fate,
        code=None if code is None else code.value,
        gate=gate,
        rule=rule,
        reason=reason,
    )


def _to_submit(ctx: GateContext, arguments: Mapping[str, Any]) -> Proposal:
    """A step as it would be executed. What its key is bound to stays what was proposed."""
    made = replace(ctx.proposal, arguments=arguments)
    return replace(made, proposed=thaw(as_proposed(ctx))) if ctx.corrections else made


def _unread(number: int, code: Code, reason: str, tool: object = "") -> PlannedStep:
    """A step that no gate was asked about."""
    return PlannedStep(
        number=number,
        tool=_named(tool),
        arguments={},
        fate=Fate.REJECT,
        code=code.value,
        reason=reason,
    )


def _named(name: object) -> str:
    return shown_name(name) if isinstance(name, str) else ""
