"""Our side of `call.py` and of growth: a runtime with every gate, in a process of its own.

Twenty policy rules are looked at, budgets and a rate are counted, and an event is kept, in the
memory store. `--contracts` and `--calls` say how full the registry is and how long the
run, before the first turn. `--effect draft` makes it a change, with a key and two transactions.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks._house.served import Run, Told, one_by_one, serve
from counterseal import Grant, Principal, Proposal, Tool
from counterseal.ledger.records import Budgets
from counterseal.policy import Policy
from counterseal.runtime import Runtime
from counterseal.storage import open_store
from counterseal.testing import fake_tool

TEXT = '{"case_id": "case_000042", "kind": "letter", "limit": 10, "words": "late payment"}'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "case_id": {"type": "string", "pattern": "^case_[0-9]{6}$", "description": "The case."},
        "kind": {"type": "string", "enum": ["letter", "email"], "description": "Which kind."},
        "limit": {"type": "integer", "minimum": 1, "maximum": 50, "description": "How many."},
        "words": {"type": "string", "maxLength": 200, "description": "What to look for."},
    },
    "required": ["case_id", "kind"],
    "additionalProperties": False,
}
OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"status": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["status", "count"],
    "additionalProperties": False,
}
ANSWER = {"status": "open", "count": 3}
PLENTY = 10**9
RULES = "\n".join(
    f"  - {{id: rule-{n}, then: deny, reason: No., "
    f"when: \"call.limit > {100 + n} && principal.agent == 'nobody-{n}'\"}}"
    for n in range(20)
)
WHO = Principal(tenant="acme", user="u_1", agent="agent", scopes=["case:read"])

_ran = count()
_made = count(1)


async def function(**_: Any) -> dict[str, Any]:
    next(_ran)
    return ANSWER


def policy() -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy.yaml")
        path.write_text(f"rules:\n{RULES}\n", encoding="utf-8")
        return Policy.load(path)


def runtime(contracts: int, effect: str = "read_only", store: str = "memory:") -> Runtime:
    made = Runtime(open_store(store), policy=policy())
    plenty = {"rate_limits": {"window_sec": 1, "max_requests": 1_000_000}}
    declared = [
        fake_tool(
            f"find_notices_{n}",
            effect=effect,
            input_schema=SCHEMA,
            output_schema=OUTPUT,
            scopes=["case:read"],
            budget=PLENTY,
            runtime=plenty,
        ).contract
        for n in range(contracts)
    ]
    tools = [Tool(contract=contract, function=function) for contract in declared]
    grants = [
        Grant(agent="agent", tool=tool.contract.name, max_calls_per_run=PLENTY) for tool in tools
    ]
    made.register(*tools, grants=grants)
    return made


async def prepared(options: argparse.Namespace) -> Run:
    reads = options.effect == "read_only"
    made = runtime(options.contracts, options.effect, options.store)
    budgets = Budgets(reads=PLENTY, writes=PLENTY, money=1e9, seconds=1e9)
    run_id = ""

    async def open_run() -> None:
        nonlocal run_id
        run_id = f"run_{next(_made)}"
        await made.run(WHO, run_id, budgets=budgets)

    async def call() -> None:
        # A change is another every time: the same would be answered from the ledger.
        text = TEXT if reads else TEXT.replace("000042", f"{next(_made):06d}")
        asked = Proposal(tool="find_notices_0", arguments=text, run_id=run_id)
        seen = await made.submit(asked, WHO)
        if not seen.ok:
            sys.exit(f"A call was refused: {seen.for_model()}")

    await open_run()
    counted = await one_by_one(call, warm=max(options.calls, 1))

    async def run(number: int) -> Told:
        if options.fresh:
            await open_run()
            for _ in range(options.calls):
                await call()
        before = next(_ran)
        told = await counted(number)
        if next(_ran) != before + number + 1:
            sys.exit("The tool did not run once for each call.")
        return told

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contracts", type=int, default=1)
    parser.add_argument("--calls", type=int, default=200, help="of the run, before the first turn")
    parser.add_argument("--fresh", action="store_true", help="a new run for every turn")
    parser.add_argument("--effect", default="read_only")
    parser.add_argument("--store", default="memory:")
    options = parser.parse_args()
    serve(lambda: prepared(options), ["counterseal"])


if __name__ == "__main__":
    main()
