"""Judges a plan before anything runs: each step by the gates, after the steps before it.

The judged plan has the fate of each step, as data and as text for a planner.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from random import getrandbits
from types import MappingProxyType
from typing import Any, Final

from pydantic_core import to_json

from counterseal.audit import Event, EventType
from counterseal.call.call import Call, CallServices, Preview
from counterseal.call.capture import arguments_as_proposed
from counterseal.call.decide import PlannedSpending, new_call, preview
from counterseal.call.events import (
    changed_arguments,
    correction_body,
    dropped_body,
    event,
    shown_name,
)
from counterseal.canonical import pointer, thaw
from counterseal.codes import Code
from counterseal.contract.invariants import Correction, ProposedCall
from counterseal.gates import semantics
from counterseal.gates.base import GateContext, Verdict
from counterseal.ledger import entry as ledger
from counterseal.ledger.records import RunRecord
from counterseal.observation.envelope import FieldError
from counterseal.observation.invisible import neutralise
from counterseal.plans.rules import PlanRule
from counterseal.proposal import Principal, Proposal

MAX_BYTES: Final = 256 * 1024
"""Limit for the arguments of all kept steps; a record has as much again for the others."""
_MAX_LINE: Final = 500
_PLAIN: Final = re.compile(r"[\w.-]+", re.ASCII)


class Fate(StrEnum):
    """The decision on a step of a plan."""

    KEEP = "keep"
    CORRECT = "correct"
    HOLD = "hold"
    """It would wait for approval."""
    DROP = "drop"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One judged step of a plan."""

    number: int
    """Its place in the proposed plan, from 1."""
    tool: str
    arguments: Mapping[str, Any]
    """As they would be executed; as proposed if the step is rejected or dropped."""
    fate: Fate
    code: str | None = None
    gate: str | None = None
    rule: str | None = None
    reason: str = ""
    corrections: tuple[Correction, ...] = ()
    field_errors: tuple[FieldError, ...] = ()
    unknown: tuple[str, ...] = ()
    """Gates that can't decide yet, because an earlier step may change what they check."""
    proposal: Proposal | None = field(default=None, repr=False)
    """The proposal to submit for this step; None if it should not be taken."""

    @property
    def kept(self) -> bool:
        return self.fate in (Fate.KEEP, Fate.CORRECT, Fate.HOLD)

    def record(self) -> dict[str, Any]:
        return {
            "step": self.number,
            "tool": self.tool,
            "arguments": thaw(self.arguments),
            "fate": self.fate.value,
            "code": self.code,
            "gate": self.gate,
            "rule": self.rule,
            "reason": self.reason,
            "corrections": [
                {
                    "invariant": correction.invariant,
                    "rule": correction.rule,
                    "changes": changes(correction),
                }
                for correction in self.corrections
            ],
            "field_errors": [error.record() for error in self.field_errors],
            "unknown": list(self.unknown),
        }

    def lines(self) -> Iterator[str]:
        """Yield the step as lines for a planner; foreign text never breaks a line."""
        name, reason = _line(self.tool), _line(self.reason)
        if name and not _PLAIN.fullmatch(name):  # else it could be read as our text
            name = json.dumps(name, ensure_ascii=False)
        title = " ".join(filter(None, ("step", str(self.number), name)))
        yield f"{title}: {self.fate}{f'. {reason}' if reason else ''}"
        for error in self.field_errors:  # what they say beyond the reason
            known = error.expected in error.message
            expected = "" if known else f"expected {_line(error.expected)}"
            if error.field or error.message != self.reason:
                place = f"{_line(error.field)}: " if error.field else ""
                expected = f" ({expected})" if expected else ""
                yield f"  - {place}{_line(error.message)}{expected}"
            elif expected:
                yield f"  - {expected}"
        for correction in self.corrections:
            yield f"  - corrected: {_line(correction.rule)} ({correction.invariant})"
        if self.unknown:
            yield f"  - not known yet: {', '.join(self.unknown)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A judged plan. Nothing of it has run; running it passes every gate again."""

    steps: tuple[PlannedStep, ...]
    broken: tuple[PlanRule, ...] = ()

    @property
    def ok(self) -> bool:
        """True if no step is rejected and no plan rule is broken."""
        return not self.broken and all(step.fate is not Fate.REJECT for step in self.steps)

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        """The proposals to submit in turn: corrected, without dropped steps.

        Empty if the plan is not accepted, because half a plan is another plan.
        """
        if not self.ok:
            return ()
        return tuple(step.proposal for step in self.steps if step.proposal is not None)

    def record(self) -> dict[str, Any]:
        """Return the plan; beyond a limit, the arguments of steps that are not taken are None."""
        left, steps = MAX_BYTES, []
        for step in self.steps:
            record = step.record()
            if not step.kept:
                size = len(to_json(record["arguments"]))
                if size > left:
                    record["arguments"] = None
                else:
                    left -= size
            steps.append(record)
        return {
            "ok": self.ok,
            "steps": steps,
            "broken": [{"id": rule.id, "rule": rule.rule} for rule in self.broken],
            "next_action": "continue" if self.ok else "replan",
        }

    def for_model(self) -> str:
        """Return the plan as text for a planner: what was changed, and what it must change."""
        lines = [f"plan: {'accepted' if self.ok else 'rejected'}"]
        lines += [line for step in self.steps for line in step.lines()]
        lines += [f"plan rule {rule.id} is broken: {_line(rule.rule)}" for rule in self.broken]
        lines.append(f"next action: {'continue' if self.ok else 'replan'}")
        return "\n".join(lines)


def changes(correction: Correction) -> list[dict[str, Any]]:
    """Return the arguments that a correction changed; `before` or `after` may be missing."""
    before, after = correction.before, correction.after
    return [
        {"field": pointer(name)}
        | ({"before": thaw(before[name])} if name in before else {})
        | ({"after": thaw(after[name])} if name in after else {})
        for name in changed_arguments(correction)
    ]


def _line(text: str) -> str:
    """Return foreign text on one line, without invisible characters."""
    line = " ".join(neutralise(text)[0].split())
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 1] + "…"


# --- judging --------------------------------------------------------------------------------------


MAX_STEPS: Final = 100
_FIELDS: Final = ("tool", "arguments", "operation_id")
_FATES: Final = {
    Verdict.ALLOW.value: Fate.KEEP,
    Verdict.REQUIRE_APPROVAL.value: Fate.HOLD,
    Verdict.DENY.value: Fate.REJECT,
}


async def judge_plan(
    steps: Iterable[Proposal | Mapping[str, Any]],
    principal: Principal,
    run: RunRecord,
    services: CallServices,
    *,
    rules: Iterable[PlanRule] = (),
    run_id: str | None = None,
) -> tuple[Plan, list[Event]]:
    """Return what would become of each step, and an event of each correction and dropped step.

    Nothing is held, spent or executed, and nothing recorded here: the caller records the events.
    `run_id` is the run as the caller named it.
    """
    judge = _Judge(principal, run, run_id, services)
    foreign: Any = steps
    given: Iterable[Any] = (foreign,)  # what is not a list of steps is one bad step
    if isinstance(foreign, Iterable) and not isinstance(foreign, str | bytes | Mapping):
        given = islice(foreign, MAX_STEPS + 1)
    judged = [await judge.step(n, step) for n, step in enumerate(given, 1)]
    facts = _facts(principal, run)
    kept = tuple(ProposedCall(step.tool, step.arguments) for step in judged if step.kept)
    broken = tuple(rule for rule in rules if rule.broken_by(kept, facts))
    return Plan(steps=tuple(judged), broken=broken), judge.events


def _facts(principal: Principal, run: RunRecord) -> dict[str, Any]:
    """Return what plan rules see beside the steps. A value that was not set is None."""
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
            "risk_level": principal.risk_level.value,
        },
    }


class _Judge:
    """Judges one plan, step by step, and keeps what the steps so far amount to."""

    def __init__(
        self, principal: Principal, run: RunRecord, run_id: str | None, services: CallServices
    ) -> None:
        self._principal = principal
        self._run = run
        self._run_id = run_id
        self._services = services
        self._earlier: list[ProposedCall] = []
        self._pending: frozenset[str] = frozenset()
        self._requests: defaultdict[str, set[bytes]] = defaultdict(set)
        """By key: the hashes of the earlier steps' arguments, as proposed and as corrected."""
        self._bytes = 0
        self._spending = PlannedSpending(defaultdict(int), defaultdict(int), mutates=False)
        self._plan_id = f"plan_{int(services.clock() * 1000):011x}{getrandbits(52):013x}"
        self.events: list[Event] = []

    async def step(self, number: int, step: Any) -> PlannedStep:
        await asyncio.sleep(0)  # a long plan must not block the event loop
        if number > MAX_STEPS:
            reason = f"A plan has at most {MAX_STEPS} steps; from here on nothing was looked at."
            return _unread(number, Code.OUT_OF_BOUNDS, reason)
        proposal = _read(step)
        if isinstance(proposal, str):
            tool = step.get("tool") if isinstance(step, Mapping) else ""
            return _unread(number, Code.STRUCTURAL_VIOLATION, proposal, tool)
        if proposal.run_id not in (None, self._run_id):
            reason = "The step names another run than the plan."
            return _unread(number, Code.STRUCTURAL_VIOLATION, reason, proposal.tool)
        proposal = replace(proposal, run_id=self._run_id)
        call = new_call(proposal, self._principal, self._services)
        call.learn(earlier=tuple(self._earlier), pending=self._pending)
        previewed = await preview(call, self._run, self._services, self._spending)
        judged = _judged(number, call, previewed)
        if call.ctx.grant is not None:  # the ledger's answer comes before that of later gates
            judged = self._repeated(call.ctx, judged) or judged
        if judged.kept and self._bytes + len(to_json(judged.arguments)) > MAX_BYTES:
            # Each step sees the arguments of all before it.
            text = f"The arguments of all steps are at most {MAX_BYTES:,} bytes together."
            code = Code.OUT_OF_BOUNDS
            judged = _overruled(call.ctx, judged, Fate.REJECT, code, text, gate="parse")
        if judged.kept:
            self._take(call.ctx, judged)
        self._note(call, judged)
        return judged

    def _note(self, call: Call, step: PlannedStep) -> None:
        """Add an event of each correction of a step, or of its being dropped."""
        events = []
        for correction in step.corrections:
            body = correction_body(call, correction, self._services)
            events.append(event(call, EventType.CORRECTED, "correct", body))
        if step.fate is Fate.DROP:
            why = {"invariant" if step.gate == semantics.NAME else "rule": step.rule}
            body = dropped_body(call, step.arguments, why, self._services)
            events.append(event(call, EventType.DROPPED, "drop", body))
        for noted in events:
            body = {"plan": self._plan_id, "step": step.number, **noted.body}
            # No call was made: a step becomes one when it is submitted.
            self.events.append(noted._replace(caller=noted.caller._replace(call_id=""), body=body))

    def _repeated(self, ctx: GateContext, step: PlannedStep) -> PlannedStep | None:
        """Return what the ledger would answer to a step whose key an earlier step has."""
        operations = self._operations(ctx)
        known = [(key, request) for key, request in operations if key in self._requests]
        if not known:
            return None
        if not any(request in self._requests[key] for key, request in known):
            reason = "An earlier step has the same key, and asks for something else."
            return _overruled(ctx, step, Fate.REJECT, Code.SIGNATURE_MISMATCH, reason)
        proposal = ctx.proposal
        named = proposal.key is not None or proposal.operation_id is not None
        if ctx.record is not None and ctx.record.contract.repeatable and not named:
            reason = "An earlier step is the same. To mean it again, give it an operation_id."
            code = Code.SEMANTIC_INVALIDITY
            return _overruled(ctx, step, Fate.REJECT, code, reason, rule="repeat-unnamed")
        reason = "An earlier step is the same operation."
        return _overruled(ctx, step, Fate.DROP, None, reason, rule="same-operation")

    def _operations(self, ctx: GateContext) -> list[tuple[str, bytes]]:
        """Return the step's key and request hash, as proposed and as corrected.

        The ledger knows a step as proposed; but steps that become the same are one operation.
        """
        record, compiled = ctx.record, ctx.compiled
        if record is None or compiled is None or not compiled.keyed:
            return []
        proposal, principal = ctx.proposal, self._principal
        run_id, started_at = self._run.run_id, self._run.started_at
        return [
            (
                ledger.derive_key(
                    record.contract, proposal, principal, run_id, started_at, arguments
                ),
                ledger.request_hash(arguments),
            )
            for arguments in (arguments_as_proposed(ctx), ctx.arguments)
        ]

    def _take(self, ctx: GateContext, step: PlannedStep) -> None:
        """Let the later steps see what this one will have done."""
        # A copy, so that a check which changes its arguments does not change the plan.
        arguments = MappingProxyType(thaw(step.arguments))
        self._bytes += len(to_json(step.arguments))
        self._earlier.append(ProposedCall(step.tool, arguments))
        for key, request in self._operations(ctx):
            self._requests[key].add(request)
        for charge in ctx.charges:
            counters = self._spending.of_run if charge.of_run else self._spending.of_tenant
            counters[charge.counter] += charge.amount
        if ctx.compiled is not None:
            contract = ctx.compiled.contract
            pins = {**self._run.pins, contract.name: contract.version}
            self._run = replace(self._run, pins=pins)
            self._pending |= {effect.key for effect in contract.state_effects}
            mutates = self._spending.mutates or ctx.compiled.mutates
            self._spending = self._spending._replace(mutates=mutates)


def _read(step: Any) -> Proposal | str:
    """Return a step as a proposal, or a sentence about what is wrong with its form."""
    if isinstance(step, Proposal):
        return step
    if not isinstance(step, Mapping) or not isinstance(step.get("tool"), str):
        return "A step is a tool and its arguments."
    extra = (name for name in step if name not in _FIELDS)
    others = sorted(_named(name)[:40] or "a key that is no text" for name in extra)
    if others:
        return f"A step takes {', '.join(_FIELDS)}; not {', '.join(others[:5])}."
    arguments = step.get("arguments")
    return Proposal(
        tool=step["tool"],
        arguments={} if arguments is None else arguments,
        operation_id=step.get("operation_id"),
    )


def _judged(number: int, call: Call, previewed: Preview) -> PlannedStep:
    """Return the step with the fate that its gates have decided on."""
    ctx, gates = call.ctx, {timed.decision.gate for timed in call.decisions}
    decision = call.decisions[-1].decision
    if previewed.verdict == Verdict.REQUIRE_APPROVAL and call.approval_requirement is not None:
        decision = call.approval_requirement
    fate = _FATES[previewed.verdict]
    if fate is Fate.REJECT and decision.next_action == "drop_step":
        fate = Fate.DROP
    elif fate is Fate.KEEP and ctx.corrections:
        fate = Fate.CORRECT
    # If the last gate has run, the state gate was skipped on purpose.
    skipped = ("state",) if "budget" in gates and "state" not in gates else ()
    step = PlannedStep(
        number=number,
        tool=ctx.record.name if ctx.record else _named(ctx.proposal.tool),
        arguments=thaw(ctx.arguments),
        fate=fate,
        reason=previewed.reason,
    )
    if step.kept:
        proposal = replace(ctx.proposal, arguments=step.arguments)
        if ctx.corrections:  # the key still stands for the arguments as proposed
            proposal = replace(proposal, proposed=thaw(arguments_as_proposed(ctx)))
        unknown = (*ctx.unknown, *skipped)
        step = replace(step, corrections=ctx.corrections, unknown=unknown, proposal=proposal)
    if fate in (Fate.KEEP, Fate.CORRECT):
        return step
    return replace(
        step,
        arguments=step.arguments if step.kept else thaw(arguments_as_proposed(ctx)),
        code=None if decision.code is None else decision.code.value,
        gate=decision.gate,
        rule=decision.rule,
        field_errors=decision.field_errors,
    )


def _overruled(
    ctx: GateContext,
    step: PlannedStep,
    fate: Fate,
    code: Code | None,
    reason: str,
    *,
    gate: str = "ledger",
    rule: str | None = None,
) -> PlannedStep:
    """Return a step that its gates allow, and the steps before it do not."""
    return PlannedStep(
        number=step.number,
        tool=step.tool,
        arguments=thaw(arguments_as_proposed(ctx)),
        fate=fate,
        code=None if code is None else code.value,
        gate=gate,
        rule=rule,
        reason=reason,
    )


def _unread(number: int, code: Code, reason: str, tool: object = "") -> PlannedStep:
    """Return the rejection of a step that no gate has seen."""
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
