"""CEL: compile once, bound, evaluate to a yes or a no. Used by contracts and by policy.

The evaluator has no cost limit of its own, so whatever could run long is refused when it is loaded:
long expressions, `map`, `filter`, and a macro inside a macro. Failing is never a yes: a missing
key, an unknown name or a wrong type raises `ExpressionError`, and the caller denies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from counterseal.errors import ExpressionError

__all__ = ["MAX_LENGTH", "NOT_CODE", "Expression"]

MAX_LENGTH = 1000

# One pattern for everything in which a word is not code. Raw and triple-quoted forms come first:
# read as plain quotes they would end in the wrong place and hide what follows.
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
        _refuse_what_could_run_long(text)
        self._program = _compile(text)
        loops = _LOOP_NAME.findall(NOT_CODE.sub("''", text))
        self.variables = frozenset(self._program.variables()) & frozenset(names)
        unknown = sorted(set(self._program.variables()) - set(names) - set(loops))
        if unknown:
            raise ExpressionError(
                f"unknown name {', '.join(unknown)}; an expression here may use "
                f"{', '.join(sorted(names))}"
            )

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether the condition is true of these values. Anything but true or false raises."""
        try:
            result = self._program.execute(values)
        except KeyError as error:
            raise ExpressionError(f"there is no {error.args[0]!r} here") from None
        # The evaluator raises what it likes; all of it means "no answer".
        except Exception as error:  # noqa: BLE001 - no answer
            raise ExpressionError(str(error).partition(".")[0]) from None
        if not isinstance(result, bool):
            raise ExpressionError(f"gives {type(result).__name__}, not true or false")
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def _compile(text: str) -> Any:
    from counterseal.cel_alone import cel  # noqa: PLC0415 - many programs need no CEL

    try:
        return cel.compile(text)
    except ValueError as error:
        detail = re.search(r"<input>:(\d+):(\d+): (.*)", str(error))
        where = f"at {detail[1]}:{detail[2]}: {detail[3]}" if detail else str(error)
        raise ExpressionError(where.split(" expecting ")[0]) from None


def _refuse_what_could_run_long(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters; split the rule in two")
    code = NOT_CODE.sub("''", text)
    for macro in _MACRO.finditer(code):
        if macro[1] in _TOO_COSTLY:
            raise ExpressionError(f"{macro[1]}() is not allowed; ask with all() or exists()")
        if _MACRO.search(_inside(code, macro.end())):
            raise ExpressionError(f"a macro inside {macro[1]}() is not allowed; it could run long")


def _inside(code: str, start: int) -> str:
    depth = 1
    for end in range(start, len(code)):
        depth += (code[end] == "(") - (code[end] == ")")
        if depth == 0:
            return code[start:end]
    return code[start:]
