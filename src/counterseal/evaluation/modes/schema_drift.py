"""Schema drift: what happens when the function or the service behind a tool changes.

Each case changes one field of the output, as a changed service would, or one part of the input
schema, which `contract.diff` has to call breaking.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from pydantic_core import to_json

from counterseal.canonical import thaw
from counterseal.contract.declare import Tool
from counterseal.contract.diff import Compatibility, diff
from counterseal.contract.schemas import listed, properties_of, types_of
from counterseal.contract.signature import Signature
from counterseal.errors import ContractError
from counterseal.evaluation.cases import (
    Arguments,
    CaseRun,
    EvaluationMode,
    GeneratedCase,
    always,
    expect,
)
from counterseal.evaluation.modes.observations import check
from counterseal.evaluation.scratch import Inner, Subject

_ANOTHER: Final = {"string": 7, "integer": "seven", "number": "seven", "boolean": "yes"}


def _cases(subject: Subject) -> Iterator[GeneratedCase]:
    contract = subject.contract
    tool = subject.record.tool
    if tool is not None and isinstance(getattr(tool.binder, "__self__", None), Signature):
        run = _signature(subject, tool)
        yield _case(subject, "the function takes what the contract declares", "input_schema", run)
    schema = contract.affordance.output_schema
    for name, inner in properties_of(schema).items():
        kind = next(iter(types_of(inner)), "object")
        other = _ANOTHER.get(kind, "another type")
        for label, change in (
            (f"{name} is gone from its answer", _drop(name)),
            (f"{name} is renamed in its answer", _rename(name)),
            (f"{name} has another type in its answer", _set(name, other)),
        ):
            yield _case(subject, label, f"output_schema/{name}", _answered(subject, change))
    added = _answered(subject, _set("added_by_the_service", "new"))
    yield _case(subject, "its answer has a new field", "output_schema", added)
    required = listed(contract.affordance.input_schema, "required")
    for name in properties_of(contract.affordance.input_schema):
        removed = _input_change(subject, name, "removed")
        yield _case(subject, f"{name} removed from its arguments", f"input_schema/{name}", removed)
        if name not in required:
            now = _input_change(subject, name, "required")
            yield _case(subject, f"{name} becomes required", f"input_schema/{name}", now)


def _case(subject: Subject, name: str, why: str, run: CaseRun) -> GeneratedCase:
    return GeneratedCase(name=name, why=why, run=run, arguments=subject.good.arguments)


def _drop(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda output: {key: value for key, value in output.items() if key != name}


def _rename(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda output: {
        (f"{key}_2" if key == name else key): value for key, value in output.items()
    }


def _set(name: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda output: {**output, name: value}


def _answered(subject: Subject, change: Callable[[dict[str, Any]], dict[str, Any]]) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        async def proxy(_number: int, inner: Inner) -> Any:
            plain = json.loads(to_json(await inner()))
            return change(plain) if isinstance(plain, dict) else plain

        async with subject.scratch(proxy=proxy) as scratch:
            end = await scratch.carry_out(arguments)
        check(subject.contract, end)

    return run


def _signature(subject: Subject, tool: Tool[..., Any]) -> CaseRun:
    async def run(_arguments: Arguments) -> None:
        try:
            Tool.of(subject.contract, tool.function)
        except ContractError as error:
            expect(False, "; ".join(problem.message for problem in error.problems))

    return run


def _input_change(subject: Subject, name: str, what: str) -> CaseRun:
    async def run(_arguments: Arguments) -> None:
        contract = subject.contract
        schema = thaw(contract.affordance.input_schema)
        if what == "removed":
            del schema["properties"][name]
        required = [one for one in schema.get("required", []) if one != name]
        schema["required"] = [*required, name] if what == "required" else required
        affordance = contract.affordance.model_copy(update={"input_schema": schema, "examples": ()})
        old = contract.model_copy(
            update={"affordance": contract.affordance.model_copy(update={"examples": ()})}
        )
        changes = diff(old, old.model_copy(update={"affordance": affordance}))
        breaking = any(Compatibility.BREAKING in one.kinds for one in changes)
        expect(breaking, f"not called breaking, but {[one.message for one in changes]}")

    return run


MODE: Final = EvaluationMode(
    name="drift",
    purpose="A changed function, service or schema is noticed before it reaches an agent.",
    why_not=always,
    cases=_cases,
)
