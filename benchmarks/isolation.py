"""What each level of isolation costs: the same small function, run at every level in turn.

Beside them stands the start of a bare Python process, which is what `process` would cost if its
workers were not used again. A sandbox is measured twice: one call after the other, and a call now
and then, for which a spare is ready. Nothing is asserted.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _isolation_tools as tools
from benchmarks._house.environments import Unavailable
from benchmarks._house.house import Block, House
from benchmarks._house.rows import Row, Turn
from benchmarks._ledger_turns import crowd
from counterseal import Context, Principal, Tool
from counterseal.codes import Code
from counterseal.errors import IsolationError
from counterseal.execution.attempt import AttemptRequest
from counterseal.execution.executor import Executor

ARGUMENTS = {"words": "late payment"}
CONTEXT = Context(
    principal=Principal(tenant="acme", agent="agent"), run_id="run_1", call_id="call_1"
)


def calling(executor: Executor, made: Tool[..., Any]) -> Callable[[int], Awaitable[None]]:
    runner = executor.runner(made.contract, made)

    async def once(_: int) -> None:
        outcome = await runner.run(AttemptRequest(ARGUMENTS, lambda: CONTEXT, 30.0))
        if outcome.code is not Code.SUCCESS:
            raise Unavailable(f"{outcome.code}: {outcome.trace}")

    return once


def running(executor: Executor, made: Tool[..., Any], number: int) -> Block:
    return partial(crowd, [range(number)], calling(executor, made))


async def now_and_then(executor: Executor, once: Callable[[int], Awaitable[None]]) -> Turn:
    """Call once, and time a second call when a spare is ready for it."""
    await once(0)
    while not executor.sandboxes.spares():  # noqa: ASYNC110 - nothing tells when it is ready
        await asyncio.sleep(0.01)
    return await crowd([range(1)], once)


async def _start(_: int) -> None:
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", "pass"], check=True)


def rows(names: Iterable[str]) -> list[Row]:
    return [
        Row(
            key=f"isolation/{name.replace(',', '').replace(' ', '-')}",
            what=f"{name}, beside the function in line",
            ours=name,
            theirs="inline",
            better="lower",
        )
        for name in names
        if name != "inline"
    ]


async def bench(house: House) -> None:
    executor = Executor()
    blocks: dict[str, Block] = {
        "inline": running(executor, tools.inline, 200),
        "inline, and it waits": running(executor, tools.inline_task, 200),
        "thread": running(executor, tools.thread, 200),
        "process": running(executor, tools.process, 50),
        "a bare process is started": partial(crowd, [range(2)], _start),
    }
    try:
        blocks["sandbox"] = running(executor, tools.sandbox, 4)
        sandboxed = calling(executor, tools.sandbox)
        blocks["sandbox, now and then"] = partial(now_and_then, executor, sandboxed)
    except IsolationError as error:
        house.missing("sandbox", error)
    await house.compare("isolation", blocks, rows(blocks), rounds=house.pick(9, 3))
    await executor.aclose()


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("isolation", bench)
