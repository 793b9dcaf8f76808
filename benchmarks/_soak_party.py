"""A runtime on SQLite that reads and changes, many at once, and tells what it holds by then.

After each turn it tells its memory, its open files, and how many rows there are in its store.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Annotated

from pydantic import Field

from benchmarks._house.served import Run, Told, serve
from benchmarks._ledger_calls import AGENT, PLENTY, proposed, ready, runtime_on, slots, submit
from counterseal import Grant, Principal, Proposal, tool
from counterseal.storage import open_store

CALLERS = 16
_turns = count(1)


@tool(
    effect="read_only",
    version="1.0.0",
    owner="bench",
    budget=PLENTY,
    runtime={"rate_limits": {"window_sec": 1, "max_requests": 1_000_000}},
)
async def read_note(
    case_id: Annotated[str, Field(max_length=40, description="The case.")],
) -> dict[str, str]:
    """Read what is noted beside a case."""
    return {"text": case_id}


async def prepare() -> Run:
    path = Path(sys.argv[1])
    store = open_store(f"sqlite:///{path}")
    runtime = runtime_on(store)
    runtime.register(
        read_note, grants=[Grant(agent=AGENT, tool="read_note", max_calls_per_run=PLENTY)]
    )
    made = {"changes": 0, "reads": 0}

    async def run(number: int) -> Told:
        turn = next(_turns)
        # Runs come to an end in real life, and new ones begin.
        where = [slot._replace(run_id=f"{slot.run_id}_{turn}") for slot in slots(CALLERS)]
        await ready(store, where)
        took: list[float] = []

        async def caller(place: int) -> None:
            slot = where[place]
            who = Principal(tenant=slot.tenant, user="u_1", agent=AGENT)
            for step in range(number // CALLERS):
                began = time.perf_counter()
                if step % 2:
                    text = f'{{"case_id": "case_{step}"}}'
                    asked = Proposal(tool="read_note", arguments=text, run_id=slot.run_id)
                    await submit(runtime, asked, who)
                    made["reads"] += 1
                else:
                    await submit(runtime, *proposed(slot))
                    made["changes"] += 1
                took.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*map(caller, range(CALLERS)))
        value = (time.perf_counter() - began) / len(took)
        return {"value": value, "samples": took, **made, **_rows(path), "files": _files()}

    return run


def _rows(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as db:
        return {
            name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0]  # noqa: S608 - names from here
            for name in ("ledger", "events")
        }


def _files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no paths are wanted
    except OSError:
        return 0


if __name__ == "__main__":
    serve(prepare, ["counterseal"])
