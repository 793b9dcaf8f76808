"""How many rounds there were of each kind, and what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from .rounds import Outcome

__all__ = ["Summary"]


class Summary:
    """By point and store."""

    COLUMNS: ClassVar = (
        "rounds",
        "struck",
        "performed",
        "retried",
        "read back",
        "not done",
        "escalated",
        "reversed",
        "violations",
        "seconds",
    )
    _TALLIES: ClassVar = {
        "performed": "performed",
        "asked again": "retried",
        "found": "read back",
        "not_done": "not done",
        "escalated": "escalated",
        "compensated": "reversed",
    }

    def __init__(self, record: Mapping[str, Any] | None = None) -> None:
        self._rows: dict[tuple[str, str], Counter[str]] = {}
        for one in (record or {}).get("rows", ()):
            counts = {name: one[name] for name in self.COLUMNS}
            self._rows[one["point"], one["store"]] = Counter(counts)

    def add(self, outcome: Outcome) -> None:
        plan = outcome.plan
        row = self._rows.setdefault((plan.point, plan.store), Counter())
        row["rounds"] += 1
        row["struck"] += bool(outcome.struck)
        row["violations"] += bool(outcome.violations)
        row["seconds"] += outcome.seconds
        for name, column in self._TALLIES.items():
            row[column] += outcome.tally[name]

    @property
    def violations(self) -> int:
        return sum(row["violations"] for row in self._rows.values())

    def rows(self) -> Iterator[tuple[tuple[str, str], Counter[str]]]:
        yield from self._rows.items()

    def record(self) -> dict[str, Any]:
        rows = [
            {"point": point, "store": store, **{name: row[name] for name in self.COLUMNS}}
            for (point, store), row in self._rows.items()
        ]
        return {"violations": self.violations, "rows": rows}
