"""A state within bounds: what a person could not read anyway is said to be there, and left out.

Whatever a probe tells, a packet can be made of it, and is made quickly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["bounded"]

_DEEPEST: Final = 32
_MOST_VALUES: Final = 4_000
_MOST_CHARACTERS: Final = 200_000
_LARGEST: Final = 2**53 - 1
_DEEPER: Final = f"[nested deeper than {_DEEPEST} levels, not shown]"


def bounded(state: Any) -> Any:
    """A copy as plain JSON data. Numbers that JSON can't carry become text."""
    return _Copy().of(state, 0)


class _Copy:
    __slots__ = ("characters", "values")

    def __init__(self) -> None:
        self.values, self.characters = _MOST_VALUES, _MOST_CHARACTERS

    def of(self, value: Any, depth: int) -> Any:
        self.values -= 1
        if isinstance(value, str):
            return self._text(value)
        if not isinstance(value, Mapping | list | tuple):
            return _scalar(value)
        if depth >= _DEEPEST:
            return _DEEPER
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        made: list[Any] = []
        for item in value:
            if self._is_full:
                made.append(_more(len(value) - len(made)))
                break
            made.append(self.of(item, depth + 1))
        return made

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for count, (key, item) in enumerate(value.items()):
            if self._is_full:
                made[_unused("[more]", made)] = _more(len(value) - count)
                break
            name = self._text(str(key))
            made[_unused(name, made)] = self.of(item, depth + 1)
        return made

    @property
    def _is_full(self) -> bool:
        return self.values <= 0 or self.characters <= 0

    def _text(self, value: str) -> str:
        kept = value[: max(self.characters, 0)]
        self.characters -= len(kept)
        rest = len(value) - len(kept)
        whole = kept.encode(errors="replace").decode()
        return f"{whole}[{rest:,} more characters, not shown]" if rest else whole


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if -_LARGEST <= value <= _LARGEST else _number(value)
    return f"[{type(value).__name__}]"


def _number(value: float) -> str:
    try:
        return str(value)
    except ValueError:
        return "[a number of too many digits]"


def _more(count: int) -> str:
    return f"[{count:,} more, not shown]"


def _unused(name: str, taken: Iterable[str]) -> str:
    shown, number = name, 2
    while shown in taken:
        shown, number = f"{name} ({number})", number + 1
    return shown
