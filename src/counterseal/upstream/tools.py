"""What an upstream has, as a tool of ours: its function is the request to the upstream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import mcp_types

from counterseal.canonical import thaw
from counterseal.contract.bindings import McpBinding
from counterseal.contract.declare import Tool
from counterseal.contract.model import Contract
from counterseal.contract.outputs import is_blocks
from counterseal.contract.tool_context import Context
from counterseal.errors import ToolFailedError
from counterseal.execution.http import AnswerError
from counterseal.upstream.upstream import Upstream
from counterseal.upstream.verdict import AbsentError

__all__ = ["mcp_tool"]

_Function = Callable[..., Awaitable[Any]]

_NOT_THERE: Final = frozenset({mcp_types.INVALID_PARAMS, -32002})
"""What a server says of a resource or prompt that it does not have; the second up to 2025-11-25."""


def mcp_tool(contract: Contract, upstream: Upstream) -> Tool[..., Any]:
    """The tool that a contract's `mcp` section names."""
    binding = contract.mcp
    if binding is None:
        raise ValueError(f"{contract.name} has no mcp section")
    function: _Function
    if binding.kind == "tool":
        in_blocks = is_blocks(contract.affordance.output_schema)
        function = _call(upstream, binding, in_blocks=in_blocks)
    elif binding.kind == "resource":
        function = _read(upstream)
    else:
        function = _prompt(upstream)
    return Tool(
        contract=contract,
        function=function,
        injected={"context": Context},
        binder=lambda arguments: {"arguments": thaw(arguments)},
    )


def _call(upstream: Upstream, binding: McpBinding, *, in_blocks: bool) -> _Function:
    tool = binding.tool

    async def call(arguments: Mapping[str, Any], context: Context) -> Any:
        result = await upstream.call(
            tool, arguments, context=context, definition=binding.definition
        )
        if in_blocks:
            return {"content": result["content"]}
        if "structuredContent" not in result:
            raise AnswerError(f"{tool} has an output schema, and answered without such an output")
        return result["structuredContent"]

    return call


def _read(upstream: Upstream) -> _Function:
    async def read(arguments: Mapping[str, Any], context: Context) -> Any:
        result = await _looked_up(upstream, "resources/read", arguments, context)
        return {"contents": result["contents"]}

    return read


def _prompt(upstream: Upstream) -> _Function:
    async def prompt(arguments: Mapping[str, Any], context: Context) -> Any:
        result = await _looked_up(upstream, "prompts/get", arguments, context)
        said = {"description": result["description"]} if "description" in result else {}
        return {**said, "messages": result["messages"]}

    return prompt


async def _looked_up(
    upstream: Upstream, method: str, arguments: Mapping[str, Any], context: Context
) -> dict[str, Any]:
    """What changes nothing: an upstream that refuses what it was asked for has done nothing."""
    try:
        return await upstream.request(method, arguments, tenant=context.tenant)
    except ToolFailedError as error:
        if isinstance(error.details, Mapping) and error.details.get("code") in _NOT_THERE:
            raise AbsentError(method, error.details) from None
        raise
