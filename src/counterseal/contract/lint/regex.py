"""Judge regular expressions: is the matched text bounded, and can a backtracking engine explode?

Counterseal matches patterns with a linear-time engine, so a pattern cannot stall it. Schemas also
travel to clients whose engines backtrack, which is why `is_catastrophic` looks for a repetition
whose body can match the same text in more than one way. It is a heuristic. Python's `re` decides
whether a text is a pattern at all and what a single character class matches; the few lines of
parsing here only recover the structure of groups, branches and repetitions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

_MANY: Final = 32
"""A bounded repetition above this is as bad as an endless one."""
_LONGEST: Final = 100_000
_SAMPLE: Final = "".join(map(chr, range(256)))
"""The characters on which character classes are compared."""

_UNICODE_CLASS = re.compile(r"\\[pP](?:\{\w+\}|\w)")
_NAMED_GROUP = re.compile(r"\(\?<(?![=!])")
_TOKEN = re.compile(
    r"""
      (?P<skip> \(\?\#[^)]*\) | \(\?[aiLmsux]+\) )
    | (?P<look> \(\?<?[=!] )
    | (?P<open> \( (?: \?P<\w+> | \?[aiLmsux-]*: | \?> | \?\(\w+\) )? )
    | (?P<close> \) )
    | (?P<bar> \| )
    | (?P<repeat>
        (?: (?P<sign>[*+?]) | \{(?P<low>\d*)(?P<comma>,?)(?P<high>\d*)\} (?<!\{\}) ) [?+]?
      )
    | (?P<start> \^ | \\A )
    | (?P<end> \$ | \\Z )
    | (?P<edge> \\[bB] )
    | (?P<atom>
        \[ \^? \]? (?: \\. | [^]\\] )* \] | \\x[0-9a-fA-F]{2} | \\u[0-9a-fA-F]{4} | \\. | .
      )
    """,
    re.VERBOSE | re.DOTALL,
)
_SIGNS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True)
class _Piece:
    """A character, a class, an anchor or a group, with its repetition."""

    kind: str
    letters: frozenset[str] = frozenset()
    """The sample characters that occur in what it matches."""
    low: int = 1
    high: float = 1
    branches: tuple[tuple[_Piece, ...], ...] = ()
    """The alternatives of a group."""
    once: tuple[int, float] = (0, 0)
    """The shortest and the longest text of one round."""

    @property
    def width(self) -> tuple[int, float]:
        """The shortest and the longest text of all rounds."""
        short, long = self.once
        return self.low * short, self.high * long if long else 0


def is_bounded(pattern: str) -> bool:
    """Return whether the pattern spans the whole text and limits its length."""
    whole = _parse(pattern)
    if whole is None or len(whole.branches) != 1 or not whole.branches[0]:
        return False
    pieces = whole.branches[0]
    return pieces[0].kind == "start" and pieces[-1].kind == "end" and whole.width[1] < _LONGEST


def is_catastrophic(pattern: str) -> bool:
    """Return whether a backtracking engine could take exponential time over some text."""
    whole = _parse(pattern)
    return whole is not None and _explodes(whole)


def _parse(pattern: str) -> _Piece | None:
    """Return the pattern as one group, or None when `re` does not take it."""
    # Spellings of other engines that Python's `re` does not know.
    text = _NAMED_GROUP.sub("(?P<", _UNICODE_CLASS.sub(r"\\w", pattern))
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return None
    kinds = ["open"]
    groups: list[list[list[_Piece]]] = [[[]]]
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup or ""
        if kind in ("open", "look"):
            kinds.append(kind)
            groups.append([[]])
        elif kind == "close":
            piece = _group(groups.pop())
            # A lookaround takes no text, so it bounds and repeats nothing.
            groups[-1][-1].append(piece if kinds.pop() == "open" else _Piece("edge"))
        elif kind == "bar":
            groups[-1].append([])
        elif kind == "repeat" and groups[-1][-1]:
            low, high = _rounds(token)
            groups[-1][-1][-1] = replace(groups[-1][-1][-1], low=low, high=high)
        elif kind in ("start", "end", "edge"):
            groups[-1][-1].append(_Piece(kind))
        elif kind != "skip":
            groups[-1][-1].append(_Piece("atom", _letters_of(token[0]), once=(1, 1)))
    return _group(groups[0])


def _rounds(token: re.Match[str]) -> tuple[int, float]:
    """Return how often a quantifier repeats, at least and at most."""
    if token["sign"]:
        low, most = _SIGNS[token["sign"]]
        return low, float("inf") if most is None else most
    low = int(token["low"] or 0)
    if not token["comma"]:
        return low, low
    return low, int(token["high"]) if token["high"] else float("inf")


def _letters_of(atom: str) -> frozenset[str]:
    """Return the sample characters that a single character or class matches."""
    try:
        letters = frozenset(re.findall(atom, _SAMPLE, re.DOTALL))
    except re.error:
        return frozenset(_SAMPLE)  # a back reference, which can repeat anything
    return letters or frozenset(_SAMPLE[-1])  # the last stands for all characters beyond the sample


def _group(branches: list[list[_Piece]]) -> _Piece:
    """Return a group of alternatives; what they all begin with is taken out before them."""
    shared: list[_Piece] = []
    while len(branches) > 1 and all(branches) and all(b[0] == branches[0][0] for b in branches):
        shared.append(branches[0][0])
        branches = [branch[1:] for branch in branches]
    if shared:
        branches = [[*shared, _group(branches)]]
    widths = [_width(branch) for branch in branches]
    return _Piece(
        "group",
        frozenset(char for branch in branches for piece in branch for char in piece.letters),
        branches=tuple(map(tuple, branches)),
        once=(min(short for short, _ in widths), max(long for _, long in widths)),
    )


def _width(pieces: Sequence[_Piece]) -> tuple[int, float]:
    return sum(piece.width[0] for piece in pieces), sum(piece.width[1] for piece in pieces)


def _explodes(piece: _Piece) -> bool:
    if piece.high > _MANY and _ambiguous(replace(piece, low=1, high=1)):
        return True
    return any(_explodes(inner) for branch in piece.branches for inner in branch)


def _ambiguous(body: _Piece) -> bool:
    """Return whether several rounds of a repeated body can match what other rounds match."""
    items = _flat(body)
    for index, item in enumerate(items):
        if len(item.branches) > 1 and _overlap(item.branches):
            return True
        if item.width[0] == item.width[1]:
            continue
        others = [other for i, other in enumerate(items) if i != index and _needed(other)]
        if all(other.letters & item.letters for other in others):
            return True
    return False


def _overlap(branches: tuple[tuple[_Piece, ...], ...]) -> bool:
    """Return whether two alternatives are equal or can begin with the same character."""
    return any(
        one == other or _first(one) & _first(other)
        for index, one in enumerate(branches)
        for other in branches[:index]
    )


def _first(branch: tuple[_Piece, ...]) -> frozenset[str]:
    """Return the characters with which a branch can begin."""
    letters: frozenset[str] = frozenset()
    for item in (item for piece in branch for item in _flat(piece)):
        letters |= item.letters
        if _needed(item):
            break
    return letters


def _flat(piece: _Piece) -> list[_Piece]:
    """Return a piece with its plain groups opened up: no repetition, no alternatives."""
    if len(piece.branches) != 1 or (piece.low, piece.high) != (1, 1):
        return [piece]
    return [item for inner in piece.branches[0] for item in _flat(inner)]


def _needed(item: _Piece) -> bool:
    return item.low > 0 and item.kind in ("atom", "group")
