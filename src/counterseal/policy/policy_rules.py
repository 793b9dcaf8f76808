"""A rule, a verdict, a decision: policy as records. Nothing is read or evaluated here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple

from counterseal.approvals.terms import Terms
from counterseal.contract.approval_terms import ApprovalTerms
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.errors import ContractError, CountersealError, Problem, Source
from counterseal.expressions import NOT_CODE, Expression

__all__ = [
    "FIELDS",
    "FUNCTIONS",
    "NAMES",
    "NO_RULE",
    "RESERVED",
    "TOO_LARGE",
    "UNREADABLE",
    "PolicyDecision",
    "PolicyError",
    "PolicyRule",
    "PolicyVerdict",
    "Uses",
    "contract_facts",
    "merge",
    "shown",
    "unknown_fields",
    "uses",
]


NO_RULE: Final = "no-rule"
TOO_LARGE: Final = "too-large"
UNREADABLE: Final = "unreadable"
RESERVED: Final = (NO_RULE, TOO_LARGE, UNREADABLE)
"""What a decision names when no rule of a file made it."""


class PolicyVerdict(StrEnum):
    """In rising strictness."""

    ALLOW = "allow"
    REQUIRE_APPROVAL = "require_approval"
    DENY = "deny"


class PolicyError(CountersealError):
    """A policy, or its tests, can't be used. `problems` holds everything that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        # Worded as for contracts: the same people read both.
        super().__init__(str(ContractError(self.problems)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """If the condition holds, then the verdict.

    `tools`, `effects` and `server` narrow it; empty is all.
    """

    id: str
    when: Expression
    then: PolicyVerdict
    reason: str
    approvers: int | Literal["contract"] = 0
    """How many people; `contract` takes the contract's own number, and at least one."""
    approval: ApprovalTerms | None = None
    """How they are asked, as far as the rule says so: pattern, roles, expiry."""
    tools: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    server: str = ""
    """The upstream whose overlay it stands in: it is about nothing but that one's tools."""
    source: Source | None = None

    def __hash__(self) -> int:
        return hash(self.id)

    def concerns(self, contract: Mapping[str, Any]) -> bool:
        """Whether it can apply to a tool at all, whose contract is given as its facts."""
        if self.effects and contract["effect"] not in self.effects:
            return False
        names = [contract["name"]]
        if self.server:
            if contract.get("server") != self.server:
                return False
            # An overlay speaks of tools by the names that they have at the upstream, too.
            names.append(contract.get("server_tool", ""))
        return not self.tools or any(
            fnmatchcase(name, pattern) for name in names for pattern in self.tools
        )

    def record(self) -> dict[str, Any]:
        """What the policy's version covers."""
        terms = self.approval
        how = {} if terms is None else terms.model_dump(mode="json", exclude_defaults=True)
        return {
            "id": self.id,
            "when": self.when.text,
            "then": self.then.value,
            "reason": self.reason,
            "approvers": self.approvers,
            **({"approval": how} if how else {}),
            "tools": list(self.tools),
            "effects": list(self.effects),
            **({"server": self.server} if self.server else {}),
        }


class PolicyDecision(NamedTuple):
    """What a policy says about one call. A named tuple, because one is made for every call."""

    verdict: PolicyVerdict
    rule: str
    reason: str
    """Safe for a model: it holds no value of the call."""
    version: str
    approvers: int = 0
    matched: tuple[str, ...] = ()
    """Every rule whose condition held, in the policy's order."""
    error: str = ""
    """Why the rule could not be evaluated. For people, never for a model."""
    terms: Terms | None = None
    """Where approval is demanded: what all rules that demand it ask for together."""


def shown(version: str) -> str:
    """A version as people are shown it: the first twelve digits are enough to tell two apart."""
    kind, _, digits = version.partition(":")
    return f"{kind}:{digits[:12]}"


# --- names ---


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
