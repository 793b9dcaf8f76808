"""An orchestrator that knows no tool: whatever it does to one, it does through the runtime.

It binds what the run may use, lets the gates judge a plan, has the steps carried out, and finds
what they left behind in the next prompt. Which tools there are, what they demand and what they
leave is declared by the product that registers them. This file is the same for every product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from counterseal import Observation, Path, Plan, RepairLoop, Run, Runtime
from counterseal.contract.formats import mcp

MOST_PLANS = 3


class Model(Protocol):
    """Whoever proposes: a model behind an API, or a script."""

    async def plan(
        self, prompt: str, tools: Sequence[Mapping[str, Any]], told: str
    ) -> Sequence[Mapping[str, Any]]:
        """Steps for this turn. `told` is what was wrong with the last ones, if anything was."""

    async def mend(self, feedback: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Another proposal in the place of one that was refused, or None."""


@dataclass
class Turn:
    """What became of one turn."""

    prompts: list[str] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    seen: list[Observation] = field(default_factory=list)

    @property
    def ended(self) -> str:
        """How it ended: `done`, or what the last observation asks for."""
        if not self.plans[-1].ok:
            return "no plan"
        return "done" if not self.seen or self.seen[-1].ok else self.seen[-1].next_action


async def take_turn(runtime: Runtime, run: Run, model: Model, template: str) -> Turn:
    """Plan until a plan stands, then take its steps. Replanning begins anew, a few times."""
    turn, told = Turn(), ""
    await run.new_turn()
    for _ in range(MOST_PLANS):
        tools = [mcp(contract).tool for contract in await run.contracts()]
        prompt = await run.render(template)
        plan = await run.plan(await model.plan(prompt, tools, told))
        turn.prompts.append(prompt)
        turn.plans.append(plan)
        if not plan.ok:
            told = plan.for_model()
            continue
        last = await _carry_out(runtime, run, model, plan, turn)
        if last is None or last.path is not Path.REPLAN:
            break
        told = last.for_model()
    return turn


async def _carry_out(
    runtime: Runtime, run: Run, model: Model, plan: Plan, turn: Turn
) -> Observation | None:
    """Take the steps in their order, up to one that does not succeed. Returns the last answer.

    The runtime retries, the loop lets the model repair; to replan is the caller's business, and
    what is escalated, or waits for a person, is nobody's here.
    """
    loop = RepairLoop(model.mend)
    last = None
    for proposal in plan.proposals:
        last = (await loop.run(runtime, proposal, run.principal)).observation
        turn.seen.append(last)
        if not last.ok:
            break
    return last
