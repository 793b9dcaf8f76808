"""An orchestrator without tools of its own: it reaches every tool through the runtime.

It lists the contracts that the run may use, has the gates judge a plan, submits the steps, and
renders the run's state into the next prompt. The product that registers the tools declares what
they need and what they leave in the state. This file is the same for every product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from counterseal import Observation, Path, Plan, RepairLoop, Run, Runtime
from counterseal.contract.formats import mcp

MOST_PLANS = 3


class Model(Protocol):
    """Proposes steps: a model behind an API, or a script."""

    async def plan(
        self, prompt: str, tools: Sequence[Mapping[str, Any]], feedback: str
    ) -> Sequence[Mapping[str, Any]]:
        """Return steps for this turn. `feedback` says what was wrong with the last plan, if any."""

    async def repair(self, feedback: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return another proposal in place of a refused one, or None to give up."""


@dataclass
class Turn:
    """The prompts, plans and observations of one turn."""

    prompts: list[str] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)

    @property
    def ended(self) -> str:
        """How the turn ended: `done`, `no plan`, or the last observation's next action."""
        if not self.plans[-1].ok:
            return "no plan"
        last = self.observations[-1] if self.observations else None
        return "done" if last is None or last.ok else last.next_action


async def take_turn(runtime: Runtime, run: Run, model: Model, template: str) -> Turn:
    """Ask for plans until one is accepted, and submit its steps; replan a few times at most."""
    turn, feedback = Turn(), ""
    await run.new_turn()
    for _ in range(MOST_PLANS):
        tools = [mcp(contract).tool for contract in await run.contracts()]
        prompt = await run.render(template)
        plan = await run.plan(await model.plan(prompt, tools, feedback))
        turn.prompts.append(prompt)
        turn.plans.append(plan)
        if not plan.ok:
            feedback = plan.for_model()
            continue
        last = await _submit_steps(runtime, run, model, plan, turn)
        if last is None or last.path is not Path.REPLAN:
            break
        feedback = last.for_model()
    return turn


async def _submit_steps(
    runtime: Runtime, run: Run, model: Model, plan: Plan, turn: Turn
) -> Observation | None:
    """Submit the steps in order until one does not succeed; return the last observation.

    The runtime retries, and the repair loop asks the model for corrections. Replanning is left to
    the caller. Calls that were escalated or wait for an approval are left as they are.
    """
    loop = RepairLoop(model.repair)
    last = None
    for proposal in plan.proposals:
        last = (await loop.run(runtime, proposal, run.principal)).observation
        turn.observations.append(last)
        if not last.ok:
            break
    return last
