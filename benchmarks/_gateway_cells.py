"""One tool, one kind of client, so many calls at once: measured of several parties in turns."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks._gateway_load import CLIENTS, spend
from benchmarks._gateway_parties import Party
from benchmarks._ledger_turns import in_turns


class Cell(NamedTuple):
    tool: str
    client: str
    in_flight: int

    def __str__(self) -> str:
        return f"{self.tool}, {self.client}, {self.in_flight}"


class Found:
    """What was seen of one party in one cell."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        """Per call, round after round."""
        self.calls = 0
        self.taken: defaultdict[str, float] = defaultdict(float)
        """Seconds of a processor, by process."""

    @property
    def typical(self) -> float:
        return statistics.median(self.seconds)

    @property
    def cpu(self) -> dict[str, float]:
        """Milliseconds of a processor per call, by process."""
        return {who: round(taken / self.calls * 1000, 2) for who, taken in self.taken.items()}


class Ratio(NamedTuple):
    """The median of what was measured side by side, and where the middle half of it lies."""

    median: float
    low: float
    high: float

    def rounded(self) -> dict[str, float]:
        return {name: round(one, 2) for name, one in self._asdict().items()}


def ratio(one: Found, other: Found) -> Ratio:
    """How many times as long a call of the one takes as a call of the other."""
    each = [a / b for a, b in zip(one.seconds, other.seconds, strict=True)]
    low, median, high = statistics.quantiles(each, n=4, method="inclusive")
    return Ratio(median, low, high)


async def measure(
    cell: Cell, those: Mapping[str, Party], names: Sequence[str], sizes: Mapping[str, float]
) -> dict[str, Found]:
    """The parties with these names, one after the other in every round."""
    found = {name: Found() for name in names}
    blocks = {name: _block(cell, those, name, sizes["seconds"], found[name]) for name in names}
    for name, seconds in (await in_turns(str(cell), blocks, int(sizes["rounds"]))).items():
        found[name].seconds = seconds
    return found


def _block(
    cell: Cell, those: Mapping[str, Party], name: str, seconds: float, found: Found
) -> Callable[[], Awaitable[float]]:
    clocks = {"client": time.process_time, "upstream": those["direct"].cpu}
    if name != "direct":
        clocks["proxy"] = those[name].cpu

    async def block() -> float:
        # Connected anew in every turn: a server may hang up on who is idle in the others' turns.
        async with CLIENTS[cell.client](those[name].url, cell.in_flight) as client:
            before = {who: clock() for who, clock in clocks.items()}
            calls, took = await spend(client, cell.tool, seconds)
            for who, clock in clocks.items():
                found.taken[who] += clock() - before[who]
        found.calls += calls
        return took / calls

    return block
