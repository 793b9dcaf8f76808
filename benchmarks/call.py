"""A read-only call through every gate, beside others' tool calls without gates.

Each party has a process and an environment of its own, is given the same text as a model would
write it, runs the same function, and proves that it did. Ours takes the call through all gates,
twenty policy rules, budgets and a rate, and keeps an event. `bare` is the least that any caller
must do: it parses the text, checks the types and calls.

A turn takes as long for everybody, not as many calls: a processor that had nothing to do takes some
milliseconds to be fast again, and who makes 400 short calls would be measured within them.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._house.environments import Unavailable
from benchmarks._house.house import House, Party
from benchmarks._house.rows import Row

OURS = "counterseal"
FEW = 200
"""Calls of the shortest turn."""
HERE = Path(__file__).resolve().parent
PEER = HERE / "_peers" / "in_process.py"
PARTIES = (
    Party(OURS, HERE / "_call_party.py"),
    Party("Pydantic AI", PEER, ["pydantic-ai"], "pydantic-ai"),
    Party(
        "Agent Governance Toolkit", PEER, ["agent-governance-toolkit"], "agent-governance-toolkit"
    ),
    Party("LangChain", PEER, ["langchain"], "langchain"),
    Party("OpenAI Agents", PEER, ["openai-agents"], "openai-agents"),
    Party("OpenAI Agents, tool alone", PEER, ["openai-tool"], "openai-agents"),
    Party("MCP SDK", PEER, ["mcp"], "mcp"),
    Party("FastMCP", PEER, ["fastmcp"], "fastmcp"),
    Party("Amplifier", PEER, ["amplifier"], "amplifier"),
    Party("bare", PEER, ["bare"], "mcp"),
)


def row(
    key: str, theirs: str, what: str, reach: float | None = None, aim: float | None = None
) -> Row:
    return Row(
        key=f"call/{key}", what=what, ours=OURS, theirs=theirs, reach=reach, aim=aim, chart=True
    )


ROWS = (
    row("fastmcp", "FastMCP", "FastMCP, in-memory client", 30),
    row("mcp", "MCP SDK", "MCP SDK, in-memory client"),
    row("openai-agents", "OpenAI Agents", "OpenAI Agents, tool execution"),
    row("amplifier", "Amplifier", "Amplifier, hooks and execute"),
    row("langchain", "LangChain", "LangChain, StructuredTool.ainvoke", 8),
    row(
        "agent-governance-toolkit",
        "Agent Governance Toolkit",
        "Agent Governance Toolkit, governed and audited",
        3,
    ),
    row("pydantic-ai", "Pydantic AI", "Pydantic AI, ToolManager", None, 1),
    Row(
        key="call/openai-tool",
        what="OpenAI Agents, the tool without its runner",
        ours=OURS,
        theirs="OpenAI Agents, tool alone",
    ),
    Row(
        key="call/bare",
        what="Parsing, checking types and calling, bare",
        ours=OURS,
        theirs="bare",
        better="lower",
        reach=20,
        aim=10,
    ),
)


async def bench(house: House) -> None:
    seconds, rounds = house.pick(0.15, 0.1), house.pick(21, 7)
    async with AsyncExitStack() as stack:
        workers = await house.start(stack, *PARTIES)
        blocks = {}
        for name, one in workers.items():
            house.doing(f"how many calls {name} makes in {seconds:g} s")
            try:
                pace = (await one.run(FEW)).value
            except Unavailable as error:
                house.missing(name, error)
            else:
                blocks[name] = partial(one.run, max(FEW, int(seconds / pace)))
        await house.compare("in process", blocks, ROWS, rounds=rounds)


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("call", bench)
