"""Compare two contracts, and say what each change means for users of the old one.

Works on the full records, so that no change is missed: a field without its own rule goes to
governance review. `schema_diff` compares the schemas. Only declarations are judged: a contract
names its code, and a change of that code does not show here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from counterseal.canonical import pointer
from counterseal.contract.approval_terms import Pattern, Then
from counterseal.contract.effects import Effect, RiskClass, Semantics
from counterseal.contract.model import Contract
from counterseal.contract.schema_diff import Side, compare_schemas, same, shown


class Compatibility(StrEnum):
    COMPATIBLE = "compatible"
    BREAKING = "breaking"
    GOVERNANCE_REVIEW = "governance_review"
    OPERATIONAL_REVIEW = "operational_review"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractChange:
    """One difference. `pointer` leads into the newer record, or the older one for a removal."""

    pointer: str
    kind: Compatibility
    message: str


Path = tuple[str | int, ...]
Rule = Callable[[Path, Any, Any], Iterable[ContractChange]]

_COMPATIBLE = Compatibility.COMPATIBLE
_BREAKING = Compatibility.BREAKING
_GOVERNANCE = Compatibility.GOVERNANCE_REVIEW
_OPERATIONAL = Compatibility.OPERATIONAL_REVIEW


def diff(old: Contract, new: Contract) -> tuple[ContractChange, ...]:
    """Return every difference, in the record's order. Empty exactly when the records are equal."""
    return tuple(_walk((), old.record(), new.record()))


def _walk(path: Path, old: Any, new: Any) -> Iterator[ContractChange]:
    if same(old, new):
        return
    rule = _RULES.get(".".join(map(str, path)))
    if isinstance(rule, Compatibility):
        yield _change(path, rule, old, new)
    elif rule is not None:
        yield from rule(path, old, new)
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _walk((*path, key), old.get(key), new.get(key))
    else:
        yield _change(path, _GOVERNANCE, old, new)


# --- rules ----------------------------------------------------------------------------------------


def _safeguard(path: Path, old: Any, new: Any) -> Iterator[ContractChange]:
    """A protection: less of it needs governance review, more of it slows calls down."""
    raised = isinstance(old, int) and isinstance(new, int) and new > old
    yield _change(path, _OPERATIONAL if raised else _GOVERNANCE, old, new)


def _danger(rank: Callable[[Any], int]) -> Rule:
    """Authority to do harm: any change needs governance review, and a rise is breaking."""

    def rule(path: Path, old: Any, new: Any) -> Iterator[ContractChange]:
        yield _change(path, _GOVERNANCE, old, new)
        if rank(new) > rank(old):
            yield _change(path, _BREAKING, old, new)

    return rule


def _effect_rank(effect: str | None) -> int:
    order = list(Effect)
    # A missing effect counts as the most dangerous one that an agent may see.
    rank = order.index(Effect(effect or Effect.IRREVERSIBLE))
    # The effects that change nothing are equal.
    return max(rank, order.index(Effect.COMPUTE))


def _approval(path: Path, old: Any, new: Any) -> Iterator[ContractChange]:
    """Terms of approval: stricter terms slow calls down, others need governance review."""
    if old is None or new is None:
        yield _change(path, _OPERATIONAL if old is None else _GOVERNANCE, old, new)
        return
    for field in {**old, **new}:
        before, after = old.get(field), new.get(field)
        if not same(before, after):
            stricter = field in _STRICTNESS and _STRICTNESS[field](before, after)
            kind = _OPERATIONAL if stricter else _GOVERNANCE
            yield _change((*path, field), kind, before, after)


_STRICTNESS: dict[str, Callable[[Any, Any], bool]] = {
    "pattern": lambda old, new: Pattern(new).rank > Pattern(old).rank,
    "expires_seconds": lambda old, new: new < old,
    "then": lambda _, new: new == Then.RESUBMIT,
    "justification_required": lambda _, new: new is True,
}
"""Whether a change makes a field stricter. Other roles and names are different, not stricter."""


def _schema(side: Side) -> Rule:
    def rule(path: Path, old: Any, new: Any) -> Iterator[ContractChange]:
        for change in compare_schemas(old, new, side=side):
            kind = _BREAKING if change.breaking else _COMPATIBLE
            yield _at((*path, *change.path), kind, change.message)

    return rule


def _listed(
    by: str,
    *,
    added: Compatibility,
    removed: Compatibility,
    changed: Compatibility,
    fields: Mapping[str, Compatibility] | None = None,
) -> Rule:
    """A list of items with ids. `fields` has the fields whose change means something else."""

    def rule(path: Path, old: list[Any], new: list[Any]) -> Iterator[ContractChange]:
        before, after = (
            {item[by]: (i, item) for i, item in enumerate(side)} for side in (old, new)
        )
        if len(before) < len(old) or len(after) < len(new):  # ids repeat
            yield _change(path, max(added, removed, changed, key=_WEIGHT.index), old, new)
            return
        for name, (index, item) in before.items():
            if name not in after:
                yield _at((*path, index), removed, f"{_noun(path)} {name} removed")
                continue
            place, later = after[name]
            for field in {**item, **later}:
                if not same(item.get(field), later.get(field)):
                    kind = (fields or {}).get(field, changed)
                    text = _sentence(field, item.get(field), later.get(field))
                    yield _at((*path, place, field), kind, f"{_noun(path)} {name}: {text}")
        for name, (place, _) in after.items():
            if name not in before:
                yield _at((*path, place), added, f"{_noun(path)} {name} added")
        kept = [name for name in before if name in after]
        if kept != [name for name in after if name in before]:
            yield _at(path, _OPERATIONAL, f"{_noun(path)}s have a different order")

    return rule


_WEIGHT = [_COMPATIBLE, _OPERATIONAL, _GOVERNANCE, _BREAKING]

_FIELDS: dict[Compatibility, str] = {
    _COMPATIBLE: "identity.version affordance.model_description affordance.allowed_use_cases "
    "affordance.forbidden_use_cases affordance.examples usage",
    _OPERATIONAL: "identity.lifecycle runtime.timeout_ms runtime.rate_limits runtime.cost_profile "
    "runtime.max_retries idempotency.key_header observability.trace_attributes "
    "observability.error_taxonomy_mapping error_contract budget cost max_output_bytes memory_mb "
    "verify_after",
    # Another request (http, mcp) is another action, whatever its arguments are called; other
    # arguments of a compensation reverse something else.
    _GOVERNANCE: "identity.owner runtime.sandbox_isolated security.required_scopes "
    "security.tenant_scoped security.secrets_boundary security.data_classification "
    "security.egress_policy transactional.compensation_tool risk_justification consequence trust "
    "keep_reads keep_arguments_days residency secrets executed_by isolation runs_code egress http "
    "mcp redact tenant_argument resource external_ref version_from version_argument probe preview "
    "read_back on_unknown not_done_errors spends money repeatable expected compensation",
    # The business key decides which calls are the same action: a retry across versions could run
    # twice.
    _BREAKING: "identity.name business_key",
}
"""Fields whose change always means the same, by that meaning."""

_SAFEGUARDS = (
    "transactional.confirmation_required transactional.post_action_verification_required "
    "idempotency.supported idempotency.required idempotency.ttl_seconds "
    "idempotency.payload_hash_required observability.audit_required approvers"
)

_RULES: dict[str, Rule | Compatibility] = {
    **{field: kind for kind, fields in _FIELDS.items() for field in fields.split()},
    **dict.fromkeys(_SAFEGUARDS.split(), _safeguard),
    "affordance.input_schema": _schema("input"),
    "affordance.output_schema": _schema("output"),
    "transactional.side_effect_class": _danger(lambda risk: RiskClass(risk).rank),
    "transactional.semantics": _danger(lambda word: int(word == Semantics.IRREVERSIBLE_PIVOT)),
    "effect": _danger(_effect_rank),
    "exposed": lambda path, old, new: [_change(path, _GOVERNANCE if new else _BREAKING, old, new)],
    "approval": _approval,
    "config_params": _listed("key", added=_COMPATIBLE, removed=_OPERATIONAL, changed=_OPERATIONAL),
    "invariants": _listed(
        "id",
        added=_BREAKING,
        removed=_GOVERNANCE,
        # A check may have become stricter or laxer, and code can't be compared.
        changed=_BREAKING,
        fields={
            "rule": _COMPATIBLE,
            **dict.fromkeys(("correct", "otherwise", "approvers"), _GOVERNANCE),
        },
    ),
    "state_reads": _listed("key", added=_GOVERNANCE, removed=_COMPATIBLE, changed=_GOVERNANCE),
    "state_effects": _listed("key", added=_GOVERNANCE, removed=_BREAKING, changed=_BREAKING),
}


def _change(path: Path, kind: Compatibility, old: Any, new: Any) -> ContractChange:
    return _at(path, kind, _sentence(".".join(map(str, path)), old, new))


def _at(path: Path, kind: Compatibility, message: str) -> ContractChange:
    return ContractChange(pointer=pointer(*path), kind=kind, message=message)


def _sentence(name: str, old: Any, new: Any) -> str:
    if old is None:
        return f"{name} set to {shown(new)}"
    if new is None:
        return f"{name} removed, was {shown(old)}"
    return f"{name} changed from {shown(old)} to {shown(new)}"


def _noun(path: Path) -> str:
    return str(path[-1]).removesuffix("s").replace("_", " ")
