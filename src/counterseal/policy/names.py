"""What a condition can see, and what it looks at.

Names with a fixed shape list their fields, so that a misspelt one is found when the policy is
loaded. `uses` says which parts of the facts a condition needs: handing a value to the evaluator
costs more than evaluating the condition, so nothing is handed over that nobody reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.expressions import NOT_CODE

__all__ = [
    "FIELDS",
    "FUNCTIONS",
    "NAMES",
    "Uses",
    "contract_facts",
    "merge",
    "unknown_fields",
    "uses",
]

FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "proposal": frozenset({"tool", "run_id", "version", "has_key"}),
    "contract": frozenset(
        {
            "name",
            "version",
            "owner",
            "effect",
            "mutates",
            "risk",
            "risk_rank",
            "approvers",
            "confirmation_required",
            "data_classification",
            "egress_policy",
            "scopes",
            "residency",
            "trust",
            "server",
            "server_tool",
        }
    ),
    "principal": frozenset({"tenant", "user", "agent", "roles", "scopes"}),
    "run": frozenset({"id", "objective", "allowed_tools", "age_seconds", "state", "calls"}),
}
"""The names that always have the same fields."""

NAMES: Final = ("call", "tenant", "now", *FIELDS)

# fmt: off
FUNCTIONS: Final = frozenset({
    "bool", "bytes", "contains", "double", "duration", "dyn", "endsWith", "getDate",
    "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMilliseconds",
    "getMinutes", "getMonth", "getSeconds", "int", "matches", "size", "startsWith", "string",
    "timestamp", "type", "uint",
})
# fmt: on
"""What the evaluator can call. Anything else would fail on every call, so it is refused."""

Uses = Mapping[str, frozenset[str] | None]
"""Name to the fields that are read; None for the whole value."""

_NAME = re.compile(
    r"(?<![\w.])(call|tenant|now|proposal|contract|principal|run)\b(?:\s*\.\s*(\w+)\b(\s*\()?)?"
)
_SPACED_DOT = re.compile(r"\s*\.\s*")


def uses(text: str) -> Uses:
    """Which names a condition reads, and which of their fields. Rather too much than too little."""
    found: dict[str, frozenset[str] | None] = {}
    # A string may stand right before a name's end, so it leaves a mark behind and not a gap.
    code = _SPACED_DOT.sub(".", NOT_CODE.sub('""', text))
    for match in _NAME.finditer(code):
        name, field, called = match.groups()
        whole = field is None or called is not None
        merge(found, {name: None if whole else frozenset({field})})
    return found


def merge(into: dict[str, frozenset[str] | None], more: Uses) -> None:
    """Add what `more` reads."""
    for name, fields in more.items():
        known = into.get(name, frozenset())
        into[name] = None if known is None or fields is None else known | fields


def unknown_fields(used: Uses) -> Iterable[tuple[str, str]]:
    """Fields, with their names, that will never be there."""
    for name, fields in used.items():
        if name in FIELDS and fields:
            yield from ((name, field) for field in sorted(fields - FIELDS[name]))


def contract_facts(contract: Contract) -> dict[str, Any]:
    """A contract as conditions see it. Without an effect it counts as irreversible."""
    effect = contract.effect or Effect.IRREVERSIBLE
    return {
        "name": contract.name,
        "version": contract.version,
        "owner": contract.identity.owner,
        "effect": effect.value,
        "mutates": contract.mutates,
        "risk": contract.risk.value,
        "risk_rank": contract.risk.rank,
        "approvers": contract.approvers,
        "confirmation_required": contract.transactional.confirmation_required,
        "data_classification": contract.security.data_classification.value,
        "egress_policy": contract.security.egress_policy.value,
        "scopes": list(contract.security.required_scopes),
        "residency": list(contract.residency),
        "trust": contract.trust.value,
        "server": contract.mcp.server if contract.mcp else "",
        "server_tool": contract.mcp.tool if contract.mcp else "",
    }
