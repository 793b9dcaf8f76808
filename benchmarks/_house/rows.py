"""What is compared with what, and what came of it.

A `Row` is declared by a benchmark before anything is measured; a `Result` is the same with figures.
A ratio is taken of what was measured side by side, round by round, and its median is told: a busy
moment of the machine is then in both. Every ratio reads "ours beside theirs": where `better` is
"higher" it says how many times as fast we are, where it is "lower" how many times as long we take.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

Better = Literal["higher", "lower"]
SCALES = {"µs": 1e6, "ms": 1e3, "MiB": 1.0, "": 1.0}
"""What a value of a turn is multiplied with, to be shown in a unit."""


class Turn(NamedTuple):
    """What one party did in one round."""

    value: float
    """Seconds a call; in comparisons of memory, MiB."""
    samples: Sequence[float] = ()
    """Of single calls, where these were timed."""
    calls: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table, to be."""

    key: str
    """Names it over time, beginning with its benchmark: `call/fastmcp`."""
    what: str
    """For a reader."""
    ours: str
    theirs: str
    """Who of the parties is compared."""
    better: Better = "higher"
    reach: float | None = None
    """The ratio that must be had."""
    aim: float | None = None
    """The ratio that is hoped for."""
    chart: bool = False
    """Whether the chart shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What was seen of one party."""

    name: str
    median: float
    p99: float | None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the table."""

    key: str
    what: str
    better: Better
    unit: str
    ratio: float
    low: float
    high: float
    """Where the middle half of the rounds lies."""
    rounds: int
    calls: int
    """Of each party in each round."""
    reach: float | None
    aim: float | None
    chart: bool
    ours: Side
    theirs: Side
    load: tuple[float, float]
    """The machine's load average while it ran: the middle one, and the highest."""
    when: str

    @property
    def benchmark(self) -> str:
        return self.key.partition("/")[0]

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Result:
        sides = {name: Side(**record[name]) for name in ("ours", "theirs")}
        return cls(**{**record, **sides, "load": tuple(record["load"])})

    @property
    def verdict(self) -> str:
        """What became of its targets: `aim`, `reach`, `short`, or nothing where it has none."""
        if self.aim is not None and self._meets(self.aim):
            return "aim"
        if self.reach is None:
            return "" if self.aim is None else "short"
        return "reach" if self._meets(self.reach) else "short"

    def _meets(self, target: float) -> bool:
        return self.ratio >= target if self.better == "higher" else self.ratio <= target


def ratios(better: Better, ours: Sequence[Turn], theirs: Sequence[Turn]) -> list[float]:
    """Round by round, as far as both got."""
    pairs = [(a.value, b.value) for a, b in zip(ours, theirs, strict=False)]
    return [b / a if better == "higher" else a / b for a, b in pairs]


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Where the lower quarter ends, the middle, and where the upper quarter begins."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def p99(samples: Sequence[float]) -> float | None:
    """What ninety-nine of a hundred stay below; None of so few that it would be made up."""
    if len(samples) < 100:
        return None
    return sorted(samples)[math.ceil(len(samples) * 0.99) - 1]


def side(name: str, turns: Sequence[Turn], unit: str, versions: Mapping[str, str]) -> Side:
    scale = SCALES[unit]
    last = p99([one for turn in turns for one in turn.samples])
    return Side(
        name=name,
        median=rounded(statistics.median(turn.value for turn in turns) * scale),
        p99=None if last is None else rounded(last * scale),
        versions=dict(versions),
    )


def rounded(value: float) -> float:
    """To three digits, which is more than any of this is worth."""
    if value == 0:
        return 0.0
    return round(value, max(2 - math.floor(math.log10(abs(value))), 0))
