"""What a person should look at: collected while an operation is read, written beside its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Notes", "Review", "UnsupportedError"]


class UnsupportedError(ValueError):
    """An operation can't be expressed. Says why, in words that end a sentence."""


class Review(NamedTuple):
    """Something that was guessed, changed or left out, and where in the contract it shows."""

    pointer: str
    """Empty for what concerns the whole."""
    text: str


@dataclass(slots=True)
class Notes:
    """The reviews of one operation, each once."""

    reviews: dict[Review, None] = field(default_factory=dict)

    def add(self, pointer: str, text: str) -> None:
        self.reviews.setdefault(Review(pointer, text))
