"""Fills in what follows from the effect. Given values always win; nothing is derived from a guess.

Works on the raw mapping, before the model reads it, and leaves whatever it can't make sense of for
the model to report.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel

from counterseal.codes import RESPONSES, Code
from counterseal.contract.approval import PATTERNS, Pattern, Then, pattern_for
from counterseal.contract.effects import EFFECTS, RISKS, Effect, EffectRow, RiskClass, RiskRow

__all__ = ["derive"]

_E = TypeVar("_E", bound=StrEnum)

_TRACE_ATTRIBUTES = (
    "gen_ai.operation.name",
    "tool.name",
    "tool.version",
    "tool.call_id",
    "tool.side_effect_class",
    "tool.validation.status",
    "tool.error_code",
    "tool.retryable",
    "tool.repairable",
    "tool.idempotency_key_hash",
    "tool.approval_id",
    "tenant.id",
    "trace.replayable",
)


def derive(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same mapping with every section completed."""
    given = {key: _plain(value) for key, value in data.items() if value is not None}
    effect = EFFECTS[_known(Effect, given.get("effect"), Effect.IRREVERSIBLE)]
    transactional = given.get("transactional")
    stated = transactional.get("side_effect_class") if isinstance(transactional, dict) else None
    risk_class = _known(RiskClass, stated, effect.risk)
    complete: dict[str, Any] = _under(
        given, _defaults(given, effect, risk_class, RISKS[risk_class])
    )
    return complete


def _defaults(
    given: dict[str, Any], effect: EffectRow, risk_class: RiskClass, risk: RiskRow
) -> dict[str, Any]:
    key = effect.mutates or risk.key
    compensation = _inside(given, "transactional", "compensation_tool")
    sandboxed = given.get("isolation") == "sandbox"
    reads = not effect.mutates and risk_class is RiskClass.READ_ONLY
    retried = reads or given.get("on_unknown") == "retry_same_key"
    approvers, approval = _approval(given, risk, keyed=key)
    return {
        "exposed": effect.exposed,
        "trust": effect.trust,
        "approvers": approvers,
        **approval,
        "isolation": "sandbox" if _inside(given, "runtime", "sandbox_isolated") is True else "auto",
        "budget": risk.budget,
        "on_unknown": "read_back" if given.get("read_back") else "escalate",
        "runtime": {"sandbox_isolated": sandboxed, "max_retries": 2 if retried else 0},
        "security": {
            "secrets_boundary": "gateway_injected" if given.get("secrets") else "none",
            "egress_policy": "allowlisted_domains" if given.get("egress") else "none",
        },
        "transactional": {
            "side_effect_class": risk_class,
            "confirmation_required": risk.approval.approvers > 0
            # Who writes how many approve, or how they are asked, wants them asked.
            or (approvers > 0 and not given.keys().isdisjoint(("approval", "approvers"))),
            "semantics": "compensable_write" if compensation else effect.semantics,
            # Who says what is expected wants it looked at.
            "post_action_verification_required": risk.verification or "expected" in given,
        },
        "idempotency": {
            "supported": key,
            "required": key,
            "key_header": "Idempotency-Key" if key else None,
            "ttl_seconds": 86_400 if key else None,
            "payload_hash_required": key,
        },
        "observability": {"trace_attributes": _TRACE_ATTRIBUTES, "audit_required": risk.audit},
        "error_contract": _error_contract(),
    }


def _approval(
    given: dict[str, Any], risk: RiskRow, *, keyed: bool
) -> tuple[int, dict[str, dict[str, Any]]]:
    """How many people approve a call, and the terms where anybody does or might."""
    chosen = _inside(given, "approval", "pattern")
    asked = _inside(given, "transactional", "confirmation_required") is True
    approvers = max(risk.approval.approvers, 1 if asked or "approval" in given else 0)
    if chosen is not None:
        approvers = max(approvers, PATTERNS[_known(Pattern, chosen, pattern_for(1))].approvers)
    if isinstance(given.get("approvers"), int):
        approvers = given["approvers"]
    if not approvers and "approval" not in given:
        return approvers, {}
    pattern = _known(Pattern, chosen, pattern_for(approvers))
    row = PATTERNS[pattern]
    terms = {
        "pattern": pattern,
        "expires_seconds": row.expires_after,
        # Without a key there is nothing by which an agent could ask for the outcome later.
        "then": row.then if keyed else Then.RESUBMIT,
        "justification_required": row.justification,
    }
    return approvers, {"approval": terms}


def _error_contract() -> dict[str, list[Code]]:
    vectors = RESPONSES.values()
    return {
        "repairable_errors": [vector.code for vector in vectors if vector.repairable],
        "retryable_errors": [vector.code for vector in vectors if vector.retryable],
        "fail_closed_errors": [vector.code for vector in vectors if vector.fail_closed],
        "escalation_errors": [vector.code for vector in vectors if vector.escalate],
    }


def _under(given: Any, defaults: Any) -> Any:
    """`defaults`, with whatever was given laid over it, section by section."""
    if not isinstance(given, dict) or not isinstance(defaults, dict):
        return given
    return {**defaults, **{k: _under(v, defaults.get(k)) for k, v in given.items()}}


def _inside(given: dict[str, Any], section: str, key: str) -> Any:
    values = given.get(section)
    return values.get(key) if isinstance(values, dict) else None


def _plain(value: Any) -> Any:
    """A section as the mapping of what its author set."""
    if isinstance(value, BaseModel):
        return {key: _plain(getattr(value, key)) for key in value.model_fields_set}
    return value


def _known(kind: type[_E], value: Any, otherwise: _E) -> _E:
    try:
        return kind(value)
    except ValueError:
        return otherwise
