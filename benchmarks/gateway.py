"""Calls through the gateway, beside FastMCP's proxies and beside no proxy at all.

Everybody stands before the same upstream, speaks streamable HTTP on loopback and has a process of
their own: the gateway, which takes each call through every gate and onto record; FastMCP's proxy as
it comes (`fresh`, which connects anew for every request) and over one connection (`shared`); the
upstream itself (`direct`). They take turns. `echo` and `slow` change nothing, and `slow` takes
20 ms; `note` changes something, so that two durable commits are in each of its calls. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._gateway_cells import Cell, Found, Ratio, measure, ratio
from benchmarks._gateway_load import BARE, CLIENTS
from benchmarks._gateway_parties import Party, parties
from benchmarks._ledger_turns import load

FULL = {"rounds": 7, "seconds": 0.8}
QUICK = {"rounds": 3, "seconds": 0.4}
PEERS = {"shared": 2.0, "fresh": 20.0}
"""How many times their calls per second are wanted, with BUSY in flight."""
BUSY = 32
SLOWER = 1.3
"""How many times the direct time of a call of 20 ms is allowed."""
SPEED = [
    *(Cell("echo", client, many) for client in CLIENTS for many in (1, BUSY)),
    *(Cell("note", BARE[0], many) for many in (1, BUSY)),
]
TIME = [*(Cell("slow", client, 1) for client in CLIENTS), Cell("slow", BARE[0], 8)]


async def rows(those: dict[str, Party], sizes: dict[str, float]) -> list[dict[str, Any]]:
    made = []
    for cell in SPEED:
        found = await measure(cell, those, ["direct", "gateway", *PEERS], sizes)
        slower = {name: ratio(found[name], found["gateway"]) for name in PEERS}
        # The SDK's client takes as long as a call: it would be what is measured. And one caller
        # who waits for each answer waits for the upstream and for everybody's turns besides.
        counts = cell.client in BARE and cell.in_flight == BUSY
        targets = {name: f"≥ {goal:.0f}" for name, goal in PEERS.items() if counts}
        made.append(row(cell, found, slower, targets))
    for cell in TIME:
        found = await measure(cell, those, ["direct", "gateway"], sizes)
        # What several at once take is a matter of how many processors there are.
        targets = {"direct": f"≤ {SLOWER}"} if cell.in_flight == 1 else {}
        slower = {"direct": ratio(found["gateway"], found["direct"])}
        made.append(row(cell, found, slower, targets))
    return made


def row(
    cell: Cell, found: dict[str, Found], beside: dict[str, Ratio], targets: dict[str, str]
) -> dict[str, Any]:
    return {
        **cell._asdict(),
        "calls_per_second": {name: round(1 / one.typical, 1) for name, one in found.items()},
        "ms_of_a_call": {
            name: round(one.typical * cell.in_flight * 1000, 2) for name, one in found.items()
        },
        "cpu_ms_of_a_call": {name: one.cpu for name, one in found.items()},
        "gateway_beside": {
            name: {**one.rounded(), "target": targets.get(name)} for name, one in beside.items()
        },
    }


def report(sizes: dict[str, float]) -> dict[str, Any]:
    before = load()
    with (
        tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name,
        parties(Path(name), ["gateway", *PEERS]) as those,
    ):
        made = asyncio.run(rows(those, sizes))
    return {
        "benchmark": "gateway",
        "sizes": sizes,
        "processors": os.cpu_count(),
        "load_average": {"before": before, "after": load()},
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("mcp", "fastmcp")},
        "rows": made,
    }


# --- for a person ---------------------------------------------------------------------------------


def show(figures: dict[str, Any]) -> None:
    about, versions = figures["load_average"], figures["versions"]
    print(
        f"in turns; client, proxy and upstream share {figures['processors']} processors; load "
        f"average {about['before']} before, {about['after']} after; "
        f"mcp {versions['mcp']}, FastMCP {versions['fastmcp']}"
    )
    fast = [one for one in figures["rows"] if "fresh" in one["gateway_beside"]]
    slow = [one for one in figures["rows"] if "direct" in one["gateway_beside"]]
    _show_speed(fast)
    _show_time(slow)
    _show_work([*fast, *slow])


def _show_speed(chosen: list[dict[str, Any]]) -> None:
    names = ("direct", "gateway", *PEERS)
    heads = "".join(f"{name:>9}" for name in names)
    beside = "".join(f"{f'gateway / {name}':>23}" for name in PEERS)
    print(f"\n{'calls per second':<40}{heads}{beside}")
    for one in chosen:
        rates = "".join(f"{one['calls_per_second'][name]:>9,.0f}" for name in names)
        ratios = "".join(f"{_ratio(one, name):>23}" for name in PEERS)
        print(f"{_name(one):<40}{rates}{ratios}")
    goals = " and ".join(f"{goal:.0f}x {name}" for name, goal in PEERS.items())
    print(
        f"target, with {BUSY} in flight and a client that holds nothing up (bare sockets): {goals}"
    )


def _show_time(chosen: list[dict[str, Any]]) -> None:
    print(
        f"\n{'ms of a call that takes 20':<40}{'direct':>9}{'gateway':>9}{'gateway / direct':>23}"
    )
    for one in chosen:
        times = "".join(f"{one['ms_of_a_call'][name]:>9.1f}" for name in ("direct", "gateway"))
        print(f"{_name(one):<40}{times}{_ratio(one, 'direct', 2):>23}")
    print(f"target, one at a time: at most {SLOWER}x")


def _show_work(chosen: list[dict[str, Any]]) -> None:
    """What a call takes of the processors, which says more than the clock on a busy machine."""
    names = ("direct", "gateway", *PEERS)
    print("\nms of a processor per call: of the client + of the proxy + of the upstream")
    beside = "".join(f"{f'{name} / gateway':>17}" for name in PEERS)
    print(f"{'':<40}" + "".join(f"{name:>21}" for name in names) + beside)
    for one in chosen:
        taken = "".join(f"{_work(one, name):>21}" for name in names)
        times = "".join(f"{_times(one, name):>17}" for name in PEERS)
        print(f"{_name(one):<40}{taken}{times}".rstrip())
    print("on the right: how many times the proxy's own time is that of the gateway")


def _name(one: dict[str, Any]) -> str:
    return f"{one['tool']:<5} {one['client']:<26} {one['in_flight']:>3}"


def _ratio(one: dict[str, Any], name: str, digits: int = 1) -> str:
    found = one["gateway_beside"][name]
    median, low, high = (f"{found[part]:.{digits}f}" for part in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def _work(one: dict[str, Any], name: str) -> str:
    taken = one["cpu_ms_of_a_call"].get(name, {})
    parts = [taken[who] for who in ("client", "proxy", "upstream") if who in taken]
    return " + ".join(f"{part:.2f}" for part in parts)


def _times(one: dict[str, Any], name: str) -> str:
    taken = one["cpu_ms_of_a_call"]
    mine, others = (taken.get(who, {}).get("proxy") for who in ("gateway", name))
    return f"{others / mine:.1f}" if mine and others else ""


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
