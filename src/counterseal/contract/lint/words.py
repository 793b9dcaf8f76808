"""Takes a name apart into its words."""

from __future__ import annotations

import re

__all__ = ["words_of"]

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


def words_of(name: str) -> list[str]:
    """A name's words in lower case and in the singular: `fileUrls` is file, url."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return [
        word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] != "s" else word
        for word in words
    ]
