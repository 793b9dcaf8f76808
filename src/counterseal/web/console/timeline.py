"""The gates that a call went through, one after the other, as bars. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from counterseal.views import GateRow

__all__ = ["Bar", "bars", "lasted"]

_TONES: Final = {"allow": "ok", "deny": "bad", "require_approval": "warn"}
_LEAST: Final = 0.7
"""Percent: so that a gate that took no time is seen."""


class Bar(NamedTuple):
    """One gate. `x` and `width` are percent of all the time that gates took."""

    row: GateRow
    tone: str
    x: float
    width: float
    took: str


def lasted(microseconds: float | None) -> str:
    """For people: 4.5 µs, 1.2 ms, 3.4 s."""
    if microseconds is None:
        return ""
    for size, word in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= size:
            return f"{microseconds / size:,.2f} {word}"
    return f"{microseconds:.1f} µs"


def bars(gates: Sequence[GateRow]) -> list[Bar]:
    """Each begins where the one before it ended; one that was not asked takes no room."""
    return list(_bars(gates))


def _bars(gates: Sequence[GateRow]) -> Iterator[Bar]:
    total = sum(gate.microseconds or 0 for gate in gates) or 1.0
    begun = 0.0
    for gate in gates:
        share = (gate.microseconds or 0) / total * 100
        width = 0.0 if gate.verdict is None else max(share, _LEAST)
        tone = _TONES.get(gate.verdict or "", "dim")
        x = min(begun, 100 - width)
        yield Bar(gate, tone, round(x, 2), round(width, 2), lasted(gate.microseconds))
        begun += share
