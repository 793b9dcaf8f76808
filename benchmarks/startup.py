"""How long a person waits: for the import, the command line, a first call, a server.

Whole processes are started in turns, beside a bare interpreter, and the server beside the MCP SDK's
own. It does not say which import is slow; for that, use `python -X importtime -c "import
counterseal"`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _peer_servers as servers
from benchmarks._house.environments import Unavailable, python_of
from benchmarks._house.house import Block, House
from benchmarks._house.rows import Row, Turn
from benchmarks._served_parties import home
from benchmarks._servers import free_port, server

BARE = "python -c pass"
FIRST = """
import asyncio
from typing import Annotated
from pydantic import Field
from counterseal import Grant, Principal, Proposal, Runtime, tool

@tool(effect="read_only", version="1.0.0", owner="bench")
async def look_up(
    case_id: Annotated[str, Field(max_length=40, description="The case.")],
) -> dict[str, str]:
    "Look up a case."
    return {"status": "open"}

async def main():
    async with Runtime.open("sqlite:///first.db") as runtime:
        runtime.register(look_up, grants=[Grant(agent="a", tool="look_up")])
        asked = Proposal(tool="look_up", arguments='{"case_id": "c_1"}')
        seen = await runtime.submit(asked, Principal(tenant="t", agent="a"))
        assert seen.ok, seen.for_model()

asyncio.run(main())
"""
NOTICE, CASE = "send_approved_notice", '{"case_id": "case_1001"}'
PROGRAMS = {
    BARE: ["-c", "pass"],
    "import counterseal": ["-c", "import counterseal"],
    "counterseal --help": ["-m", "counterseal", "--help"],
    "first call": ["-c", FIRST],
    "counterseal lint": ["-m", "counterseal", "lint"],
    "counterseal show": ["-m", "counterseal", "show", NOTICE],
    "counterseal call": [
        *("-m", "counterseal", "call", "get_case_summary", CASE, "--as", "intake-agent")
    ],
}
"""All of them run in the project that `counterseal init` writes."""
SERVE, SDK = "counterseal serve", "MCP SDK's server"


def row(key: str, what: str, ours: str, theirs: str = BARE) -> Row:
    return Row(key=f"startup/{key}", what=what, ours=ours, theirs=theirs, better="lower")


ROWS = (
    row("import", "import counterseal, beside a bare Python", "import counterseal"),
    row("help", "counterseal --help, beside a bare Python", "counterseal --help"),
    row(
        "first-call",
        "Until a first call into SQLite is answered, beside a bare Python",
        "first call",
    ),
    row("lint", "counterseal lint in a new project, beside a bare Python", "counterseal lint"),
    row("show", "counterseal show TOOL in a new project, beside a bare Python", "counterseal show"),
    row("call", "counterseal call in a new project, beside a bare Python", "counterseal call"),
    row("serve", "counterseal serve until it answers, beside the MCP SDK's server", SERVE, SDK),
)


async def started(words: list[str], folder: Path) -> Turn:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=folder, stdout=asyncio.subprocess.DEVNULL
    )
    if await process.wait():
        raise Unavailable(f"it failed: {words[-1]}")
    return Turn(time.perf_counter() - began)


async def served(command: list[str], folder: Path, port: int) -> Turn:
    """Until somebody listens; how long it takes to stop is not part of it."""
    began = time.perf_counter()
    with server(command, port, folder):
        return Turn(time.perf_counter() - began)


async def bench(house: House) -> None:
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name:
        folder = Path(name) / "project"
        await started(["-m", "counterseal", "init", str(folder)], Path(name))
        blocks: dict[str, Block] = {
            what: partial(started, words, folder) for what, words in PROGRAMS.items()
        }
        command, port = home(folder / "serve")
        blocks[SERVE] = partial(served, command, folder / "serve", port)
        try:
            theirs = [str(python_of("mcp")), "-P", servers.__file__, "upstream"]
        except Unavailable as error:
            house.missing(SDK, error)
        else:
            other = free_port()
            blocks[SDK] = partial(served, [*theirs, str(other)], folder, other)
        rounds = house.pick(15, 5)
        await house.compare("start-up", blocks, ROWS, rounds=rounds, unit="ms")


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("startup", bench)
