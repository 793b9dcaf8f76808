"""Trouble: an error for the user, printed without a traceback."""

from __future__ import annotations

__all__ = ["Trouble"]


class Trouble(Exception):  # noqa: N818 - it is not a bug
    """Says what is wrong and what to do."""

    def __init__(self, words: str, fix: str = "") -> None:
        super().__init__(f"{words}\n{fix}" if fix else words)
