"""The card of a contract: what it is for, what it may do, its arguments, how it fails."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from counterseal.canonical import thaw
from counterseal.cli.render import (
    Parts,
    counted,
    fields,
    heading,
    line,
    one_line,
    paragraph,
    safe,
    table,
)
from counterseal.contract.approval_terms import PATTERNS, ApprovalTerms, Then
from counterseal.contract.effects import EFFECTS, RISKS, Approval
from counterseal.contract.invariants import DROP_STEP, code_name
from counterseal.contract.model import Contract, OnUnknown
from counterseal.contract.money import millionths, money_text
from counterseal.contract.schemas import parameters

_UNKNOWN = {
    OnUnknown.RETRY_SAME_KEY: "retried with the same key",
    OnUnknown.READ_BACK: "looked up at the destination",
    OnUnknown.ESCALATE: "an operator decides; nothing is retried",
}


def card(contract: Contract, *, place: str, others: Sequence[str] = ()) -> Parts:
    """Yield the card. `place` is the contract's file and line, `others` its other versions."""
    affordance, life = contract.affordance, contract.identity.lifecycle
    described, usage = affordance.model_description.strip(), contract.usage.strip()
    yield line((safe(contract.name), "bold"), " ", (safe(contract.version), "dim"))
    yield paragraph(described, indent=0)
    yield fields(
        [
            ("When to use", one_line(usage) if usage != described else ""),
            ("Use for", "; ".join(affordance.allowed_use_cases)),
            ("Not for", "; ".join(affordance.forbidden_use_cases)),
        ]
    )
    yield heading("What it may do")
    yield fields(_posture(contract))
    yield from _schema("Input", affordance.input_schema)
    yield from _schema("Output", affordance.output_schema)
    if contract.invariants:
        yield heading("Rules")
        rows = []
        for rule in contract.invariants:
            otherwise = "step dropped" if rule.correct is DROP_STEP else "corrected"
            if rule.correct is None:
                otherwise = "approved by a person" if rule.asks else "rejected"
            rows.append((rule.id, otherwise, one_line(rule.rule)))
        yield table(rows, titles=("Id", "Otherwise", "Rule"))
    if affordance.examples:
        yield heading("Examples")
    for example in affordance.examples:
        yield paragraph(one_line(example.description))
        yield paragraph(_json(example.arguments), style="dim", indent=4)
    yield from _injected(contract)
    yield heading("Limits and security")
    yield fields(_limits(contract))
    yield heading("When it fails")
    yield fields(_failures(contract))
    yield heading("Identity")
    ends = f"ends on {life.sunset_date}" if life.sunset_date else ""
    instead = f"use {life.replacement}" if life.replacement else ""
    yield fields(
        [
            ("Owner", contract.identity.owner),
            ("Version", contract.version),
            ("Other versions", ", ".join(others)),
            ("Lifecycle", ", ".join(filter(None, (life.status.value, ends, instead)))),
            ("Declared in", place),
        ]
    )
    yield paragraph(contract.hash, style="dim")


def _posture(contract: Contract) -> Iterator[tuple[str, str]]:
    """Yield what follows from effect and risk class, with this contract's overrides."""
    effect, floor, key = contract.effect, RISKS[contract.risk_floor], contract.idempotency
    disclosure = EFFECTS[effect].disclosure.partition(". ")[0].rstrip(".") if effect else ""
    yield "Effect", f"{effect}: {disclosure}" if effect else "not declared"
    reason = one_line(contract.risk_justification or "no reason is given")
    judged = f"judged as {contract.risk_floor} until an operator accepts the lower class"
    lowered = "" if contract.risk == contract.risk_floor else f" ({reason}); {judged}"
    yield "Risk class", f"{contract.risk}{lowered}"
    yield "Consequence", contract.consequence or ""
    parts = [
        "required",
        f"made of {', '.join(contract.business_key)}" if contract.business_key else "",
        f"remembered for {_seconds(key.ttl_seconds)}" if key.ttl_seconds else "",
        "the same arguments may be meant twice" if contract.repeatable else "",
    ]
    yield "Key", "; ".join(filter(None, parts)) if key.required else "not needed"
    usual = floor.approval
    approvers = max(contract.approvers, usual.approvers)
    people = usual.value if approvers == usual.approvers else counted(approvers, "approver")
    unasked = usual.value if usual is Approval.CONDITIONAL else "none"
    yield "Approval", f"{people}, for each call" if approvers else unasked
    if contract.approval:
        yield "Approved how", "; ".join(approval_terms(contract.approval))
    later = f"{_seconds(contract.verify_after)} " if contract.verify_after else ""
    verified = contract.transactional.post_action_verification_required
    yield "Verification", f"{later}after each call" if verified else "none"
    yield "Then expected", _json(contract.expected)
    calls = f"{counted(contract.budget, 'call')} a run{'' if contract.budget else ' until granted'}"
    yield "Budget", calls if contract.exposed else "never exposed to an agent"
    yield "Output is", f"{contract.trust}"
    audited = contract.observability.audit_required or floor.audit
    yield "Audit", "required" if audited else "not required"
    yield "Reads kept", "" if contract.keep_reads is None else contract.keep_reads.value
    if contract.keep_arguments_days is not None:
        days = contract.keep_arguments_days
        yield "Arguments kept", counted(days, "day") if days else "not at all"
    yield "Semantics", contract.transactional.semantics.value
    yield "Undone by", contract.transactional.compensation_tool or ""
    yield "Undone with", _json(contract.compensation)


def approval_terms(terms: ApprovalTerms) -> Iterator[str]:
    """Yield how an approval is given, as far as the terms say it."""
    if terms.pattern is not None:
        yield PATTERNS[terms.pattern].title.lower()
    if terms.roles:
        yield f"by {' or '.join(terms.roles)}"
    if terms.expires_seconds is not None:
        yield f"open for {_seconds(terms.expires_seconds)}"
    if terms.then is not None:
        executed = terms.then is Then.EXECUTE
        yield "then executed" if executed else "then the agent sends it again"
    if terms.justification_required:
        yield "approvers say why"
    if terms.jurisdiction is not None:
        yield f"jurisdiction {terms.jurisdiction}"
    if terms.accountable_owner is not None:
        yield f"accountable is {terms.accountable_owner}"


def _json(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else json.dumps(thaw(value), ensure_ascii=False)


def _schema(title: str, schema: Mapping[str, Any]) -> Parts:
    rows = []
    for row in parameters(schema):
        description, bounds = one_line(row.description), one_line(row.bounds)
        between = "\n" if description and bounds else ""
        about = line(description, between, (bounds, "dim"))
        rows.append((row.name, row.type, "yes" if row.required else "no", about))
    yield heading(title)
    if rows:
        yield table(rows, titles=("Name", "Type", "Required", "Description"))
    else:
        closed = schema.get("additionalProperties") is False
        yield paragraph("nothing" if closed else "any object")


def _injected(contract: Contract) -> Parts:
    params = [
        f"{param.key} (default {json.dumps(thaw(param.default), ensure_ascii=False)})"
        for param in contract.config_params
    ]
    rows = [
        ("Secrets", ", ".join(contract.secrets)),
        ("Config", ", ".join(params)),
        ("State read", ", ".join(read.key for read in contract.state_reads)),
        ("State written", ", ".join(f"{e.key} ({e.merge})" for e in contract.state_effects)),
    ]
    if any(text for _, text in rows):
        yield heading("Injected, never seen by the model")
        yield fields(rows)


def _limits(contract: Contract) -> list[tuple[str, str]]:
    runtime, security = contract.runtime, contract.security
    rate, cost, spends = runtime.rate_limits, runtime.cost_profile, contract.spends
    tenant = f", argument {contract.tenant_argument}" if contract.tenant_argument else ""
    hosts = f": {', '.join(contract.egress)}" if contract.egress else ""
    isolation = contract.isolation.value
    apart = isolation in ("process", "sandbox")
    price = f"{cost.cost_per_call:g} {cost.currency} a {cost.cost_unit}"
    return [
        ("Scopes", ", ".join(security.required_scopes) or "none"),
        ("Tenants", f"kept apart{tenant}" if security.tenant_scoped else "shared by all"),
        ("Data", security.data_classification.value),
        ("Network", f"{security.egress_policy.value}{hosts}"),
        ("Secrets", "" if not contract.secrets else security.secrets_boundary.value),
        ("Carried out", "by the client, which reports the outcome" if contract.by_client else ""),
        ("Isolation", f"{isolation}{f', {contract.memory_mb} MB' if apart else ''}"),
        ("Timeout", _seconds(runtime.timeout_ms / 1000)),
        ("Retries", f"up to {runtime.max_retries}" if runtime.max_retries else "none"),
        ("Rate", f"{rate.max_requests} calls in {_seconds(rate.window_sec)}"),
        ("Cost", price if cost.cost_per_call else ""),
        ("Cost at most", _money(contract.cost)),
        ("Spends", "" if spends is None else f"{spends.amount} in {spends.currency}"),
        ("Spends at most", _money(contract.money)),
        ("Output size", f"at most {contract.max_output_bytes:,} bytes"),
    ]


def _money(limits: Mapping[str, Mapping[str, str]] | None) -> str:
    return ", ".join(
        f"{money_text(millionths(most), currency)} a {window}"
        for window, by_currency in (limits or {}).items()
        for currency, most in by_currency.items()
    )


def _failures(contract: Contract) -> list[tuple[str, str]]:
    errors = contract.error_contract
    own = contract.observability.error_taxonomy_mapping
    mutates = contract.effect is None or EFFECTS[contract.effect].mutates
    return [
        ("Repairable", ", ".join(errors.repairable_errors)),
        ("Retryable", ", ".join(errors.retryable_errors)),
        ("Fails closed", ", ".join(errors.fail_closed_errors)),
        ("Escalated", ", ".join(errors.escalation_errors)),
        ("Own errors", ", ".join(f"{name} → {code}" for name, code in own.items())),
        ("No answer", _UNKNOWN[contract.on_unknown] if mutates else ""),
        ("Nothing done", ", ".join(contract.not_done_errors)),
        ("Resource", contract.resource or ""),
        ("Probe", _hook(contract.probe)),
        ("Preview", _hook(contract.preview)),
        ("Read back", _hook(contract.read_back)),
    ]


def _hook(hook: Any) -> str:
    return code_name(hook) if callable(hook) else hook or ""


def _seconds(seconds: float) -> str:
    for size, word in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size and seconds % size == 0:
            return counted(int(seconds // size), word)
    return f"{seconds:g} s"
