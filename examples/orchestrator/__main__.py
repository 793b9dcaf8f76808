"""Two products on one orchestrator: `python examples/orchestrator`.

Only this file imports both products. Each product registers its contracts with its own runtime; the
orchestrator gets that runtime, and imports no tool. Votes are signed with an approval key: a row
that somebody wrote into the store by hand would approve nothing.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import claims
import clinic
from orchestrator import Turn, take_turn

from counterseal import Runtime, Voter
from counterseal.keys import KeyRing, Purpose, new_key


async def show(product: ModuleType, turns: int, keys: KeyRing) -> list[Turn]:
    """Take a few turns of one product; approve held calls in between."""
    taken = []
    async with Runtime.open("memory:", keys=keys) as runtime:
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
            for observation in turn.observations:
                print(f"    {observation.tool}: {observation.code}")
                if observation.approval_id and not observation.ok:
                    approver = Voter(user="approver", tenant=product.WHO.tenant)
                    await runtime.approvals.decide(observation.approval_id, approver, "approve")
                    print("    (a person approves, with a signed vote)")
        print(f"  left in the run: {', '.join(await run.state())}")
    return taken


async def main() -> None:
    # The example includes a service that refuses; its traceback belongs in an operator's log.
    logging.getLogger("counterseal").addHandler(logging.NullHandler())
    with TemporaryDirectory() as folder:
        new_key(Path(folder), Purpose.APPROVAL, datetime.now(UTC))
        keys = KeyRing.load(folder)
    await show(clinic, turns=1, keys=keys)
    await show(claims, turns=3, keys=keys)


if __name__ == "__main__":
    asyncio.run(main())
