"""Tools written to the plain protocol: `name`, `description`, a schema, `async execute(input)`.

They register as they are. Until somebody declares an effect they get the strictest one that an
agent may see, and what their schema leaves open is closed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from counterseal.canonical import freeze, thaw
from counterseal.contract.declare import Tool
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.contract.schemas import close
from counterseal.errors import ContractError, Problem, ToolFailedError

__all__ = ["PlainTool", "from_protocol", "looks_like_protocol"]

STRICTEST = Effect.IRREVERSIBLE


@runtime_checkable
class PlainTool(Protocol):
    """What is asked of a plain tool, beside an `input_schema` or a `get_schema()`."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    async def execute(self, input: dict[str, Any]) -> Any: ...  # noqa: A002 - the protocol's word


def looks_like_protocol(candidate: object) -> bool:
    """Whether an object can be read by `from_protocol`. A class is not an instance of itself."""
    if isinstance(candidate, type):
        return False
    return isinstance(candidate, PlainTool) and callable(candidate.execute)


def from_protocol(plain: PlainTool, *, effect: Effect | str | None = None) -> Tool[..., Any]:
    """A tool like any other. An `effect`, `version` or `usage` of its own is taken over."""
    declared = effect or getattr(plain, "effect", None) or STRICTEST
    contract = Contract.model_validate(
        {
            "effect": declared,
            "identity": {"name": plain.name, "version": getattr(plain, "version", "0.1.0")},
            "affordance": {
                "model_description": plain.description,
                "input_schema": _input_schema(plain),
                "output_schema": getattr(plain, "output_schema", {"type": "object"}),
            },
            "usage": getattr(plain, "usage", plain.description),
        }
    )

    async def execute(**arguments: Any) -> Any:
        result: Any = plain.execute(arguments)
        return _output(plain.name, await result if inspect.isawaitable(result) else result)

    # Whoever asks where this tool's code stands is shown the author's file, not this one.
    execute.__wrapped__ = plain.execute  # type: ignore[attr-defined]
    execute.__qualname__ = f"{type(plain).__qualname__}.execute"
    execute.__module__ = type(plain).__module__
    return Tool(contract=contract, function=execute)


def _input_schema(plain: PlainTool) -> dict[str, Any]:
    getter = getattr(plain, "get_schema", None)
    schema = getattr(plain, "input_schema", None)
    if schema is None and callable(getter):
        schema = getter()
    if not isinstance(schema, Mapping):
        raise _refusal(plain, "the tool shows no input schema")
    try:
        # Freezing first bounds what is walked below.
        own = thaw(freeze(_parameters_of(schema)))
    except ValueError as error:
        raise _refusal(plain, f"the input schema is not JSON: {error}") from None
    properties = own.get("properties")
    for name, value in properties.items() if isinstance(properties, dict) else ():
        if isinstance(value, dict):
            value.setdefault("description", f"{name} (its author gave no description)")
    return close({"type": "object", **own})


def _refusal(plain: PlainTool, message: str) -> ContractError:
    problem = Problem(
        rule="schema-invalid",
        tool=str(plain.name),
        pointer="/affordance/input_schema",
        message=message,
        fix="Give it an `input_schema`, or a `get_schema()` that returns one.",
    )
    return ContractError([problem])


def _parameters_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of a function-style schema, or the schema itself."""
    if schema.get("type") != "function":
        return schema
    inner = schema.get("function", schema)
    parameters = inner.get("parameters") if isinstance(inner, Mapping) else None
    return parameters if isinstance(parameters, Mapping) else schema


def _output(name: str, result: Any) -> Any:
    """What a `success / output / error` result says; anything else is the output itself."""
    if not hasattr(result, "success"):
        return result
    if not result.success:
        raise ToolFailedError(name, getattr(result, "error", None))
    return getattr(result, "output", None)
