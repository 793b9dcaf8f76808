"""Two questions about a regular expression: how long a text can it match, and can it explode?

Our own engine is linear, so neither threatens us; but schemas travel to clients whose engines
backtrack. `is_catastrophic` is a heuristic over the parsed pattern: it looks for a repetition whose
body can match the same text in more than one way.
"""

from __future__ import annotations

# The parser has no public name; it is the standard library's own reading of a pattern.
import re
from collections.abc import Callable
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

__all__ = ["is_bounded", "is_catastrophic"]

_UNICODE_CLASS = re.compile(r"\\[pP](?:\{\w+\}|\w)")
_MANY = 32
"""A bounded repetition above this is as bad as an endless one."""
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT)
_SAMPLE = frozenset(range(256))


def _parse(pattern: str) -> Any | None:
    # Other engines' spellings that Python's parser does not know.
    spelt = _UNICODE_CLASS.sub(r"\\w", pattern.replace("(?<", "(?P<").replace("(?P<=", "(?<="))
    try:
        return _parser.parse(spelt.replace("(?P<!", "(?<!"))
    except (re.error, RecursionError, OverflowError):
        return None


def is_bounded(pattern: str) -> bool:
    """Whether the pattern spans the whole text and limits its length."""
    parsed = _parse(pattern)
    if not parsed:
        return False
    first, last = parsed[0], parsed[-1]
    starts = first in ((sre.AT, sre.AT_BEGINNING), (sre.AT, sre.AT_BEGINNING_STRING))
    ends = last in ((sre.AT, sre.AT_END), (sre.AT, sre.AT_END_STRING))
    return starts and ends and bool(parsed.getwidth()[1] < 100_000)


def is_catastrophic(pattern: str) -> bool:
    """Whether a backtracking engine could take exponential time over some text."""
    parsed = _parse(pattern)
    return parsed is not None and _explodes(parsed)


def _explodes(sequence: Any) -> bool:
    for operator, argument in sequence:
        if operator in _REPEATS and argument[1] > _MANY and _ambiguous(argument[2]):
            return True
        if any(_explodes(inner) for inner in _parts(operator, argument)):
            return True
    return False


def _parts(operator: Any, argument: Any) -> list[Any]:
    """The sequences inside one item."""
    if operator in _REPEATS:
        return [argument[2]]
    if operator is sre.SUBPATTERN:
        return [argument[3]]
    if operator is sre.BRANCH:
        return list(argument[1])
    return [argument] if operator is sre.ATOMIC_GROUP else []


def _ambiguous(body: Any) -> bool:
    """Whether two rounds of a repeated body can match what one round, or other rounds, match."""
    items = _flat(body)
    for index, item in enumerate(items):
        if item[0] is sre.BRANCH and _branches_overlap(item[1][1]):
            return True
        if not _varies(item):
            continue
        others = [other for i, other in enumerate(items) if i != index and _needed(other)]
        if all(_letters([other]) & _letters([item]) for other in others):
            return True
    return False


def _varies(item: Any) -> bool:
    """Whether an item can match texts of different lengths."""
    operator, argument = item
    if operator in _REPEATS and argument[0] != argument[1]:
        return True
    widths = [part.getwidth() for part in _parts(operator, argument)]
    return len({width for pair in widths for width in pair}) > 1


def _branches_overlap(branches: list[Any]) -> bool:
    """Whether two branches can begin alike and go on alike."""
    return any(
        list(one) == list(other) or (_letters(_flat(one)[:1]) & _letters(_flat(other)[:1]))
        for index, one in enumerate(branches)
        for other in branches[:index]
    )


def _flat(sequence: Any) -> list[Any]:
    """A sequence with its plain groups opened up."""
    items: list[Any] = []
    for operator, argument in sequence:
        opened = operator is sre.SUBPATTERN
        items.extend(_flat(argument[3]) if opened else [(operator, argument)])
    return items


def _needed(item: Any) -> bool:
    operator, argument = item
    return operator is not sre.AT and not (operator in _REPEATS and argument[0] == 0)


def _letters(sequence: Any) -> frozenset[int]:
    """Every character that a sequence can match, judged on a sample."""
    found: frozenset[int] = frozenset()
    for operator, argument in sequence:
        if operator is sre.LITERAL:
            found |= {min(argument, 255)}
        elif operator is sre.NOT_LITERAL:
            found |= _SAMPLE - {argument}
        elif operator is sre.ANY:
            found |= _SAMPLE
        elif operator is sre.IN:
            found |= _set_letters(argument)
        else:
            for inner in _parts(operator, argument):
                found |= _letters(inner)
    return found


def _set_letters(items: Any) -> frozenset[int]:
    found: frozenset[int] = frozenset()
    for operator, argument in items:
        if operator is sre.LITERAL:
            found |= {min(argument, 255)}
        elif operator is sre.RANGE:
            found |= {min(code, 255) for code in range(argument[0], min(argument[1], 255) + 1)}
        elif operator is sre.CATEGORY:
            found |= _category_letters(argument)
    return _SAMPLE - found if items and items[0][0] is sre.NEGATE else found


def _category_letters(category: Any) -> frozenset[int]:
    tests: dict[Any, Callable[[str], bool]] = {
        sre.CATEGORY_DIGIT: str.isdigit,
        sre.CATEGORY_SPACE: str.isspace,
        sre.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
        sre.CATEGORY_NOT_DIGIT: lambda char: not char.isdigit(),
        sre.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
        sre.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
    }
    test = tests.get(category)
    return frozenset(code for code in _SAMPLE if test is None or test(chr(code)))
