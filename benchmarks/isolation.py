"""What each level of isolation costs: the same small function, run at every level in turn.

Beside them stands the start of a bare Python process, which is what `process` would cost if its
workers were not used again. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import Field

from counterseal import Context, Principal, Tool, tool
from counterseal.codes import Code
from counterseal.errors import IsolationError
from counterseal.execution.executor import Executor
from counterseal.execution.work import Work

Words = Annotated[str, Field(max_length=200, description="What to look for.")]
Answer = dict[str, str]


@tool(effect="compute", version="1.0.0", owner="bench", isolation="inline")
async def inline(words: Words) -> Answer:
    """Answer."""
    return {"found": words}


@tool(effect="compute", version="1.0.0", owner="bench", isolation="inline")
async def inline_task(words: Words) -> Answer:
    """Answer after a wait, as a tool that asks somebody does."""
    await asyncio.sleep(0)
    return {"found": words}


@tool(effect="compute", version="1.0.0", owner="bench", isolation="thread")
def thread(words: Words) -> Answer:
    """Answer."""
    return {"found": words}


@tool(effect="compute", version="1.0.0", owner="bench", isolation="process")
def process(words: Words) -> Answer:
    """Answer."""
    return {"found": words}


@tool(effect="compute", version="1.0.0", owner="bench", isolation="sandbox")
def sandbox(words: Words) -> Answer:
    """Answer."""
    return {"found": words}


ARGUMENTS = {"words": "late payment"}
CONTEXT = Context(
    principal=Principal(tenant="acme", agent="agent"), run_id="run_1", call_id="call_1"
)


class Level:
    """One way of running the function, and how long each run took."""

    def __init__(self, name: str, run: Callable[[], Awaitable[None]], every: int) -> None:
        self.name = name
        self.run = run
        self.every = every
        """Costly ones run once in so many rounds."""
        self.nanoseconds: list[int] = []

    async def once(self) -> None:
        began = time.perf_counter_ns()
        await self.run()
        self.nanoseconds.append(time.perf_counter_ns() - began)

    @property
    def median(self) -> float:
        return statistics.median(self.nanoseconds) / 1000


def level(executor: Executor, made: Tool[..., Any], name: str, every: int) -> Level:
    runner = executor.runner(made.contract, made)

    async def run() -> None:
        outcome = await runner.run(Work(ARGUMENTS, lambda: CONTEXT, 30.0))
        if outcome.code is not Code.SUCCESS:
            sys.exit(f"{name}: {outcome.code}\n{outcome.trace}")

    return Level(name, run, every)


async def start() -> None:
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", "pass"], check=True)


async def measure(rounds: int) -> dict[str, Any]:
    executor, missing = Executor(), ""
    levels = [
        level(executor, inline, "inline", 1),
        level(executor, inline_task, "inline, and it waits", 1),
        level(executor, thread, "thread", 1),
        level(executor, process, "process", 1),
        Level("(a bare process is started)", start, 50),
    ]
    try:
        levels.append(level(executor, sandbox, "sandbox", 50))
    except IsolationError as error:
        missing = str(error)
    for one in levels:
        for _ in range(3):
            await one.run()
    for done in range(rounds):
        if sys.stderr.isatty() and done % 10 == 0:
            print(f"\r{done:,} of {rounds:,} rounds", end="", file=sys.stderr)
        for one in levels:
            if done % one.every == 0:
                await one.once()
    await executor.aclose()
    least = levels[0].median
    return {
        "rounds": rounds,
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "microseconds": {one.name: round(one.median, 1) for one in levels},
        "ratios": {one.name: round(one.median / least, 1) for one in levels},
        "missing": missing,
    }


def show(figures: dict[str, Any]) -> None:
    print(f"{figures['rounds']:,} rounds, in turn; load {figures['load']}")
    print(f"{'':<30}{'median µs':>12}{'x inline':>10}")
    for name, median in figures["microseconds"].items():
        print(f"{name:<30}{median:>12,}{figures['ratios'][name]:>10,}")
    if figures["missing"]:
        print(f"sandbox: not measured: {figures['missing']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args()
    figures = asyncio.run(measure(200 if options.quick else 2000))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)


if __name__ == "__main__":
    main()
