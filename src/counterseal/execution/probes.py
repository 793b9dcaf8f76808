"""Running a contract's read-only hooks: `probe` and `read_back`.

A hook is a function, or the name of a read-only tool. It runs like a tool: within a deadline, with
its marked parameters injected, and with secrets masked in its result.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from counterseal.canonical import at, thaw
from counterseal.codes import Code
from counterseal.contract.declare import Tool
from counterseal.contract.model import Contract
from counterseal.contract.signature import marks_of
from counterseal.contract.tool_context import Context
from counterseal.errors import CountersealError
from counterseal.execution.attempt import AttemptRequest
from counterseal.execution.executor import Executor, Runner
from counterseal.execution.http import http_tool
from counterseal.registry import Refusal, Registry


class Probe(NamedTuple):
    """The result of a probe: the resource's version and state."""

    version: str | int | None
    state: Mapping[str, Any]


class ProbeError(CountersealError):
    """A probe failed, so that the state of the resource is not known. `trace` is for operators."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace or message


class ProbeRequest(NamedTuple):
    """A call's hook to run: the contract, the arguments, and what runs it."""

    contract: Contract
    arguments: Mapping[str, Any]
    context: Callable[[], Context]
    registry: Registry
    executor: Executor
    seconds: float


async def probe(hook: str | Callable[..., Any], request: ProbeRequest) -> Probe | None:
    """Return the resource as it is now, or None if it does not exist."""
    result, runner = await _run(hook, request)
    if result is None:
        return None
    state = result if isinstance(result, Mapping) else {"result": result}
    pointer = "/version" if callable(hook) else runner.contract.version_from or "/version"
    version = at(state, pointer)
    if not isinstance(version, str | int):
        return Probe(None, state)
    # Every store has to hold it.
    if isinstance(version, int):
        fits = -(2**63) <= version < 2**63
    else:
        fits = "\0" not in version and version.encode(errors="replace").decode() == version
    if not fits:
        raise ProbeError("the version must be a text, or an integer of 64 bits")
    return Probe(version, state)


async def ask(hook: str | Callable[..., Any], request: ProbeRequest) -> Any:
    """Return the hook's result as plain data. The hook gets the arguments that it declares."""
    result, _ = await _run(hook, request)
    return result


async def _run(hook: str | Callable[..., Any], request: ProbeRequest) -> tuple[Any, Runner]:
    # A hook is the tool author's code: whatever it raises means that the answer is not known.
    try:
        runner = _runner(hook, request)
        given = thaw(request.arguments)  # a copy, which the hook may modify
        if not callable(hook):
            names = runner.contract.affordance.input_schema.get("properties", {})
            given = {key: value for key, value in given.items() if key in names}
        outcome = await runner.run(AttemptRequest(given, request.context, request.seconds))
        plain = to_jsonable_python(outcome.value, fallback=_unreadable)
        result = outcome.mask.data(plain) if outcome.mask else plain
    except Exception as error:
        raise ProbeError(f"the probe failed with {type(error).__name__}") from error
    if outcome.interrupted:
        raise asyncio.CancelledError
    if outcome.code is not Code.SUCCESS:
        kind = outcome.fault.kinds[0] if outcome.fault else outcome.code.value
        raise ProbeError(f"the probe failed with {outcome.mask.text(kind)}", outcome.trace)
    return result, runner


def _unreadable(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _runner(hook: str | Callable[..., Any], request: ProbeRequest) -> Runner:
    if callable(hook):
        return request.executor.cached_runner(
            (request.contract.hash, id(hook)),
            lambda: Runner(
                request.executor, request.contract, _as_tool(hook, request.contract), hook=True
            ),
        )
    tenant = request.context().tenant
    record = request.registry.resolve(hook, tenant=tenant, run_id="probe")
    if isinstance(record, Refusal):
        raise ProbeError(f"the tool {hook} is not available")
    contract, tool = record.contract, record.tool
    if tool is None and contract.http is None:
        raise ProbeError(f"the tool {hook} has no function in this process")
    return request.executor.cached_runner(
        (contract.hash, id(tool)),
        lambda: Runner(request.executor, contract, tool or http_tool(contract)),
    )


def _as_tool(function: Callable[..., Any], contract: Contract) -> Tool[..., Any]:
    """Wrap a hook function as a tool that takes the arguments it names; all, with `**`."""
    marks = marks_of(function)
    parameters = inspect.signature(function).parameters.values()
    everything = any(one.kind is one.VAR_KEYWORD for one in parameters)
    names = {one.name for one in parameters} - set(marks)
    return Tool(
        contract=contract,
        function=function,
        injected=marks,
        binder=lambda given: {k: v for k, v in given.items() if everything or k in names},
    )
