"""The card of a contract: what it is for, what it may do, its arguments, how it fails."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from counterseal.canonical import thaw
from counterseal.cli.render import counted, fields, heading, line, one_line, paragraph, safe, table
from counterseal.contract.approval_terms import PATTERNS, ApprovalTerms, Then
from counterseal.contract.effects import EFFECTS, RISKS, Approval
from counterseal.contract.invariants import DROP_STEP, Invariant, code_name
from counterseal.contract.model import Contract, LifecycleStatus, OnUnknown
from counterseal.contract.money import millionths, money_text
from counterseal.contract.schemas import Parameter, parameters

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_UNKNOWN = {
    OnUnknown.RETRY_SAME_KEY: "retried with the same key",
    OnUnknown.READ_BACK: "looked up at the destination",
    OnUnknown.ESCALATE: "an operator decides; nothing is retried",
}


def card(contract: Contract, *, place: str, others: Sequence[str] = ()) -> Iterator[RenderableType]:
    """Yield the card. `place` is the contract's file and line, `others` its other versions."""
    yield line((safe(contract.name), "bold"), " ", (safe(contract.version), "dim"))
    yield from _purpose(contract)
    yield heading("What it may do")
    yield fields(_posture(contract).items())
    yield from _schema("Input", contract.affordance.input_schema)
    yield from _schema("Output", contract.affordance.output_schema)
    yield from _rules(contract)
    yield from _examples(contract)
    yield from _injected(contract)
    yield heading("Limits and security")
    yield fields(_limits(contract))
    yield heading("When it fails")
    yield fields(_failures(contract))
    yield heading("Record")
    yield fields(_record(contract, place, others))
    yield paragraph(contract.hash, style="dim")


def _purpose(contract: Contract) -> Iterator[RenderableType]:
    affordance = contract.affordance
    described, usage = affordance.model_description.strip(), contract.usage.strip()
    yield paragraph(described, indent=0)
    yield fields(
        [
            ("When to use", one_line(usage) if usage != described else ""),
            ("Use for", "; ".join(affordance.allowed_use_cases)),
            ("Not for", "; ".join(affordance.forbidden_use_cases)),
        ]
    )


def _posture(contract: Contract) -> dict[str, str]:
    """Return what follows from effect and risk class, with this contract's overrides."""
    effect = contract.effect
    disclosure = EFFECTS[effect].disclosure.partition(". ")[0].rstrip(".") if effect else ""
    return {
        "Effect": f"{effect}: {disclosure}" if effect else "not declared",
        "Risk class": _risk(contract),
        "Consequence": contract.consequence or "",
        "Key": _key(contract),
        "Approval": _approval(contract),
        "Approved how": "; ".join(approval_terms(contract.approval)) if contract.approval else "",
        "Verification": _verification(contract),
        "Then expected": _template(contract.expected),
        "Budget": _budget(contract),
        "Output is": f"{contract.trust}",
        "Audit": "required" if _audited(contract) else "not required",
        "Reads kept": "" if contract.keep_reads is None else contract.keep_reads.value,
        "Arguments kept": _days(contract.keep_arguments_days),
        "Semantics": contract.transactional.semantics.value,
        "Undone by": contract.transactional.compensation_tool or "",
        "Undone with": _template(contract.compensation),
    }


def _risk(contract: Contract) -> str:
    if contract.risk == contract.risk_floor:
        return str(contract.risk)
    reason = one_line(contract.risk_justification or "no reason is given")
    judged = f"judged as {contract.risk_floor} until an operator accepts the lower class"
    return f"{contract.risk} ({reason}); {judged}"


def _audited(contract: Contract) -> bool:
    return contract.observability.audit_required or RISKS[contract.risk_floor].audit


def _key(contract: Contract) -> str:
    key = contract.idempotency
    if not key.required:
        return "not needed"
    parts = ["required"]
    if contract.business_key:
        parts.append(f"made of {', '.join(contract.business_key)}")
    if key.ttl_seconds:
        parts.append(f"remembered for {_seconds(key.ttl_seconds)}")
    if contract.repeatable:
        parts.append("the same arguments may be meant twice")
    return "; ".join(parts)


def _approval(contract: Contract) -> str:
    usual = RISKS[contract.risk_floor].approval
    approvers = max(contract.approvers, usual.approvers)
    if not approvers:
        return usual.value if usual is Approval.CONDITIONAL else "none"
    if approvers == usual.approvers:
        return f"{usual.value}, for each call"
    return f"{counted(approvers, 'approver')}, for each call"


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


def _verification(contract: Contract) -> str:
    if not contract.transactional.post_action_verification_required:
        return "none"
    later = f"{_seconds(contract.verify_after)} " if contract.verify_after else ""
    return f"{later}after each call"


def _template(template: Mapping[str, Any] | None) -> str:
    return "" if template is None else json.dumps(thaw(template), ensure_ascii=False)


def _days(days: int | None) -> str:
    if days is None:
        return ""
    return counted(days, "day") if days else "not at all"


def _budget(contract: Contract) -> str:
    if not contract.exposed:
        return "never exposed to an agent"
    calls = f"{counted(contract.budget, 'call')} a run"
    return calls if contract.budget else f"{calls} until granted"


def _schema(title: str, schema: Mapping[str, Any]) -> Iterator[RenderableType]:
    rows = parameters(schema)
    yield heading(title)
    if not rows:
        yield paragraph(
            "any object" if schema.get("additionalProperties") is not False else "nothing"
        )
        return
    yield table(
        [(row.name, row.type, "yes" if row.required else "no", _described(row)) for row in rows],
        titles=("Name", "Type", "Required", "Description"),
    )


def _described(row: Parameter) -> Text:
    description, bounds = one_line(row.description), one_line(row.bounds)
    between = "\n" if description and bounds else ""
    return line(description, between, (bounds, "dim"))


def _rules(contract: Contract) -> Iterator[RenderableType]:
    """Yield each rule, and what happens to a call that breaks it."""
    if contract.invariants:
        yield heading("Rules")
        rows = [(rule.id, _otherwise(rule), one_line(rule.rule)) for rule in contract.invariants]
        yield table(rows, titles=("Id", "Otherwise", "Rule"))


def _otherwise(rule: Invariant) -> str:
    if rule.correct is None:
        return "approved by a person" if rule.asks else "rejected"
    return "step dropped" if rule.correct is DROP_STEP else "corrected"


def _examples(contract: Contract) -> Iterator[RenderableType]:
    if contract.affordance.examples:
        yield heading("Examples")
    for example in contract.affordance.examples:
        yield paragraph(one_line(example.description))
        yield paragraph(
            json.dumps(thaw(example.arguments), ensure_ascii=False), style="dim", indent=4
        )


def _injected(contract: Contract) -> Iterator[RenderableType]:
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


def _record(contract: Contract, place: str, others: Sequence[str]) -> list[tuple[str, str]]:
    life = contract.identity.lifecycle
    parts: list[str] = [life.status.value]
    if life.sunset_date:
        parts.append(f"ends on {life.sunset_date}")
    if life.replacement:
        parts.append(f"use {life.replacement}")
    active = life.status is LifecycleStatus.ACTIVE and len(parts) == 1
    return [
        ("Owner", contract.identity.owner),
        ("Version", contract.version),
        ("Other versions", ", ".join(others)),
        ("Lifecycle", "active" if active else ", ".join(parts)),
        ("Declared in", place),
    ]


def _seconds(seconds: float) -> str:
    for size, word in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size and seconds % size == 0:
            return counted(int(seconds // size), word)
    return f"{seconds:g} s"
