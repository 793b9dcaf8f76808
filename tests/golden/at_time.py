"""A program that runs commands at another time: `python -m tests.golden.at_time SECONDS`.

Reads a list of commands as JSON, and prints the exit code and the output of each. The clock is set
before Counterseal is loaded, and goes on from there.
"""

from __future__ import annotations

import json
import sys
import time

OFFSET = float(sys.argv[1]) - time.time()
REAL = time.time


def shifted() -> float:
    return REAL() + OFFSET


def main() -> None:
    time.time = shifted
    from tests.golden.commands import invoke, parsed

    outputs = []
    for words in json.load(sys.stdin):
        code, printed = invoke(*words, "--json")
        outputs.append({"exit": code, "output": parsed(printed)})
    json.dump(outputs, sys.stdout)


if __name__ == "__main__":
    main()
