"""DBOS: the function as a workflow of one step, as its documentation writes one.

`dbos_steps.py URL IN_FLIGHT`. Its settings are as they come, but for its log and, where many are in
flight, a pool of connections for them.
"""

# mypy: ignore-errors

from __future__ import annotations

import sys
from itertools import count

from dbos import DBOS, SetWorkflowID

from benchmarks._house.served import Run, Told, at_once, serve

_numbers = count(1)
ran = 0


@DBOS.step()
async def save_note(case_id: str, text: str) -> dict[str, str]:
    global ran  # noqa: PLW0603 - a count that proves that every step was carried out
    ran += 1
    return {"note_id": "note_1", "case_id": case_id, "length": str(len(text))}


@DBOS.workflow()
async def note(case_id: str, text: str) -> dict[str, str]:
    return await save_note(case_id, text)


async def call() -> None:
    number = next(_numbers)
    with SetWorkflowID(f"{sys.argv[2]}-{number}"):  # a key of the caller's, as ours have
        said = await note(f"case_{number:09d}", "The payment was late.")
    if said["note_id"] != "note_1":
        sys.exit(f"The answer was {said}.")


async def prepare() -> Run:
    url, in_flight = sys.argv[1], int(sys.argv[2])
    config = {"name": "bench", "system_database_url": url, "log_level": "ERROR"}
    if in_flight > 1 and not url.startswith("sqlite"):
        config["sys_db_pool_size"] = min(in_flight, 32)
    DBOS(config=config)
    DBOS.launch()
    made = await at_once([call] * in_flight)

    async def run(number: int) -> Told:
        before = ran
        told = await made(number)
        if ran - before != len(told["samples"]):
            sys.exit(f"{ran - before} steps were carried out for {len(told['samples'])} calls.")
        return told

    return run


if __name__ == "__main__":
    serve(prepare, ["dbos"])
