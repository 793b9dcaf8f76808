"""Cuts long text to what is shown of it, so that no half of a secret stands at the edge.

A mask finds whole secrets only. So more than is shown is kept, masked, and cut after that; and of a
text that had to be cut before, the edge is left out, where half a secret would not be found.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

from counterseal.masking import SHORTEST, Mask

__all__ = ["NO_COVER", "Cover"]

_WIDEST = 16
"""How much longer than a secret any form of it is: escaped, escaped again, or wrapped."""
_WIDEST_MARGIN = 256 * 1024


class Cover:
    """The secrets of one call, which both sides of the pipe have to hide."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = {k: value for k, value in secrets.items() if len(value) >= SHORTEST}
        longest = max(map(len, self._secrets.values()), default=0)
        self.margin = min(longest * _WIDEST + 1024, _WIDEST_MARGIN) if longest else 0
        """How many characters a secret at an edge can take up."""

    @cached_property
    def _mask(self) -> Mask:  # most calls say nothing that it is needed for
        return Mask(self._secrets)

    def text(self, text: str) -> str:
        """All of it, masked."""
        return self._mask.text(text) if self._secrets else text

    def kept(self, most: int) -> int:
        """How much has to be kept of what is shown up to this length."""
        return most + 2 * self.margin

    def beginning(self, text: str, most: int, *, cut: bool = False) -> str:
        """The first so many characters, masked. `cut` says that the text went on once."""
        kept = self.kept(most)
        clean = self.text(text[:kept])
        if (cut or len(text) > kept) and self.margin:
            clean = clean[: -self.margin]
        return clean[:most]

    def ending(self, text: str, most: int, *, cut: bool = False) -> str:
        """The last so many characters, masked. `cut` says that there was more before them."""
        kept = self.kept(most)
        clean = self.text(text[-kept:])
        if (cut or len(text) > kept) and self.margin:
            clean = clean[self.margin :]
        return clean[-most:]


NO_COVER: Final = Cover({})
