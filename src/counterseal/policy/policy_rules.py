"""Policy rules, verdicts and decisions as records, and the facts that a condition can see.

Facts with a fixed shape list their fields, so that a misspelt field is found when a policy is
loaded. `uses` returns the facts that a condition needs: passing a value to the evaluator costs more
than evaluating the condition, so unused values are not passed.
"""

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

NO_RULE: Final = "no-rule"
TOO_LARGE: Final = "too-large"
UNREADABLE: Final = "unreadable"
RESERVED: Final = (NO_RULE, TOO_LARGE, UNREADABLE)
"""The rule names of decisions that no rule of a file made."""


class PolicyVerdict(StrEnum):
    """Verdicts, in rising strictness."""

    ALLOW = "allow"
    REQUIRE_APPROVAL = "require_approval"
    DENY = "deny"


class PolicyError(CountersealError):
    """A policy, or its tests, can't be used. `problems` lists everything that is wrong."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        # The same wording as for contracts: the same people read both.
        super().__init__(str(ContractError(self.problems)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """A condition and its verdict.

    `tools`, `effects` and `server` limit the rule; empty means all.
    """

    id: str
    when: Expression
    then: PolicyVerdict
    reason: str
    approvers: int | Literal["contract"] = 0
    """How many people must approve; `contract`: the contract's number, at least one."""
    approval: ApprovalTerms | None = None
    """Pattern, roles and expiry of the approval, as far as the rule sets them."""
    tools: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    server: str = ""
    """The upstream whose overlay has the rule; it applies to tools of that upstream only."""
    source: Source | None = None

    def __hash__(self) -> int:
        return hash(self.id)

    def concerns(self, contract: Mapping[str, Any]) -> bool:
        """Return whether the rule can apply to a tool, given the facts of its contract."""
        if self.effects and contract["effect"] not in self.effects:
            return False
        names = [contract["name"]]
        if self.server:
            if contract.get("server") != self.server:
                return False
            # In an overlay, tools can also be named as at the upstream.
            names.append(contract.get("server_tool", ""))
        return not self.tools or any(
            fnmatchcase(name, pattern) for name in names for pattern in self.tools
        )

    def record(self) -> dict[str, Any]:
        """Return what the policy's version covers, as JSON data."""
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
    """The decision of a policy on one call. A named tuple, because every call makes one."""

    verdict: PolicyVerdict
    rule: str
    reason: str
    """Safe for a model: contains no value of the call."""
    version: str
    approvers: int = 0
    matched: tuple[str, ...] = ()
    """Every rule whose condition was true, in the policy's order."""
    error: str = ""
    """Why the rule could not be evaluated. For people, never for a model."""
    terms: Terms | None = None
    """The combined terms of all rules that require approval."""


def shown(version: str) -> str:
    """Return a version in short form: its first twelve digits."""
    kind, _, digits = version.partition(":")
    return f"{kind}:{digits[:12]}"


# --- facts ----------------------------------------------------------------------------------------


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
"""The facts with fixed fields."""

NAMES: Final = ("call", "tenant", "now", *FIELDS)

# fmt: off
FUNCTIONS: Final = frozenset({
    "bool", "bytes", "contains", "double", "duration", "dyn", "endsWith", "getDate",
    "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMilliseconds",
    "getMinutes", "getMonth", "getSeconds", "int", "matches", "size", "startsWith", "string",
    "timestamp", "type", "uint",
})
# fmt: on
"""The functions of the evaluator. Any other would fail on every call, so it is refused."""

Uses = Mapping[str, frozenset[str] | None]
"""Facts with the fields that are read; None for the whole value."""

_NAME = re.compile(
    r"(?<![\w.])(call|tenant|now|proposal|contract|principal|run)\b(?:\s*\.\s*(\w+)\b(\s*\()?)?"
)
_SPACED_DOT = re.compile(r"\s*\.\s*")


def uses(text: str) -> Uses:
    """Return the facts and fields that a condition reads; it may return too many, never too few."""
    used: dict[str, frozenset[str] | None] = {}
    # Strings are replaced by empty ones and not removed, so that the names around them stay apart.
    code = _SPACED_DOT.sub(".", NOT_CODE.sub('""', text))
    for match in _NAME.finditer(code):
        name, field, called = match.groups()
        whole = field is None or called is not None
        merge(used, {name: None if whole else frozenset({field})})
    return used


def merge(into: dict[str, frozenset[str] | None], more: Uses) -> None:
    """Add the facts that `more` reads."""
    for name, fields in more.items():
        known = into.get(name, frozenset())
        into[name] = None if known is None or fields is None else known | fields


def unknown_fields(used: Uses) -> Iterable[tuple[str, str]]:
    """Yield facts and fields that do not exist."""
    for name, fields in used.items():
        if name in FIELDS and fields:
            yield from ((name, field) for field in sorted(fields - FIELDS[name]))


def contract_facts(contract: Contract) -> dict[str, Any]:
    """Return the facts of a contract. Without an effect it counts as irreversible."""
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
