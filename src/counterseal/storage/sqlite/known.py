"""What this store knows of its file without a look: what it has read there, or written, itself.

SQLite tells whether anybody else has committed since it was last asked. If so, all of it is
forgotten. What is written is known from then on, or forgotten. So is everything when a transaction
does not end well.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from counterseal.storage.base import RunRecord

__all__ = ["Counter", "Known", "RestsOn"]

Counter = tuple[str, str, str]
"""Whose it is, of which run (of none: the tenant's own), and its name."""
_K = TypeVar("_K")
_V = TypeVar("_V")
_MOST: Final = 4096
"""How much of a kind is kept."""


class RestsOn(NamedTuple):
    """What an admission rests on beside its own key."""

    epoch: int
    """The number of the last change to the registry."""
    pins: Mapping[str, str] | None
    """The run's; None: there is no such run."""
    changes: int
    """How often the run's state was changed."""


class Known:
    """Found under the same keys as in the file. What is not here may be there."""

    __slots__ = (
        "_ask",
        "_held",
        "_next",
        "_version",
        "arrivals",
        "implicit",
        "rests_on",
        "runs",
        "spent",
    )

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._ask = cursor.execute
        self._next = cursor.fetchone
        self._version = -1
        self._held = False
        """Whether it holds because the file is looked at as it was when that was asked."""
        self.spent: dict[Counter, float] = {}
        self.arrivals: dict[tuple[str, str], float] = {}
        self.rests_on: dict[tuple[str, str], RestsOn] = {}
        self.runs: dict[tuple[str, str], RunRecord] = {}
        self.implicit: dict[tuple[str, str, str], tuple[str, float]] = {}
        """Which run somebody is in who names none, and when it was last written that they are."""

    def is_current(self) -> bool:
        """Whether it still holds. If it does not, nothing is known any more.

        Within a transaction this is so until its end, but for what is written there.
        """
        if self._held:
            return True
        # Another number whenever another connection has committed, to whichever process it belongs.
        self._ask("PRAGMA data_version")
        (version,) = self._next()
        if version == self._version:
            return True
        self._version = version
        self.forget()
        return False

    def hold(self) -> bool:
        """The same at the begin of a transaction; then it is so until `let_go`."""
        current = self.is_current()
        self._held = True
        return current

    def let_go(self) -> None:
        """It has to be asked again."""
        self._held = False

    def forget(self) -> None:
        """All of it."""
        self.spent.clear()
        self.arrivals.clear()
        self.rests_on.clear()
        self.runs.clear()
        self.implicit.clear()

    def forget_run(self, tenant: str, run_id: str) -> None:
        """A run, but not what was spent in it."""
        self.rests_on.pop((tenant, run_id), None)
        self.runs.pop((tenant, run_id), None)

    @staticmethod
    def keep(kept: dict[_K, _V], key: _K, value: _V) -> _V:
        """Remember what was read. Whoever goes through more than fits begins anew."""
        if len(kept) >= _MOST:
            kept.clear()
        kept[key] = value
        return value
