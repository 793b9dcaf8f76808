"""Rules on names and texts: the tool's own, and the names that its fields refer to.

Fields of templates, arguments and pointers into the output must exist. Whether a compensation tool
can be called needs the contract of that tool too, and is checked at registration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date

from packaging.version import InvalidVersion, Version

from counterseal.canonical import steps
from counterseal.contract.bindings import texts
from counterseal.contract.effects import RISKS
from counterseal.contract.fill import (
    TemplateError,
    ValueReference,
    consequence_problems,
    consequence_references,
    references,
)
from counterseal.contract.lint.rule import Breach, not_an_argument, rule
from counterseal.contract.model import NAME_PATTERN, Contract, LifecycleStatus
from counterseal.contract.schemas import Presence, presence, properties_of

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_VAGUE = {"do", "execute", "handle", "manage", "misc", "process", "run", "tool", "update", "utils"}
_WRITING = re.compile(
    r"^(approve|cancel|charge|create|delete|disable|drop|enable|grant|insert|pay|post|publish|"
    r"refund|remove|revoke|send|set|submit|transfer|update|void|write)(_|$)"
)
_READING = re.compile(r"^(check|count|describe|fetch|find|get|list|look_?up|read|search|show)(_|$)")


@rule("name-invalid", "name is 1 to 128 letters, digits, dots, dashes and underscores")
def name_invalid(contract: Contract) -> Iterator[Breach]:
    if not re.fullmatch(NAME_PATTERN[1:-1], contract.name):
        fault = f"{ascii(contract.name)[:80]} is not a tool name"
        yield Breach("/identity/name", fault, "Use 1 to 128 of a-z, A-Z, 0-9, '_', '.', '-'.")


@rule("version-invalid", "version is one that can be ordered, like 1.4.0")
def version_invalid(contract: Contract) -> Iterator[Breach]:
    try:
        Version(contract.version)
    except InvalidVersion:
        fault = f"{ascii(contract.version)[:40]} is not a version that can be ordered"
        yield Breach("/identity/version", fault, "Write it like 1.4.0.")


@rule("owner-unassigned", "owner is set", warning=True)
def owner_unassigned(contract: Contract) -> Iterator[Breach]:
    if contract.identity.owner.strip() in ("", "unassigned"):
        fix = "Name the team that is responsible for it."
        yield Breach("/identity/owner", "the tool has no owner", fix)


@rule("description-empty", "description is not empty")
def description_empty(contract: Contract) -> Iterator[Breach]:
    if not contract.affordance.model_description.strip():
        fault = "the description is empty"
        fix = "Say in a sentence what the tool does, and what it does not do."
        yield Breach("/affordance/model_description", fault, fix)


@rule("usage-empty", "usage is not empty")
def usage_empty(contract: Contract) -> Iterator[Breach]:
    if not contract.usage.strip():
        yield Breach("/usage", "the usage text is empty", "Say when a model should call this tool.")


@rule("text-hidden", "texts have no control or invisible characters")
def text_hidden(contract: Contract) -> Iterator[Breach]:
    texts = {
        "/affordance/model_description": contract.affordance.model_description,
        "/usage": contract.usage,
        **{f"/invariants/{i}/rule": inv.rule for i, inv in enumerate(contract.invariants)},
    }
    for place, text in texts.items():
        hidden = _CONTROL.search(text)
        if hidden:
            fault = f"the text has the invisible character U+{ord(hidden[0]):04X}"
            yield Breach(place, fault, "Remove it: a reviewer can't see what the model would read.")


@rule("name-vague", "name says what it acts on", warning=True)
def name_vague(contract: Contract) -> Iterator[Breach]:
    words = [word for word in re.split(r"[_.-]+", contract.name.lower()) if word]
    if words and (all(word in _VAGUE for word in words) or words[-1] == "stuff"):
        fault = f"{contract.name} does not say what it acts on"
        fix = "Name the action and its object, like create_notice_draft."
        yield Breach("/identity/name", fault, fix)


@rule("name-dishonest", "name does not hide or promise a change", warning=True)
def name_dishonest(contract: Contract) -> Iterator[Breach]:
    if contract.effect is None:
        return
    name = contract.name.lower().rpartition(".")[2]
    if contract.mutates and _READING.match(name):
        fault = f"{contract.name} sounds like it reads, but its effect is {contract.effect}"
        fix = "Name it after what it changes, or split reading from writing."
        yield Breach("/identity/name", fault, fix)
    if not contract.mutates and _WRITING.match(name):
        fault = f"{contract.name} sounds like it writes, but its effect is {contract.effect}"
        fix = "Declare the effect that it has, or name it after what it reads."
        yield Breach("/effect", fault, fix)


@rule("lifecycle-incomplete", "deprecation has an end or a replacement", warning=True)
def lifecycle_incomplete(contract: Contract) -> Iterator[Breach]:
    life = contract.identity.lifecycle
    deprecated = life.status is not LifecycleStatus.ACTIVE
    if deprecated and life.sunset_date is None and life.replacement is None:
        fault = f"the tool is {life.status}, but has neither an end nor a replacement"
        yield Breach("/identity/lifecycle", fault, "Give a sunset_date, a replacement, or both.")
    if life.status is LifecycleStatus.ACTIVE and life.sunset_date not in (None, date.max):
        fault = "a sunset date is set, but the status is still active"
        yield Breach("/identity/lifecycle/status", fault, "Set the status to deprecated.")


@rule("template-field-unknown", "templates use fields that exist")
def template_field_unknown(contract: Contract) -> Iterator[Breach]:
    schema = contract.affordance.input_schema
    templates = {
        "/resource": references(contract.resource or ""),
        "/consequence": consequence_references(contract),
    }
    for place, found in templates.items():
        try:
            for item in found:
                missing = presence(schema, item.path) in (Presence.NEVER, Presence.UNDECLARED)
                if item.source == "output" or (item.source == "argument" and missing):
                    yield not_an_argument(contract, place, item)
                elif item.source == "state" and contract.probe is None:
                    fault = f"{item} is the state before the call, but no probe reads it"
                    yield Breach(place, fault, "Declare a probe, or remove the reference.")
        except TemplateError as error:
            yield Breach(
                place, str(error), "Write {argument}; in a consequence, also {state.field}."
            )
            return
    # A probe that is given by name is checked at registration.
    probe = getattr(contract.probe, "contract", None)
    if isinstance(probe, Contract):
        for problem in consequence_problems(contract, probe):
            yield Breach(problem.pointer, problem.message, problem.fix)


@rule("consequence-missing", "consequence is stated for approvers", warning=True)
def consequence_missing(contract: Contract) -> Iterator[Breach]:
    needs_approval = contract.approvers > 0 or RISKS[contract.risk].approval.approvers > 0
    if needs_approval and not (contract.consequence or "").strip():
        fault = "calls need approval, but approvers are not told the consequence"
        fix = 'Write one sentence with arguments: "Notice {draft_id} goes to {recipient}."'
        yield Breach("/consequence", fault, fix)


@rule("argument-unknown", "key, tenant and version arguments exist")
def argument_unknown(contract: Contract) -> Iterator[Breach]:
    named = {f"/business_key/{i}": name for i, name in enumerate(contract.business_key)}
    for field in ("tenant_argument", "version_argument"):
        named |= {f"/{field}": getattr(contract, field)} if getattr(contract, field) else {}
    for place, name in named.items():
        if name not in properties_of(contract.affordance.input_schema):
            yield not_an_argument(contract, place, name)


@rule("pointer-unresolved", "version_from and external_ref point to fields of the output")
def pointer_unresolved(contract: Contract) -> Iterator[Breach]:
    for field, example in (("version_from", "/source_version"), ("external_ref", "/id")):
        pointer = getattr(contract, field)
        if pointer is None:
            continue
        declared = presence(contract.affordance.output_schema, steps(pointer))
        inside = pointer.startswith("/") and declared in (Presence.ALWAYS, Presence.SOMETIMES)
        if not inside:
            fault = f"{field} is {pointer!r}, which is no field of the output schema"
            yield Breach(f"/{field}", fault, f"Write a JSON Pointer, like {example}.")


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


def _presence(contract: Contract, reference: ValueReference) -> Presence:
    affordance, argument = contract.affordance, reference.source == "argument"
    schema = affordance.input_schema if argument else affordance.output_schema
    return presence(schema, reference.path)


@rule("reference-unknown", "expected and compensation refer to declared arguments and output")
def reference_unknown(contract: Contract) -> Iterator[Breach]:
    for place, item in _references(contract):
        if isinstance(item, TemplateError):
            yield Breach(place, str(item), "Write {argument} or {output.field}.")
        elif _presence(contract, item) in (Presence.NEVER, Presence.UNDECLARED):
            kind, prefix, schema = "output", "output.", contract.affordance.output_schema
            if item.source == "argument":
                kind, prefix, schema = "an argument", "", contract.affordance.input_schema
            known = [f"{{{prefix}{name}}}" for name in sorted(properties_of(schema))]
            fault = f"{item} is not declared as {kind} of {contract.name}"
            yield Breach(place, fault, f"Use one of: {', '.join(known) or 'none are declared'}.")


@rule("reference-optional", "expected and compensation refer to required values", warning=True)
def reference_optional(contract: Contract) -> Iterator[Breach]:
    for place, item in _references(contract):
        if isinstance(item, TemplateError):
            continue  # reported by reference-unknown
        if _presence(contract, item) is Presence.SOMETIMES:
            fault = f"{item} is optional; without it {_CONSEQUENCES[str(place[0])]}"
            yield Breach(place, fault, "Make it required, or remove the reference.")
