"""The chosen rows as bars, in an SVG that reads well on a light and on a dark page.

Bars are on a logarithmic scale, because the ratios lie far apart: to the right of the line at 1 we
are faster. A small mark on a bar shows its target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from benchmarks._house.rows import Result
from benchmarks._house.table import by_benchmark

WIDTH, LEFT, RIGHT = 900, 400, 90
BAR, GAP, HEAD = 16, 10, 34
STYLE = """\
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
.head { font-weight: 600 } .quiet { fill: #57606a; font-size: 11px }
.line { stroke: #d0d7de } .one { stroke: #57606a; stroke-width: 1.5 }
.faster { fill: #1a7f5a } .slower { fill: #9a6700 } .goal { stroke: #24292f; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .quiet { fill: #9198a1 } .line { stroke: #3d444d }
.one { stroke: #9198a1 } .faster { fill: #3fb68b } .slower { fill: #d29922 }
.goal { stroke: #e6edf3 } }"""


def times_as_fast(row: Result, ratio: float | None) -> float | None:
    """Any row's ratio so that more is better."""
    if ratio is None or row.better == "higher":
        return ratio
    return 1 / ratio


def chart(rows: Sequence[Result], caption: str) -> str:
    """Of those rows that are meant for it; `caption` is told below."""
    chosen = [row for row in rows if row.chart]
    most = max((times_as_fast(row, row.ratio) or 1 for row in chosen), default=1)
    least = min((times_as_fast(row, row.ratio) or 1 for row in chosen), default=1)
    scale = _Scale(min(least, 1.0), max(most, 1.0))
    parts: list[str] = []
    down = 8
    for title, some in by_benchmark(chosen):
        parts.append(_text(0, down + 20, title, "head"))
        down += HEAD
        for row in some:
            parts += _bar(row, down, scale)
            down += BAR + GAP
    height = down + 34
    grid = [_line(scale.at(tick), down, tick) for tick in scale.ticks()]
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
            "<title id='title'>How many times as fast as others: longer is faster</title>",
            f"<style>{STYLE}</style>",
            *grid,
            *parts,
            _text(0, height - 6, caption, "quiet"),
            "</svg>",
            "",
        ]
    )


class _Scale:
    """From ratios to places across."""

    def __init__(self, least: float, most: float) -> None:
        self._low = math.floor(math.log10(least))
        self._high = max(math.ceil(math.log10(most)), self._low + 1)

    def at(self, ratio: float) -> float:
        part = (math.log10(ratio) - self._low) / (self._high - self._low)
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self._low, self._high + 1)]


def _bar(row: Result, down: int, scale: _Scale) -> list[str]:
    ratio = times_as_fast(row, row.ratio) or 1.0
    one, end = scale.at(1), scale.at(ratio)
    kind = "faster" if ratio >= 1 else "slower"
    shape = f'x="{min(one, end)}" y="{down}" width="{max(abs(end - one), 1):.1f}" height="{BAR}"'
    told = f"{ratio:.3g}x" if row.better == "higher" else f"takes {row.ratio:g}x"
    goal = times_as_fast(row, row.reach)
    free = max(end, one)
    if goal is not None and 0 <= scale.at(goal) - free < 40:
        free = scale.at(goal)  # so that the number does not lie on the mark
    parts = [
        _text(8, down + 13, row.what),
        f'<rect class="{kind}" {shape} rx="2"><title>{escape(row.what)}: {told}</title></rect>',
        _text(free + 6, down + 13, told),
    ]
    if goal is not None:
        at = scale.at(goal)
        parts.append(f'<path class="goal" d="M{at} {down - 3}v{BAR + 6}"/>')
    return parts


def _line(across: float, down: int, tick: float) -> str:
    kind = "one" if tick == 1 else "line"
    return (
        f'<path class="{kind}" d="M{across} 8V{down}"/>'
        f'<text class="quiet" x="{across}" y="{down + 13}" text-anchor="middle">{tick:g}x</text>'
    )


def _text(across: float, down: float, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{across:g}" y="{down:g}">{escape(text)}</text>'
