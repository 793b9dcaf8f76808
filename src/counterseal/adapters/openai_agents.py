"""OpenAI Agents SDK: function tools, MCP tools and agents as tools, under contract.

    governed = Counterseal(runtime, agent.tools, principal=..., run_id=..., effects={...})
    agent = agent.clone(tools=governed.tools)

A run pauses with `result.interruptions`. When it is resumed, `governed.settle(state, context)`
tells the SDK which of them are decided; a mere `state.approve(item)` approves nothing here.
Hosted tools, the shell and the computer run without a function, so no adapter can hold them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Unpack

from counterseal.adapters.host import (
    Host,
    HostCall,
    HostOptions,
    HostTool,
    Pending,
    check_versions,
    contract_of,
    missing_extra,
)
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.errors import NotSentError, SpokenError
from counterseal.runtime import Runtime

try:
    from agents import (
        Agent,
        FunctionTool,
        RunContextWrapper,
        RunState,
        Tool,
        ToolApprovalItem,
        default_tool_error_function,
        function_tool,
    )
    from agents.mcp import MCPServer
    from agents.tool_context import ToolContext
except ImportError as error:
    raise missing_extra("openai-agents", error) from error

TESTED: Final = {"openai-agents": ">=0.24,<0.25"}
"""The versions that the adapter was tested with."""

check_versions(TESTED)


def host_tool(tool: FunctionTool) -> HostTool:
    """Return a tool as its model sees it."""
    return HostTool(tool.name, tool.description or tool.name, tool.params_json_schema)


def contract_for(tool: FunctionTool, *, effect: Effect | str, **options: Any) -> Contract:
    """Return a contract from a tool's own schema. Takes the options of `@tool`."""
    return contract_of(host_tool(tool), effect=effect, **options)


async def mcp_tools(*servers: MCPServer, context: Any = None) -> list[Tool]:
    """Return the tools of connected MCP servers, to be put under contract like any other.

    Give them to the agent as `tools`, and leave its `mcp_servers` empty.
    """
    carrier = Agent(name="counterseal", mcp_servers=list(servers))
    return list(await carrier.get_mcp_tools(RunContextWrapper(context)))


class Counterseal:
    """Puts the function tools of an agent under contract: give `tools` to the agent."""

    def __init__(
        self, runtime: Runtime, tools: Iterable[Tool], **options: Unpack[HostOptions]
    ) -> None:
        if "run_id" not in options:
            raise ValueError(
                "run_id: a function of the context is required, such as the session's id; "
                "the SDK has no id of a conversation that survives a resume"
            )
        listed = list(tools)
        foreign = [tool.name for tool in listed if not isinstance(tool, FunctionTool)]
        if foreign:
            raise ValueError(f"tools: {', '.join(foreign)} run without a function; leave them out")
        self._host = Host(runtime, map(host_tool, listed), **options)
        self.tools: list[Tool] = [self._governed(tool) for tool in listed]

    async def pending(self, item: ToolApprovalItem, context: Any = None) -> Pending | None:
        """Return what a person has to decide on; None if the interruption is decided."""
        call = self._call(RunContextWrapper(context), item.tool_name, *_ids(item))
        return await self._pending(call)

    async def decide(self, answer: Any, context: Any = None) -> str | None:
        """Record a decision made in the host, if `voter` names the person.

        Returns why it was refused. The answer is `{"type": "approve", "approval_id": …}`.
        """
        return await self._host.vote(answer, RunContextWrapper(context))

    async def settle(self, state: RunState[Any], context: Any = None) -> list[Pending]:
        """Release the interruptions that are decided, and return those that still wait.

        A released call is submitted again when the run goes on: it is executed if it was approved,
        and its model reads the reason if it was rejected.
        """
        waiting = []
        for item in state.get_interruptions():
            pending = await self.pending(item, context)
            if pending is None:
                state.approve(item)
            else:
                waiting.append(pending)
        return waiting

    # --- inside -----------------------------------------------------------------------------------

    def _governed(self, tool: FunctionTool) -> FunctionTool:
        invoke = _raising(tool).on_invoke_tool

        async def on_invoke_tool(ctx: ToolContext[Any], text: str) -> Any:
            async def execute(arguments: dict[str, Any]) -> Any:
                return await invoke(ctx, _as_text(arguments, text))

            call = self._call(ctx, tool.name, text, ctx.tool_call_id)
            call = replace(call, execute=execute, to_plain=lambda result: _plain(tool, result))
            answer = await self._host.submit(call)
            if answer.native is not None:
                return answer.native[0]
            return answer.value if answer.ok else answer.text

        async def needs_approval(
            ctx: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str
        ) -> bool:
            if self._host.waits:
                return False
            call = self._call(ctx, tool.name, json.dumps(arguments), call_id)
            return await self._pending(call) is not None

        return replace(tool, on_invoke_tool=on_invoke_tool, needs_approval=needs_approval)

    async def _pending(self, call: HostCall) -> Pending | None:
        """Have a call held if it has to be; it is executed later, when the run goes on."""
        if not await self._host.needs_approval(call):
            return None
        return (await self._host.submit(call)).pending

    def _call(
        self, ctx: RunContextWrapper[Any], tool: str, text: str, call_id: str | None
    ) -> HostCall:
        return HostCall(
            tool=tool,
            arguments=text,
            call_id=call_id,
            run_id=self._host.run_id(ctx, None),
            context=ctx,
            execute=_not_yet,
        )


def _not_yet(_arguments: dict[str, Any]) -> Any:
    raise NotSentError("the run has not gone on to execute this call")


def _ids(item: ToolApprovalItem) -> tuple[str, str | None]:
    """Return the arguments and the id of an interruption; its raw item may be a mapping."""
    raw: Any = item.raw_item
    fields = raw if isinstance(raw, Mapping) else vars(raw)
    return fields.get("arguments") or "{}", fields.get("call_id") or fields.get("id")


def _as_text(arguments: dict[str, Any], text: str) -> str:
    """Return the arguments as the model wrote them, unless a rule has corrected them."""
    return text if json.loads(text or "{}") == arguments else json.dumps(arguments)


def _raising(tool: FunctionTool) -> FunctionTool:
    """Return a decorated tool that raises: by default its exceptions become an ordinary result."""
    try:
        function = tool.__wrapped__
    except AttributeError:
        return tool
    return function_tool(
        function,
        name_override=tool.name,
        description_override=tool.description,
        failure_error_function=None,
        strict_mode=tool.strict_json_schema,
    )


def _plain(tool: FunctionTool, result: Any) -> Any:
    """Return a result as plain data. The SDK's own text for a failure is no result."""
    if result == default_tool_error_function(RunContextWrapper(None), Exception()):
        raise SpokenError(tool.name, result)
    return result
