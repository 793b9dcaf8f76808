"""A read-only call through every gate, beside others' tool calls without gates.

Each party has a process and an environment of its own, is given the same text as a model would
write it, runs the same function, and proves that it did. Ours takes the call through all gates,
twenty policy rules, budgets and a rate, and keeps an event. `bare` is the least that any caller
must do: it parses the text, checks the types and calls.

There are three functions: one awaits something, one is a plain `def`, which each party runs in its
own way, and one awaits the HTTP answer of a local server. Compared is processor time of the party's
process, which the load of the machine and the server's speed leave alone.

A turn lasts equally long for all parties instead of making equally many calls: an idle processor
needs some milliseconds to reach its full speed, and 400 short calls would end within them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _bare_endpoint
from benchmarks._house.environments import Unavailable
from benchmarks._house.house import House, Party
from benchmarks._house.rows import Row
from benchmarks._peers import task
from benchmarks._servers import free_port, server

OURS = "counterseal"
FEW = 200
"""Calls of the shortest turn."""
HERE = Path(__file__).resolve().parent
PEER = HERE / "_peers" / "in_process.py"
PEERS = {  # party: the name that `in_process.py` has for it, and its environment
    "FastMCP": ("fastmcp", "fastmcp"),
    "MCP SDK": ("mcp", "mcp"),
    "OpenAI Agents": ("openai-agents", "openai-agents"),
    "Amplifier": ("amplifier", "amplifier"),
    "LangChain": ("langchain", "langchain"),
    "Agent Governance Toolkit": ("agent-governance-toolkit", "agent-governance-toolkit"),
    "Pydantic AI": ("pydantic-ai", "pydantic-ai"),
    "OpenAI Agents, tool alone": ("openai-tool", "openai-agents"),
    "bare": ("bare", "mcp"),
}
WHAT = {
    "FastMCP": "FastMCP, in-memory client",
    "MCP SDK": "MCP SDK, in-memory client",
    "OpenAI Agents": "OpenAI Agents, tool execution",
    "Amplifier": "Amplifier, hooks and execute",
    "LangChain": "LangChain, StructuredTool.ainvoke",
    "Agent Governance Toolkit": "Agent Governance Toolkit, governed and audited",
    "Pydantic AI": "Pydantic AI, ToolManager",
    "OpenAI Agents, tool alone": "OpenAI Agents, the tool without its runner",
    "bare": "Parsing, checking types and calling, bare",
}
KINDS = {"await": "an awaiting tool", "def": "a plain def", "http": "a tool that awaits HTTP"}
TARGETS = {  # ratios to reach, and to aim at
    ("await", "LangChain"): (5, None),
    ("await", "FastMCP"): (14, None),
    ("await", "Pydantic AI"): (0.45, 0.6),
    ("def", "LangChain"): (2.5, None),
    ("def", "FastMCP"): (7, None),
    ("def", "Pydantic AI"): (0.8, 1),
}


def rows(kind: str) -> list[Row]:
    return [
        Row(
            key=f"call/{kind}-{name}",
            what=f"{WHAT[party]}; {KINDS[kind]}",
            ours=OURS,
            theirs=party,
            better="lower" if party == "bare" else "higher",
            reach=TARGETS.get((kind, party), (None, None))[0],
            aim=TARGETS.get((kind, party), (None, None))[1],
            chart=kind == "await" and party != "bare",
        )
        for party, (name, _) in PEERS.items()
    ]


async def bench(house: House) -> None:
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as folder:
        port = free_port()
        command = [sys.executable, _bare_endpoint.__file__, str(port)]
        with server(command, port, Path(folder)):
            os.environ[task.URL] = f"http://127.0.0.1:{port}/notices"
            for kind in KINDS:
                await compare(house, kind)


async def compare(house: House, kind: str) -> None:
    """Let all parties take turns with one kind of function."""
    seconds, rounds = house.pick(0.15, 0.1), house.pick(15, 5)
    parties = [Party(OURS, HERE / "_call_party.py", [kind])]
    parties += [Party(party, PEER, [name, kind], peer) for party, (name, peer) in PEERS.items()]
    async with AsyncExitStack() as stack:
        blocks = {}
        for name, one in (await house.start(stack, *parties)).items():
            house.doing(f"how many calls {name} makes in {seconds:g} s")
            try:
                pace = (await one.run(FEW)).value
            except Unavailable as error:
                house.missing(name, error)
            else:
                blocks[name] = partial(one.run, max(FEW, int(seconds / pace)))
        await house.compare(f"in process, {KINDS[kind]}", blocks, rows(kind), rounds=rounds)


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("call", bench)
