"""A read-only call through every gate, next to the least that any caller must do.

The bare limit parses the text, validates it against the same schema and calls the same function;
everything above that is what the gates, twenty policy rules, budgets and events cost. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
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


class Bench:
    """One way of making the call, and how long each took."""

    def __init__(self, name: str, call: Callable[[], Awaitable[Any]]) -> None:
        self.name = name
        self.call = call
        self.nanoseconds: list[int] = []

    async def once(self) -> None:
        began = time.perf_counter_ns()
        await self.call()
        self.nanoseconds.append(time.perf_counter_ns() - began)

    @property
    def median(self) -> float:
        return statistics.median(self.nanoseconds) / 1000

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.nanoseconds, n=100)[98] / 1000


def bare() -> Bench:
    validator, raw = compile_schema(SCHEMA), TEXT.encode()

    async def call() -> None:
        arguments = jiter.from_json(raw)
        if validator.is_valid(arguments):
            await function(**arguments)

    return Bench("bare", call)


async def gated(name: str, contracts: int, *, warm: int) -> Bench:
    made = runtime(contracts)
    who = Principal(tenant="acme", user="u_1", agent="agent", scopes=["case:read"])
    await made.run(who, "run_1", budgets=Budgets(reads=10**9, money=1e9, seconds=1e9))
    proposal = Proposal(tool="find_notices_0", arguments=TEXT, run_id="run_1")
    for _ in range(warm):
        seen = await made.submit(proposal, who)
        if not seen.ok:
            sys.exit(f"the call was refused: {seen.for_model()}")
    return Bench(name, lambda: made.submit(proposal, who))


async def measure(calls: int, many: int) -> dict[str, Any]:
    benches = [
        bare(),
        await gated("every gate", 1, warm=200),
        await gated(f"every gate, {many:,} contracts", many, warm=200),
        await gated("every gate, call 10,000 of a run", 1, warm=10_000),
    ]
    for done in range(calls):
        if sys.stderr.isatty() and done % 100 == 0:
            print(f"\r{done:,} of {calls:,} calls", end="", file=sys.stderr)
        # One by one in turn: each finds the processor's caches as the others left them, which is
        # how a tool call finds them in a real program, and a busy moment touches all of them.
        for bench in benches:
            await bench.once()
    least, usual, contracts, long_run = (bench.median for bench in benches)
    return {
        "calls": calls,
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "microseconds": {b.name: [round(b.median, 1), round(b.p99, 1)] for b in benches},
        "ratio": round(usual / least, 1),
        "target": TARGET,
        "aim": AIM,
        "contracts_ratio": round(contracts / usual, 2),
        "long_run_ratio": round(long_run / usual, 2),
    }


def show(figures: dict[str, Any]) -> None:
    print(f"{figures['calls']:,} calls each, in turn; load {figures['load']}")
    print(f"{'':<36}{'median µs':>10}{'p99 µs':>10}")
    for name, (median, p99) in figures["microseconds"].items():
        print(f"{name:<36}{median:>10}{p99:>10}")
    ratio, target, aim = figures["ratio"], figures["target"], figures["aim"]
    print(f"every gate / bare: {ratio}x (target {target:.0f}x, aim {aim:.0f}x)")
    print(f"many contracts / one: {figures['contracts_ratio']}x")
    print(f"long run / new run: {figures['long_run_ratio']}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer calls and contracts")
    options = parser.parse_args()
    calls, many = (1000, 200) if options.quick else (5000, 10_000)
    figures = asyncio.run(measure(calls, many))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)


if __name__ == "__main__":
    main()
