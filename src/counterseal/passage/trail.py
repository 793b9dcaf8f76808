"""The decisions of a call in their order, and what a call that was only tried out comes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from time import monotonic
from typing import Any, overload

from counterseal.gates.base import Decision, Timed, Verdict

__all__ = ["AGAIN", "Again", "Patience", "Preview", "Trail"]


_GATE = itemgetter(Decision._fields.index("gate"))
_VERDICT = Decision._fields.index("verdict")
_RULE = Decision._fields.index("rule")
_ALLOW = Verdict.ALLOW


class Again:
    """Returned by a step: what was decided on has changed; decide anew."""


AGAIN = Again()


class Patience:
    """How long a caller still waits for somebody else's call."""

    def __init__(self, seconds: float) -> None:
        if not seconds >= 0:  # nan is no time either
            raise ValueError(f"wait: takes seconds from 0 on, not {seconds!r}")
        self._until = monotonic() + seconds if seconds else 0.0

    @property
    def left(self) -> float:
        return max(0.0, self._until - monotonic()) if self._until else 0.0


class Trail(Sequence[Timed]):
    """The decisions of a call in their order, with the time each took; put together on demand."""

    __slots__ = ("decisions", "nanoseconds")

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.nanoseconds: list[int] = []

    def __len__(self) -> int:
        return len(self.decisions)

    def __iter__(self) -> Iterator[Timed]:
        return map(Timed, self.decisions, self.nanoseconds)

    def told(self) -> dict[str, Any]:
        """As an event tells them: nanoseconds, and where a gate said more than yes, what it was."""
        # Every call tells them, so what is short to write is less important than what is fast.
        told: dict[str, Any] = dict(zip(map(_GATE, self.decisions), self.nanoseconds, strict=True))
        for decision in self.decisions:
            if decision[_RULE] is not None or decision[_VERDICT] is not _ALLOW:
                said = [told[decision.gate], decision.verdict.value, decision.rule]
                told[decision.gate] = said
        return told

    @overload
    def __getitem__(self, index: int) -> Timed: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Timed, ...]: ...
    def __getitem__(self, index: int | slice) -> Timed | tuple[Timed, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        return Timed(self.decisions[index], self.nanoseconds[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What would happen: the decisions of every gate that was asked, and nothing done."""

    decisions: tuple[Timed, ...]
    arguments: Mapping[str, Any]
    verdict: str
    code: str | None
    reason: str
