"""One side of `adapters.py`: `_adapter_party.py submit` or `_adapter_party.py langgraph`."""

# mypy: ignore-errors
# ruff: noqa: PLC0415 - LangGraph is imported only where it is measured

from __future__ import annotations

import json
import sys
from itertools import count

from benchmarks._call_party import AGENT, PLENTY, RATES, policy
from benchmarks._house.served import Call, Run, one_by_one, serve
from benchmarks._peers import task
from counterseal import Grant, Proposal, tool
from counterseal.ledger.records import Budgets
from counterseal.runtime import Runtime
from counterseal.storage import open_store

RUN = "run_1"
FUNCTION = task.await_notices
NAME = FUNCTION.__name__
GRANTS = [Grant(agent="agent", tool=NAME, max_calls_per_run=PLENTY)]
DECLARED = {"effect": "read_only", "scopes": ["case:read"], "budget": PLENTY, "runtime": RATES}

_numbers = count(1)


def directly(runtime: Runtime) -> Call:
    runtime.register(tool(version="1.0.0", owner="bench", **DECLARED)(FUNCTION), grants=GRANTS)

    async def call() -> None:
        own = f"call_{next(_numbers)}"
        ids = {"run_id": RUN, "call_id": own, "operation_id": own, "conversation_id": RUN}
        proposal = Proposal(tool=NAME, arguments=json.loads(task.TEXT), **ids)
        observation = await runtime.submit(proposal, AGENT)
        if not observation.ok:
            sys.exit(f"A call was refused: {observation.for_model()}")

    return call


def through_langgraph(runtime: Runtime) -> Call:
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import StructuredTool
    from langgraph.prebuilt.tool_node import ToolCallRequest, ToolRuntime

    from counterseal.adapters.langgraph import Counterseal, contract_for

    own = StructuredTool.from_function(coroutine=FUNCTION)
    contracts = [contract_for(own, **DECLARED)]
    options = {"principal": lambda _: AGENT, "contracts": contracts, "grants": GRANTS}
    governed = Counterseal(runtime, [own], **options)
    around = ToolRuntime(
        state=None,
        context=None,
        config={"configurable": {"thread_id": RUN}},
        stream_writer=lambda _: None,
        tool_call_id=None,
        store=None,
    )

    async def handler(request: ToolCallRequest) -> ToolMessage:
        result = await FUNCTION(**request.tool_call["args"])
        return ToolMessage(json.dumps(result), tool_call_id=request.tool_call["id"], name=NAME)

    async def call() -> None:
        arguments = json.loads(task.TEXT)
        made = {"name": NAME, "args": arguments, "id": f"call_{next(_numbers)}"}
        request = ToolCallRequest(made, own, None, around)
        message = await governed.awrap_tool_call(request, handler)
        if message.status != "success":
            sys.exit(f"A call was refused: {message.content}")

    return call


async def prepared() -> Run:
    runtime = Runtime(open_store("memory:"), policy=policy())
    budgets = Budgets(reads=PLENTY, writes=PLENTY, cost={"run": {"USD": PLENTY}}, seconds=1e9)
    await runtime.run(AGENT, RUN, budgets=budgets)
    make = {"submit": directly, "langgraph": through_langgraph}[sys.argv[1]]
    return await one_by_one(make(runtime))


if __name__ == "__main__":
    serve(prepared, ["counterseal", "langgraph"])
