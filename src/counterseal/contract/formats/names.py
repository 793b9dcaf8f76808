"""Contract names as a provider takes them, and back again, one to one.

A name that the provider takes stays as it is. Any other becomes a readable prefix and a piece of
its own hash, so that it is the same in every catalogue. Nothing here knows what a name stands for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import count

from counterseal.errors import CountersealError

__all__ = ["MCP_CHARACTERS", "MCP_LIMIT", "NameMap", "UnknownNameError"]

CHARACTERS = "a-zA-Z0-9_-"
LIMIT = 64
"""What OpenAI and Anthropic document. Anthropic's API takes 128; some of its clients do not."""

MCP_CHARACTERS = "a-zA-Z0-9_.-"
MCP_LIMIT = 128

_SHORTEST_HASH = 8


class UnknownNameError(CountersealError, LookupError):
    """A name that the map was not made for."""


class NameMap:
    """A fixed set of contract names, each with its provider name.

    Names that fit are reserved first, so that a made-up name never takes the place of a real one.
    `characters` is the inside of a regular expression's character class.
    """

    __slots__ = ("_contracts", "_providers")

    def __init__(
        self, names: Iterable[str], *, characters: str = CHARACTERS, limit: int = LIMIT
    ) -> None:
        if limit < _SHORTEST_HASH + 2:
            raise ValueError(f"a limit of {limit} characters leaves no room for a hash")
        fits = re.compile(rf"[{characters}]{{1,{limit}}}")
        # Sorted, so that the order in which tools were registered decides nothing.
        wanted = sorted(set(names))
        self._providers = {name: name for name in wanted if fits.fullmatch(name)}
        self._contracts = dict(self._providers)
        for name in wanted:
            if name in self._providers:
                continue
            readable = re.sub(rf"[^{characters}]", "_", name)
            free = (c for c in _candidates(name, readable, limit) if c not in self._contracts)
            self._providers[name] = next(free)
            self._contracts[self._providers[name]] = name

    def to_provider(self, name: str) -> str:
        try:
            return self._providers[name]
        except KeyError:
            raise UnknownNameError(f"no contract named {name!r} is in this map") from None

    def to_contract(self, provider_name: str) -> str:
        try:
            return self._contracts[provider_name]
        except KeyError:
            raise UnknownNameError(f"no tool was offered as {provider_name!r}") from None


def _candidates(name: str, readable: str, limit: int) -> Iterator[str]:
    """Ever longer hashes, then hashes of the name and a number: it never runs out."""
    raw = name.encode("utf-8", "surrogatepass")
    for number in count():
        salt = f"\0{number}".encode() if number else b""
        digest = hashlib.sha256(raw + salt).hexdigest()
        for size in range(_SHORTEST_HASH, min(limit - 2, len(digest)) + 1):
            yield f"{readable[: limit - size - 1]}_{digest[:size]}"
