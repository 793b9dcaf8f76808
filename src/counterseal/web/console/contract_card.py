"""A contract's record as a page to read. Nothing is left out that says something. Pure.

`_SECTIONS` says where each part stands. What it does not name is shown at the end, so that a part
that contracts get later is seen before anybody gives it a place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from counterseal.canonical import at, pointer, thaw
from counterseal.contract.schemas import Parameter, parameters

__all__ = ["Fact", "Section", "sections"]

_SECTIONS: Final = {
    "What it is for": {
        "Described as": "/affordance/model_description",
        "When to use": "/usage",
        "Use for": "/affordance/allowed_use_cases",
        "Not for": "/affordance/forbidden_use_cases",
        "Examples": "/affordance/examples",
    },
    "What it may do": {
        "Effect": "/effect",
        "Risk class": "/transactional/side_effect_class",
        "Why this risk": "/risk_justification",
        "Consequence": "/consequence",
        "Confirmed first": "/transactional/confirmation_required",
        "Approvers": "/approvers",
        "Approval": "/approval",
        "Semantics": "/transactional/semantics",
        "Verified after": "/transactional/post_action_verification_required",
        "Verified later by": "/verify_after",
        "Then expected": "/expected",
        "Undone by": "/transactional/compensation_tool",
        "Undone with": "/compensation",
        "Output is": "/trust",
        "Shown to agents": "/exposed",
        "Calls a run": "/budget",
    },
    "Input": {"": "/affordance/input_schema"},
    "Output": {"": "/affordance/output_schema"},
    "Rules": {"Rules": "/invariants"},
    "When it is sent twice, or fails": {
        "Key": "/idempotency",
        "Made of": "/business_key",
        "Meant twice": "/repeatable",
        "No answer": "/on_unknown",
        "Repairable": "/error_contract/repairable_errors",
        "Retryable": "/error_contract/retryable_errors",
        "Fails closed": "/error_contract/fail_closed_errors",
        "Escalated": "/error_contract/escalation_errors",
        "Own errors": "/observability/error_taxonomy_mapping",
    },
    "Limits": {
        "Timeout": "/runtime/timeout_ms",
        "Retries": "/runtime/max_retries",
        "Rate": "/runtime/rate_limits",
        "Cost": "/runtime/cost_profile",
        "Output size": "/max_output_bytes",
        "Isolation": "/isolation",
        "Memory": "/memory_mb",
        "Sandbox": "/runtime/sandbox_isolated",
        "Runs code": "/runs_code",
    },
    "Security": {
        "Scopes": "/security/required_scopes",
        "Tenants apart": "/security/tenant_scoped",
        "Tenant argument": "/tenant_argument",
        "Data": "/security/data_classification",
        "Network": "/security/egress_policy",
        "Hosts": "/egress",
        "Secrets": "/secrets",
        "Secrets stay": "/security/secrets_boundary",
        "Taken out": "/redact",
        "Kept in": "/residency",
    },
    "What it works on": {
        "Resource": "/resource",
        "Version from": "/version_from",
        "Version argument": "/version_argument",
        "Config": "/config_params",
        "State read": "/state_reads",
        "State written": "/state_effects",
        "Probe": "/probe",
        "Preview": "/preview",
        "Read back": "/read_back",
        "HTTP": "/http",
        "MCP": "/mcp",
    },
    "Record": {
        "Owner": "/identity/owner",
        "Lifecycle": "/identity/lifecycle",
        "On record": "/observability/audit_required",
        "Traced": "/observability/trace_attributes",
        "Reads kept": "/keep_reads",
    },
}
"""Title, then label and JSON Pointer of each part."""
_ELSEWHERE: Final = frozenset({"/identity/name", "/identity/version"})
"""In the page's heading."""
_UNITS: Final = {
    "/runtime/timeout_ms": "ms",
    "/memory_mb": "MB",
    "/max_output_bytes": "bytes",
    "/verify_after": "s",
}
_NOTHING_AT_ZERO: Final = frozenset({"/verify_after"})
_KNOWN: Final = _ELSEWHERE | {place for rows in _SECTIONS.values() for place in rows.values()}


class Fact(NamedTuple):
    """One line: plain words, or JSON where it takes more than that."""

    label: str
    text: str
    json: Any = None


class Section(NamedTuple):
    title: str
    facts: tuple[Fact, ...] = ()
    fields: tuple[Parameter, ...] = ()
    """Of a schema."""
    note: str = ""


def sections(contract: Mapping[str, Any]) -> list[Section]:
    """Those that have something to say."""
    told = [_section(title, rows, contract) for title, rows in _SECTIONS.items()]
    told.append(Section("Besides", tuple(_besides(contract, ()))))
    return [one for one in told if one.facts or one.fields or one.note]


def _section(title: str, rows: Mapping[str, str], contract: Mapping[str, Any]) -> Section:
    if "" in rows:
        return _schema(title, at(contract, rows[""]))
    facts = (_fact(label, place, at(contract, place)) for label, place in rows.items())
    return Section(title, tuple(one for one in facts if one is not None))


def _schema(title: str, schema: Any) -> Section:
    if not isinstance(schema, Mapping):
        return Section(title)
    fields = tuple(parameters(schema))
    closed = schema.get("additionalProperties") is False
    note = "" if fields else "Nothing." if closed else "Any object."
    return Section(title, fields=fields, note=note)


def _fact(label: str, place: str, value: Any) -> Fact | None:
    plain = thaw(value)
    unsaid = plain is None or plain in ("", [], {})
    if unsaid or (plain == 0 and place in _NOTHING_AT_ZERO):
        return None
    words = _words(plain)
    if words is None:
        return Fact(label, "", plain)
    unit = _UNITS.get(place)
    return Fact(label, f"{words} {unit}" if unit else words)


def _words(value: Any) -> str | None:
    """A plain value in words, or pairs of such; None: it takes more than a line."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,g}"
        case str():
            return value
        case list() if all(isinstance(one, str) for one in value):
            return ", ".join(value)
        case dict() if all(_flat(one) for one in value.values()):
            told = {name: one for name, one in value.items() if one not in (None, [])}
            return "; ".join(
                f"{name.replace('_', ' ')} {_words(one)}" for name, one in told.items()
            )
    return None


def _flat(value: Any) -> bool:
    texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return value is None or texts or isinstance(value, str | int | float)


def _besides(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Fact]:
    """Whatever no section names."""
    for name, part in value.items():
        place = pointer(*path, name)
        if place in _KNOWN:
            continue
        inside = any(known.startswith(f"{place}/") for known in _KNOWN)
        if inside and isinstance(part, Mapping):
            yield from _besides(part, (*path, name))
        elif (fact := _fact(place, place, part)) is not None:
            yield fact
