"""Two products on one orchestrator: `python examples/orchestrator`.

Only this file knows both. Each product registers its own contracts with a runtime of its own; the
orchestrator is handed the runtime, and imports no tool.
"""

from __future__ import annotations

import asyncio
import logging
from types import ModuleType

import claims
import clinic
from orchestrator import Turn, take_turn

from counterseal import Runtime
from counterseal.storage.base import HeldStatus


async def show(product: ModuleType, turns: int) -> list[Turn]:
    """A few turns of one product; whatever waits for a person is approved in between."""
    taken = []
    async with Runtime.open("memory:") as runtime:
        product.register(runtime)
        run = await runtime.run(product.WHO, objective=product.PROMPT.splitlines()[0])
        names = [contract.name for contract in await run.contracts()]
        print(f"{product.__name__}: {', '.join(names)}")
        model = product.Script()
        for number in range(1, turns + 1):
            turn = await take_turn(runtime, run, model, product.PROMPT)
            taken.append(turn)
            fates = ["/".join(step.fate for step in plan.steps) for plan in turn.plans]
            print(f"  turn {number}: {'; then '.join(fates)}: {turn.ended}")
            for seen in turn.seen:
                print(f"    {seen.tool}: {seen.code}")
                if seen.approval_id and not seen.ok:
                    print("    (a person approves)")
                    tenant, approved = product.WHO.tenant, HeldStatus.APPROVED
                    await runtime.store.decide(tenant, seen.approval_id, approved, [])
        print(f"  left in the run: {', '.join(await run.state())}")
    return taken


async def main() -> None:
    # A service that says no is part of the story; its trace is for the operator's log.
    logging.getLogger("counterseal").addHandler(logging.NullHandler())
    await show(clinic, turns=1)
    await show(claims, turns=3)


if __name__ == "__main__":
    asyncio.run(main())
