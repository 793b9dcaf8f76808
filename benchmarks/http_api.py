"""Calls over the HTTP API, beside a JSON endpoint of Starlette that does nothing with them.

Both are served by uvicorn with the same settings, in processes of their own, over loopback, and
take turns. The API checks a credential and a rate, takes each call through every gate, runs the
tool and puts it on record in SQLite. `echo` changes nothing; `note` does, so that two durable
commits are in each of its calls. Nothing is asserted.
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
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _http_servers as servers
from benchmarks._gateway_parties import Party
from benchmarks._gateway_parties import _await as await_port
from benchmarks._gateway_parties import _free_port as free_port
from benchmarks._gateway_parties import _stop as stop
from benchmarks._gateway_wire import _Line as Line
from benchmarks._ledger_turns import in_turns, load

FULL = {"rounds": 9, "seconds": 1.0}
QUICK = {"rounds": 3, "seconds": 0.4}
BUSY = 32
ENOUGH = 0.5
"""How many times the requests per second of the bare endpoint are wanted, with BUSY in flight."""
TEXT = "a line of text that is given back, "

_numbers = count()


class Cell(NamedTuple):
    tool: str
    in_flight: int


CELLS = [Cell("echo", 1), Cell("echo", BUSY), Cell("note", 1), Cell("note", BUSY)]


async def spend(party: Party, key: str, cell: Cell, seconds: float) -> tuple[int, float]:
    """Ask for so long, everybody at once: how many answers that made, and the seconds in truth."""
    lines = [Line() for _ in range(cell.in_flight)]
    for line in lines:
        await line.open(servers.HOST, int(party.url.rpartition(":")[2]))
    until = time.perf_counter() + seconds

    async def caller(line: Line) -> int:
        made = 0
        while time.perf_counter() < until:
            text = f"{TEXT}{next(_numbers)}"  # never the same: each is an operation of its own
            head, content = await line.exchange(_request(party, key, cell.tool, text))
            if not head.startswith(b"HTTP/1.1 200") or text.encode() not in content:
                sys.exit(f"A call was refused: {(head + content).decode()}")
            made += 1
        return made

    began = time.perf_counter()
    made = sum(await asyncio.gather(*map(caller, lines)))
    took = time.perf_counter() - began
    for line in lines:
        await line.close()
    return made, took


def _request(party: Party, key: str, tool: str, text: str) -> bytes:
    asked = {"tool": tool, "arguments": {"text": text}}
    body = json.dumps(asked, separators=(",", ":")).encode()
    head = (
        f"POST /v1/calls HTTP/1.1\r\nHost: {party.url.removeprefix('http://')}\r\n"
        f"Authorization: Bearer {key}\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def rows(those: dict[str, Party], key: str, sizes: dict[str, float]) -> list[dict[str, Any]]:
    made = []
    for cell in CELLS:
        taken = {name: [0, 0.0] for name in those}
        blocks = {
            name: _block(party, key, cell, sizes["seconds"], taken[name])
            for name, party in those.items()
        }
        times = await in_turns(f"{cell.tool}, {cell.in_flight}", blocks, int(sizes["rounds"]))
        each = [bare / api for bare, api in zip(times["bare"], times["api"], strict=True)]
        low, median, high = statistics.quantiles(each, n=4, method="inclusive")
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
                "api_beside_bare": {
                    "median": round(median, 2),
                    "low": round(low, 2),
                    "high": round(high, 2),
                    "target": f"≥ {ENOUGH}" if wanted else None,
                },
            }
        )
    return made


def _block(
    party: Party, key: str, cell: Cell, seconds: float, taken: list[Any]
) -> Callable[[], Awaitable[float]]:
    async def block() -> float:
        before = party.cpu()
        calls, took = await spend(party, key, cell, seconds)
        taken[0] += calls
        taken[1] += party.cpu() - before
        return took / calls

    return block


@contextmanager
def parties(folder: Path) -> Iterator[dict[str, Party]]:
    """Both servers, ready."""
    started: list[subprocess.Popen[bytes]] = []
    made = {}
    try:
        for name in ("bare", "api"):
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
            key = (folder / "key").read_text(encoding="ascii")
            made = asyncio.run(rows(those, key, sizes))
    return {
        "benchmark": "http",
        "sizes": sizes,
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
        f"Starlette {versions['starlette']}, uvicorn {versions['uvicorn']}"
    )
    heads = f"{'bare':>9}{'api':>9}{'api / bare':>24}{'ms of a processor':>24}"
    print(f"\n{'requests per second':<24}{heads}")
    for one in figures["rows"]:
        name = f"{one['tool']:<5} {one['in_flight']:>3} in flight"
        rates = "".join(f"{one['requests_per_second'][who]:>9,}" for who in ("bare", "api"))
        beside = one["api_beside_bare"]
        ratio = f"{beside['median']:.2f} ({beside['low']:.2f} to {beside['high']:.2f})"
        work = one["cpu_ms_of_a_request"]
        print(f"{name:<24}{rates}{ratio:>24}{work['bare']:>16.2f} {work['api']:>7.2f}")
    print(f"target, for echo with {BUSY} in flight: at least {ENOUGH}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    options = parser.parse_args()
    figures = report(QUICK if options.quick else FULL)
    if options.json:
        print(json.dumps(figures))
    else:
        show(figures)


if __name__ == "__main__":
    main()
