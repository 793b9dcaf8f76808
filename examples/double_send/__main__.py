"""Three tool calls in one turn, two of them approved by a person, with LangGraph's `ToolNode`.

A tool node runs all calls of a turn, and after an `interrupt()` it runs all of them again. So each
approval repeats what was done before it. The same graph with Counterseal acts once.

    pip install 'counterseal[langgraph]'
    python examples/double_send
    python examples/double_send --evaluate   # try the two contracts with generated cases
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from counterseal import Grant, Principal, Runtime, Voter
from counterseal.adapters.langgraph import Counterseal
from counterseal.evaluation.evaluator import evaluate, subjects_of

DONE: Counter[str] = Counter()
"""What has really happened outside."""
THREAD: Any = {"configurable": {"thread_id": "order-7"}}


@tool
async def mail_team(text: str) -> str:
    """Mail the team."""
    DONE["mail"] += 1
    return f"sent: {text}"


@tool
async def pay(to: str, cents: int) -> str:
    """Pay a supplier."""
    DONE[f"payment to {to}"] += 1
    return f"paid {cents} to {to}"


TOOLS = [mail_team, pay]


def agent(_state: MessagesState) -> dict[str, Any]:
    """Ask for three calls at once, as a model would."""
    calls = [
        {"name": "mail_team", "args": {"text": "Paying both."}, "id": "call_1"},
        {"name": "pay", "args": {"to": "a", "cents": 500}, "id": "call_2"},
        {"name": "pay", "args": {"to": "b", "cents": 900}, "id": "call_3"},
    ]
    return {"messages": [AIMessage("", tool_calls=calls)]}


def graph(wrap: Any) -> Any:
    """Build a graph with one tool node, whose calls go through `wrap`."""
    made = StateGraph(MessagesState)
    made.add_node("agent", agent)
    made.add_node("tools", ToolNode(TOOLS, awrap_tool_call=wrap))
    made.add_edge(START, "agent")
    made.add_edge("agent", "tools")
    made.add_edge("tools", END)
    return made.compile(checkpointer=InMemorySaver())


async def ask_first(request: Any, handler: Any) -> Any:
    """Ask a person about payments, in the usual way."""
    call = request.tool_call
    if call["name"] == "pay" and not interrupt({"approve": call["args"]}):
        return ToolMessage("rejected", tool_call_id=call["id"], status="error")
    return await handler(request)


async def without() -> Counter[str]:
    """Run the graph as it is; a person approves each payment in the host's own page."""
    DONE.clear()
    app = graph(ask_first)
    result = await app.ainvoke({"messages": []}, THREAD)
    while "__interrupt__" in result:
        result = await app.ainvoke(Command(resume=True), THREAD)
    return DONE.copy()


def under_contract(runtime: Runtime) -> Counterseal:
    """Put the two tools under contract."""
    return Counterseal(
        runtime,
        TOOLS,
        principal=lambda _: Principal(tenant="acme", agent="buyer", user="u_7"),
        effects={"mail_team": "internal_mutation", "pay": "irreversible"},
        grants=[
            Grant(agent="buyer", tool="mail_team"),
            Grant(agent="buyer", tool="pay", max_calls_per_run=5),
        ],
    )


async def with_counterseal() -> Counter[str]:
    """Run the same graph; people approve at the desk, and the resume value decides nothing."""
    DONE.clear()
    async with Runtime.open("memory:") as runtime:
        app = graph(under_contract(runtime).awrap_tool_call)
        result = await app.ainvoke({"messages": []}, THREAD)
        while "__interrupt__" in result:
            for held in await runtime.approvals.list("acme"):
                for voter in (
                    Voter(user="ann", tenant="acme", roles=frozenset({"compliance"})),
                    Voter(user="ben", tenant="acme"),
                ):
                    await runtime.approvals.decide(held.approval_id, voter, "approve")
            result = await app.ainvoke(Command(resume=True), THREAD)
    return DONE.copy()


async def evaluated() -> str:
    """Return what came of every generated case, as a table."""
    async with Runtime.open("memory:") as runtime:
        under_contract(runtime)
        report = await evaluate(await subjects_of(runtime))
    return report.markdown()


async def main() -> None:
    if sys.argv[1:] == ["--evaluate"]:
        print(await evaluated())
        return
    alone, governed = await without(), await with_counterseal()
    print(f"{'':<16}{'without':>9}{'with Counterseal':>19}")
    for what in ("mail", "payment to a", "payment to b"):
        print(f"{what:<16}{alone[what]:>9}{governed[what]:>19}")


if __name__ == "__main__":
    asyncio.run(main())
