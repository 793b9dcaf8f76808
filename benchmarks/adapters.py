"""What an adapter adds to `submit`: one awaiting tool, through LangGraph's adapter and directly.

Both take every gate, with twenty policy rules, budgets and a rate. The adapter's party begins where
LangGraph hands a tool call over and ends with the `ToolMessage` that it gets back; the framework's
own work around that is in neither.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._house.environments import Unavailable
from benchmarks._house.house import House, Party
from benchmarks._house.rows import Row

SCRIPT = Path(__file__).resolve().parent / "_adapter_party.py"
PEER = "langgraph-adapter"
ROWS = [
    Row(
        key="adapters/langgraph",
        what="Through LangGraph's adapter, beside submit alone; an awaiting tool",
        ours="LangGraph adapter",
        theirs="submit",
        better="lower",
        reach=1.3,
    )
]
FEW = 200
"""Calls of the shortest turn."""


async def bench(house: House) -> None:
    seconds, rounds = house.pick(0.15, 0.1), house.pick(15, 5)
    parties = [
        Party("LangGraph adapter", SCRIPT, ["langgraph"], PEER),
        Party("submit", SCRIPT, ["submit"], PEER),
    ]
    async with AsyncExitStack() as stack:
        blocks = {}
        for name, one in (await house.start(stack, *parties)).items():
            try:
                pace = (await one.run(FEW)).value
            except Unavailable as error:
                house.missing(name, error)
            else:
                blocks[name] = partial(one.run, max(FEW, int(seconds / pace)))
        await house.compare("an adapter's own share", blocks, ROWS, rounds=rounds)


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("adapters", bench)
