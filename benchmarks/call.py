"""A read-only call through every gate, next to the least that any caller must do.

The bare limit parses the text, validates it against the same schema and calls the same function;
everything above that is what the gates, twenty policy rules, budgets and events cost. Rounds are
interleaved, so that a busy moment of the machine touches all of them. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jiter

from counterseal import Grant, Principal, Proposal, Tool
from counterseal.contract.schemas import compile_schema
from counterseal.policy import Policy
from counterseal.runtime import Runtime
from counterseal.storage.base import Budgets
from counterseal.storage.memory import MemoryStore
from counterseal.testing import fake_tool

CALLS = 500
TARGET, AIM = 20.0, 10.0
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
RULES = "\n".join(
    f"  - {{id: rule-{n}, then: deny, reason: No., "
    f"when: \"call.limit > {100 + n} && principal.agent == 'nobody-{n}'\"}}"
    for n in range(20)
)


def policy() -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy.yaml")
        path.write_text(f"rules:\n{RULES}\n", encoding="utf-8")
        return Policy.load(path)


def runtime(contracts: int) -> Runtime:
    made = Runtime(MemoryStore(), policy=policy())
    plenty = {"rate_limits": {"window_sec": 1, "max_requests": 1_000_000}}
    declared = [
        fake_tool(
            f"find_notices_{n}",
            input_schema=SCHEMA,
            output_schema=OUTPUT,
            scopes=["case:read"],
            budget=10**9,
            runtime=plenty,
        ).contract
        for n in range(contracts)
    ]
    tools = [Tool(contract=contract, function=function) for contract in declared]
    grants = [
        Grant(agent="agent", tool=tool.contract.name, max_calls_per_run=10**9) for tool in tools
    ]
    made.register(*tools, grants=grants)
    return made


async def function(**_: Any) -> dict[str, Any]:
    return ANSWER


async def bare(calls: int) -> float:
    validator = compile_schema(SCHEMA)
    raw = TEXT.encode()
    began = time.perf_counter()
    for _ in range(calls):
        arguments = jiter.from_json(raw)
        if validator.is_valid(arguments):
            await function(**arguments)
    return (time.perf_counter() - began) / calls


async def gated(made: Runtime, run_id: str, calls: int) -> float:
    who = Principal(tenant="acme", user="u_1", agent="agent", scopes=["case:read"])
    proposal = Proposal(tool="find_notices_0", arguments=TEXT, run_id=run_id)
    first = await made.submit(proposal, who)
    if not first.ok:
        sys.exit(f"the call was refused: {first.for_model()}")
    began = time.perf_counter()
    for _ in range(calls):
        await made.submit(proposal, who)
    return (time.perf_counter() - began) / calls


async def measure(rounds: int, many: int) -> dict[str, Any]:
    small, large, long = runtime(1), runtime(many), runtime(1)
    who = Principal(tenant="acme", user="u_1", agent="agent", scopes=["case:read"])
    budgets = Budgets(reads=10**9, money=1e9, seconds=1e9)
    for made in (small, large, long):
        await made.run(who, "run_1", budgets=budgets)
    await gated(long, "run_1", 10_000)  # a run that is long before it is measured
    times: dict[str, list[float]] = {"bare": [], "gated": [], "contracts": [], "long run": []}
    for _ in range(rounds):
        times["bare"].append(await bare(CALLS))
        times["gated"].append(await gated(small, "run_1", CALLS))
        times["contracts"].append(await gated(large, "run_1", CALLS))
        times["long run"].append(await gated(long, "run_1", CALLS))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "rounds": rounds,
        "calls_a_round": CALLS,
        "load": os.getloadavg()[0],
        "microseconds": {name: round(value * 1e6, 2) for name, value in medians.items()},
        "ratio_to_bare": round(medians["gated"] / medians["bare"], 1),
        "target": TARGET,
        "aim": AIM,
        f"ratio_{many}_contracts_to_1": round(medians["contracts"] / medians["gated"], 2),
        "ratio_run_of_10000_calls_to_new": round(medians["long run"] / medians["gated"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and contracts")
    options = parser.parse_args()
    rounds, many = (5, 200) if options.quick else (25, 2000)
    figures = asyncio.run(measure(rounds, many))
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:<36}{value}")


if __name__ == "__main__":
    main()
