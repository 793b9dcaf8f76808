"""Read a typed function: its schemas from the hints, its texts from the docstring.

Returns plain data for `declare`, and decides nothing about effects or risk.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, Literal, get_args, get_origin

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from counterseal.contract.schemas import close, resolve_local, tidy, types_of
from counterseal.contract.tool_context import Config, Context, Secret, State
from counterseal.errors import ContractError, Problem, Source

Injection = Secret | Config | State | type[Context]


class _Schemas(GenerateJsonSchema):
    """Writes defaults in a fixed order: sets have none, and the contract's hash needs one."""

    def encode_default(self, dft: Any) -> Any:
        return super().encode_default(_in_order(dft))


def _in_order(value: Any) -> Any:
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return {key: _in_order(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(
            (_in_order(item) for item in value), key=lambda item: (str(type(item)), repr(item))
        )
    if type(value) in (list, tuple):
        return [_in_order(item) for item in value]
    return value


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The parameters, return type and description of a function."""

    function: Callable[..., Any]
    description: str
    documented: Mapping[str, str]
    injected: Mapping[str, Injection] = field(default_factory=dict)
    parameters: Mapping[str, inspect.Parameter] = field(default_factory=dict)
    hints: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def model(self) -> type[_Arguments]:
        """The model that parses arguments into what the function expects."""
        # Fields are numbered and have the parameter as alias, so that no parameter name can clash
        # with an attribute of pydantic's models.
        fields: dict[str, Any] = {
            field: self._field(name, self.parameters[name]) for name, field in self._fields
        }
        return create_model("Arguments", __base__=_Arguments, **fields)

    @cached_property
    def _fields(self) -> list[tuple[str, str]]:
        """The parameters, each with its field of the model."""
        return [(name, f"p{index}") for index, name in enumerate(self.parameters)]

    def _field(self, name: str, parameter: inspect.Parameter) -> tuple[Any, Any]:
        hint, default = self.hints.get(name, Any), parameter.default
        own: dict[str, Any] = {"alias": name}
        if isinstance(default, FieldInfo):
            hint = Annotated[hint, default]
        elif default is not inspect.Parameter.empty:
            own["default"] = default
        extras = hint.__metadata__ if get_origin(hint) is Annotated else ()
        described = any(isinstance(one, FieldInfo) and one.description for one in extras)
        if self.documented.get(name) and not described:
            own["description"] = self.documented[name]
        return hint, Field(**own)

    def input_schema(self) -> dict[str, Any]:
        schema = self.model.model_json_schema(
            by_alias=True, mode="validation", schema_generator=_Schemas
        )
        return _object(close(tidy(schema)))

    def output_schema(self) -> dict[str, Any]:
        """Return the schema of the return type. Non-objects are wrapped as `{"result": …}`."""
        hint = self.hints.get("return", Any)
        schema = tidy(TypeAdapter(hint).json_schema(mode="serialization"))
        root = resolve_local(schema, schema["$ref"]) if "$ref" in schema else schema
        if "object" in types_of(root):
            typed_map = root is schema and "properties" not in schema
            return {"type": "object", **(schema if typed_map else close(schema))}
        definitions = schema.pop("$defs", None)
        if not schema:
            return {"type": "object"}
        wrapped = _object({"properties": {"result": schema}, "required": ["result"]})
        if definitions:
            wrapped["$defs"] = definitions
        return close(wrapped)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return validated JSON arguments as the function's keyword arguments."""
        parsed = vars(self.model.model_validate(dict(arguments)))
        return {name: parsed[field] for name, field in self._fields}

    def source_of(self, parameter: str | None = None) -> Source | None:
        return locate(self.function, parameter)


def read_signature(function: Callable[..., Any]) -> Signature:
    """Read a function. ContractError lists every parameter that a contract can't have."""
    problems: list[Problem] = []

    def report(rule: str, message: str, fix: str, parameter: str | None = None) -> None:
        source = locate(function, parameter)
        problems.append(Problem(rule=rule, message=message, fix=fix, source=source))

    try:
        hints = _hints(function)
    except (NameError, TypeError) as error:
        fix = "Use types that are importable at module level."
        report("parameter-untyped", f"a type hint can't be resolved: {error}", fix)
        hints = {}
    parameters: dict[str, inspect.Parameter] = {}
    injected: dict[str, Injection] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        marker, fault = mark_of(hints.get(name)), _fault(name, parameter, hints.get(name))
        if fault is not None:
            report(*fault, name)
        elif marker is not None:
            injected[name] = marker
        else:
            parameters[name] = parameter
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        fix = "Return the whole output; report progress through the context."
        report("function-generator", "a generator has no single output", fix)
    for name in (*parameters, "return"):
        mode: Literal["serialization", "validation"] = (
            "serialization" if name == "return" else "validation"
        )
        try:
            TypeAdapter(hints.get(name, Any)).json_schema(mode=mode)
        except PydanticUserError as error:
            message = f"the type of {name} has no JSON form: {str(error).partition('. ')[0]}"
            fix = "Use JSON types, enums, dates, or pydantic models."
            report("parameter-untyped", message, fix, name)
    if problems:
        tool = getattr(function, "__name__", type(function).__name__)
        raise ContractError(problem.of(tool) for problem in problems)
    text = docstring_parser.parse(inspect.getdoc(function) or "")
    return Signature(
        function=function,
        description="\n\n".join(filter(None, (text.short_description, text.long_description))),
        documented={p.arg_name: p.description or "" for p in text.params},
        injected=injected,
        parameters=parameters,
        hints=hints,
    )


def _fault(name: str, parameter: inspect.Parameter, hint: Any) -> tuple[str, str, str] | None:
    """Return why a contract can't have this parameter: rule, message and fix."""
    if name == "self" and hint is None:
        message = "the tool is a method without its object, so a caller would have to pass self"
        return "parameter-untyped", message, "Declare a bound method: tool(effect=…)(thing.method)."
    hidden = mark_of(hint) is None and _hidden_marker(hint)
    if hidden or isinstance(parameter.default, _MARKERS):
        message = f"{name} has a marker in a place where it would reach the model"
        fix = 'Mark the parameter itself: Annotated[str, Secret("name")].'
        return "marker-misplaced", message, fix
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        fix = "Name every parameter: no *args, **kwargs or positional-only parameters."
        return "parameter-variadic", f"callers can't pass {name} by name", fix
    return None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target: Any = function
    while isinstance(target, partial):
        target = target.func
    if not inspect.isroutine(target):
        target = type(target).__call__
    return typing.get_type_hints(target, include_extras=True)


def mark_of(hint: Any) -> Injection | None:
    """Return what a parameter is injected with, or None for one that the model fills."""
    if hint is Context:
        return Context
    if get_origin(hint) in (typing.Union, types.UnionType):
        return next((mark for mark in map(mark_of, get_args(hint)) if mark is not None), None)
    if get_origin(hint) is Annotated:
        for extra in hint.__metadata__:
            if isinstance(extra, Secret | Config | State):
                return extra
        return mark_of(hint.__origin__)
    return None


def marks_of(function: Callable[..., Any]) -> dict[str, Injection]:
    """Return the parameters of a hook that are injected; none if its hints can't be read."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}
    marks = {name: mark_of(hint) for name, hint in hints.items() if name != "return"}
    return {name: mark for name, mark in marks.items() if mark is not None}


_MARKERS = (Secret, Config, State)


def _hidden_marker(hint: Any, seen: tuple[Any, ...] = ()) -> bool:
    """Return whether a hint has a marker in a place where it has no effect, such as in a list."""
    if hint in seen or len(seen) > 16:
        return False
    if hint is Context or isinstance(hint, _MARKERS) or hint in _MARKERS:
        return True
    parts: list[Any] = list(get_args(hint))
    if get_origin(hint) is Annotated:
        parts += hint.__metadata__
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        for field_info in hint.model_fields.values():
            parts += [field_info.annotation, *field_info.metadata]
    return any(
        _hidden_marker(part, (*seen, hint))
        for part in parts
        if isinstance(part, (type, *_MARKERS)) or get_origin(part) is not None
    )


def _object(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a closed object schema with its keys in a fixed order."""
    return {
        "type": "object",
        "properties": schema.pop("properties", {}),
        "required": schema.pop("required", []),
        "additionalProperties": False,
        **{k: v for k, v in schema.items() if k not in ("type", "additionalProperties")},
    }


def locate(function: Callable[..., Any], parameter: str | None = None) -> Source | None:
    """Return the position of a function, or of one of its parameters, in its file."""
    function = inspect.unwrap(function)
    try:
        lines, start = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or "?"
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    indent = len(lines[0]) - len(lines[0].lstrip())
    node: ast.AST = tree
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = (*tree.args.args, *tree.args.kwonlyargs, *tree.args.posonlyargs)
        variadic = (arg for arg in (tree.args.vararg, tree.args.kwarg) if arg)
        matches = [arg for arg in (*arguments, *variadic) if arg.arg == parameter]
        node = matches[0] if matches else tree
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    return Source(file=file, line=start + line - 1, column=indent + column + 1)
