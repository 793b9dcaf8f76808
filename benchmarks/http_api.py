"""Calls over the HTTP API, beside a JSON endpoint of Starlette that does nothing with them.

All are served alike, as `counterseal serve` does it, in processes of their own, over loopback, and
take turns. The API checks a credential and a rate, takes each call through every gate, runs the
tool and puts it on record: in memory, or in SQLite. `echo` changes nothing; `note` does, so that
two commits are in each of its calls, durable ones in SQLite. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _http_servers as servers
from benchmarks._gateway_parties import Party
from benchmarks._gateway_parties import _await as await_port
from benchmarks._gateway_parties import _free_port as free_port
from benchmarks._gateway_parties import _stop as stop
from benchmarks._http_load import spend, writer
from benchmarks._ledger_turns import in_turns, load

FULL = {"rounds": 9, "seconds": 1.0}
QUICK = {"rounds": 3, "seconds": 0.4}
BUSY = 32
ENOUGH = 0.5
"""How many times the requests per second of the bare endpoint are wanted, with BUSY in flight."""
OURS = ("memory", "sqlite")
"""The API, by where it keeps its record."""


class Cell(NamedTuple):
    tool: str
    in_flight: int


CELLS = [Cell("echo", 1), Cell("echo", BUSY), Cell("note", BUSY)]


async def rows(
    those: dict[str, Party], keys: dict[str, str], sizes: dict[str, float]
) -> list[dict[str, Any]]:
    made = []
    for cell in CELLS:
        taken = {name: [0, 0.0] for name in those}
        blocks = {
            name: _block(party, keys[name], cell, sizes["seconds"], taken[name])
            for name, party in those.items()
        }
        times = await in_turns(f"{cell.tool}, {cell.in_flight}", blocks, int(sizes["rounds"]))
        wanted = cell == Cell("echo", BUSY)
        made.append(
            {
                **cell._asdict(),
                "requests_per_second": {
                    name: round(1 / statistics.median(one)) for name, one in times.items()
                },
                "cpu_ms_of_a_request": {
                    name: round(seconds / calls * 1000, 3)
                    for name, (calls, seconds) in taken.items()
                },
                "beside_bare": {
                    name: {
                        **_beside(times["bare"], times[name]),
                        "target": f"≥ {ENOUGH}" if wanted else None,
                    }
                    for name in OURS
                },
            }
        )
    return made


def _beside(bare: list[float], ours: list[float]) -> dict[str, float]:
    """How many times the requests per second, of what was measured side by side."""
    each = [one / other for one, other in zip(bare, ours, strict=True)]
    low, median, high = statistics.quantiles(each, n=4, method="inclusive")
    return {"median": round(median, 2), "low": round(low, 2), "high": round(high, 2)}


def _block(
    party: Party, key: str, cell: Cell, seconds: float, taken: list[Any]
) -> Callable[[], Awaitable[float]]:
    port = int(party.url.rpartition(":")[2])

    async def block() -> float:
        before = party.cpu()
        calls, took = await spend(port, writer(port, key, cell.tool), cell.in_flight, seconds)
        taken[0] += calls
        taken[1] += party.cpu() - before
        return took / calls

    return block


@contextmanager
def parties(folder: Path) -> Iterator[dict[str, Party]]:
    """All servers, ready."""
    started: list[subprocess.Popen[bytes]] = []
    made = {}
    try:
        for name in ("bare", *OURS):
            port, log = free_port(), folder / f"{name}.log"
            command = [sys.executable, servers.__file__, name, str(port), str(folder)]
            with log.open("wb") as stream:
                process = subprocess.Popen(command, stdout=stream, stderr=stream)
            started.append(process)
            await_port(name, process, port, log)
            made[name] = Party(f"http://{servers.HOST}:{port}", process.pid)
        yield made
    finally:
        for process in reversed(started):
            stop(process)


def report(sizes: dict[str, float]) -> dict[str, Any]:
    before = load()
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name:
        folder = Path(name)
        with parties(folder) as those:
            keys = {name: (folder / name).read_text(encoding="ascii") for name in OURS}
            made = asyncio.run(rows(those, {"bare": "none", **keys}, sizes))
    return {
        "benchmark": "http",
        "sizes": sizes,
        "parser": "h11, asyncio" if os.environ.get("BENCH_PLAIN") else "httptools, uvloop",
        "processors": os.cpu_count(),
        "load_average": {"before": before, "after": load()},
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("fastapi", "starlette", "uvicorn")},
        "rows": made,
    }


def show(figures: dict[str, Any]) -> None:
    about, versions = figures["load_average"], figures["versions"]
    print(
        f"in turns; client and server share {figures['processors']} processors; load average "
        f"{about['before']} before, {about['after']} after; "
        f"Starlette {versions['starlette']}, uvicorn {versions['uvicorn']}, {figures['parser']}"
    )
    heads = "".join(f"{name:>9}" for name in ("bare", *OURS))
    ratios = "".join(f"{f'{name} / bare':>22}" for name in OURS)
    print(f"\n{'requests per second':<22}{heads}{ratios}{'ms of a processor':>24}")
    for one in figures["rows"]:
        rates = "".join(f"{one['requests_per_second'][who]:>9,}" for who in ("bare", *OURS))
        beside = "".join(f"{_ratio(one['beside_bare'][who]):>22}" for who in OURS)
        work = " ".join(f"{one['cpu_ms_of_a_request'][who]:.2f}" for who in ("bare", *OURS))
        print(f"{one['tool']:<5} {one['in_flight']:>3} in flight   {rates}{beside}{work:>24}")
    print(f"target, for echo with {BUSY} in flight: at least {ENOUGH}x")


def _ratio(beside: dict[str, Any]) -> str:
    return f"{beside['median']:.2f} ({beside['low']:.2f} to {beside['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--plain", action="store_true", help="without httptools and uvloop")
    options = parser.parse_args()
    if options.plain:
        os.environ["BENCH_PLAIN"] = "1"
    figures = report(QUICK if options.quick else FULL)
    if options.json:
        print(json.dumps(figures))
    else:
        show(figures)


if __name__ == "__main__":
    main()
