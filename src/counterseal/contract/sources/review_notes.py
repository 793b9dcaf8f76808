"""Notes for the person who reviews an imported contract, collected while a source is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class UnsupportedError(ValueError):
    """An operation can't be expressed as a contract; the message gives the reason."""


class Review(NamedTuple):
    """A guess, change or omission, with its place in the contract."""

    pointer: str
    """Empty for the contract as a whole."""
    text: str
    raised: bool = False
    """True if the effect was raised above the usual one."""


@dataclass(slots=True)
class Notes:
    """The notes on one operation, without repetitions."""

    reviews: dict[Review, None] = field(default_factory=dict)

    def add(self, pointer: str, text: str, *, raised: bool = False) -> None:
        self.reviews.setdefault(Review(pointer, text, raised))
