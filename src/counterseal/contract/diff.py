"""Compare contracts, and say what each change means for three audiences.

*Callers* use a tool with arguments and read its output. *Models* read its description and schemas.
*Guardians* answer for what it may do. Each change has a stable id, and `MEANINGS` has what an id
means for each of them. No other module judges changes. Whole records are compared, so that no
change is missed; `schema_diff` compares the schemas. A contract names its code, and a change of
that code is not found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from counterseal.canonical import pointer, thaw
from counterseal.contract.approval_terms import Pattern, Then
from counterseal.contract.effects import Effect, RiskClass, Trust
from counterseal.contract.model import LATER_FIELDS, Contract
from counterseal.contract.schema_diff import (
    DIRECTIONS,
    SUBJECTS,
    Side,
    compare_schemas,
    same,
    shown,
)
from counterseal.contract.schemas import word_set


class Compatibility(StrEnum):
    """What a change means for one audience."""

    COMPATIBLE = "compatible"
    BREAKING = "breaking"
    """For callers: what worked before may be refused, or mean something else."""
    OPERATIONAL_REVIEW = "operational_review"
    """For callers: slower, fewer or more expensive calls."""
    BEHAVIOUR_MAY_MOVE = "behaviour_may_move"
    """For models: they read another text or schema than before."""
    GOVERNANCE_REVIEW = "governance_review"
    """For guardians: more authority or less protection than they have agreed to."""


class Bump(IntEnum):
    """The part of a version that rises."""

    NONE = 0
    PATCH = 1
    MINOR = 2
    MAJOR = 3


class Meaning(NamedTuple):
    """What a change means for each audience."""

    callers: Compatibility
    models: Compatibility
    guardians: Compatibility
    bump: Bump
    """The part of the version that has to rise."""


_COMPATIBLE = Compatibility.COMPATIBLE
_BREAKING = Compatibility.BREAKING
_GOVERNANCE = Compatibility.GOVERNANCE_REVIEW
_OPERATIONAL = Compatibility.OPERATIONAL_REVIEW
_MOVES = Compatibility.BEHAVIOUR_MAY_MOVE

BUMP_MISSING = "version-bump-missing"
"""The id of a finding about a whole step: its version rose too little for its changes."""


# --- the table of changes -------------------------------------------------------------------------


def _mean(
    ids: str,
    callers: Compatibility = _COMPATIBLE,
    guardians: Compatibility = _COMPATIBLE,
    *,
    models: Compatibility = _COMPATIBLE,
    bump: Bump | None = None,
) -> dict[str, Meaning]:
    """Return one meaning for several ids. A break for callers needs a new major version."""
    if bump is None:
        reviewed = callers is _OPERATIONAL or guardians is _GOVERNANCE
        other = Bump.MINOR if reviewed else Bump.PATCH
        bump = Bump.MAJOR if callers is _BREAKING else other
    return dict.fromkeys(ids.split(), Meaning(callers, models, guardians, bump))


def _schema_meanings(side: Side) -> dict[str, Meaning]:
    """Return the meanings of changed schemas. Wider inputs and narrower outputs break no caller."""
    harmless = "widened" if side == "input" else "narrowed"
    kept, broken = ("now-optional", "now-required")[:: 1 if side == "input" else -1]
    ids: dict[str, list[str]] = defaultdict(list)
    for subject in SUBJECTS:
        for direction in DIRECTIONS.values():
            ids["kept" if direction == harmless else "broken"].append(f"{subject}{direction}")
    ids["kept"] += ["added", kept]
    ids["broken"] += ["removed", broken]
    ids["broken"] += ["required-added", "default-changed"] if side == "input" else []
    named = {key: " ".join(f"{side}-{name}" for name in names) for key, names in ids.items()}
    return {
        **_mean(named["kept"], models=_MOVES, bump=Bump.MINOR),
        **_mean(named["broken"], _BREAKING, models=_MOVES),
        **_mean(f"{side}-reworded {side}-default-reworded", models=_MOVES),
        **_mean(f"{side}-rewritten"),
    }


MEANINGS: dict[str, Meaning] = {
    **_mean("version-changed", bump=Bump.NONE),
    **_mean(BUMP_MISSING, _OPERATIONAL, bump=Bump.NONE),
    **_mean("tool-added", models=_MOVES, bump=Bump.NONE),
    **_mean("tool-removed name-changed", _BREAKING, models=_MOVES),
    **_mean("effect-raised risk-raised semantics-changed", _BREAKING, _GOVERNANCE, models=_MOVES),
    **_mean("effect-lowered effect-changed", guardians=_GOVERNANCE, models=_MOVES),
    **_mean("risk-lowered", guardians=_GOVERNANCE),
    # Another request or another server is another action, whatever its arguments are called.
    **_mean("http-changed upstream-changed executed-by-changed", _BREAKING, _GOVERNANCE),
    # A person has accepted this definition; what it changes in the contract is reported beside it.
    **_mean("definition-changed", _OPERATIONAL),
    **_mean("scope-added", _BREAKING, _GOVERNANCE),
    **_mean("scope-dropped", guardians=_GOVERNANCE),
    **_schema_meanings("input"),
    **_schema_meanings("output"),
    **_mean(
        "description-changed usage-changed allowed-uses-changed forbidden-uses-changed "
        "examples-changed",
        models=_MOVES,
    ),
    **_mean(
        "lifecycle-changed timeout-changed rate-limits-changed cost-profile-changed "
        "retries-changed key-header-changed trace-attributes-changed error-codes-changed "
        "error-contract-changed output-limit-changed memory-changed verify-after-changed "
        "budget-lowered approval-strengthened trust-lowered redaction-added "
        "invariants-reordered config-param-removed config-param-changed",
        _OPERATIONAL,
    ),
    **_mean(
        "owner-changed secrets-boundary-changed data-class-changed egress-policy-changed "
        "compensation-tool-changed compensation-changed risk-justification-changed "
        "consequence-changed keep-reads-changed keep-arguments-changed residency-changed "
        "isolation-changed runs-code-changed tenant-argument-changed resource-changed "
        "external-ref-changed version-from-changed version-argument-changed probe-changed "
        "preview-changed read-back-changed on-unknown-changed not-done-errors-changed "
        "spends-changed money-limit-changed cost-limit-changed repeatable-changed "
        "expected-changed budget-raised trust-raised approval-changed approval-dropped "
        "exposure-raised egress-added secret-added redaction-dropped invariant-removed "
        "invariant-action-changed state-read-added state-read-changed state-effect-added",
        guardians=_GOVERNANCE,
    ),
    # The business key decides which calls are the same action: a retry across versions could run
    # twice. A check may have become stricter or laxer, and code can't be compared.
    **_mean("business-key-changed invariant-changed state-effect-changed", _BREAKING, _GOVERNANCE),
    **_mean("exposure-removed invariant-added state-effect-removed", _BREAKING),
    **_mean("config-param-added", bump=Bump.MINOR),
    **_mean(
        "egress-dropped secret-dropped invariant-reworded state-read-removed scopes-reordered "
        "egress-reordered secrets-reordered redactions-reordered config-params-reordered "
        "state-reads-reordered state-effects-reordered"
    ),
    # A protection: less of it needs governance review, more of it slows calls down.
    **_mean(
        "sandbox-strengthened tenant-scope-strengthened confirmation-strengthened "
        "verification-strengthened idempotency-strengthened key-required-strengthened "
        "key-lifetime-strengthened payload-hash-strengthened audit-strengthened "
        "approvers-strengthened",
        _OPERATIONAL,
    ),
    **_mean(
        "sandbox-weakened tenant-scope-weakened confirmation-weakened verification-weakened "
        "idempotency-weakened key-required-weakened key-lifetime-weakened "
        "payload-hash-weakened audit-weakened approvers-weakened",
        guardians=_GOVERNANCE,
    ),
}
"""The meaning of each change, by id. Ids never change: exception records and CI name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractChange:
    """One difference. `pointer` leads into the newer record, or the older one for a removal."""

    id: str
    pointer: str = ""
    message: str
    before: Any = None
    after: Any = None

    @property
    def meaning(self) -> Meaning:
        return MEANINGS[self.id]

    @property
    def kinds(self) -> tuple[Compatibility, ...]:
        """The verdicts for callers and guardians, without `compatible` if one of them is not."""
        verdicts = (self.meaning.callers, self.meaning.guardians)
        return tuple(one for one in verdicts if one is not _COMPATIBLE) or (_COMPATIBLE,)

    def record(self) -> dict[str, Any]:
        """Return the change with its verdicts as plain JSON data."""
        meaning = self.meaning
        return {
            "id": self.id,
            "pointer": self.pointer,
            "message": self.message,
            "before": self.before,
            "after": self.after,
            "callers": meaning.callers.value,
            "models": meaning.models.value,
            "guardians": meaning.guardians.value,
        }


# --- two contracts --------------------------------------------------------------------------------

Path = tuple[str | int, ...]
Rule = Callable[[Path, Any, Any], Iterable[ContractChange]]


def diff(old: Contract, new: Contract) -> tuple[ContractChange, ...]:
    """Return every difference, in the record's order. Empty exactly when the records are equal."""
    return tuple(_walk((), old.record(), new.record()))


def diff_records(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[ContractChange, ...]:
    """Return the differences of two stored records.

    A record that an earlier Counterseal stored lacks later fields: it had their defaults.
    """
    fields = Contract.model_fields
    later = {name: thaw(fields[name].default) for name in LATER_FIELDS if name not in old}
    return tuple(_walk((), {**old, **later}, new))


def _walk(path: Path, old: Any, new: Any) -> Iterator[ContractChange]:
    if same(old, new):
        return
    rule = _RULES.get(".".join(map(str, path)))
    if isinstance(rule, str):
        yield _change(f"{rule}-changed", path, old, new)
    elif rule is not None:
        yield from rule(path, old, new)
    else:
        for key in {**old, **new}:
            yield from _walk((*path, key), old.get(key), new.get(key))


def effect_rank(effect: str | None) -> int:
    """Return the rank of an effect: how much it may do. Effects that change nothing are equal."""
    order = list(Effect)
    # A missing effect counts as the most dangerous one that an agent may see.
    rank = order.index(Effect(effect or Effect.IRREVERSIBLE))
    return max(rank, order.index(Effect.COMPUTE))


def _ranked(name: str, rank: Callable[[Any], int]) -> Rule:
    """Return the rule of a field with an order: its change is a rise, a fall, or neither."""

    def rule(path: Path, old: Any, new: Any) -> Iterator[ContractChange]:
        before, after = rank(old), rank(new)
        ending = "raised" if after > before else "lowered" if after < before else "changed"
        yield _change(f"{name}-{ending}", path, old, new)

    return rule


def _safeguard(name: str) -> Rule:
    def rule(path: Path, old: Any, new: Any) -> Iterator[ContractChange]:
        yield _change(f"{name}-{_strength(stronger=_rises(old, new))}", path, old, new)

    return rule


def _rises(old: Any, new: Any) -> bool:
    return isinstance(old, int) and isinstance(new, int) and new > old


def _strength(*, stronger: bool) -> str:
    return "strengthened" if stronger else "weakened"


_KEYS = {
    "supported": "idempotency",
    "required": "key-required",
    "ttl_seconds": "key-lifetime",
    "payload_hash_required": "payload-hash",
}


def _idempotency(path: Path, old: Any, new: Any) -> Iterator[ContractChange]:
    """Yield the changes of keys. Keys that never expire have the longest lifetime."""
    for field in {**old, **new}:
        before, after = old[field], new[field]
        if same(before, after):
            continue
        lasting = not old["supported"] or (after is None and new["supported"])
        stronger = _rises(before, after) or (field == "ttl_seconds" and lasting)
        name = f"{_KEYS[field]}-{_strength(stronger=stronger)}" if field in _KEYS else ""
        yield _change(name or "key-header-changed", (*path, field), before, after)


def _members(name: str, plural: str) -> Rule:
    """Return the rule of a list that is a set: one change for each member that came or went."""

    def rule(path: Path, old: list[str], new: list[str]) -> Iterator[ContractChange]:
        noun = name.replace("-", " ")
        gone = [one for one in dict.fromkeys(old) if one not in new]
        come = [one for one in dict.fromkeys(new) if one not in old]
        for one in gone:
            yield _at(f"{name}-dropped", path, f"{noun} {shown(one)} dropped", one, None)
        for one in come:
            yield _at(f"{name}-added", path, f"{noun} {shown(one)} added", None, one)
        if not gone and not come:
            text = f"{plural} have a different order"
            yield _at(f"{plural}-reordered", path, text, old, new)

    return rule


def _approval(path: Path, old: Any, new: Any) -> Iterator[ContractChange]:
    """Yield the changes of approval. Stricter terms slow calls down, others need review."""
    if old is None or new is None:
        ending = "strengthened" if old is None else "dropped"
        yield _change(f"approval-{ending}", path, old, new)
        return
    for field in {**old, **new}:
        before, after = old.get(field), new.get(field)
        if not same(before, after):
            stricter = field in _STRICTNESS and _STRICTNESS[field](before, after)
            ending = "strengthened" if stricter else "changed"
            yield _change(f"approval-{ending}", (*path, field), before, after)


_STRICTNESS: dict[str, Callable[[Any, Any], bool]] = {
    "pattern": lambda old, new: Pattern(new).rank > Pattern(old).rank,
    "expires_seconds": lambda old, new: new < old,
    "then": lambda _, new: new == Then.RESUBMIT,
    "justification_required": lambda _, new: new is True,
}
"""Whether a change makes a field stricter. Other roles and names are different, not stricter."""


def _upstream(path: Path, old: Any, new: Any) -> Iterator[ContractChange]:
    """Yield the changes of the upstream. Another tool is another action, another hash is not."""
    if old is None or new is None:
        yield _change("upstream-changed", path, old, new)
        return
    for field in {**old, **new}:
        if not same(old.get(field), new.get(field)):
            name = "definition-changed" if field == "definition" else "upstream-changed"
            yield _change(name, (*path, field), old.get(field), new.get(field))


def _schema(side: Side) -> Rule:
    def rule(path: Path, old: Any, new: Any) -> Iterator[ContractChange]:
        for one in compare_schemas(old, new, side=side):
            yield _at(one.id, (*path, *one.path), one.message, one.before, one.after)

    return rule


def _listed(by: str, name: str, **fields: str) -> Rule:
    """Return the rule of a list of items with ids. `fields` has the endings of special changes."""

    def rule(path: Path, old: list[Any], new: list[Any]) -> Iterator[ContractChange]:
        noun = name.replace("-", " ")
        before, after = (
            {item[by]: (i, item) for i, item in enumerate(side)} for side in (old, new)
        )
        if len(before) < len(old) or len(after) < len(new):  # ids repeat
            yield _change(f"{name}-changed", path, old, new)
            return
        for key, (index, item) in before.items():
            if key not in after:
                yield _at(f"{name}-removed", (*path, index), f"{noun} {key} removed", item, None)
                continue
            place, later = after[key]
            for field in {**item, **later}:
                was, now = item.get(field), later.get(field)
                if not same(was, now):
                    text = f"{noun} {key}: {_sentence(field, was, now)}"
                    ending = fields.get(field, "changed")
                    yield _at(f"{name}-{ending}", (*path, place, field), text, was, now)
        for key, (place, item) in after.items():
            if key not in before:
                yield _at(f"{name}-added", (*path, place), f"{noun} {key} added", None, item)
        kept = [key for key in before if key in after]
        order = [key for key in after if key in before]
        if kept != order:
            text = f"{noun}s have a different order"
            yield _at(f"{name}s-reordered", path, text, kept, order)

    return rule


_FIELDS = {
    "identity.name": "name",
    "identity.version": "version",
    "identity.owner": "owner",
    "identity.lifecycle": "lifecycle",
    "affordance.model_description": "description",
    "affordance.allowed_use_cases": "allowed-uses",
    "affordance.forbidden_use_cases": "forbidden-uses",
    "runtime.timeout_ms": "timeout",
    "runtime.max_retries": "retries",
    "security.data_classification": "data-class",
    "observability.error_taxonomy_mapping": "error-codes",
    "max_output_bytes": "output-limit",
    "memory_mb": "memory",
    "keep_arguments_days": "keep-arguments",
    "money": "money-limit",
    "cost": "cost-limit",
    **{
        field: field.rpartition(".")[2].replace("_", "-")
        for field in word_set(
            "affordance.examples runtime.rate_limits runtime.cost_profile "
            "observability.trace_attributes error_contract usage verify_after "
            "security.secrets_boundary security.egress_policy transactional.compensation_tool "
            "transactional.semantics risk_justification consequence keep_reads residency "
            "isolation runs_code http tenant_argument resource external_ref version_from "
            "version_argument probe preview read_back on_unknown not_done_errors spends "
            "business_key repeatable expected compensation executed_by"
        )
    },
}
"""Fields whose change has one meaning, with the beginning of its id."""

_SAFEGUARDS = {
    "runtime.sandbox_isolated": "sandbox",
    "security.tenant_scoped": "tenant-scope",
    "transactional.confirmation_required": "confirmation",
    "transactional.post_action_verification_required": "verification",
    "observability.audit_required": "audit",
    "approvers": "approvers",
}

_RULES: dict[str, Rule | str] = {
    **_FIELDS,
    **{field: _safeguard(name) for field, name in _SAFEGUARDS.items()},
    "affordance.input_schema": _schema("input"),
    "affordance.output_schema": _schema("output"),
    "transactional.side_effect_class": _ranked("risk", lambda risk: RiskClass(risk).rank),
    "effect": _ranked("effect", effect_rank),
    "budget": _ranked("budget", int),
    "trust": _ranked("trust", lambda trust: int(trust == Trust.TRUSTED)),
    "exposed": lambda path, old, new: [
        _change(f"exposure-{'raised' if new else 'removed'}", path, old, new)
    ],
    "approval": _approval,
    "mcp": _upstream,
    "idempotency": _idempotency,
    "security.required_scopes": _members("scope", "scopes"),
    "egress": _members("egress", "egress"),
    "secrets": _members("secret", "secrets"),
    "redact": _members("redaction", "redactions"),
    "config_params": _listed("key", "config-param"),
    "invariants": _listed(
        "id",
        "invariant",
        rule="reworded",
        **dict.fromkeys(("correct", "otherwise", "approvers"), "action-changed"),
    ),
    "state_reads": _listed("key", "state-read"),
    "state_effects": _listed("key", "state-effect"),
}


def _change(name: str, path: Path, old: Any, new: Any) -> ContractChange:
    return _at(name, path, _sentence(".".join(map(str, path)), old, new), old, new)


def _at(name: str, path: Path, message: str, before: Any, after: Any) -> ContractChange:
    where = pointer(*path)
    return ContractChange(id=name, pointer=where, message=message, before=before, after=after)


def _sentence(name: str, old: Any, new: Any) -> str:
    if old is None:
        return f"{name} set to {shown(new)}"
    if new is None:
        return f"{name} removed, was {shown(old)}"
    return f"{name} changed from {shown(old)} to {shown(new)}"
