"""`@tool`: turn a typed function into a contract with the code that carries it out.

A `Tool` is a contract and its function. Calling it calls the function directly; only the runtime
puts gates before it. Objects with `name`, `description`, a schema and `async execute(input)` are
plain tools: they register as they are, with the strictest effect until one is declared.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import (
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
    runtime_checkable,
)

from pydantic import BaseModel

from counterseal.canonical import freeze, thaw
from counterseal.contract.approval_terms import ApprovalTerms
from counterseal.contract.effects import Effect, RiskClass, Trust
from counterseal.contract.invariants import Invariant
from counterseal.contract.model import (
    SHORT_NAMES,
    Contract,
    DataClassification,
    EgressPolicy,
    Envelope,
    ErrorContract,
    Example,
    ExecutedBy,
    Idempotency,
    Identity,
    Isolation,
    KeepReads,
    Observability,
    OnUnknown,
    RuntimeLimits,
    Security,
    Transactional,
)
from counterseal.contract.money import Spends
from counterseal.contract.schemas import close, properties_of
from counterseal.contract.signature import Injection, Signature, locate, read_signature
from counterseal.contract.tool_context import (
    Config,
    ConfigParam,
    Context,
    Secret,
    State,
    StateEffect,
    StateRead,
)
from counterseal.errors import ContractError, Problem, Source, SpokenError, ToolFailedError

P = ParamSpec("P")
R = TypeVar("R")


class ToolOptions(TypedDict, total=False):
    """The parameters of `@tool`.

    The first group are short names for fields of the sections; whole sections can be given too, and
    every other name is the contract's own.
    """

    name: str
    version: str
    owner: str
    description: str
    allowed_use_cases: Sequence[str]
    forbidden_use_cases: Sequence[str]
    examples: Sequence[Example | Mapping[str, Any]]
    scopes: Sequence[str]
    data_classification: DataClassification | str
    egress_policy: EgressPolicy | str
    risk: RiskClass | str
    compensation_tool: str
    timeout_ms: int
    max_retries: int

    identity: Identity | Mapping[str, Any]
    runtime: RuntimeLimits | Mapping[str, Any]
    security: Security | Mapping[str, Any]
    transactional: Transactional | Mapping[str, Any]
    idempotency: Idempotency | Mapping[str, Any]
    observability: Observability | Mapping[str, Any]
    error_contract: ErrorContract | Mapping[str, Any]

    effect: Effect | str
    risk_justification: str
    usage: str
    consequence: str
    exposed: bool
    trust: Trust | str
    approvers: int
    approval: ApprovalTerms | Mapping[str, Any]
    budget: int
    spends: Spends | Mapping[str, Any]
    money: Mapping[str, Mapping[str, Any]]
    cost: Mapping[str, Mapping[str, Any]]
    max_output_bytes: int
    redact: Sequence[str]
    keep_reads: KeepReads | str
    keep_arguments_days: int
    residency: Sequence[str]
    config_params: Sequence[ConfigParam | Mapping[str, Any]]
    invariants: Sequence[Invariant | Mapping[str, Any]]
    state_effects: Sequence[StateEffect | Mapping[str, Any]]
    secrets: Sequence[str]
    state_reads: Sequence[StateRead | Mapping[str, Any]]
    executed_by: ExecutedBy | str
    isolation: Isolation | str
    memory_mb: int
    runs_code: bool
    egress: Sequence[str]
    tenant_argument: str
    resource: str
    version_from: str
    external_ref: str
    version_argument: str
    probe: str | Callable[..., Any]
    preview: str | Callable[..., Any]
    read_back: str | Callable[..., Any]
    on_unknown: OnUnknown | str
    not_done_errors: Sequence[str]
    business_key: Sequence[str]
    repeatable: bool
    expected: Mapping[str, Any]
    verify_after: int
    compensation: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tool(Generic[P, R]):
    """A contract and the function that carries it out."""

    contract: Contract
    function: Callable[P, R]
    injected: Mapping[str, Injection] = field(default_factory=dict)
    binder: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    """Turns validated JSON arguments into the function's keyword arguments."""

    @classmethod
    def of(cls, contract: Contract, function: Callable[P, R]) -> Tool[P, R]:
        """Join a contract that was written by hand or read from a file with its function."""
        signature = read_signature(function)
        problems = list(_drift(contract, signature))
        if problems:
            raise ContractError(problem.of(contract.name) for problem in problems)
        return cls(
            contract=contract, function=function, injected=signature.injected, binder=signature.bind
        )

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def source_of(self, pointer: str = "") -> Source | None:
        """Return the position of a part of the contract in the function's file."""
        parts = pointer.split("/")
        named = parts[4] if parts[1:4] == ["affordance", "input_schema", "properties"] else None
        return locate(self.function, named)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.contract.name} {self.contract.version}>"


def _drift(contract: Contract, signature: Signature) -> Iterator[Problem]:
    """Yield every injected value and argument that only one of the two declares."""
    known = {
        *(Secret(name) for name in contract.secrets),
        *(State(read.key) for read in contract.state_reads),
    }
    keys = {param.key for param in contract.config_params}
    for mark in signature.injected.values():
        declared = mark.key in keys if isinstance(mark, Config) else mark in {*known, Context}
        if not declared:
            fault = f"the function takes {mark}, but the contract does not declare it"
            fix = "Declare it on the contract: secrets, config_params or state_reads."
            source = signature.source_of()
            yield Problem(rule="function-drift", message=fault, fix=fix, source=source)
    arguments = properties_of(contract.affordance.input_schema).keys()
    for name in sorted(arguments ^ signature.parameters.keys()):
        fault = f"the function takes {name}, but the contract does not declare it"
        if name in arguments:
            fault = f"the contract declares {name}, but the function does not take it"
        yield Problem(
            rule="function-drift",
            pointer=f"/affordance/input_schema/properties/{name}",
            message=fault,
            fix="Give the contract and the function the same arguments.",
            source=signature.source_of(name),
        )


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(**declared: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **declared: Unpack[ToolOptions]) -> Any:
    """Declare a function as a tool. Its hints become the schema, its docstring the description."""
    if function is not None:
        return _declare(function, declared)
    return lambda decorated: _declare(decorated, declared)


def _declare(function: Callable[P, R], declared: ToolOptions) -> Tool[P, R]:
    signature = read_signature(function)
    marks = signature.injected.values()
    data: dict[str, Any] = {
        "identity": {"name": getattr(function, "__name__", "")},
        "affordance": {
            "model_description": signature.description,
            "input_schema": signature.input_schema(),
            "output_schema": signature.output_schema(),
        },
        "secrets": [mark.name for mark in marks if isinstance(mark, Secret)],
        # A normalizer is a name, names or a function; the record accepts all three.
        "config_params": [
            {"key": mark.key, "default": mark.default, "normalizer": mark.normalizer}
            for mark in marks
            if isinstance(mark, Config)
        ],
        "state_reads": [{"key": mark.key} for mark in marks if isinstance(mark, State)],
    }
    for name, value in declared.items():
        if name == "http":
            problem = Problem(
                rule="function-and-http",
                pointer="/http",
                message="the tool has a function and an HTTP request; only one can carry it out",
                fix="Remove `http`, or write the tool as a contract file without a function.",
                source=signature.source_of(),
            )
            raise ContractError([problem])
        set_option(data, name, value)
    # Without a usage text, the description says when to call the tool.
    data.setdefault("usage", data["affordance"]["model_description"])
    try:
        contract = Contract.model_validate(data)
    except ContractError as error:
        source = signature.source_of()
        raise ContractError(problem.at(source) for problem in error.problems) from None
    return Tool(
        contract=contract, function=function, injected=signature.injected, binder=signature.bind
    )


def set_option(data: dict[str, Any], name: str, value: Any) -> None:
    """Store one value of `ToolOptions` at its place in a contract's data."""
    if name in SHORT_NAMES:
        section, key = SHORT_NAMES[name]
        data.setdefault(section, {})[key] = value
    elif isinstance(data.get(name), dict) or name in _SECTIONS:
        if isinstance(value, BaseModel):
            value = {field: getattr(value, field) for field in value.model_fields_set}
        if not isinstance(value, Mapping):
            fault = f"{name} must be a mapping or a section, not {type(value).__name__}"
            raise ContractError([Problem(rule="field-invalid", pointer=f"/{name}", message=fault)])
        data[name] = {**data.get(name, {}), **value}
    elif name in ("config_params", "secrets", "state_reads"):
        data[name] = (*data.get(name, ()), *value)
    else:
        data[name] = value


_SECTIONS = Envelope.model_fields.keys()


# --- plain tools ----------------------------------------------------------------------------------


STRICTEST = Effect.IRREVERSIBLE


@runtime_checkable
class PlainTool(Protocol):
    """A plain tool. It also has an `input_schema`, or a method `get_schema()`."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    async def execute(self, input: dict[str, Any]) -> Any: ...  # noqa: A002 - the protocol's word


def is_plain_tool(candidate: object) -> bool:
    """Return whether an object is a plain tool. The class of a plain tool is not one."""
    if isinstance(candidate, type):
        return False
    return isinstance(candidate, PlainTool) and callable(candidate.execute)


def wrap_plain_tool(plain: PlainTool, *, effect: Effect | str | None = None) -> Tool[..., Any]:
    """Return a plain tool as a `Tool`.

    Its own `effect`, `version`, `usage` and `not_done_errors` are used if set.
    """
    declared = effect or getattr(plain, "effect", None) or STRICTEST
    schema, getter = getattr(plain, "input_schema", None), getattr(plain, "get_schema", None)
    if schema is None and callable(getter):
        schema = getter()
    contract = Contract.model_validate(
        {
            "effect": declared,
            "identity": {"name": plain.name, "version": getattr(plain, "version", "0.1.0")},
            "affordance": {
                "model_description": plain.description,
                "input_schema": closed_input(plain.name, schema),
                "output_schema": getattr(plain, "output_schema", {"type": "object"}),
            },
            "usage": getattr(plain, "usage", plain.description),
            "not_done_errors": getattr(plain, "not_done_errors", ()),
        }
    )

    async def execute(**arguments: Any) -> Any:
        result: Any = plain.execute(arguments)
        return _output(plain.name, await result if inspect.isawaitable(result) else result)

    # So that errors point to the author's file and not to this one.
    execute.__wrapped__ = plain.execute  # type: ignore[attr-defined]
    execute.__qualname__ = f"{type(plain).__qualname__}.execute"
    execute.__module__ = type(plain).__module__
    return Tool(contract=contract, function=execute)


def closed_input(tool: str, schema: object) -> dict[str, Any]:
    """Return a foreign input schema as a contract's: closed, and every parameter described."""
    if isinstance(schema, Mapping) and schema.get("type") == "function":
        # In the function style, the schema is the function's parameters.
        inner = schema.get("function", schema)
        parameters = inner.get("parameters") if isinstance(inner, Mapping) else None
        schema = parameters if isinstance(parameters, Mapping) else schema
    fault = "the tool has no input schema"
    try:
        # Freezing limits the depth before the schema is walked.
        own = thaw(freeze(schema)) if isinstance(schema, Mapping) else None
    except ValueError as error:
        own, fault = None, f"the input schema is not JSON: {error}"
    if own is None:
        problem = Problem(
            rule="schema-invalid",
            tool=str(tool),
            pointer="/affordance/input_schema",
            message=fault,
            fix="Add an `input_schema`, or a `get_schema()` that returns one.",
        )
        raise ContractError([problem])
    for name, value in properties_of(own).items():
        if isinstance(value, dict):
            value.setdefault("description", f"{name} (its author gave no description)")
    return close({"type": "object", **own})


def _output(name: str, result: Any) -> Any:
    """Unpack a `success / output / error` result; return any other result as it is."""
    if isinstance(result, Mapping) and {"success"} <= result.keys() <= _RESULT:
        success, output, error = result["success"], result.get("output"), result.get("error")
    elif hasattr(result, "success"):
        success, output = result.success, getattr(result, "output", None)
        error = getattr(result, "error", None)
    else:
        return result
    if success:
        return output
    # The message is for the caller, the rest is not.
    spoken = reported_failure(name, error)
    failure = spoken if spoken.words or spoken.reported else ToolFailedError(name)
    failure.details = error
    raise failure


def reported_failure(tool: str, error: Any, *, open_fields: bool = False) -> SpokenError:
    """Return the failure that a `success / output / error` result reports.

    `open_fields`: the caller may read every field of the error, not only its message.
    """
    details = error if isinstance(error, Mapping) else {"message": error}
    message = details.get("message")
    words = message if isinstance(message, str) else ""
    names = tuple(value for key in _NAMES if isinstance(value := details.get(key), str) and value)
    fields = {str(key): value for key, value in details.items() if key != "message"}
    return SpokenError(tool, words, names, fields if open_fields else None)


_RESULT = frozenset({"success", "output", "error"})
_NAMES = ("code", "type")
"""The keys under which a reported error has its own name, the most precise one first."""
