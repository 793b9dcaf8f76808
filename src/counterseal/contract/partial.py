"""What a tool returns when it did some of its work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Partial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """Which steps are done, which are not.

    An exception among the failed steps is shown by the name of its type only.
    """

    completed: Sequence[Any] = ()
    failed: Sequence[Any] = ()
    data: Any = None
    """The tool's output as declared, as far as there is one."""
