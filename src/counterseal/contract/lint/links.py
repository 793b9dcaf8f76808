"""Rules on names that must lead somewhere: template fields, key arguments, pointers into output."""

from __future__ import annotations

from collections.abc import Iterator
from string import Formatter
from typing import Any

from counterseal.contract.effects import RISKS
from counterseal.contract.fill import (
    FillingError,
    consequence_problems,
    consequence_references,
)
from counterseal.contract.lint.base import Breach, breach, rule
from counterseal.contract.model import Contract
from counterseal.contract.schemas import Presence, presence, properties_of, without_refs


def _arguments(contract: Contract) -> dict[str, Any]:
    return dict(properties_of(contract.affordance.input_schema))


def template_fields(template: str) -> list[str]:
    """The names in a template. ValueError when it can't be read."""
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
        yield breach("/resource", f"can't be read: {error}", "Write fields as {name}.")
        return
    yield from (_unknown(contract, "/resource", name) for name in names if name not in known)


def _consequence_unknown(contract: Contract) -> Iterator[Breach]:
    place, schema = "/consequence", contract.affordance.input_schema
    try:
        found = list(consequence_references(contract))
    except FillingError as error:
        yield breach(place, str(error), "Write {argument} or {state.field}.")
        return
    for reference in found:
        if reference.source == "argument":
            if presence(schema, reference.path) in (Presence.NEVER, Presence.UNDECLARED):
                yield _unknown(contract, place, ".".join(reference.path))
        elif contract.probe is None:
            yield breach(
                place,
                f"{reference} is state before the call, but there is no probe to read it",
                "Declare a probe, or do without it.",
            )
    # A probe that is named is looked into when both tools are registered.
    asked = getattr(contract.probe, "contract", None)
    if isinstance(asked, Contract):
        for problem in consequence_problems(contract, asked):
            yield breach(problem.pointer, problem.message, problem.fix)


def _unknown(contract: Contract, place: str, name: str) -> Breach:
    return breach(
        place,
        f"{{{name}}} is not an argument of {contract.name}",
        f"Use one of: {', '.join(sorted(_arguments(contract))) or 'none are declared'}.",
    )


@rule("consequence-missing", "approvers are told the consequence in a sentence", warning=True)
def consequence_missing(contract: Contract) -> Iterator[Breach]:
    asked = contract.approvers > 0 or RISKS[contract.risk].approval.approvers > 0
    if asked and not (contract.consequence or "").strip():
        yield breach(
            "/consequence",
            "people must approve this, but would not read what happens if they do",
            'Write one sentence over the arguments: "Notice {draft_id} goes to {recipient}."',
        )


@rule("argument-unknown", "key, tenant and version names are arguments that exist")
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


@rule("pointer-unresolved", "version_from leads to a field of the output")
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
            f"{contract.version_from!r} leads to no field of the output schema",
            "Write a JSON Pointer, like /source_version.",
        )
