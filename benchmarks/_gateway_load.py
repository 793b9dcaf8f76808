"""Calls as fast as they are answered. Each answer is looked at: refusals are fast, too."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from itertools import count

from benchmarks._gateway_wire import Caller, Wire
from benchmarks._house.environments import Unavailable
from benchmarks._house.house import Block
from benchmarks._house.rows import Turn
from benchmarks._servers import Served

TEXT = "a line of text that is given back, "
_numbers = count()


class Cell:
    """One tool, one revision, so many calls at once: of several servers in turns."""

    def __init__(self, tool: str, revision: str, in_flight: int, seconds: float) -> None:
        self._tool = tool
        self._revision = revision
        self._in_flight = in_flight
        self._seconds = seconds
        self.work: defaultdict[str, list[Turn]] = defaultdict(list)
        """Seconds of a processor that each server took for a call, by its name."""

    def blocks(self, those: Mapping[str, Served], *names: str) -> dict[str, Block]:
        """Of those that are there."""
        return {name: self._block(name, those[name]) for name in names if name in those}

    def _block(self, name: str, served: Served) -> Block:
        async def block() -> Turn:
            # Connected anew in every turn: a server may hang up on who is idle meanwhile.
            async with Wire(served, self._in_flight, self._revision) as wire:
                before = served.cpu()
                turn = await spend(wire.callers, self._tool, self._seconds)
                self.work[name].append(Turn((served.cpu() - before) / turn.calls or 1e-9))
            return turn

        return block


async def spend(callers: list[Caller], tool: str, seconds: float) -> Turn:
    """Call for so long, everybody at once."""
    until = time.perf_counter() + seconds
    took: list[float] = []

    async def caller(call: Caller) -> None:
        while (began := time.perf_counter()) < until:
            text = f"{TEXT}{next(_numbers)}"  # never the same: each is an operation of its own
            if text not in await call(tool, {"text": text}):
                raise Unavailable("an answer was another call's")
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    everybody = [asyncio.create_task(caller(call)) for call in callers]
    try:
        await asyncio.gather(*everybody)
    finally:
        for one in everybody:  # when one is refused, the others need not go on
            one.cancel()
    return Turn((time.perf_counter() - began) / len(took), took, len(took))
