"""Asking the world without changing it: a contract's probe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from counterseal.canonical import at
from counterseal.errors import CountersealError
from counterseal.execution.local import call_function
from counterseal.proposal import Principal
from counterseal.registry import Refusal, Registry

__all__ = ["Probe", "ProbeError", "probe"]


class Probe(NamedTuple):
    """What a probe saw."""

    version: str | int | None
    state: Mapping[str, Any]


class ProbeError(CountersealError):
    """The world could not be asked."""


async def probe(
    hook: str | Callable[..., Any],
    arguments: Mapping[str, Any],
    registry: Registry,
    principal: Principal,
) -> Probe | None:
    """The resource as it is now, or None when it does not exist.

    A function takes those arguments that it names. A tool is called with those that it declares.
    """
    try:
        if callable(hook):
            found = await _ask(hook, arguments)
            pointer = "/version"
        else:
            found, pointer = await _ask_tool(hook, arguments, registry, principal)
    # A probe is a tool's own code: whatever it raises means that the state is not known.
    except Exception as error:
        raise ProbeError(f"{type(error).__name__} while probing") from error
    if found is None:
        return None
    if isinstance(found, BaseModel):
        found = found.model_dump(mode="json")
    state = found if isinstance(found, Mapping) else {"result": found}
    version = at(state, pointer)
    return Probe(version if isinstance(version, str | int) else None, state)


async def _ask(hook: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    named = inspect.signature(hook).parameters
    return await call_function(hook, {k: v for k, v in arguments.items() if k in named})


async def _ask_tool(
    name: str, arguments: Mapping[str, Any], registry: Registry, principal: Principal
) -> tuple[Any, str]:
    record = registry.resolve(name, tenant=principal.tenant, run_id="probe")
    if isinstance(record, Refusal) or record.tool is None:
        raise ProbeError(f"the probe {name} is not available")
    declared = record.contract.affordance.input_schema.get("properties", {})
    given = {key: value for key, value in arguments.items() if key in declared}
    found = await call_function(record.tool.function, record.tool.binder(given))
    return found, record.contract.version_from or "/version"
