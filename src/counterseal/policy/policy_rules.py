"""Policy rules, the facts that a condition can see, and the decision of a call.

All rules that apply are evaluated, and the strictest verdict wins. Work is done as early as
possible. Conditions on the contract alone are evaluated when the contract is registered, conditions
on the caller when that caller first appears; only the rest is evaluated for each call. This is
sound because a condition that has a result while some facts are missing keeps that result:
`false && anything` is false.

A rule that fails, facts that can't be read, or too many facts are a denial.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Protocol

from counterseal.approvals.terms import Terms, merged, section_terms
from counterseal.contract.approval_terms import ApprovalTerms
from counterseal.contract.effects import Effect, RiskClass
from counterseal.contract.model import Contract
from counterseal.contract.schemas import word_set
from counterseal.errors import ContractError, CountersealError, ExpressionError, Problem, Source
from counterseal.expressions import NOT_CODE, Expression, evaluation_context

NO_RULE: Final = "no-rule"
TOO_LARGE: Final = "too-large"
UNREADABLE: Final = "unreadable"
AFTER_PROBE: Final = "after-probe"
RESERVED: Final = (NO_RULE, TOO_LARGE, UNREADABLE, AFTER_PROBE)
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
    including: tuple[str, ...] = ()
    """At least one of the approvers has one of these roles."""
    instead_of: tuple[str, ...] = ()
    """Rules that require approval and do not count where this one applies: "ask, unless …"."""
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
            **({"including": list(self.including)} if self.including else {}),
            **({"instead_of": list(self.instead_of)} if self.instead_of else {}),
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
    "contract": word_set(
        "name version owner effect mutates risk risk_rank approvers confirmation_required "
        "data_classification egress_policy scopes residency probed trust server "
        "server_tool"
    ),
    "principal": frozenset({"tenant", "user", "agent", "roles", "scopes", "risk_level"}),
    "run": frozenset({"id", "objective", "allowed_tools", "age_seconds", "state", "calls"}),
    "spent": frozenset({"run", "day", "agent", "tool", "resource"}),
}
"""The facts with fixed fields."""

TARGET: Final = "target"
"""The state that the contract's probe has read. Known to the state gate, and not before."""
NAMES: Final = ("call", "tenant", "now", "state", "spends", TARGET, *FIELDS)

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

_NAME = re.compile(rf"(?<![\w.])({'|'.join(NAMES)})\b(?:\s*\.\s*(\w+)\b(\s*\()?)?")
_SPACED_DOT = re.compile(r"\s*\.\s*")
_CURRENCIES = re.compile(r"\bspen(?:ds|t\.\w+)\.([A-Z]{3})\b")


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


def currencies(text: str) -> set[str]:
    """Return the currencies that a condition names: `spent.day.EUR`, `spends.EUR`."""
    return set(_CURRENCIES.findall(_SPACED_DOT.sub(".", NOT_CODE.sub('""', text))))


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


def contract_facts(contract: Contract, risk: RiskClass | None = None) -> dict[str, Any]:
    """Return the facts of a contract. Without an effect it counts as irreversible.

    `risk` is the class that calls are judged by; by default, what holds without an operator's
    acceptance of a lower one.
    """
    risk = risk or contract.risk_floor
    effect = contract.effect or Effect.IRREVERSIBLE
    return {
        "name": contract.name,
        "version": contract.version,
        "owner": contract.identity.owner,
        "effect": effect.value,
        "mutates": contract.mutates,
        "risk": risk.value,
        "risk_rank": risk.rank,
        "approvers": contract.approvers,
        "confirmation_required": contract.transactional.confirmation_required,
        "data_classification": contract.security.data_classification.value,
        "egress_policy": contract.security.egress_policy.value,
        "scopes": list(contract.security.required_scopes),
        "residency": list(contract.residency),
        "probed": contract.probe is not None,
        "trust": contract.trust.value,
        "server": contract.mcp.server if contract.mcp else "",
        "server_tool": contract.mcp.tool if contract.mcp else "",
    }


# --- decisions ------------------------------------------------------------------------------------

MAX_VALUES: Final = 1000
"""How many values of a call the rules may read. The evaluator has no limit."""

MAX_CALLERS: Final = 1024
"""How many callers are cached for a contract; the least recently used is dropped."""

_SETS: Final = frozenset({"roles", "scopes"})
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


class Facts(Protocol):
    """A mapping of names to facts. Only names that an open rule needs are read."""

    def __getitem__(self, name: str, /) -> Any: ...


class _Live(NamedTuple):
    """A rule that can still apply, with its approval terms."""

    rule: PolicyRule
    terms: Terms
    settled: bool = False
    """Whether the condition is true for every call."""


class _Plan(NamedTuple):
    """The rules that can apply to one caller's calls, and the facts that they read."""

    live: tuple[_Live, ...]
    needed: Uses
    known: Mapping[str, Any]
    decision: PolicyDecision | None
    """The decision on every call; None while a rule depends on the call."""
    asks: bool
    """Whether a rule may require approval."""


class CompiledPolicy:
    """The rules that can apply to one contract."""

    def __init__(
        self, rules: Iterable[PolicyRule], contract: Mapping[str, Any], *, version: str
    ) -> None:
        self.version = version
        applicable = [
            _Live(rule, _terms(rule, contract)) for rule in rules if rule.concerns(contract)
        ]
        self._live = _settle(applicable, {"contract": contract})
        needed = _needed(self._live)
        self.names = frozenset(needed) - {"contract"}
        """The facts that a call may have to provide. Without any, all calls are decided alike."""
        keys, run = needed.get("state", frozenset()), needed.get("run", frozenset())
        whole = keys is None or run is None or "state" in run
        self.state_keys = frozenset({"*"}) if whole else keys or frozenset()
        """The keys of run state that the rules read; `*` for all of them."""
        self.currencies = frozenset(
            name for one in self._live for name in currencies(one.rule.when.text)
        )
        """The currencies that the rules name."""
        self._contract = _part(contract, needed.get("contract", frozenset()))
        about = needed.get("principal", frozenset())
        self._caller_fields = tuple(sorted(FIELDS["principal"] if about is None else about))
        self._plan = lru_cache(maxsize=MAX_CALLERS)(self._make_plan)
        self._may_ask = _any_asks(self._live)

    def asks(self, facts: Facts) -> bool:
        """Return whether a rule may require approval of this caller's calls."""
        try:
            return self._may_ask and self._plan(_caller(facts, self._caller_fields)).asks
        except (KeyError, TypeError, ValueError):
            return False  # `decide` denies the call

    @property
    def rules(self) -> tuple[tuple[PolicyRule, bool], ...]:
        """The rules that can apply, each with whether it applies to every call."""
        return tuple((one.rule, one.settled) for one in self._live)

    @property
    def reads_target(self) -> bool:
        """Whether a rule reads the state of the call's target."""
        return TARGET in self.names

    def decide(
        self, facts: Facts, *, probed: bool = False, before_probe: bool = False
    ) -> PolicyDecision:
        """Return the decision on one call. Never raises because of the facts.

        `probed` says that the facts have the target. `before_probe`: they will have it later, so
        rules that can't be evaluated without it are left for a second decision.
        """
        try:
            plan = self._plan(_caller(facts, self._caller_fields))
            if plan.decision is not None:
                return plan.decision
            values = {
                name: plan.known[name] if name in plan.known else _part(facts[name], fields)
                for name, fields in plan.needed.items()
                if probed or name != TARGET
            }
            if _too_many(values):
                reason = "The call has more values than the rules can check."
                return self._refuse(TOO_LARGE, reason)
            context = evaluation_context(values)
            return _decide(plan.live, context, self.version, before_probe=before_probe)
        except (KeyError, TypeError, ValueError) as error:
            reason = "The rules can't be checked for this call."
            return self._refuse(UNREADABLE, reason, f"{type(error).__name__}: {error}")

    def _make_plan(self, caller: tuple[Any, ...]) -> _Plan:
        principal = {
            name: sorted(value) if name in _SETS else value
            for name, value in zip(self._caller_fields, caller, strict=True)
        }
        known = {"contract": self._contract, "principal": principal}
        live = _settle(self._live, known)
        depends = not all(one.settled for one in live)
        decision = None if depends else _decide(live, {}, self.version)
        return _Plan(live, _needed(live), known, decision, _any_asks(live))

    def _refuse(self, rule: str, reason: str, error: str = "") -> PolicyDecision:
        return PolicyDecision(PolicyVerdict.DENY, rule, reason, self.version, error=error)


def _any_asks(rules: Iterable[_Live]) -> bool:
    return any(one.rule.then is PolicyVerdict.REQUIRE_APPROVAL for one in rules)


def _terms(rule: PolicyRule, contract: Mapping[str, Any]) -> Terms:
    """Return the approval terms of a rule for this contract."""
    own = rule.approvers
    approvers = max(1, contract["approvers"]) if own == "contract" else own
    including = frozenset({frozenset(rule.including)} if rule.including else ())
    about = {"including": including, "reason": rule.reason, "rule": rule.id}
    return merged([section_terms(rule.approval, approvers=approvers, **about)])


def _settle(rules: Iterable[_Live], known: Mapping[str, Any]) -> tuple[_Live, ...]:
    """Return the rules without those that are false, and mark those that are true."""
    context = evaluation_context(known)
    kept = []
    for one in rules:
        try:
            if one.settled or one.rule.when.holds(context):
                kept.append(one._replace(settled=True))
        except ExpressionError:
            kept.append(one)  # open; if it never has a result, the call is denied
    return tuple(kept)


def _needed(rules: Iterable[_Live]) -> Uses:
    needed: dict[str, frozenset[str] | None] = {}
    for one in rules:
        if not one.settled:
            merge(needed, uses(one.rule.when.text))
    return needed


def _caller(facts: Facts, fields: Sequence[str]) -> tuple[Any, ...]:
    """Return the facts about a caller that the rules read, as a cache key."""
    if not fields:
        return ()
    principal = facts["principal"]
    return tuple([frozenset(principal[f]) if f in _SETS else principal[f] for f in fields])


def _part(value: Any, fields: frozenset[str] | None) -> Any:
    if fields is None or not isinstance(value, Mapping):
        return value
    return {field: value[field] for field in fields if field in value}


def _too_many(values: Mapping[str, Any]) -> bool:
    left = MAX_VALUES
    waiting = [*values.values()]
    while waiting:
        value = waiting.pop()
        if type(value) in _SCALARS:
            continue
        if isinstance(value, Mapping):
            inside: Iterable[Any] = value.values()
        elif isinstance(value, list | tuple):
            inside = value
        else:
            continue
        left -= len(value)
        if left < 0:
            return True
        waiting.extend(inside)
    return False


def _decide(
    rules: Iterable[_Live], context: Any, version: str, *, before_probe: bool = False
) -> PolicyDecision:
    matched: list[_Live] = []
    failed, error, left = None, "", False
    replaced: set[str] = set()
    for one in rules:
        try:
            if one.settled or one.rule.when.holds(context):
                matched.append(one)
                replaced.update(one.rule.instead_of)
        except ExpressionError as failure:
            if before_probe and TARGET in one.rule.when.variables:
                left = True
                replaced.update(one.rule.instead_of)  # decided together, when the target is known
            elif failed is None:
                failed, error = one.rule, str(failure)
    ids = tuple([one.rule.id for one in matched])
    if failed is not None:
        reason = f"The rule {failed.id} can't be checked for this call."
        return PolicyDecision(PolicyVerdict.DENY, failed.id, reason, version, 0, ids, error)
    if replaced:
        matched = [one for one in matched if one.rule.id not in replaced]
    if not matched and left:
        reason = "The rules about the target are checked when its state is known."
        return PolicyDecision(PolicyVerdict.ALLOW, AFTER_PROBE, reason, version)
    if not matched:
        reason = "No rule allows this call."
        return PolicyDecision(PolicyVerdict.DENY, NO_RULE, reason, version)
    return _strictest(matched, ids, version)


def _strictest(matched: Sequence[_Live], ids: tuple[str, ...], version: str) -> PolicyDecision:
    """Return the strictest verdict of the rules that apply."""
    # The first of the strictest; among approvals, the first with the most approvers. A rule that
    # stands for others comes first: it is the reason why they do not count.
    verdict = max(_STRICTNESS[one.rule.then] for one in matched)
    strictest = [one for one in matched if _STRICTNESS[one.rule.then] == verdict]
    decisive = max(strictest, key=lambda one: (one.terms.approvers, bool(one.rule.instead_of)))
    rule = decisive.rule
    if rule.then is not PolicyVerdict.REQUIRE_APPROVAL:
        return PolicyDecision(rule.then, rule.id, rule.reason, version, 0, ids)
    terms = replace(merged(one.terms for one in strictest), rule=rule.id, reason=rule.reason)
    approvers = decisive.terms.approvers
    return PolicyDecision(rule.then, rule.id, rule.reason, version, approvers, ids, terms=terms)


_STRICTNESS: Final = {verdict: rank for rank, verdict in enumerate(PolicyVerdict)}
