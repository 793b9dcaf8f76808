"""The schema gate: checks arguments against the input schema, in one pass, with every error.

It has three codes. Where several kinds of error occur together, the first of structure, type and
bounds is the code; all errors are listed. No error contains a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from counterseal.canonical import pointer
from counterseal.codes import Code
from counterseal.contract.schemas import Validator
from counterseal.gates.base import CompiledContract, Decision, GateContext, allow, deny
from counterseal.gates.parse import kind_of
from counterseal.observation.envelope import FieldError
from counterseal.observation.invisible import neutralise
from counterseal.registry import Reason

NAME: Final = "schema"
ALLOW = allow(NAME)
_MAX_COLLECTED, _MAX_SHOWN = 2000, 50

_ORDER = (Code.STRUCTURAL_VIOLATION, Code.TYPE_MISMATCH, Code.OUT_OF_BOUNDS)
_REASONS = {
    Code.STRUCTURAL_VIOLATION: "The arguments do not have the shape that the tool takes.",
    Code.TYPE_MISMATCH: "An argument has the wrong type.",
    Code.OUT_OF_BOUNDS: "An argument is outside what the tool takes.",
}
_BOUND_WORDS = {
    "exclusiveMaximum": "less than",
    "exclusiveMinimum": "more than",
    "format": "in the format",
    "maximum": "at most",
    "maxItems": "a list of at most",
    "maxLength": "a text of at most",
    "maxProperties": "an object with at most",
    "minimum": "at least",
    "minItems": "a list of at least",
    "minLength": "a text of at least",
    "minProperties": "an object with at least",
    "multipleOf": "a multiple of",
    "pattern": "a text that matches",
}
_BOUNDS = {*_BOUND_WORDS, "const", "contentEncoding", "contentMediaType", "enum", "uniqueItems"}


def check(ctx: GateContext) -> Decision:
    """Deny arguments that do not fit, and a tool that does not exist for this caller."""
    if ctx.compiled is None:
        return _no_such_tool(ctx)
    refused_by = refusing(ctx.compiled, ctx.arguments, has_large=ctx.has_large_numbers)
    if refused_by is None:
        return ALLOW
    errors = tuple(field_errors(refused_by, ctx.arguments))
    codes = {error.code for error in errors}
    code = next(code for code in _ORDER if code.value in codes)
    return deny(NAME, code, _REASONS[code], field_errors=errors)


def refusing(
    compiled: CompiledContract, arguments: Mapping[str, Any], *, has_large: bool
) -> Validator | None:
    """Return the validator that refuses these arguments; None if they fit."""
    if not compiled.input.is_valid(arguments):
        return compiled.input
    exact = compiled.exact
    refused = has_large and exact is not None and not exact.is_valid(arguments)
    return exact if refused else None


def _no_such_tool(ctx: GateContext) -> Decision:
    refusal = ctx.refusal
    if refusal is not None and refusal.reason not in (Reason.UNKNOWN, Reason.OTHER_TENANT):
        return ALLOW  # it exists for this tenant; the scope gate decides whether it may be used
    code, reason = Code.STRUCTURAL_VIOLATION, "There is no such tool here."
    error = FieldError("", reason, code.value, f"one of: {', '.join(ctx.usable_tools()) or 'none'}")
    return deny(NAME, code, reason, rule="tool-unknown", field_errors=(error,))


def field_errors(validator: Any, arguments: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield at most fifty errors, those of structure first, then type, then bounds."""
    unfolded = (inner for error in validator.iter_errors(arguments) for inner in _unfold(error))
    distinct = {
        (error.field, error.code, error.expected): error
        for error in islice(unfolded, _MAX_COLLECTED)
    }
    ranked = sorted(
        distinct.values(), key=lambda error: (_ORDER.index(Code(error.code)), error.field)
    )
    yield from ranked[:_MAX_SHOWN]


def _unfold(error: Any) -> Iterator[FieldError]:
    """Yield the errors of a union's closest branch, or the error itself."""
    kind = error.kind
    if kind.name in ("anyOf", "oneOf") and hasattr(kind, "context"):
        yield from _closest(error, [list(branch) for branch in kind.context])
    else:
        yield _field_error(error)


def _closest(error: Any, branches: list[list[Any]]) -> Iterator[FieldError]:
    here = list(error.instance_path)
    wrong_type = [_wrong_type(branch, here) for branch in branches]
    if branches and all(wrong_type):
        expected = sorted({name for types in wrong_type for name in types or ()})
        yield _field(error, Code.TYPE_MISMATCH, " or ".join(expected), "has the wrong type")
        return
    fitting = [branch for branch, types in zip(branches, wrong_type, strict=True) if not types]
    best = min(fitting, key=len, default=[])
    if not best:
        yield _field(error, Code.STRUCTURAL_VIOLATION, "one of the declared forms", "fits no form")
    for inner in best:
        yield from _unfold(inner)


def _wrong_type(branch: list[Any], here: list[Any]) -> list[str] | None:
    """Return the types that a branch expects, if the value itself has none of them."""
    for error in branch:
        if error.kind.name == "type" and list(error.instance_path) == here:
            return list(error.kind.types)
    return None


def _field_error(error: Any) -> FieldError:
    kind = error.kind
    if kind.name == "type":
        wanted = " or ".join(kind.types)
        return _field(error, Code.TYPE_MISMATCH, wanted, f"must be {wanted}")
    if kind.name == "required":
        return _field(error, Code.STRUCTURAL_VIOLATION, "present", "is missing", kind.property)
    if kind.name in ("additionalProperties", "unevaluatedProperties"):
        # The names come from the model; the parse gate has bounded them.
        extra = ", ".join(neutralise(name[:40])[0] for name in sorted(kind.unexpected)[:10])
        return _field(
            error, Code.STRUCTURAL_VIOLATION, "declared fields only", f"has extra fields: {extra}"
        )
    if kind.name in _BOUNDS:
        wanted = _bound(kind)
        return _field(error, Code.OUT_OF_BOUNDS, wanted, f"must be {wanted}")
    return _field(error, Code.STRUCTURAL_VIOLATION, kind.name, f"breaks {kind.name}")


def _bound(kind: Any) -> str:
    """Return the bound in words. It comes from the schema, so it may be shown."""
    if kind.name == "enum":
        return "one of " + ", ".join(str(option) for option in kind.options[:20])
    if kind.name == "const":
        return str(kind.expected_value)
    if kind.name == "uniqueItems":
        return "a list without repetitions"
    return f"{_BOUND_WORDS.get(kind.name, kind.name)} {kind.value}"


def _field(
    error: Any, code: Code, expected: str, problem: str, inside: str | None = None
) -> FieldError:
    path = [*error.instance_path, *([] if inside is None else [inside])]
    name = str(path[-1]) if path else "the call"
    actual = "missing" if inside is not None else kind_of(error.instance)
    return FieldError(pointer(*path), f"{name} {problem}", code.value, expected, actual)
