"""The decisions of a call in their order, and what a call that was only tried out comes to."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, overload

from counterseal.gates.base import Decision, Timed, Verdict
from counterseal.positional import made

__all__ = ["AGAIN", "ALLOWED", "IMPATIENT", "Again", "Patience", "Preview", "Said", "Trail"]


ALLOWED: Final = Verdict.ALLOW


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


IMPATIENT = Patience(0.0)
"""Of whoever does not wait at all."""


class Trail(Sequence[Timed]):
    """The decisions of a call in their order, with the time each took; put together on demand."""

    __slots__ = ("marked", "told")

    def __init__(self) -> None:
        self.told: list[Any] = []
        """Each decision, and behind it its nanoseconds: one list is filled faster than two."""
        self.marked: list[int] = []
        """Where those lie in it that are not the plain yes of their gate."""

    def add(self, decision: Decision, nanoseconds: int = 0) -> None:
        self.marked.append(len(self.told))
        self.told += (decision, nanoseconds)

    def forget(self, since: int) -> None:
        """Take back the decisions from this one on."""
        del self.told[2 * since :]
        self.marked = [at for at in self.marked if at < 2 * since]

    def overrule(self, decision: Decision) -> None:
        """Another word in the place of the last one."""
        self.told[-2] = decision
        last = len(self.told) - 2
        if last not in self.marked:
            self.marked.append(last)

    @property
    def last(self) -> Decision | None:
        return self.told[-2] if self.told else None

    def __len__(self) -> int:
        return len(self.told) // 2

    def __iter__(self) -> Iterator[Timed]:
        return map(Timed._make, _pairs(self.told))

    def telling(self) -> list[Timed]:
        """Those that do not simply allow."""
        told, telling = self.told, []
        for at in self.marked:
            decision = told[at]
            if decision.rule is not None or decision.verdict is not ALLOWED:
                telling.append(made(Timed, (decision, told[at + 1])))
        return telling

    @overload
    def __getitem__(self, index: int) -> Timed: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Timed, ...]: ...
    def __getitem__(self, index: int | slice) -> Timed | tuple[Timed, ...]:
        return tuple(self)[index]


def _pairs(told: Sequence[Any]) -> Iterator[tuple[Decision, int]]:
    one = iter(told)
    return zip(one, one, strict=True)


class Said(Mapping[str, Any]):
    """What the gates said, as an event tells it; spelt out only when the event is written.

    By gate: nanoseconds; and where it said more than a plain yes, also its verdict and its rule.
    """

    __slots__ = ("_told",)

    def __init__(self, trail: Trail) -> None:
        self._told = trail.told  # not the trail: an event may be kept for long

    def copy(self) -> dict[str, Any]:
        """All of it at once, as a dict."""
        said: dict[str, Any] = {}
        told = self._told
        for at in range(0, len(told), 2):
            decision, took = told[at], told[at + 1]
            if decision.rule is None and decision.verdict is ALLOWED:
                said[decision.gate] = took
            else:
                said[decision.gate] = [took, str(decision.verdict), decision.rule]
        return said

    def __getitem__(self, gate: str) -> Any:
        return self.copy()[gate]

    def __iter__(self) -> Iterator[str]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self._told) // 2

    def items(self) -> ItemsView[str, Any]:
        return self.copy().items()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What would happen: the decisions of every gate that was asked, and nothing done."""

    decisions: tuple[Timed, ...]
    arguments: Mapping[str, Any]
    verdict: str
    code: str | None
    reason: str
