"""Does a call cost more when there is much already? Each time: little beside much, in turns.

Contracts in the registry, calls in a run, and calls on record in a store, each with its entry in
the ledger and its events. Memory is looked at, too: what a process has after a long run, beside
after a short one. A ratio of 1 means that size does not matter.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _ledger_growth as stores
from benchmarks._house.house import House, Party
from benchmarks._house.rows import Row, Turn
from benchmarks._ledger_calls import sample
from tests.postgres_server import drop_database, fresh_database, shared

FLAT = 1.2
OURS = Path(__file__).resolve().parent / "_call_party.py"


async def bench(house: House) -> None:
    await _contracts(house)
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name:
        folder = Path(name)
        await _runs(house, folder)
        of = await sample()
        for many in house.pick((1_000_000,), (100_000,)) + ((10_000_000,) if house.big else ()):
            await stores.sqlite(house, folder, of, many)
            databases = [fresh_database(shared()) for _ in range(2)]
            await stores.postgres(house, databases, of, many)
            for url in databases:
                drop_database(url)


async def _contracts(house: House) -> None:
    number = house.pick(10_000, 1_000)
    few, many = "10 contracts", f"{number:,} contracts"
    async with AsyncExitStack() as stack:
        workers = await house.start(
            stack,
            Party(few, OURS, ["--contracts", "10"]),
            Party(many, OURS, ["--contracts", str(number)]),
        )
        row = Row(
            key=f"growth/contracts-{number}",
            what=f"A call with {number:,} contracts beside with 10",
            ours=many,
            theirs=few,
            better="lower",
            reach=FLAT,
            chart=True,
        )
        blocks = {name: partial(one.run, 300) for name, one in workers.items()}
        await house.compare("contracts", blocks, [row], rounds=house.pick(21, 7))


async def _runs(house: House, folder: Path) -> None:
    """Reads from memory, and changes in SQLite, late in a long run and early in a new one."""
    long = house.pick(10_000, 2_000)
    for effect, where, what, calls in (
        ("read_only", "memory:", "A read", 300),
        ("draft", "sqlite:///{folder}/{name}.db", "A change in SQLite", 100),
    ):
        few, many = f"run of 10, {effect}", f"run of {long:,}, {effect}"
        async with AsyncExitStack() as stack:
            words = {
                name: ["--effect", effect, "--store", where.format(folder=folder, name=name[:10])]
                for name in (few, many)
            }
            workers = await house.start(
                stack,
                Party(few, OURS, [*words[few], "--calls", "10", "--fresh"]),
                Party(many, OURS, [*words[many], "--calls", str(long)]),
            )
            row = Row(
                key=f"growth/run-{effect}-{long}",
                what=f"{what} late in a run of {long:,} calls beside one of 10",
                ours=many,
                theirs=few,
                better="lower",
                reach=FLAT,
            )
            blocks = {name: partial(one.run, calls) for name, one in workers.items()}
            await house.compare(what, blocks, [row], rounds=house.pick(15, 5))
            if len(workers) == 2 and where != "memory:":  # that store is memory
                memory = Row(
                    key=f"growth/memory-{long}",
                    what=f"Memory after a run of {long:,} changes beside runs of 10",
                    ours=many,
                    theirs=few,
                    better="lower",
                    reach=FLAT,
                )
                seen = {name: [Turn(one.told["rss_mib"])] for name, one in workers.items()}
                house.keep([memory], seen, "MiB")


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("growth", bench)
