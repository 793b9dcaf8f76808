"""One peer of `call.py`, in its own environment: `in_process.py pydantic-ai await`.

Each peer is used as its own documentation does for one tool call, in the fastest way that still
parses the model's text, and with nothing around it that it could be used without. A plain `def`
runs the way the peer runs it. None checks more than its types; a peer that has rules and a record
of its own gets twenty rules and keeps its record.
"""

# mypy: ignore-errors
# ruff: noqa: PLC0415 - each imports what only its own environment has

from __future__ import annotations

import inspect
import json
import sys
from contextlib import AsyncExitStack
from typing import Any

from benchmarks._house.served import Call, Run, one_by_one, serve
from benchmarks._peers import task

STACK = AsyncExitStack()
"""Clients that stay open until the process ends."""
KIND = sys.argv[2]
FUNCTION = task.FUNCTIONS[KIND]
NAME = FUNCTION.__name__
SYNC = not inspect.iscoroutinefunction(FUNCTION)


async def bare() -> Call:
    """Parse, check the types with pydantic, call: the least that any program must do."""
    from pydantic import validate_call

    checked = validate_call(FUNCTION)

    async def call() -> Any:
        answer = checked(**json.loads(task.TEXT))
        return answer if SYNC else await answer

    return call


async def pydantic_ai() -> Call:
    from pydantic_ai import FunctionToolset, RunContext
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.tool_manager import ToolManager
    from pydantic_ai.usage import RunUsage

    ctx = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    manager = await ToolManager(FunctionToolset([FUNCTION])).for_run_step(ctx)

    async def call() -> Any:
        part = ToolCallPart(tool_name=NAME, args=task.TEXT, tool_call_id="call_1")
        return await manager.handle_call(part)

    return call


async def governance_toolkit() -> Call:
    from agentmesh.governance import govern

    rules = "".join(
        f"  - {{name: rule-{n}, action: deny, "
        f"condition: \"limit.value > {100 + n} and words.value == 'nobody-{n}'\"}}\n"
        for n in range(20)
    )
    policy = f"name: bench\nagents: ['*']\ndefault_action: allow\nrules:\n{rules}"
    governed = govern(FUNCTION, policy=policy, agent_id="agent", audit=True)

    async def call() -> Any:
        answer = governed(**json.loads(task.TEXT))
        return await answer if inspect.isawaitable(answer) else answer

    return call


async def langchain() -> Call:
    from langchain_core.tools import StructuredTool

    how = {"func": FUNCTION} if SYNC else {"coroutine": FUNCTION}
    tool = StructuredTool.from_function(**how)

    async def call() -> Any:
        return await tool.ainvoke(json.loads(task.TEXT))

    return call


async def openai_agents() -> Call:
    """As its runner carries out what a model asked for, with tracing turned off."""
    from agents import Agent, RunConfig, RunContextWrapper, RunHooks, function_tool
    from agents.run_internal.agent_bindings import bind_public_agent
    from agents.run_internal.run_steps import ToolRunFunction
    from agents.run_internal.tool_execution import execute_function_tool_calls
    from openai.types.responses import ResponseFunctionToolCall

    tool = function_tool(FUNCTION, strict_mode=False)
    bindings = bind_public_agent(Agent(name="agent", tools=[tool]))
    hooks, config = RunHooks(), RunConfig(tracing_disabled=True)
    around = RunContextWrapper(context=None)

    async def call() -> Any:
        asked = ResponseFunctionToolCall(
            arguments=task.TEXT, call_id="call_1", name=NAME, type="function_call"
        )
        results, _, _ = await execute_function_tool_calls(
            bindings=bindings,
            tool_runs=[ToolRunFunction(tool_call=asked, function_tool=tool)],
            hooks=hooks,
            context_wrapper=around,
            config=config,
        )
        return results[0].output

    return call


async def openai_tool() -> Call:
    """Its tool alone, without what the runner does around it."""
    from agents import function_tool
    from agents.tool_context import ToolContext

    tool = function_tool(FUNCTION, strict_mode=False)

    async def call() -> Any:
        around = ToolContext(None, tool_name=NAME, tool_call_id="call_1", tool_arguments=task.TEXT)
        return await tool.on_invoke_tool(around, task.TEXT)

    return call


async def mcp() -> Call:
    from mcp import Client
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("bench")
    server.tool()(FUNCTION)
    client = await STACK.enter_async_context(Client(server))

    async def call() -> Any:
        return (await client.call_tool(NAME, json.loads(task.TEXT))).structured_content

    return call


async def fastmcp() -> Call:
    from fastmcp import Client, FastMCP

    server = FastMCP("bench")
    server.tool(FUNCTION)
    client = await STACK.enter_async_context(Client(server))

    async def call() -> Any:
        return (await client.call_tool(NAME, json.loads(task.TEXT))).structured_content

    return call


async def amplifier() -> Call:
    """Hooks before and after, with one handler each, and the tool's own execute."""
    from amplifier_core import HookRegistry, HookResult, ToolResult
    from amplifier_core.events import TOOL_POST, TOOL_PRE
    from pydantic import validate_call

    checked = validate_call(FUNCTION)

    class Tool:
        name = NAME
        description = "Find notices of a case."

        async def execute(self, given: dict[str, Any]) -> ToolResult:
            output = checked(**given)
            return ToolResult(success=True, output=output if SYNC else await output)

    async def look(_: str, __: dict[str, Any]) -> HookResult:
        return HookResult(action="continue")

    hooks, tool = HookRegistry(), Tool()
    hooks.register(TOOL_PRE, look, priority=0, name="before")
    hooks.register(TOOL_POST, look, priority=0, name="after")

    async def call() -> Any:
        given = json.loads(task.TEXT)
        answer = await hooks.emit(TOOL_PRE, {"tool_name": tool.name, "tool_input": given})
        if answer.action != "continue":
            sys.exit(f"A hook answered {answer.action}.")
        result = await tool.execute(given)
        shown = {"tool_name": tool.name, "tool_input": given, "result": result.model_dump()}
        await hooks.emit(TOOL_POST, shown)
        return result.output

    return call


PARTIES = {
    "bare": (bare, ["pydantic"]),
    "pydantic-ai": (pydantic_ai, ["pydantic-ai-slim"]),
    "agent-governance-toolkit": (governance_toolkit, ["agent-governance-toolkit"]),
    "langchain": (langchain, ["langchain-core"]),
    "openai-agents": (openai_agents, ["openai-agents"]),
    "openai-tool": (openai_tool, ["openai-agents"]),
    "mcp": (mcp, ["mcp"]),
    "fastmcp": (fastmcp, ["fastmcp"]),
    "amplifier": (amplifier, ["amplifier-core"]),
}


def main() -> None:
    make, packages = PARTIES[sys.argv[1]]

    async def prepare() -> Run:
        call = await make()
        before = task.runs
        task.check_answer(await call(), before)
        measured = await one_by_one(call)

        async def run(number: int) -> dict[str, Any]:
            before = task.runs
            answer = await measured(number)
            if task.runs != before + number:
                sys.exit(f"The tool ran {task.runs - before} times in {number} calls.")
            return answer

        return run

    serve(prepare, packages)


if __name__ == "__main__":
    main()
