"""One worker of `measure.py`: a process with a runtime of its own on a database that it shares.

It says `ready`, waits for a line, makes its calls, and tells as JSON how long that took it and how
much of a processor. It stays until its input is closed, so that somebody can look at the server.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from itertools import count
from typing import Annotated

from pydantic import Field

from counterseal import Budgets, Grant, Principal, Proposal, Runtime, tool

PLENTY = 10**9


@tool(
    effect="draft",
    version="1.0.0",
    owner="docs",
    runtime={"rate_limits": {"window_sec": 1, "max_requests": 1_000_000}},
)
async def save_note(
    case_id: Annotated[str, Field(max_length=40, description="The case.")],
    text: Annotated[str, Field(max_length=200, description="What to note.")],
) -> dict[str, str]:
    """Save a note beside a case."""
    return {"note_id": "note_1", "case_id": case_id, "length": str(len(text))}


async def work(url: str, name: str, in_flight: int, calls: int, tenants: int) -> None:
    numbers = count(1)
    async with Runtime.open(url) as runtime:
        grant = Grant(agent="clerk", tool="save_note", max_calls_per_run=PLENTY)
        runtime.register(save_note, grants=[grant])
        callers = [
            Principal(tenant=f"tenant_{n % tenants}", user=f"u_{n}", agent="clerk")
            for n in range(in_flight)
        ]
        runs = [f"run_{name}_{n}" for n in range(in_flight)]
        for who, run in zip(callers, runs, strict=True):
            await runtime.run(who, run, budgets=Budgets(writes=PLENTY))

        async def caller(who: Principal, run: str, number: int) -> None:
            for _ in range(number):
                arguments = {"case_id": f"case_{next(numbers)}", "text": "It was late."}
                proposal = Proposal(tool="save_note", arguments=arguments, run_id=run)
                seen = await runtime.submit(proposal, who)
                if not seen.ok:
                    sys.exit(f"a call was refused: {seen.for_model()}")

        async def crowd(number: int) -> None:
            pairs = zip(callers, runs, strict=True)
            await asyncio.gather(*(caller(who, run, number) for who, run in pairs))

        await crowd(4)  # the first ones are others: statements are prepared, versions are pinned
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began, used = time.perf_counter(), time.process_time()
        await crowd(calls // in_flight)
        told = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}
        print(json.dumps(told), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    address, called, *rest = sys.argv[1:]
    asyncio.run(work(address, called, *map(int, rest)))
