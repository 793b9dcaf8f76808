"""Rules on names that must exist: fields of templates, arguments, and pointers into the output.

Whether a compensation tool can be called needs the contract of that tool too, and is checked at
registration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any

from counterseal.contract.bindings import texts
from counterseal.contract.effects import RISKS
from counterseal.contract.fill import (
    TemplateError,
    ValueReference,
    consequence_problems,
    consequence_references,
    references,
)
from counterseal.contract.lint.rule import Breach, breach, rule
from counterseal.contract.model import Contract
from counterseal.contract.schemas import Presence, presence, properties_of, without_refs


def _arguments(contract: Contract) -> dict[str, Any]:
    return dict(properties_of(contract.affordance.input_schema))


def template_fields(template: str) -> list[str]:
    """Return the names in a template. ValueError when it can't be parsed."""
    return [
        name.split(".")[0].split("[")[0]
        for _, name, _, _ in Formatter().parse(template)
        if name is not None
    ]


@rule("template-field-unknown", "templates use fields that exist")
def template_field_unknown(contract: Contract) -> Iterator[Breach]:
    yield from _consequence_unknown(contract)
    if contract.resource is None:
        return
    known = _arguments(contract)
    try:
        names = template_fields(contract.resource)
    except ValueError as error:
        yield breach("/resource", f"not a template: {error}", "Write fields as {name}.")
        return
    yield from (_unknown(contract, "/resource", name) for name in names if name not in known)


def _consequence_unknown(contract: Contract) -> Iterator[Breach]:
    place, schema = "/consequence", contract.affordance.input_schema
    try:
        named = list(consequence_references(contract))
    except TemplateError as error:
        yield breach(place, str(error), "Write {argument} or {state.field}.")
        return
    for reference in named:
        if reference.source == "argument":
            if presence(schema, reference.path) in (Presence.NEVER, Presence.UNDECLARED):
                yield _unknown(contract, place, ".".join(reference.path))
        elif contract.probe is None:
            yield breach(
                place,
                f"{reference} is the state before the call, but no probe is declared to read it",
                "Declare a probe, or remove the reference.",
            )
    # A probe that is given by name is checked at registration.
    probe = getattr(contract.probe, "contract", None)
    if isinstance(probe, Contract):
        for problem in consequence_problems(contract, probe):
            yield breach(problem.pointer, problem.message, problem.fix)


def _unknown(contract: Contract, place: str, name: str) -> Breach:
    return breach(
        place,
        f"{{{name}}} is not an argument of {contract.name}",
        f"Use one of: {', '.join(sorted(_arguments(contract))) or 'none are declared'}.",
    )


@rule("consequence-missing", "consequence is stated for approvers", warning=True)
def consequence_missing(contract: Contract) -> Iterator[Breach]:
    needs_approval = contract.approvers > 0 or RISKS[contract.risk].approval.approvers > 0
    if needs_approval and not (contract.consequence or "").strip():
        yield breach(
            "/consequence",
            "calls need approval, but approvers are not told the consequence",
            'Write one sentence with arguments: "Notice {draft_id} goes to {recipient}."',
        )


@rule("argument-unknown", "key, tenant and version arguments exist")
def argument_unknown(contract: Contract) -> Iterator[Breach]:
    arguments = _arguments(contract)
    named = [(f"/business_key/{i}", name) for i, name in enumerate(contract.business_key)]
    named += [
        (f"/{field}", name)
        for field in ("tenant_argument", "version_argument")
        if (name := getattr(contract, field)) is not None
    ]
    for place, name in named:
        if name not in arguments:
            yield breach(
                place,
                f"{name} is not an argument of {contract.name}",
                f"Use one of: {', '.join(sorted(arguments)) or 'none are declared'}.",
            )


@rule("pointer-unresolved", "version_from points to a field of the output")
def pointer_unresolved(contract: Contract) -> Iterator[Breach]:
    if contract.version_from is None:
        return
    root = contract.affordance.output_schema
    current = without_refs(root, root)
    parts = contract.version_from.split("/")
    for part in parts[1:]:
        inner = properties_of(current).get(part.replace("~1", "/").replace("~0", "~"))
        if inner is None:
            current = {}
            break
        current = without_refs(root, inner)
    if parts[0] != "" or len(parts) < 2 or not current:
        yield breach(
            "/version_from",
            f"{contract.version_from!r} does not point to a field of the output schema",
            "Write a JSON Pointer, like /source_version.",
        )


# --- expected state and compensation --------------------------------------------------------------

_CONSEQUENCES = {"expected": "nothing is verified", "compensation": "the call can't be reversed"}
"""The fields that hold templates, and what follows when a template can't be filled."""

Place = tuple[str | int, ...]


def _references(contract: Contract) -> Iterator[tuple[Place, ValueReference | TemplateError]]:
    for field in _CONSEQUENCES:
        for place, text in texts(getattr(contract, field), (field,)):
            try:
                for reference in references(text):
                    yield place, reference
            except TemplateError as error:
                yield place, error


def _schema(contract: Contract, reference: ValueReference) -> Mapping[str, Any]:
    affordance = contract.affordance
    return affordance.input_schema if reference.source == "argument" else affordance.output_schema


@rule("reference-unknown", "expected and compensation refer to declared arguments and output")
def reference_unknown(contract: Contract) -> Iterator[Breach]:
    for place, item in _references(contract):
        if isinstance(item, TemplateError):
            yield breach(place, str(item), "Write {argument} or {output.field}.")
        elif presence(_schema(contract, item), item.path) in (
            Presence.NEVER,
            Presence.UNDECLARED,
        ):
            yield _undeclared(contract, place, item)


def _undeclared(contract: Contract, place: Place, reference: ValueReference) -> Breach:
    kind, prefix = ("an argument", "") if reference.source == "argument" else ("output", "output.")
    known = [f"{{{prefix}{name}}}" for name in sorted(properties_of(_schema(contract, reference)))]
    return breach(
        place,
        f"{reference} is not declared as {kind} of {contract.name}",
        f"Use one of: {', '.join(known) or 'none are declared'}.",
    )


@rule("reference-optional", "expected and compensation refer to required values", warning=True)
def reference_optional(contract: Contract) -> Iterator[Breach]:
    for place, item in _references(contract):
        if isinstance(item, TemplateError):
            continue  # reported by reference-unknown
        if presence(_schema(contract, item), item.path) is Presence.SOMETIMES:
            yield breach(
                place,
                f"{item} is optional; without it {_CONSEQUENCES[str(place[0])]}",
                "Make it required, or remove the reference.",
            )
