"""Rules on names that must lead somewhere: template fields, key arguments, pointers into output."""

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
    except TemplateError as error:
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


# --- aftermath ---


_LOST = {"expected": "nothing is compared", "compensation": "the call can't be reversed"}
"""The fields that hold templates, and what happens when one can't be filled."""

Place = tuple[str | int, ...]


def _references(contract: Contract) -> Iterator[tuple[Place, ValueReference | TemplateError]]:
    for field in _LOST:
        for place, text in texts(getattr(contract, field), (field,)):
            try:
                for reference in references(text):
                    yield place, reference
            except TemplateError as error:
                yield place, error


def _schema(contract: Contract, reference: ValueReference) -> Mapping[str, Any]:
    affordance = contract.affordance
    return affordance.input_schema if reference.source == "argument" else affordance.output_schema


@rule("reference-unknown", "expected and compensation name arguments and output fields that exist")
def reference_unknown(contract: Contract) -> Iterator[Breach]:
    for place, found in _references(contract):
        if isinstance(found, TemplateError):
            yield breach(place, str(found), "Write {argument} or {output.field}.")
        elif presence(_schema(contract, found), found.path) in (
            Presence.NEVER,
            Presence.UNDECLARED,
        ):
            yield _undeclared(contract, place, found)


def _undeclared(contract: Contract, place: Place, reference: ValueReference) -> Breach:
    kind, prefix = ("an argument", "") if reference.source == "argument" else ("output", "output.")
    known = [f"{{{prefix}{name}}}" for name in sorted(properties_of(_schema(contract, reference)))]
    return breach(
        place,
        f"{reference} is not declared as {kind} of {contract.name}",
        f"Use one of: {', '.join(known) or 'none are declared'}.",
    )


@rule("reference-optional", "expected and compensation name what is always there", warning=True)
def reference_optional(contract: Contract) -> Iterator[Breach]:
    for place, found in _references(contract):
        if isinstance(found, TemplateError):
            continue  # reported by reference-unknown
        if presence(_schema(contract, found), found.path) is Presence.SOMETIMES:
            yield breach(
                place,
                f"{found} may be left out, and then {_LOST[str(place[0])]}",
                "Make it required, or do without it here.",
            )


@rule("expected-unprobed", "expected state is read by a probe")
def expected_unprobed(contract: Contract) -> Iterator[Breach]:
    if contract.expected is not None and contract.probe is None:
        yield breach(
            "/expected",
            "says what the world is like afterwards, but there is no probe to look at it",
            "Declare a probe: a read-only tool or function that reads the resource.",
        )


@rule("verification-blind", "verification has something to look with", warning=True)
def verification_blind(contract: Contract) -> Iterator[Breach]:
    if contract.effect is None:
        return  # whether it must be verified is not known yet
    required = contract.transactional.post_action_verification_required
    if required and contract.probe is None and contract.read_back is None:
        yield breach(
            "/probe",
            "nobody will look: neither probe nor read_back",
            "Its calls must be verified: declare a probe and what is `expected`, or a read_back.",
        )


@rule("compensation-unused", "compensation arguments have a tool to go to")
def compensation_unused(contract: Contract) -> Iterator[Breach]:
    if contract.compensation is not None and not contract.transactional.compensation_tool:
        yield breach(
            "/compensation",
            "says with what a call is reversed, but not by which tool",
            "Name it in transactional.compensation_tool.",
        )


@rule("keep-reads-unused", "keep_reads is about calls that go into no ledger", warning=True)
def keep_reads_unused(contract: Contract) -> Iterator[Breach]:
    if contract.keep_reads is not None and contract.idempotency.required:
        yield breach(
            "/keep_reads",
            f"is {contract.keep_reads}, but its calls have keys: the ledger has what they returned",
            "Take it out.",
        )
