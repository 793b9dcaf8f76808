"""What ends the program with a plain word instead of a trace."""

from __future__ import annotations

__all__ = ["Trouble"]


class Trouble(Exception):  # noqa: N818 - it is read by people, and is no bug
    """What is wrong, and what to do about it."""

    def __init__(self, words: str, fix: str = "") -> None:
        super().__init__(f"{words}\n{fix}" if fix else words)
