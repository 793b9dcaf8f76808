"""How long the command line and the import take to start, next to a bare interpreter.

Starts each program in turn, so that a busy moment of the machine touches all of them, and compares
medians. It measures whole processes and does not say which import is slow; for that, use
`python -X importtime -c "import counterseal"`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 15
HELP_TARGET_MS = 300.0
BARE = "python -c pass"
HELP = "counterseal --help"


def programs() -> dict[str, list[str]]:
    command = Path(sys.executable).with_name("counterseal")
    if not command.exists():
        sys.exit(f"{command.name} is not installed beside {sys.executable}.")
    return {
        BARE: [sys.executable, "-c", "pass"],
        "import counterseal": [sys.executable, "-c", "import counterseal"],
        HELP: [str(command), "--help"],
    }


def milliseconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1000


def measure(rounds: int) -> list[dict[str, object]]:
    commands = programs()
    for command in commands.values():
        milliseconds(command)  # the first start writes the bytecode caches
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(milliseconds(command))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return [
        {
            "name": name,
            "ratio": round(median / medians[BARE], 2),
            "median_ms": round(median, 1),
            "target_ms": HELP_TARGET_MS if name == HELP else None,
        }
        for name, median in medians.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Start-up time next to a bare interpreter.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="starts of each program")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    rows = measure(options.rounds)
    if options.json:
        print(json.dumps({"benchmark": "startup", "rounds": options.rounds, "rows": rows}))
        return
    print(f"{'start-up':<22}{'ratio':>8}{'median ms':>12}{'target ms':>12}")
    for row in rows:
        target = "" if row["target_ms"] is None else row["target_ms"]
        print(f"{row['name']:<22}{row['ratio']:>8}{row['median_ms']:>12}{target:>12}")


if __name__ == "__main__":
    main()
