"""A call under way, as far as the gates are concerned: what it knows, and asking them in turn.

Gates are asked here and nowhere else. One that raises denies; one that demands approval lays down a
duty, and the next is asked all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import getrandbits
from sys import modules
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from counterseal.call.trail import ALLOWED, Trail
from counterseal.codes import Code
from counterseal.execution.attempt import ProgressCallback
from counterseal.gates.base import (
    BLANK,
    AsyncGate,
    Decision,
    GateContext,
    Learned,
    Prepared,
    Verdict,
    deny,
)
from counterseal.gates.parse import is_id
from counterseal.proposal import Principal, Proposal

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["Asking"]

_TIME: Final = 2**44 - 1
"""Milliseconds that eleven digits can tell."""


class Asking:
    """The context, the trail, and the gates' answers."""

    asked: Decision | None = None
    """The approval gate's word that somebody must be asked."""
    policy_version: str | None = None
    unasked = False
    """Whether the world is left alone, because it can't be known yet."""

    def __init__(
        self,
        runtime: Runtime,
        proposal: Proposal,
        principal: Principal,
        until: float = inf,
        progress: ProgressCallback | None = None,
    ) -> None:
        now, registry = runtime.clock(), runtime.registry
        self.started = perf_counter_ns()
        self.runtime = runtime
        self.progress = progress
        self.trail = Trail()
        self.listened = "opentelemetry.sdk" in modules and runtime.telemetry.listening
        # Ids of new rows begin with the time, so that a store's index grows at one end.
        digits = ((int(now * 1000) & _TIME) << 180 | getrandbits(180)).to_bytes(28, "big").hex()
        self.trace_id = digits[24:]
        if self.listened or proposal.trace is not None:
            self.trace_id = runtime.telemetry.trace_of(proposal.trace) or self.trace_id
        self.epoch = registry.epoch
        named = proposal.call_id
        known = BLANK.copy()
        known["proposal"] = proposal
        known["principal"] = principal
        known["call_id"] = f"call_{digits[:24]}" if named is None or not is_id(named) else named
        known["now"] = now
        known["until"] = until
        known["registry"] = registry
        known["executor"] = runtime.executor
        known["keys"] = runtime.keys
        self.ctx = GateContext(known)
        tenant = runtime.tenants.get(principal.tenant)
        if tenant is not None:
            self.ctx.learn({"tenant": tenant.facts, "limits": tenant.budgets})

    async def ask_all(self) -> Decision | None:
        """Ask the gates after recall, where one of them may have to wait for the world."""
        compiled = self.ctx.compiled
        if compiled is None:
            return deny("scope", Code.PERMISSION_DENIED, "The tool can't be used.")
        gates, began = compiled.gates, 0
        for index, (gate, _, _) in enumerate(gates):
            if isinstance(gate, AsyncGate):
                stopped = self.ask(gates[began:index])
                if stopped is None and not self.unasked:
                    stopped = await self._ask_the_world(gate)
                if stopped is not None:
                    return stopped
                began = index + 1
        return self.ask(gates[began:])

    def ask(self, gates: Sequence[Prepared]) -> Decision | None:
        """Ask these gates in turn. Returns the decision that ends the call, if one does."""
        ctx, told = self.ctx, self.trail.told
        known = ctx.__dict__
        began = perf_counter_ns()
        said: Any  # a decision, with or without what was learned
        for gate, check, plain in gates:
            if check is None:
                told += gate  # a ready answer: registration found that there is nothing to ask
                continue
            try:
                said = check(ctx)
            # A gate that raises denies: there is no way past a broken gate.
            except Exception as error:  # noqa: BLE001 - it denies
                said = self._broken(gate.name, error)
            if said.__class__ is Learned:
                known.update(said[1])
                said = said[0]
            ended = perf_counter_ns()
            told.append(said)
            told.append(ended - began)
            began = ended
            if said is plain:
                continue
            self.trail.marked.append(len(told) - 2)
            if said.__class__ is not Decision:
                said = self._broken(gate.name, TypeError(f"it said {type(said).__name__}"))
                self.trail.overrule(said)
            decision: Decision = said
            if decision.verdict is not ALLOWED and self._ends(decision):
                return decision
            if decision.policy_version is not None:
                self.policy_version = decision.policy_version
        return None

    async def _ask_the_world(self, gate: AsyncGate) -> Decision | None:
        began = perf_counter_ns()
        said: Any
        try:
            said = await gate.check(self.ctx)
        except Exception as error:  # noqa: BLE001 - as in ask
            said = self._broken(gate.name, error)
        if isinstance(said, Learned):
            self.ctx.learn(said.found)
        decision: Any = said.decision if isinstance(said, Learned) else said
        if not isinstance(decision, Decision):
            decision = self._broken(gate.name, TypeError(f"it said {type(said).__name__}"))
        self.trail.add(decision, perf_counter_ns() - began)
        return decision if decision.verdict is Verdict.DENY else None

    def forget(self, since: int) -> None:
        """Take back what was decided since; the gates will be asked anew."""
        self.trail.forget(since)
        self.asked = None
        self.ctx.learn({"approvals": (), "approval_id": None})

    def _ends(self, decision: Decision) -> bool:
        """Whether a decision that does not simply allow ends the call, or lays down a duty."""
        if decision.verdict is Verdict.DENY:
            return True
        if decision.gate == "approval":
            self.asked = decision
        else:
            self.ctx.learn({"approvals": (*self.ctx.approvals, decision)})
        return False

    def _broken(self, gate: str, error: Exception) -> Decision:
        self.runtime.report(self.ctx.call_id, f"gate {gate}", error)
        code = Code.POLICY_VIOLATION if gate == "policy" else Code.UNKNOWN_ERROR
        return deny(
            gate, code, "The call could not be judged, so it is refused.", rule="gate-error"
        )
