"""What the generated pages are made of: tables, and what a model says of its own fields."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Len, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

__all__ = ["Row", "cell", "fields", "table"]

NUMBERS = {Ge: "from {0.ge:,}", Gt: "above {0.gt:,}", Le: "up to {0.le:,}", Lt: "below {0.lt:,}"}
EXACT = 2**53 - 1
"""As far as JSON keeps whole numbers exact: not worth a word."""


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(head), *[[cell(value) for value in row] for row in rows]]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).replace("|", r"\|").replace("\n", " ")


class Row(NamedTuple):
    """One field: what it is called, what it takes, what it is when left out, what it says."""

    name: str
    takes: str
    default: str
    words: str


def fields(model: type[BaseModel], words: Mapping[str, str], kinds: Mapping[str, str]) -> list[Row]:
    """The fields of a model. Words come from the code where it has some, else from `words`.

    A field without any is an error, and so are words that nobody needs: then one of the two has
    changed, and the page must.
    """
    said = docstrings(model)
    needed = {name for name in model.model_fields if name not in said}
    if needed != set(words):
        missing, stale = needed - set(words), set(words) - needed
        raise SystemExit(f"{model.__name__}: no words for {missing or '-'}, stale: {stale or '-'}")
    return [
        Row(
            f"`{info.alias or name}`",
            kinds.get(name) or " or ".join(dict.fromkeys(_takes(info))),
            _default(info),
            said.get(name) or words[name],
        )
        for name, info in model.model_fields.items()
    ]


@cache
def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """What stands in quotes below a field, in the class or in one that it is made of."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            found |= dict(_below_fields(base))
    return found


def _below_fields(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    body = getattr(tree, "body", [])
    for field, below in pairwise(body):
        named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if named and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield field.target.id, inspect.cleandoc(below.value.value)


# --- types, in words ------------------------------------------------------------------------------


def _takes(info: FieldInfo) -> list[str]:
    bounds = " ".join(_bounds(info.metadata))
    return [f"{name} {bounds}".strip() for name in _kinds(info.annotation)]


def _kinds(annotation: Any) -> list[str]:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = " ".join(_bounds(inside[1:]))
        return [f"{name} {bounds}".strip() for name in _kinds(inside[0])]
    if origin in (Union, types.UnionType):
        return [name for one in inside if one is not type(None) for name in _kinds(one)]
    if origin is Literal:
        return [", ".join(f"`{one}`" for one in inside)]
    if origin is tuple:
        return [f"list of {' or '.join(_kinds(inside[0]))}"]
    if origin is dict:
        return [f"table of {' or '.join(_kinds(inside[1]))}"]
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return [", ".join(f"`{one.value}`" for one in annotation)]
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return ["table"]
    return [PLAIN.get(annotation, "anything")]


PLAIN: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Any: "anything",
}


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    for one in metadata:
        if isinstance(one, FieldInfo):
            yield from _bounds(one.metadata)
        for kind, text in NUMBERS.items():
            if isinstance(one, kind) and getattr(one, "le", 0) != EXACT:
                yield text.format(one)
        if isinstance(one, MinLen | Len) and one.min_length:
            yield f"(at least {one.min_length})"
        if isinstance(one, MaxLen | Len) and one.max_length:
            yield f"(at most {one.max_length})"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    make: Callable[[], Any] | None = info.default_factory  # type: ignore[assignment]
    value = make() if make is not None else info.default
    if isinstance(value, BaseModel) or value in (None, PydanticUndefined, "", (), {}):
        return ""
    if isinstance(value, Mapping):
        value = dict(value)
    return f"`{_written(value)}`"


def _written(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:,}" if value >= 10_000 else f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(map(_written, value))
    return str(value).replace("'", '"')
