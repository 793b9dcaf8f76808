"""`python -m tests.golden --write [NAME…]` writes the golden files; without it, it compares."""

from __future__ import annotations

import argparse
import sys

from tests.golden.outputs import PRODUCERS, differences, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PRODUCERS)}")
    parser.add_argument(
        "--write", action="store_true", help="write them, after a change on purpose"
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(PRODUCERS)
    if unknown:
        parser.error(f"no golden output is called {', '.join(sorted(unknown))}")
    failed = False
    for name in options.names or PRODUCERS:
        made = PRODUCERS[name]()
        if options.write:
            sys.stdout.write(f"{name}: {write(name, made)}\n")
            continue
        found = differences(name, made)
        failed = failed or bool(found)
        sys.stdout.write(f"{found or f'{name}: as before'}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
