"""A rule, a verdict, a decision: policy as records. Nothing is read or evaluated here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple

from counterseal.approvals.patterns import Terms
from counterseal.contract.approval_terms import ApprovalTerms
from counterseal.errors import ContractError, CountersealError, Problem, Source
from counterseal.expressions import Expression

__all__ = [
    "NO_RULE",
    "RESERVED",
    "TOO_LARGE",
    "UNREADABLE",
    "PolicyDecision",
    "PolicyError",
    "Rule",
    "Verdict",
    "shown",
]

NO_RULE: Final = "no-rule"
TOO_LARGE: Final = "too-large"
UNREADABLE: Final = "unreadable"
RESERVED: Final = (NO_RULE, TOO_LARGE, UNREADABLE)
"""What a decision names when no rule of a file made it."""


class Verdict(StrEnum):
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
class Rule:
    """If the condition holds, then the verdict.

    `tools`, `effects` and `server` narrow it; empty is all.
    """

    id: str
    when: Expression
    then: Verdict
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

    verdict: Verdict
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
