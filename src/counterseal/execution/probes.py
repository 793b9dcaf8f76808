"""Asking the world without changing it: a contract's probe, and its read_back.

A hook is a function, or a read-only tool by its name. Either is run like a tool: within a deadline,
with what its marked parameters ask for, and without its secrets in what comes back.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from counterseal.canonical import at, thaw
from counterseal.codes import Code
from counterseal.contract.declare import Tool
from counterseal.contract.model import Contract
from counterseal.contract.signature import Injection, mark_of
from counterseal.contract.surroundings import Context
from counterseal.errors import CountersealError
from counterseal.execution.attempt import AttemptRequest
from counterseal.execution.executor import Executor, Runner
from counterseal.execution.http import http_tool
from counterseal.registry import Refusal, Registry

__all__ = ["Probe", "ProbeError", "ProbeRequest", "ask", "probe"]


class Probe(NamedTuple):
    """What a probe saw."""

    version: str | int | None
    state: Mapping[str, Any]


class ProbeError(CountersealError):
    """The world could not be asked. `trace` is for the operator."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace or message


class ProbeRequest(NamedTuple):
    """A question: whose hook it is, about which call, and who may answer."""

    contract: Contract
    arguments: Mapping[str, Any]
    context: Callable[[], Context]
    registry: Registry
    executor: Executor
    seconds: float


async def probe(hook: str | Callable[..., Any], asked: ProbeRequest) -> Probe | None:
    """The resource as it is now, or None when it does not exist."""
    found, runner = await _answer(hook, asked)
    if found is None:
        return None
    state = found if isinstance(found, Mapping) else {"result": found}
    pointer = "/version" if callable(hook) else runner.contract.version_from or "/version"
    version = at(state, pointer)
    if not isinstance(version, str | int):
        return Probe(None, state)
    if not _is_keepable(version):
        raise ProbeError("the version is neither a text nor a number that can be kept")
    return Probe(version, state)


def _is_keepable(version: str | int) -> bool:
    """Whether every store can keep it, to be compared later."""
    if isinstance(version, int):
        return -(2**63) <= version < 2**63
    return "\0" not in version and version.encode(errors="replace").decode() == version


async def ask(hook: str | Callable[..., Any], asked: ProbeRequest) -> Any:
    """What the hook answers, as plain data. It is given the call's arguments that it declares."""
    found, _ = await _answer(hook, asked)
    return found


async def _answer(hook: str | Callable[..., Any], asked: ProbeRequest) -> tuple[Any, Runner]:
    # A hook is a tool's own code: whatever it does to us means that the answer is not known.
    try:
        runner = _runner(hook, asked)
        given = thaw(asked.arguments)  # what it does to them is its own affair
        if not callable(hook):
            names = runner.contract.affordance.input_schema.get("properties", {})
            given = {key: value for key, value in given.items() if key in names}
        outcome = await runner.run(AttemptRequest(given, asked.context, asked.seconds))
        plain = to_jsonable_python(outcome.value, fallback=_unreadable)
        found = outcome.mask.data(plain) if outcome.mask else plain
    except Exception as error:
        raise ProbeError(f"{type(error).__name__} while asking") from error
    if outcome.interrupted:
        raise asyncio.CancelledError
    if outcome.code is not Code.SUCCESS:
        kind = outcome.fault.kinds[0] if outcome.fault else outcome.code.value
        raise ProbeError(f"{outcome.mask.text(kind)} while asking", outcome.trace)
    return found, runner


def _unreadable(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _runner(hook: str | Callable[..., Any], asked: ProbeRequest) -> Runner:
    if callable(hook):
        return asked.executor.ready(
            (asked.contract.hash, id(hook)),
            lambda: Runner(
                asked.executor, asked.contract, _as_tool(hook, asked.contract), hook=True
            ),
        )
    tenant = asked.context().tenant
    record = asked.registry.resolve(hook, tenant=tenant, run_id="probe")
    if isinstance(record, Refusal):
        raise ProbeError(f"the tool {hook} is not available")
    contract, tool = record.contract, record.tool
    if tool is None and contract.http is None:
        raise ProbeError(f"the tool {hook} has no code here")
    return asked.executor.ready(
        (contract.hash, id(tool)),
        lambda: Runner(asked.executor, contract, tool or http_tool(contract)),
    )


def _as_tool(function: Callable[..., Any], contract: Contract) -> Tool[..., Any]:
    """A plain function as something to run: it takes the arguments that it names."""
    marks = _marks(function)
    names = set(inspect.signature(function).parameters) - set(marks)
    return Tool(
        contract=contract,
        function=function,
        injected=marks,
        binder=lambda given: {key: value for key, value in given.items() if key in names},
    )


def _marks(function: Callable[..., Any]) -> dict[str, Injection]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}
    found = {name: mark_of(hint) for name, hint in hints.items() if name != "return"}
    return {name: mark for name, mark in found.items() if mark is not None}
