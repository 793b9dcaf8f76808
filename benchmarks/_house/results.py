"""What a run found, in a file that is written anew with every row."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._house.rows import Result


class Missing(NamedTuple):
    """A party that could not take part."""

    party: str
    why: str


class Results:
    """Rows by their keys, in the order in which they came."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.rows: dict[str, Result] = {}
        self.missed: dict[str, Missing] = {}
        self.machine = machine()

    def add(self, row: Result) -> None:
        self.rows[row.key] = row
        self.write()

    def miss(self, missing: Missing) -> None:
        self.missed[missing.party] = missing
        self.write()

    def merged(self, newer: Results) -> Results:
        """These, with a newer run's rows in place of all that its benchmarks have left here."""
        both = Results()
        both.machine = newer.machine
        measured = {row.benchmark for row in newer.rows.values()}
        old = {key: row for key, row in self.rows.items() if row.benchmark not in measured}
        both.rows = {**old, **newer.rows}
        took_part = {side.name for row in newer.rows.values() for side in (row.ours, row.theirs)}
        kept = {name: one for name, one in self.missed.items() if name not in took_part}
        both.missed = {**kept, **newer.missed}
        return both

    def record(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "rows": [row.record() for row in self.rows.values()],
            "missing": [one._asdict() for one in self.missed.values()],
        }

    def write(self, path: Path | None = None) -> None:
        """Into its file, whole or not at all."""
        target = path or self._path
        if target is None:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_suffix(".new")
        new.write_text(
            json.dumps(self.record(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        new.replace(target)

    @classmethod
    def read(cls, path: Path) -> Results:
        """What a file says; nothing where there is none."""
        made = cls()
        if not path.is_file():
            return made
        record: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        made.machine = record["machine"]
        made.rows = {row["key"]: Result.read(row) for row in record["rows"]}
        made.missed = {one["party"]: Missing(**one) for one in record["missing"]}
        return made


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": _processor(),
        "processors": os.cpu_count(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
