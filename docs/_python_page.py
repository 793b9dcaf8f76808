"""The page about the Python API: the public names, their signatures, and their docstrings.

A name without a group is put under "More", so that a new public name is on the page at once.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from typing import Any

from _tables import table
from pydantic import BaseModel

import counterseal

GROUPS = {
    "Declare tools": "tool Tool Contract Effect RiskClass Trust Invariant ProposedCall DROP_STEP "
    "Secret Context Config ConfigParam State StateRead StateEffect Progress Blocks Partial lint "
    "load_contracts",
    "Projects": "open_project Project sync Conversation",
    "Submit calls": "Runtime Principal Proposal Observation Code Path Run Budgets Tenant Plan "
    "PlanRule RepairLoop",
    "Decide and operate": "Grant Registry Policy Voter NeedsAttention Reconciler Webhook KeyRing",
    "Errors": "CountersealError ContractError GrantError StoreError RunError ApprovalError "
    "NotDoneError NotSentError Problem",
}
"""The order of the page. `__version__` needs no words."""
ELSEWHERE = {
    "tool": "Every option is a field of the contract: [contract fields](contract.md).",
    "Contract": "[Contract fields](contract.md) lists what it holds.",
    "Effect": "[Effects and risk classes](effects.md) says what follows from each.",
    "Code": "[Codes](codes.md) has the response vector of each.",
    "sync": "A module: `sync.open_project()` and `sync.Runtime.open(url)`, without `async`. "
    "[Projects from Python](../projects.md) shows its use.",
    "DROP_STEP": "Returned by a corrector instead of a call: the call is dropped from its plan.",
}
"""Sentences for names whose members have a page of their own, or that are plain values."""
INTRODUCTION = """# Python API

The names that `counterseal` exports. They are the promise; everything else may move.
`counterseal.testing` is on the page about [testing](../testing.md), `counterseal.client` on that
about the [HTTP API](../http-api.md)."""
PLAIN = (str, int, float, bool, tuple, type(None))
LONGEST = 96
"""Characters of a signature in one line."""


def page() -> str:
    parts = [INTRODUCTION]
    for title, names in _groups().items():
        parts += [f"## {title}", *(_entry(name, getattr(counterseal, name)) for name in names)]
    return "\n\n".join(parts) + "\n"


def _groups() -> dict[str, list[str]]:
    groups = {title: names.split() for title, names in GROUPS.items()}
    listed = {name for names in groups.values() for name in names} | {"__version__"}
    unknown = listed - set(counterseal.__all__)
    if unknown:
        raise SystemExit(f"docs/_python_page.py: not public any more: {', '.join(sorted(unknown))}")
    more = [name for name in counterseal.__all__ if name not in listed]
    return {**groups, **({"More": more} if more else {})}


def _entry(name: str, value: Any) -> str:
    parts = [f"### {name}"]
    if inspect.isfunction(value):
        parts.append(_code(_signature(name, value)))
    words = _docstring(value)
    parts += [text for text in (words and _words(words), ELSEWHERE.get(name)) if text]
    if inspect.isclass(value):
        parts += _class(name, value)
    return "\n\n".join(part.rstrip() for part in parts)


def _docstring(value: Any) -> str | None:
    """Return its own docstring. Enums and dataclasses get one from Python, which says nothing."""
    if inspect.isclass(value):
        return ast.get_docstring(_tree(value))
    return inspect.getdoc(value) if inspect.isfunction(value) else None


def _class(name: str, value: type) -> Iterator[str]:
    if name in ("Contract", "Code"):
        return
    if issubclass(value, Enum):
        said = dict(_below(value))
        members = [(f"`{one.name}`", f"`{one.value}`", said.get(one.name, "")) for one in value]
        yield table(["member", "value", "meaning"], members)
    elif fields := list(_fields(value)):
        yield table(["field", "type", "default", "meaning"], fields)
    elif "__init__" in vars(value):
        yield _code(_signature(name, vars(value)["__init__"]).removesuffix(" -> None"))
    names = list(_members(value))
    properties = [one for one in names if isinstance(vars(value)[one], property)]
    if properties:
        rows = [(f"`{one}`", _line(inspect.getdoc(vars(value)[one]) or "")) for one in properties]
        yield table(["property", "meaning"], rows)
    for one in names:
        if one not in properties:
            function = getattr(vars(value)[one], "__func__", vars(value)[one])
            yield _code(_signature(f"{name}.{one}", function))
            yield _words(inspect.getdoc(function) or "")


def _fields(value: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield the public fields of a dataclass or a model."""
    said = {name: words for base in reversed(value.__mro__) for name, words in _below(base)}
    hints = {name: hint for base in reversed(value.__mro__) for name, hint in _hints(base)}
    if dataclasses.is_dataclass(value):
        known = {one.name: _default(one) for one in dataclasses.fields(value) if one.init}
    elif issubclass(value, BaseModel):
        fields = value.model_fields.items()
        known = {name: "required" if one.is_required() else "" for name, one in fields}
    else:
        return
    for name, default in known.items():
        if not name.startswith("_"):
            yield f"`{name}`", f"`{hints.get(name, '')}`", default, said.get(name, "")


def _default(one: dataclasses.Field[Any]) -> str:
    if one.default is not dataclasses.MISSING:
        return f"`{_plain(one.default)!r}`"
    return "" if one.default_factory is not dataclasses.MISSING else "required"


def _members(value: type) -> Iterator[str]:
    """Yield the names of public methods and properties that have a docstring."""
    for name, member in vars(value).items():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield name


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [
        one.replace(annotation=_Text(_written(one.annotation)), default=_plain(one.default))
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]
    short = inspect.Signature(parameters)
    text = str(short)
    back = signature.return_annotation
    text += "" if back is inspect.Signature.empty else f" -> {_written(back)}"
    begin = "await " if inspect.iscoroutinefunction(inspect.unwrap(function)) else ""
    line = f"{begin}{name}{text}"
    if len(line) <= LONGEST:
        return line
    inside = ",\n".join(f"    {one}" for one in _split(str(short)[1:-1]))
    after = text[len(str(short)) :]
    return f"{begin}{name}(\n{inside},\n){after}"


def _plain(default: Any) -> Any:
    """Return a default as it can be written; functions and objects are `...`."""
    if isinstance(default, Enum):
        return default.value
    simple = default is inspect.Parameter.empty or isinstance(default, PLAIN)
    return default if simple else _Text("...")


class _Text:
    """An annotation that is written as it stands."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _written(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "Any"
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _split(parameters: str) -> Iterator[str]:
    """Split a list of parameters at its commas, not at those inside of brackets."""
    depth, begin = 0, 0
    for place, character in enumerate(parameters):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield parameters[begin:place].strip()
            begin = place + 1
    yield parameters[begin:].strip()


def _below(value: type) -> Iterator[tuple[str, str]]:
    """Yield what stands in quotes below a field or a member."""
    for field, below in pairwise(_body(value)):
        target = getattr(field, "target", None) or next(iter(getattr(field, "targets", [])), None)
        quoted = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(target, ast.Name) and quoted:
            yield target.id, _line(ast.literal_eval(ast.unparse(below)))


def _hints(value: type) -> Iterator[tuple[str, str]]:
    for field in _body(value):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            hint = field.annotation
            while isinstance(hint, ast.Subscript) and ast.unparse(hint.value) == "Annotated":
                hint = hint.slice.elts[0] if isinstance(hint.slice, ast.Tuple) else hint.slice
            yield field.target.id, ast.unparse(hint)


def _body(value: type) -> list[ast.stmt]:
    return _tree(value).body if value.__module__.startswith("counterseal") else []


def _tree(value: type) -> ast.ClassDef:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    if not isinstance(tree, ast.ClassDef):
        raise TypeError(f"{value} is no class")
    return tree


def _words(docstring: str) -> str:
    """Return a docstring as Markdown: an indented part is code."""
    parts = []
    for part in docstring.split("\n\n"):
        indented = all(line.startswith("    ") for line in part.splitlines())
        parts.append(_code(textwrap.dedent(part), "text") if indented else part)
    return "\n\n".join(parts)


def _code(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"


def _line(text: str) -> str:
    return " ".join(text.split())
