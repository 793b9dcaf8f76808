"""Our side of `call.py` and of growth: a runtime with every gate, in a process of its own.

Twenty policy rules are evaluated, budgets and a rate are counted, and an event is kept, in the
memory store. `--contracts` and `--calls` say how full the registry is and how long the run, before
the first turn. `--effect draft` makes the call a change, with a key and two transactions.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import count
from pathlib import Path

from benchmarks._house.served import Run, Told, one_by_one, serve
from benchmarks._peers import task
from counterseal import Grant, Principal, Proposal, tool
from counterseal.ledger.records import Budgets
from counterseal.policy import Policy
from counterseal.runtime import Runtime
from counterseal.storage import open_store

PLENTY = 10**9
RULES = "\n".join(
    f"  - {{id: rule-{n}, then: deny, reason: No., "
    f"when: \"call.limit > {100 + n} && principal.agent == 'other-{n}'\"}}"
    for n in range(20)
)
AGENT = Principal(tenant="acme", user="u_1", agent="agent", scopes=["case:read"])
RATES = {"rate_limits": {"window_sec": 1, "max_requests": 1_000_000}}

_numbers = count(1)


def policy() -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy.yaml")
        path.write_text(f"rules:\n{RULES}\n", encoding="utf-8")
        return Policy.load(path)


def runtime(options: argparse.Namespace) -> Runtime:
    """Return a runtime with as many contracts of the same function as the options say."""
    opened = Runtime(open_store(options.store), policy=policy())
    function = task.FUNCTIONS[options.kind]
    tools = [
        tool(
            name=f"find_notices_{number}",
            effect=options.effect,
            version="1.0.0",
            owner="bench",
            scopes=["case:read"],
            budget=PLENTY,
            runtime=RATES,
        )(function)
        for number in range(options.contracts)
    ]
    opened.register(
        *tools,
        grants=[
            Grant(agent="agent", tool=one.contract.name, max_calls_per_run=PLENTY) for one in tools
        ],
    )
    return opened


async def prepared(options: argparse.Namespace) -> Run:
    reads = options.effect == "read_only"
    opened = runtime(options)
    budgets = Budgets(reads=PLENTY, writes=PLENTY, cost={"run": {"USD": PLENTY}}, seconds=1e9)
    run_id = ""

    async def open_run() -> None:
        nonlocal run_id
        run_id = f"run_{next(_numbers)}"
        await opened.run(AGENT, run_id, budgets=budgets)

    async def call() -> None:
        # The ledger answers a repeated change, so each change has arguments of its own.
        text = task.TEXT if reads else task.TEXT.replace("000042", f"{next(_numbers):06d}")
        proposal = Proposal(tool="find_notices_0", arguments=text, run_id=run_id)
        observation = await opened.submit(proposal, AGENT)
        if not observation.ok:
            sys.exit(f"A call was refused: {observation.for_model()}")

    await open_run()
    measured = await one_by_one(call, warm=max(options.calls, 1))

    async def run(number: int) -> Told:
        if options.fresh:
            await open_run()
            for _ in range(options.calls):
                await call()
        before = task.runs
        answer = await measured(number)
        if task.runs != before + number:
            sys.exit(f"The tool ran {task.runs - before} times in {number} calls.")
        return answer

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", default="await", choices=list(task.FUNCTIONS))
    parser.add_argument("--contracts", type=int, default=1)
    parser.add_argument("--calls", type=int, default=200, help="of the run, before the first turn")
    parser.add_argument("--fresh", action="store_true", help="a new run for every turn")
    parser.add_argument("--effect", default="read_only")
    parser.add_argument("--store", default="memory:")
    options = parser.parse_args()
    serve(lambda: prepared(options), ["counterseal"])


if __name__ == "__main__":
    main()
