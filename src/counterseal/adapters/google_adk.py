"""Google's Agent Development Kit: a plugin.

    governed = Counterseal(runtime, tools, principal=..., effects={"pay": "irreversible"})
    App(name="support", root_agent=agent, plugins=[governed])

A plugin sees the calls of all agents of an app, so every tool that an agent may call needs a
contract here; a call of any other tool is refused. The framework asks its host once for each call:
if the answer does not settle it, the model is told that the call is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Unpack

from counterseal.adapters.host import (
    Answer,
    Host,
    HostCall,
    HostOptions,
    HostTool,
    check_versions,
    contract_of,
    missing_extra,
)
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.runtime import Runtime

try:
    from google.adk.models.llm_request import LlmRequest
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools import BaseTool, FunctionTool, ToolContext
except ImportError as error:
    raise missing_extra("google-adk", error) from error

TESTED: Final = {"google-adk": ">=2.13,<2.14"}
"""The versions that the adapter was tested with."""
_DECLINED: Final = "The call was declined in the host, and nothing was executed."

check_versions(TESTED)


def host_tool(tool: BaseTool | Callable[..., Any]) -> HostTool:
    """Return a tool as its model sees it. A function is one as soon as it is given to an agent."""
    known = tool if isinstance(tool, BaseTool) else FunctionTool(tool)
    request = LlmRequest()
    request.append_tools([known])
    (declared,) = request.config.tools[0].function_declarations
    schema = declared.parameters_json_schema
    if schema is None and declared.parameters is not None:
        schema = declared.parameters.json_schema.model_dump(mode="json", exclude_none=True)
    schema = schema or {"type": "object", "properties": {}}
    return HostTool(known.name, declared.description or known.name, schema)


def contract_for(
    tool: BaseTool | Callable[..., Any], *, effect: Effect | str, **options: Any
) -> Contract:
    """Return a contract from a tool's own schema. Takes the options of `@tool`."""
    return contract_of(host_tool(tool), effect=effect, **options)


class Counterseal(BasePlugin):
    """Puts the tool calls of an app under contract."""

    def __init__(
        self,
        runtime: Runtime,
        tools: Iterable[BaseTool | Callable[..., Any]],
        **options: Unpack[HostOptions],
    ) -> None:
        super().__init__(name="counterseal")
        self._host = Host(runtime, map(host_tool, tools), **options)

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any]:
        """Execute a tool call under contract; pause the run while a person has to decide."""
        host, confirmation, arguments = self._host, tool_context.tool_confirmation, tool_args
        note = None
        if confirmation is not None:
            payload = confirmation.payload
            reply = dict(payload) if isinstance(payload, Mapping) else {}
            note = await host.vote(reply, tool_context)
            if not confirmation.confirmed and not (host.has_voter and note is None):
                return {"error": _DECLINED}
            if reply.get("type") == "edit" and isinstance(reply.get("args"), Mapping):
                arguments = dict(reply["args"])
        answer = await host.submit(self._call(tool, arguments, tool_context))
        if answer.pending is None or host.waits or confirmation is not None:
            return _response(answer, note)
        hint, shown = answer.pending.consequence, answer.pending.record()
        tool_context.request_confirmation(hint=hint, payload=shown)
        tool_context.actions.skip_summarization = True
        return {"status": "held", "approval_id": answer.pending.approval_id}

    def _call(
        self, tool: BaseTool, arguments: dict[str, Any], tool_context: ToolContext
    ) -> HostCall:
        return HostCall(
            tool=tool.name,
            arguments=arguments,
            call_id=tool_context.function_call_id,
            run_id=self._host.run_id(tool_context, tool_context.session.id),
            context=tool_context,
            execute=lambda corrected: tool.run_async(args=corrected, tool_context=tool_context),
        )


def _response(answer: Answer, note: str | None = None) -> dict[str, Any]:
    """Return the framework's response: the tool's own, one of an earlier execution, an error."""
    if not answer.ok:
        return {"error": f"{answer.text}\n{note}" if note else answer.text}
    value = answer.value if answer.native is None else answer.native[0]
    return value if isinstance(value, dict) else {"result": value}
