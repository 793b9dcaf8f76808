"""The house: measures parties in turns, keeps every row as soon as it is known.

A benchmark is an async function that takes a `House`, starts its parties and calls `compare`. What
was measured is written down at once, also when a run is broken off in the middle of a comparison:
then its rows are made of the rounds that were finished.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks._house.environments import Unavailable
from benchmarks._house.results import Missing, Results
from benchmarks._house.rows import Result, Row, Turn, ratios, rounded, side, spread
from benchmarks._house.workers import Worker, worker

Block = Callable[[], Awaitable[Turn]]
"""One party's turn."""
Say = Callable[[str, float], None]
"""Shows what goes on, and how far the comparison has got, from 0 to 1."""
_T = TypeVar("_T")


class Party(NamedTuple):
    """A worker that is to be started, in a peer's environment or in ours."""

    name: str
    script: Path
    words: Sequence[str] = ()
    peer: str | None = None


class House:
    """What a benchmark is given."""

    def __init__(
        self,
        results: Results,
        *,
        quick: bool = False,
        big: bool = False,
        soak: bool = False,
        say: Say = lambda *_: None,
    ) -> None:
        self.results = results
        self.quick = quick
        self.big = big
        self.soak = soak
        self._say = say
        self.versions: dict[str, dict[str, str]] = {}
        """Of parties, by name."""

    def pick(self, full: _T, quick: _T) -> _T:
        """One size for a whole run, another for a quick one."""
        return quick if self.quick else full

    def doing(self, what: str, done: float = 0.0) -> None:
        """Show what is prepared."""
        self._say(what, done)

    def missing(self, party: str, why: object) -> None:
        """Write down honestly that a party could not take part."""
        self.results.miss(Missing(party, " ".join(str(why).split())))

    async def start(self, stack: AsyncExitStack, *parties: Party) -> dict[str, Worker]:
        """The workers that can be had, until the stack ends; the others are written down."""
        started = {}
        for one in parties:
            self.doing(f"starting {one.name}")
            try:
                made = worker(one.script, *one.words, peer=one.peer)
                started[one.name] = await stack.enter_async_context(made)
            except (Unavailable, OSError) as error:
                self.missing(one.name, error)
            else:
                self.versions[one.name] = started[one.name].versions
        return started

    async def compare(
        self,
        what: str,
        parties: Mapping[str, Block],
        rows: Sequence[Row],
        *,
        rounds: int,
        unit: str = "µs",
        warm: bool = True,
    ) -> dict[str, list[Turn]]:
        """Everybody in turns; rows whose parties both took part are kept. Returns all turns."""
        here = dict(parties)
        if warm:  # the first time is another: files grow, statements are prepared
            for name in parties:
                self._say(f"{what}: {name} warms up", 0.0)
                if await self._turn(name, here) is None:
                    del here[name]
        seen: dict[str, list[Turn]] = {name: [] for name in here}
        loads = [os.getloadavg()[0]]
        try:
            for turn in range(rounds):
                loads.append(os.getloadavg()[0])
                # Whoever goes first in a round goes last in the next.
                for number, name in enumerate(list(here)[:: 1 if turn % 2 else -1]):
                    done = (turn + number / len(here)) / rounds
                    self._say(f"{what}: {name}, round {turn + 1} of {rounds}", done)
                    took = await self._turn(name, here)
                    if took is None:
                        del here[name], seen[name]
                    else:
                        seen[name].append(took)
        finally:
            self.keep(rows, seen, unit, loads)
        return seen

    async def _turn(self, name: str, here: Mapping[str, Block]) -> Turn | None:
        try:
            return await here[name]()
        except Unavailable as error:
            self.missing(name, error)
            return None

    def keep(
        self,
        rows: Sequence[Row],
        seen: Mapping[str, Sequence[Turn]],
        unit: str = "µs",
        loads: Sequence[float] = (),
    ) -> None:
        """Make rows of turns: of those that `compare` took, or of what was seen beside them."""
        loads = loads or os.getloadavg()[:1]
        load = (round(statistics.median(loads), 2), round(max(loads), 2))
        for row in rows:
            ours, theirs = seen.get(row.ours), seen.get(row.theirs)
            if not ours or not theirs:
                continue
            each = ratios(row.better, ours, theirs)
            low, middle, high = spread(each)
            self.results.add(
                Result(
                    key=row.key,
                    what=row.what,
                    better=row.better,
                    unit=unit,
                    ratio=rounded(middle),
                    low=rounded(low),
                    high=rounded(high),
                    rounds=len(each),
                    calls=ours[0].calls,
                    reach=row.reach,
                    aim=row.aim,
                    chart=row.chart,
                    ours=side(row.ours, ours, unit, self.versions.get(row.ours, {})),
                    theirs=side(row.theirs, theirs, unit, self.versions.get(row.theirs, {})),
                    load=load,
                    when=datetime.now(UTC).isoformat(timespec="seconds"),
                )
            )
