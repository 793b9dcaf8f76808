"""Pydantic AI: a capability that puts an agent's tools and toolsets under contract.

    governed = Counterseal(runtime, principal=..., effects={"pay": "irreversible"})
    Agent(model, capabilities=[governed], output_type=[str, DeferredToolRequests])

A held call ends the run with `DeferredToolRequests`, whose metadata says what a person decides on.
`DeferredToolResults(approvals={call_id: True})` goes on: the call is submitted again, and executed
if it was approved at the desk. Leave `requires_approval` off: the contract says what is approved.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias, Unpack

from counterseal.adapters.host import (
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
from counterseal.errors import SpokenError
from counterseal.runtime import Runtime

try:
    from pydantic_ai import RunContext, Tool
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.tools import ToolDefinition
except ImportError as error:
    raise missing_extra("pydantic-ai", error) from error

TESTED: Final = {"pydantic-ai-slim": ">=2.66,<2.67"}
"""The versions that the adapter was tested with."""

AnyTool: TypeAlias = Any
"""A `Tool`, a `ToolDefinition`, or a function."""

check_versions(TESTED)


def host_tool(given: AnyTool) -> HostTool:
    """Return a tool, or a function that an agent would make one of, as its model sees it."""
    tool = given if isinstance(given, Tool | ToolDefinition) else Tool(given)
    shown = tool.tool_def if isinstance(tool, Tool) else tool
    return HostTool(shown.name, shown.description or shown.name, shown.parameters_json_schema)


def contract_for(tool: AnyTool, *, effect: Effect | str, **options: Any) -> Contract:
    """Return a contract from a tool's own schema. Takes the options of `@tool`."""
    return contract_of(host_tool(tool), effect=effect, **options)


class Counterseal(AbstractCapability[Any]):
    """Puts the tools of an agent under contract.

    Tools that are given here are checked at once. Those of decorators and MCP servers are checked
    before the model is first asked: a run with a tool that has no contract does not begin.
    """

    def __init__(
        self,
        runtime: Runtime,
        tools: Iterable[AnyTool] = (),
        **options: Unpack[HostOptions],
    ) -> None:
        self._effects = dict(options.get("effects") or {})
        self._contracts = list(options.get("contracts", ()))
        grants = options.get("grants", ())
        self._grants = grants if isinstance(grants, str) else list(grants)
        self._known: set[str] = set()
        settings: Any = {**options, "grants": (), "contracts": ()}
        self._host = Host(runtime, (), **settings)
        self._register([host_tool(tool) for tool in tools])

    def _register(self, tools: list[HostTool]) -> None:
        """Put tools under contract, with those of the grants whose tools are known by now."""
        names, grants = {tool.name for tool in tools}, self._grants
        if not isinstance(grants, str):
            known = self._host.runtime.registry.versions
            grants = [each for each in grants if each.tool in names or known(each.tool)]
        self._host.register(tools, self._effects, self._contracts, grants)
        self._known |= names

    def get_ordering(self) -> CapabilityOrdering:
        """Return the place closest to the tool: a retry inside of it would act twice."""
        return CapabilityOrdering(position="innermost")

    async def prepare_tools(
        self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]
    ) -> list[ToolDefinition]:
        """Register the tools of this run. ContractError lists those without a contract."""
        new = [host_tool(each) for each in tool_defs if each.name not in self._known]
        if new:
            self._register(new)
        return tool_defs

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Execute a tool call under contract; defer it while a person has to decide."""
        note = await self._host.vote(ctx.tool_call_metadata, ctx)
        answer = await self._host.submit(self._call(ctx, call, args, handler))
        if answer.pending is not None and not self._host.waits:
            refused = {"vote_refused": note} if note else {}
            raise ApprovalRequired(metadata={**answer.pending.record(), **refused})
        if not answer.ok:
            raise ToolFailed(answer.text)
        return answer.value if answer.native is None else answer.native[0]

    def _call(
        self,
        ctx: RunContext[Any],
        call: ToolCallPart,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> HostCall:
        proposed = call.args_as_dict()
        mutates = self._host.mutates(call.tool_name)

        async def execute(arguments: dict[str, Any]) -> Any:
            changed = {k: v for k, v in arguments.items() if proposed.get(k) != v}
            try:
                return await handler({**args, **changed})
            except Exception as error:
                said = _said(error)
                if said is None:
                    raise
                if isinstance(said, ModelRetry) and not mutates:
                    raise said from error
                # A change may have been made before the tool gave up.
                raise SpokenError(call.tool_name, said.message, (type(said).__name__,)) from error

        return HostCall(
            tool=call.tool_name,
            arguments=proposed,
            call_id=call.tool_call_id,
            run_id=self._host.run_id(ctx, ctx.conversation_id),
            context=ctx,
            execute=execute,
            passes=(ApprovalRequired, CallDeferred, ModelRetry),
        )


def _said(error: Exception) -> ModelRetry | ToolFailed | None:
    """Return what a tool itself raised for the model, which the framework may have wrapped."""
    for each in (error, error.__cause__):
        if isinstance(each, ModelRetry | ToolFailed):
            return each
    return None
