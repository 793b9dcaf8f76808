"""What the ledger costs: a change through it, beside the same rows written by hand.

A call that changes something is two commits, one before its tool runs and one after. Beside the
SQLite store stands a loop that writes the very same rows with two commits, for one call or for all
that are in flight; beside the Postgres store stands pgbench with the very same statements. Then
each store is asked the same when it holds few calls and many. What is compared takes turns, on one
disk and one server. "call" goes through the runtime and all its gates, "store" is what the store
alone does of it. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _ledger_growth as growth
from benchmarks import _ledger_postgres as postgres
from benchmarks import _ledger_sqlite as sqlite
from benchmarks._ledger_calls import sample
from benchmarks._ledger_turns import Reading, load
from tests.postgres_server import fresh_database, shared

FULL = {"rounds": 15, "few_rounds": 5, "in_flight": 512, "postgres_calls": 3072, "many": 1_000_000}
QUICK = {"rounds": 7, "few_rounds": 3, "in_flight": 512, "postgres_calls": 1024, "many": 100_000}
PARTS = ("sqlite", "postgres", "growth")


async def measure(sizes: dict[str, int], parts: list[str]) -> list[Reading]:
    of = await sample()
    readings: list[Reading] = []
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name:
        folder = Path(name)
        if "sqlite" in parts:
            readings += await sqlite.read(folder, of, sizes)
        if "postgres" in parts:
            readings += await postgres.read(_databases(), folder, of, sizes)
        if "growth" in parts:
            readings += await growth.sqlite(folder, of, sizes)
            readings += await growth.postgres(_databases(), of, sizes)
    return readings


def _databases() -> list[str]:
    return [fresh_database(shared()) for _ in range(2)]


def report(sizes: dict[str, int], parts: list[str]) -> dict[str, Any]:
    before = load()
    readings = asyncio.run(measure(sizes, parts))
    return {
        "benchmark": "ledger",
        "sizes": sizes,
        "load_average": {"before": before, "after": load()},
        "python": platform.python_version(),
        "rows": [
            {
                "name": one.name,
                "ratio": round(one.ratio, 2),
                "target": one.target or None,
                "us_per_call": round(one.microseconds, 1),
                "us_beside": round(one.beside, 1),
            }
            for one in readings
        ],
    }


def show(figures: dict[str, Any]) -> None:
    about = figures["load_average"]
    print(f"in turns; load average {about['before']} before, {about['after']} after")
    print(f"{'':<72}{'ratio':>7}{'target':>8}{'µs a call':>11}{'beside':>10}")
    for row in figures["rows"]:
        times = f"{row['us_per_call']:>11,}{row['us_beside']:>10,}"
        print(f"{row['name']:<72}{row['ratio']:>7}{row['target'] or '':>8}{times}")


def main() -> None:
    parser = argparse.ArgumentParser(description="The ledger beside the same rows by hand.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, calls and rows")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; can be repeated")
    options = parser.parse_args()
    figures = report(QUICK if options.quick else FULL, options.part or list(PARTS))
    if options.json:
        print(json.dumps(figures))
    else:
        show(figures)


if __name__ == "__main__":
    main()
