"""CEL conditions for contracts, policies and plan rules: compiled once, bounded, true or false.

The evaluator has no cost limit, so expressions that could run long are refused at load time: long
texts, `map`, `filter`, and a macro inside a macro. A missing key, an unknown name or a wrong type
raises `ExpressionError` and never counts as true; callers treat it as a denial.

The CEL library is imported on first use, because importing it also loads its command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from counterseal.errors import ExpressionError

MAX_LENGTH = 1000

# String literals and comments. Raw and triple-quoted forms come first: read as plain quotes they
# would end in the wrong place and hide what follows.
NOT_CODE = re.compile(
    r'''
      (?:[rR][bB]?|[bB][rR]) (?: """.*?""" | \'\'\'.*?\'\'\' | "[^"\n]*" | '[^'\n]*' )
    | """(?:\\.|[^\\])*?""" | \'\'\'(?:\\.|[^\\])*?\'\'\'
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
    | //[^\n]*
    ''',
    re.DOTALL | re.VERBOSE,
)
_MACRO = re.compile(r"\.\s*(all|exists|exists_one|map|filter|existsOne)\s*\(")
_LOOP_NAME = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne)\s*\(\s*(\w+)\s*,")
_TOO_COSTLY = {"map", "filter"}


class Expression:
    """A compiled CEL condition over a fixed set of names."""

    __slots__ = ("_program", "text", "variables")

    def __init__(self, text: str, *, names: Iterable[str]) -> None:
        self.text = text
        _check_cost(text)
        self._program = _compile(text)
        loops = _LOOP_NAME.findall(NOT_CODE.sub("''", text))
        self.variables = frozenset(self._program.variables()) & frozenset(names)
        unknown = sorted(set(self._program.variables()) - set(names) - set(loops))
        if unknown:
            raise ExpressionError(
                f"unknown name {', '.join(unknown)}; an expression here may use "
                f"{', '.join(sorted(names))}"
            )

    @property
    def functions(self) -> frozenset[str]:
        """The functions and operators that the expression calls."""
        return frozenset(self._program.functions())

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether the condition is true for these values.

        Takes a mapping, or an `evaluation_context` when several conditions see the same values.
        Raises ExpressionError when the result is neither true nor false.
        """
        try:
            result = self._program.execute(values)
        except KeyError as error:
            raise ExpressionError(f"no value for {error.args[0]!r}") from None
        except Exception as error:  # noqa: BLE001 - the evaluator raises many types
            raise ExpressionError(str(error).partition(".")[0]) from None
        if not isinstance(result, bool):
            raise ExpressionError(f"returns {type(result).__name__}, not true or false")
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def evaluation_context(values: Mapping[str, Any]) -> Any:
    """Return values in the form in which several expressions can be evaluated over them."""
    import cel  # noqa: PLC0415 - loaded on first use: see the module's docstring

    return cel.Context(dict(values))


def _compile(text: str) -> Any:
    import cel  # noqa: PLC0415 - loaded on first use: see the module's docstring

    try:
        return cel.compile(text)
    except ValueError as error:
        detail = re.search(r"<input>:(\d+):(\d+): (.*)", str(error))
        where = f"at {detail[1]}:{detail[2]}: {detail[3]}" if detail else str(error)
        raise ExpressionError(where.split(" expecting ")[0]) from None


def _check_cost(text: str) -> None:
    """Raise ExpressionError if evaluating the expression could take long."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters; split the rule in two")
    code = NOT_CODE.sub("''", text)
    for macro in _MACRO.finditer(code):
        if macro[1] in _TOO_COSTLY:
            raise ExpressionError(f"{macro[1]}() is not allowed; use all() or exists()")
        if _MACRO.search(_inside(code, macro.end())):
            raise ExpressionError(f"a macro inside {macro[1]}() is not allowed; it could run long")


def _inside(code: str, start: int) -> str:
    """Return the text from `start` up to the bracket that closes it."""
    depth = 1
    for end in range(start, len(code)):
        depth += (code[end] == "(") - (code[end] == ")")
        if depth == 0:
            return code[start:end]
    return code[start:]
