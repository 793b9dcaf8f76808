"""Ten minutes of reads and changes on SQLite: does anything grow that should not?

The last fifth is put beside the second fifth, when everything was warm: the time of a call, memory,
open files. The store must grow, and by no more than what a call leaves there: one entry in the
ledger for a change, and as many events for every call at the end as in the beginning.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._house.house import House, Party
from benchmarks._house.rows import Row, Turn

PARTY = Path(__file__).resolve().parent / "_soak_party.py"
EARLY, LATE = "minutes 2 to 4", "the last 2 minutes"
CALLS = 1600
"""In a turn."""

Told = dict[str, Any]


async def bench(house: House) -> None:
    lasts = house.pick(600.0, 60.0)
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name:
        async with AsyncExitStack() as stack:
            party = Party("soak", PARTY, [f"{name}/soak.db"])
            workers = await house.start(stack, party)
            for worker in workers.values():
                seen: list[Told] = []
                began = time.monotonic()
                try:
                    while (gone := time.monotonic() - began) < lasts:
                        house.doing(f"soak: {gone:.0f} of {lasts:.0f} s", gone / lasts)
                        await worker.run(CALLS)
                        seen.append({**worker.told, "samples": worker.told["samples"][:200]})
                finally:
                    _keep(house, seen)


def _keep(house: House, seen: Sequence[Told]) -> None:
    """Rows of whatever there is."""
    fifth = len(seen) // 5
    if not fifth:
        return
    early, late = seen[fifth : 2 * fifth], seen[-fifth:]

    def of(value: Callable[[Told], float], samples: str = "") -> dict[str, list[Turn]]:
        return {
            name: [Turn(value(told), told.get(samples, ()), CALLS) for told in some]
            for name, some in ((EARLY, early), (LATE, late))
        }

    def row(key: str, what: str, reach: float) -> Row:
        beside = f"{what}: {LATE} beside {EARLY}"
        return Row(
            key=f"soak/{key}", what=beside, ours=LATE, theirs=EARLY, better="lower", reach=reach
        )

    house.keep([row("time", "Time of a call", 1.2)], of(lambda told: told["value"], "samples"))
    house.keep([row("memory", "Memory", 1.1)], of(lambda told: told["rss_mib"]), "MiB")
    house.keep([row("files", "Open files", 1.0)], of(lambda told: told["files"]), "")
    calls = [told["changes"] + told["reads"] for told in seen]
    events = {told["events"]: told["events"] / made for told, made in zip(seen, calls, strict=True)}
    what = row("events", "Events for a call", 1.01)
    house.keep([what], of(lambda told: events[told["events"]]), "")
    what = row("ledger", "Entries in the ledger for a change", 1.0)
    house.keep([what], of(lambda told: told["ledger"] / told["changes"]), "")


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("soak", bench)
