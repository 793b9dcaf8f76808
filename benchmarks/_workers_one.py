"""One worker of `workers.py`: a process with a runtime of its own on a store that it shares."""

from __future__ import annotations

import sys
import time

from benchmarks._house.served import Run, Told, serve
from benchmarks._ledger_calls import Slot, ready
from benchmarks._ledger_sqlite import through_runtime
from counterseal.storage import open_store


async def prepare() -> Run:
    url, name, in_flight = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = open_store(url)
    where = [Slot(f"tenant_{n}", f"run_{name}_{n}") for n in range(in_flight)]
    await ready(store, where)
    # The first calls are others: statements are prepared, versions are pinned.
    await through_runtime(store, where, in_flight * 4)()

    async def run(number: int) -> Told:
        used = time.process_time()
        turn = await through_runtime(store, where, number)()
        spent = time.process_time() - used
        return {"value": turn.value, "samples": list(turn.samples), "cpu": spent}

    return run


if __name__ == "__main__":
    serve(prepare, ["counterseal"])
