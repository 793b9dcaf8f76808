"""Templates over one call: its consequence, the state expected after it, and how to reverse it.

A text that consists of one reference stands for a value and keeps its type: `{case_id}` is an
argument, `{output.draft_id}` a field of the output; dots go deeper. Inside other text a value is
written as text: `case:{case_id}`. `{{` and `}}` are plain braces. Objects and lists are filled
recursively, without their keys; other JSON values are constants. In a consequence, which is read
before the call, `{state.status}` is a value that the probe read, and `{cents|money:EUR}` an amount
in the smallest unit of a currency. This module is pure; `lint` checks that references exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from counterseal.canonical import pointer, thaw
from counterseal.contract.bindings import Placeholder, Template, template, texts
from counterseal.contract.model import Contract
from counterseal.contract.schemas import Presence, listed, presence, properties_of
from counterseal.errors import CountersealError, Problem, Severity

Values = Mapping[str, Any]


class ValueReference(NamedTuple):
    """The value that a placeholder refers to."""

    source: Literal["argument", "output", "state"]
    path: tuple[str, ...]

    def __str__(self) -> str:
        prefix = "" if self.source == "argument" else f"{self.source}."
        return f"{{{prefix}{'.'.join(self.path)}}}"


class TemplateError(CountersealError):
    """A template can't be filled: it can't be parsed, or a reference has no value."""


def references(template: Any) -> Iterator[ValueReference]:
    """Yield every reference of a template. Raises TemplateError for a text that can't be parsed."""
    for _, text in texts(template):
        for placeholder in _parse(text).placeholders:
            yield _reference(placeholder)


def fill(template: Any, arguments: Values, output: Values | None) -> Any:
    """Return the template with values in place of its references, as plain data.

    TemplateError names the missing value: an optional argument that was left out, or a field that
    the output does not have.
    """
    if isinstance(template, str):
        parsed = _parse(template)
        if parsed.alone is not None:
            return _value(parsed.alone, arguments, output)
        return "".join(
            part if isinstance(part, str) else _written(_value(part, arguments, output))
            for part in parsed.parts
        )
    if isinstance(template, Mapping):
        return {key: fill(item, arguments, output) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [fill(item, arguments, output) for item in template]
    return template


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse(text: str) -> Template:
    try:
        return template(text)
    except ValueError as error:
        raise TemplateError(f"{text!r} is not a template: {error}") from None


def _reference(
    placeholder: Placeholder, other: Literal["output", "state"] = "output"
) -> ValueReference:
    """Return what a placeholder refers to: an argument, or a field of `other`."""
    if not placeholder.argument:
        raise TemplateError(f"{placeholder} is not allowed here; use arguments and {other} only")
    path = tuple(placeholder.name.split("."))
    if not all(path):
        raise TemplateError(f"{placeholder} has an empty name")
    if path[0] == other and len(path) > 1:
        return ValueReference(other, path[1:])
    return ValueReference("argument", path)


def _value(placeholder: Placeholder, arguments: Values, output: Values | None) -> Any:
    reference = _reference(placeholder)
    present, value = _find(arguments if reference.source == "argument" else output, reference)
    if not present:
        kind = "argument" if reference.source == "argument" else "output field"
        raise TemplateError(f"{reference} can't be filled: the {kind} is missing")
    return value


def _find(value: Any, reference: ValueReference) -> tuple[bool, Any]:
    """Return whether there is a value, and a copy of it."""
    for name in reference.path:
        if not isinstance(value, Mapping) or name not in value:
            return False, None
        value = value[name]
    return True, thaw(value)


# --- consequence ----------------------------------------------------------------------------------


class ConsequenceSlot(NamedTuple):
    """A reference in a consequence, with its value if there is one."""

    reference: ValueReference
    present: bool
    value: Any
    currency: str | None = None
    """Set for `{cents|money:EUR}`: the value is an amount in the smallest unit of this currency."""


def consequence_references(contract: Contract) -> Iterator[ValueReference]:
    """Yield the references of the consequence. TemplateError when it can't be parsed."""
    for placeholder in _parse(contract.consequence or "").placeholders:
        yield _with_currency(placeholder)[0]


def _with_currency(placeholder: Placeholder) -> tuple[ValueReference, str | None]:
    """Return what a placeholder of a consequence refers to, and the currency of an amount."""
    name, bar, form = placeholder.name.partition("|")
    currency = form.removeprefix("money:")
    if bar and (currency == form or not re.fullmatch("[A-Z]{3}", currency)):
        fix = f"{{{name}|money:EUR}}, with the three letters of a currency"
        raise TemplateError(f"{placeholder} has an unknown form; write {fix}")
    reference = _reference(placeholder._replace(name=name), "state")
    return reference, currency if bar else None


def consequence_slots(
    contract: Contract, arguments: Values, state: Values | None
) -> Iterator[str | ConsequenceSlot]:
    """Yield the consequence in pieces: text is the contract's own, a slot has foreign data."""
    for part in _parse(contract.consequence or "").parts:
        if isinstance(part, str):
            yield part
            continue
        reference, currency = _with_currency(part)
        present, value = _find(arguments if reference.source == "argument" else state, reference)
        yield ConsequenceSlot(reference, present, value, currency)


def consequence_problems(contract: Contract, probe: Contract) -> Iterator[Problem]:
    """Yield a problem for each state field of the consequence that the probe does not return."""
    schema = probe.affordance.output_schema
    for reference in consequence_references(contract):
        hidden = presence(schema, reference.path) in (Presence.NEVER, Presence.UNDECLARED)
        if reference.source == "state" and hidden:
            known = ", ".join(f"{{state.{name}}}" for name in sorted(properties_of(schema)))
            yield Problem(
                rule="template-field-unknown",
                tool=contract.name,
                pointer="/consequence",
                message=f"{reference} is not a field that the probe {probe.name} returns",
                fix=f"Use one of: {known or 'the probe declares no fields'}.",
            )


# --- verification ---------------------------------------------------------------------------------


class StateDifference(NamedTuple):
    """A place where the probed state differs. `actual` is None for a missing field."""

    pointer: str
    expected: Any
    actual: Any


def expected_state(
    contract: Contract, arguments: Values, output: Values | None
) -> dict[str, Any] | None:
    """Return the state that the probe should find after this call, or None if none is declared."""
    return None if contract.expected is None else fill(contract.expected, arguments, output)


def resource_of(contract: Contract, arguments: Values) -> str | None:
    """Return the resource that a call acts on, or None if there is none."""
    if contract.resource is None:
        return None
    try:
        return _written(fill(contract.resource, arguments, None))
    except TemplateError:
        return None  # an optional argument was left out


def verification_of(
    contract: Contract, arguments: Values, output: Values | None
) -> tuple[str | None, dict[str, Any] | None, int]:
    """Return the resource to verify, its expected state, and the delay in seconds.

    Never raises: the expected state is None if it can't be filled. It contains values of `output`,
    so pass the redacted output when the result is shown to a model.
    """
    try:
        expected = expected_state(contract, arguments, output)
    except TemplateError:
        expected = None
    return resource_of(contract, arguments), expected, contract.verify_after


def differences(expected: Any, actual: Any) -> list[StateDifference]:
    """Return every place where the probed state differs from the expected one.

    Only expected fields are compared; the probed object may have more. Lists are compared item by
    item. 1 equals 1.0, and true does not equal 1.
    """
    return list(_differences(expected, actual, ()))


def _differences(
    expected: Any, actual: Any, path: tuple[str | int, ...]
) -> Iterator[StateDifference]:
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for name, value in expected.items():
            if name in actual:
                yield from _differences(value, actual[name], (*path, name))
            else:
                yield StateDifference(pointer(*path, name), thaw(value), None)
    elif (
        isinstance(expected, list | tuple)
        and isinstance(actual, list | tuple)
        and len(expected) == len(actual)
    ):
        for index, (value, other) in enumerate(zip(expected, actual, strict=True)):
            yield from _differences(value, other, (*path, index))
    elif isinstance(expected, bool) is not isinstance(actual, bool) or expected != actual:
        yield StateDifference(pointer(*path), thaw(expected), thaw(actual))


# --- compensation ---------------------------------------------------------------------------------


def compensation_arguments(
    contract: Contract, undo: Contract, arguments: Values, output: Values | None
) -> dict[str, Any]:
    """Return the arguments with which `undo` reverses a call of `contract`.

    Arguments that `compensation` does not name are taken by name from the output, else from the
    call's arguments. Raises TemplateError if a required one is in neither.
    """
    given = contract.compensation or {}
    schema = undo.affordance.input_schema
    filled: dict[str, Any] = {}
    for name in {**properties_of(schema), **given}:
        if name in given:
            filled[name] = fill(given[name], arguments, output)
        elif output is not None and name in output:
            filled[name] = thaw(output[name])
        elif name in arguments:
            filled[name] = thaw(arguments[name])
        elif name in listed(schema, "required"):
            raise TemplateError(
                f"{undo.name} needs {name}, which is neither in the output nor in the arguments"
            )
    return filled


def compensation_problems(contract: Contract, undo: Contract) -> Iterator[Problem]:
    """Yield every reason why `undo` could not be called with what `contract` provides."""
    given, schema = contract.compensation or {}, undo.affordance.input_schema
    for name in given:
        if presence(schema, (name,)) is Presence.NEVER:
            yield Problem(
                rule="compensation-arguments",
                tool=contract.name,
                pointer=pointer("compensation", name),
                message=f"{name} is not an argument of {undo.name} {undo.version}",
                fix=f"Use one of: {', '.join(sorted(properties_of(schema))) or 'it has none'}.",
            )
    for name in listed(schema, "required"):
        if name in given:
            continue
        sources = (contract.affordance.output_schema, contract.affordance.input_schema)
        presences = {presence(source, (name,)) for source in sources}
        if Presence.ALWAYS in presences:
            continue
        never = presences == {Presence.NEVER}
        fault = "is neither in the output nor in the arguments" if never else "may be missing"
        yield Problem(
            rule="compensation-arguments",
            tool=contract.name,
            pointer="/compensation" if given else "/transactional/compensation_tool",
            message=f"{undo.name} {undo.version} needs {name}, which {fault}",
            fix=f"Set {name} in `compensation`: a constant, {{argument}} or {{output.field}}.",
            severity=Severity.ERROR if never else Severity.WARNING,
        )
