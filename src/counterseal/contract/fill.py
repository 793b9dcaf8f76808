"""A small language over one call: what it leads to, what is expected after it, what undoes it.

A text that is one reference and nothing else stands for a value and keeps its type: `{case_id}` for
an argument, `{output.draft_id}` for a field of the output; dots go deeper. Inside other text a
reference is written out: `case:{case_id}`. `{{` and `}}` are plain braces. Objects and lists are
filled inside, keys aside; any other JSON is constant. In a consequence, which is told before the
call, `{state.status}` is what the probe found; there is no output yet. Pure: nothing is asked of
the world here, and whether references lead somewhere is judged by `lint`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from counterseal.canonical import pointer, thaw
from counterseal.contract.bindings import Placeholder, Template, template, texts
from counterseal.contract.model import Contract
from counterseal.contract.schemas import Presence, listed, presence, properties_of
from counterseal.errors import CountersealError, Problem, Severity

__all__ = [
    "ConsequenceSlot",
    "StateDifference",
    "TemplateError",
    "ValueReference",
    "compensation_arguments",
    "compensation_problems",
    "consequence_problems",
    "consequence_references",
    "consequence_slots",
    "differences",
    "expected_state",
    "fill",
    "references",
    "resource_of",
    "verification_of",
]


Values = Mapping[str, Any]


class ValueReference(NamedTuple):
    """What a placeholder stands for."""

    source: Literal["argument", "output", "state"]
    path: tuple[str, ...]

    def __str__(self) -> str:
        prefix = "" if self.source == "argument" else f"{self.source}."
        return f"{{{prefix}{'.'.join(self.path)}}}"


class TemplateError(CountersealError):
    """A template can't be filled. The text says why; `missing` is what was not there."""

    def __init__(self, message: str, missing: ValueReference | None = None) -> None:
        super().__init__(message)
        self.missing = missing


# --- the language ---------------------------------------------------------------------------------


def references(template: Any) -> Iterator[ValueReference]:
    """Everything that a template refers to. FillingError for a text that can't be read."""
    for _, text in texts(template):
        for found in _read(text).placeholders:
            yield _reference(found)


def fill(template: Any, arguments: Values, output: Values | None) -> Any:
    """The template with values in the place of its references, as plain data.

    FillingError names what is missing: an optional argument that was left out, or a field that the
    output does not have.
    """
    if isinstance(template, str):
        return _fill_text(_read(template), arguments, output)
    if isinstance(template, Mapping):
        return {key: fill(item, arguments, output) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [fill(item, arguments, output) for item in template]
    return template


@lru_cache(maxsize=4096)
def _read(text: str) -> Template:
    try:
        return template(text)
    except ValueError as error:
        raise TemplateError(f"{text!r} can't be read: {error}") from None


def _reference(found: Placeholder, beside: Literal["output", "state"] = "output") -> ValueReference:
    if not found.argument:
        raise TemplateError(f"{found} has no place here: only arguments and the {beside} have")
    path = tuple(found.name.split("."))
    if not all(path):
        raise TemplateError(f"{found} names nothing")
    if path[0] == beside and len(path) > 1:
        return ValueReference(beside, path[1:])
    return ValueReference("argument", path)


def _fill_text(read: Template, arguments: Values, output: Values | None) -> Any:
    if read.alone is not None:
        return thaw(_value(read.alone, arguments, output))
    return "".join(
        part if isinstance(part, str) else _written(_value(part, arguments, output))
        for part in read.parts
    )


def _value(found: Placeholder, arguments: Values, output: Values | None) -> Any:
    reference = _reference(found)
    value: Any = arguments if reference.source == "argument" else output
    for name in reference.path:
        if not isinstance(value, Mapping) or name not in value:
            what = "no such argument was" if reference.source == "argument" else "no such output is"
            raise TemplateError(f"{reference} can't be filled: {what} given", reference)
        value = value[name]
    return value


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(thaw(value), ensure_ascii=False)


# --- consequence ----------------------------------------------------------------------------------


class ConsequenceSlot(NamedTuple):
    """A reference in a sentence, and what there is to put in its place."""

    reference: ValueReference
    there: bool
    value: Any


def consequence_references(contract: Contract) -> Iterator[ValueReference]:
    """What the sentence for approvers refers to. FillingError when it can't be read."""
    for found in _read(contract.consequence or "").placeholders:
        yield _reference(found, "state")


def consequence_slots(
    contract: Contract, arguments: Values, state: Values | None
) -> Iterator[str | ConsequenceSlot]:
    """The sentence for approvers, in pieces. Text is the contract's own, a slot somebody else's."""
    for part in _read(contract.consequence or "").parts:
        if isinstance(part, str):
            yield part
            continue
        reference = _reference(part, "state")
        there, value = _look(arguments if reference.source == "argument" else state, reference)
        yield ConsequenceSlot(reference, there, value)


def _look(value: Any, reference: ValueReference) -> tuple[bool, Any]:
    for name in reference.path:
        if not isinstance(value, Mapping) or name not in value:
            return False, None
        value = value[name]
    return True, thaw(value)


def consequence_problems(contract: Contract, probe: Contract) -> Iterator[Problem]:
    """State that the sentence for approvers names, and that this probe does not show."""
    schema = probe.affordance.output_schema
    for reference in consequence_references(contract):
        hidden = presence(schema, reference.path) in (Presence.NEVER, Presence.UNDECLARED)
        if reference.source == "state" and hidden:
            known = ", ".join(f"{{state.{name}}}" for name in sorted(properties_of(schema)))
            yield Problem(
                rule="template-field-unknown",
                tool=contract.name,
                pointer="/consequence",
                message=f"{reference} is nothing that the probe {probe.name} shows",
                fix=f"Use one of: {known or 'none are declared'}.",
            )


# --- verification ---------------------------------------------------------------------------------


class StateDifference(NamedTuple):
    """A place where the world is not as expected. What is missing is found as None."""

    pointer: str
    expected: Any
    found: Any


def expected_state(
    contract: Contract, arguments: Values, output: Values | None
) -> dict[str, Any] | None:
    """What the probe should find after this call; None where the contract expects nothing."""
    if contract.expected is None:
        return None
    filled: dict[str, Any] = fill(contract.expected, arguments, output)
    return filled


def resource_of(contract: Contract, arguments: Values) -> str | None:
    """What a call acts on, or None when the contract names nothing."""
    if contract.resource is None:
        return None
    try:
        return contract.resource.format_map(arguments)
    except (KeyError, IndexError, AttributeError, ValueError, TypeError):
        return None  # an optional argument that was left out


def verification_of(
    contract: Contract, arguments: Values, output: Values | None
) -> tuple[str | None, dict[str, Any] | None, int]:
    """What to look at after a call, what should be seen there, and after how many seconds.

    Never raises: what can't be filled is None. Values of the output stand in it as they are given,
    so whoever shows it to a model gives the output that the model may see.
    """
    try:
        expected = expected_state(contract, arguments, output)
    except TemplateError:
        expected = None
    return resource_of(contract, arguments), expected, contract.verify_after


def differences(expected: Any, found: Any) -> list[StateDifference]:
    """Where what was found is not what was expected.

    Only the fields that are expected are compared: an object may show more. Lists are compared item
    by item. 1 and 1.0 are equal, true and 1 are not; texts are equal when they are the same.
    """
    return list(_differences(expected, found, ()))


def _differences(
    expected: Any, found: Any, path: tuple[str | int, ...]
) -> Iterator[StateDifference]:
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for name, value in expected.items():
            if name in found:
                yield from _differences(value, found[name], (*path, name))
            else:
                yield StateDifference(pointer(*path, name), thaw(value), None)
    elif _is_list(expected) and _is_list(found) and len(expected) == len(found):
        for index, (value, other) in enumerate(zip(expected, found, strict=True)):
            yield from _differences(value, other, (*path, index))
    elif isinstance(expected, bool) is not isinstance(found, bool) or expected != found:
        yield StateDifference(pointer(*path), thaw(expected), thaw(found))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


# --- compensation ---------------------------------------------------------------------------------


def compensation_arguments(
    contract: Contract, undo: Contract, arguments: Values, output: Values | None
) -> dict[str, Any]:
    """With which arguments `undo` reverses a call of `contract`.

    What `compensation` does not name is taken by its name: from the output, else from the call's
    own arguments. FillingError where something that `undo` needs is found in neither.
    """
    given = contract.compensation or {}
    schema = undo.affordance.input_schema
    made: dict[str, Any] = {}
    for name in {**properties_of(schema), **given}:
        if name in given:
            made[name] = fill(given[name], arguments, output)
        elif output is not None and name in output:
            made[name] = thaw(output[name])
        elif name in arguments:
            made[name] = thaw(arguments[name])
        elif name in listed(schema, "required"):
            raise TemplateError(
                f"{undo.name} needs {name}, which neither the output nor the arguments hold",
                ValueReference("argument", (name,)),
            )
    return made


def compensation_problems(contract: Contract, undo: Contract) -> Iterator[Problem]:
    """Why `undo` could not be called: arguments that it does not have, or that nothing gives it."""
    given, schema = contract.compensation or {}, undo.affordance.input_schema
    for name in given:
        if presence(schema, (name,)) is Presence.NEVER:
            yield _problem(
                contract,
                pointer("compensation", name),
                f"{name} is not an argument of {undo.name} {undo.version}",
                f"Use one of: {', '.join(sorted(properties_of(schema))) or 'it takes none'}.",
            )
    place = "/compensation" if given else "/transactional/compensation_tool"
    for name in listed(schema, "required"):
        if name in given:
            continue
        sources = (contract.affordance.output_schema, contract.affordance.input_schema)
        there = {presence(source, (name,)) for source in sources}
        if Presence.ALWAYS in there:
            continue
        never = there == {Presence.NEVER}
        fault = "neither the output nor the arguments hold" if never else "may not be there"
        yield _problem(
            contract,
            place,
            f"{undo.name} {undo.version} needs {name}, which {fault}",
            f"Say in `compensation` what {name} is: a constant, {{argument}} or {{output.field}}.",
            Severity.ERROR if never else Severity.WARNING,
        )


def _problem(
    contract: Contract, place: str, message: str, fix: str, severity: Severity = Severity.ERROR
) -> Problem:
    return Problem(
        rule="compensation-arguments",
        tool=contract.name,
        pointer=place,
        message=message,
        fix=fix,
        severity=severity,
    )
