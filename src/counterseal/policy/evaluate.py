"""Decide a call: all rules that apply are evaluated, and the strictest verdict wins.

Work is done as early as possible. Conditions on the contract alone are evaluated when the contract
is registered, conditions on the caller when that caller first appears; only the rest is evaluated
for each call. This is sound because a condition that has a result while some facts are missing
keeps that result: `false && anything` is false.

A rule that fails, facts that can't be read, or too many facts are a denial.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from counterseal.approvals.terms import Terms, merged, section_terms
from counterseal.errors import ExpressionError
from counterseal.expressions import MAX_LENGTH, Expression, evaluation_context
from counterseal.policy.policy_rules import (
    FIELDS,
    NAMES,
    NO_RULE,
    TOO_LARGE,
    UNREADABLE,
    PolicyDecision,
    PolicyRule,
    PolicyVerdict,
    Uses,
    merge,
    uses,
)

MAX_VALUES: Final = 1000
"""How many values of a call the rules may read. The evaluator has no limit."""

MAX_CALLERS: Final = 1024
"""How many callers are cached for a contract; the least recently used is dropped."""

MAX_QUESTIONS: Final = 64
"""How many different sets of open rules are cached for a contract."""

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


class CompiledPolicy:
    """The rules that can apply to one contract."""

    __slots__ = (
        "_by_caller",
        "_caller_fields",
        "_contract",
        "_live",
        "_plan",
        "_question",
        "version",
    )

    def __init__(
        self, rules: Iterable[PolicyRule], contract: Mapping[str, Any], *, version: str
    ) -> None:
        self.version = version
        applicable = [
            _Live(rule, _terms(rule, contract)) for rule in rules if rule.concerns(contract)
        ]
        self._live = _settle(applicable, {"contract": contract})
        needed = _needed(self._live)
        self._contract = _part(contract, needed.get("contract", frozenset()))
        about = needed.get("principal", frozenset())
        self._caller_fields = tuple(sorted(FIELDS["principal"] if about is None else about))
        self._plan = lru_cache(maxsize=MAX_CALLERS)(self._make_plan)
        self._by_caller: dict[Hashable, tuple[_Question, dict[str, Any]]] = {}
        # Many callers leave the same rules open, and compiling is expensive.
        self._question = lru_cache(maxsize=MAX_QUESTIONS)(_Question)

    @property
    def names(self) -> frozenset[str]:
        """The facts that a call may have to provide. Without any, all calls are decided alike."""
        return frozenset(_needed(self._live)) - {"contract"}

    @property
    def asks(self) -> bool:
        """Whether a rule may require approval."""
        return any(one.rule.then is PolicyVerdict.REQUIRE_APPROVAL for one in self._live)

    def standing(self, caller: Hashable) -> PolicyDecision | None:
        """Return the decision on all calls of a cached caller; None if it depends on the call."""
        plan = self._by_caller.get(caller)
        return None if plan is None or plan[0].groups else plan[0].otherwise

    def decide(self, facts: Facts, caller: Hashable = None) -> PolicyDecision:
        """Return the decision on one call. Never raises because of the facts.

        `caller` identifies `facts["principal"]` and makes the lookup faster.
        """
        try:
            plan = self._by_caller.get(caller) if caller is not None else None
            if plan is None:
                plan = self._plan(_caller(facts, self._caller_fields))
                if caller is not None:
                    self._remember(caller, plan)
            question, known = plan
            if not question.groups:
                return question.otherwise
            values = question.values(known, facts)
            if _too_many(values):
                return self._refuse(
                    TOO_LARGE, "The arguments have more values than the rules can check."
                )
            context = evaluation_context(values)
        except (KeyError, TypeError, ValueError) as error:
            reason = "The rules can't be checked for this call."
            return self._refuse(UNREADABLE, reason, f"{type(error).__name__}: {error}")
        if question.none_holds(context):
            return question.otherwise
        return _decide(question.live, context, self.version)

    def _remember(self, caller: Hashable, plan: tuple[_Question, dict[str, Any]]) -> None:
        if len(self._by_caller) >= MAX_CALLERS:
            self._by_caller.clear()
        self._by_caller[caller] = plan

    def _make_plan(self, caller: tuple[Any, ...]) -> tuple[_Question, dict[str, Any]]:
        """Return what is left to evaluate for a caller, and the facts that are known."""
        principal = {
            name: sorted(value) if name in _SETS else value
            for name, value in zip(self._caller_fields, caller, strict=True)
        }
        known = {"contract": self._contract, "principal": principal}
        question = self._question(_settle(self._live, known), self.version)
        return question, {
            name: _part(known[name], fields)
            for name, fields in question.needed.items()
            if name in known
        }

    def _refuse(self, rule: str, reason: str, error: str = "") -> PolicyDecision:
        return PolicyDecision(PolicyVerdict.DENY, rule, reason, self.version, error=error)


class _Question:
    """Rules that are true for every call, and open rules that each call must evaluate."""

    __slots__ = ("groups", "live", "needed", "otherwise")

    def __init__(self, live: tuple[_Live, ...], version: str) -> None:
        self.live = live
        self.needed = _needed(live)
        self.groups = _together([one.rule.when for one in live if not one.settled])
        self.otherwise = _decide([one for one in live if one.settled], {}, version)
        """The decision when no open rule is true."""

    def values(self, known: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
        """Return exactly the facts that the open rules read."""
        return {
            name: known[name] if name in known else _part(facts[name], fields)
            for name, fields in self.needed.items()
        }

    def none_holds(self, context: Any) -> bool:
        """Return whether every open rule is false, evaluated in few combined expressions."""
        try:
            return not any(group.holds(context) for group in self.groups)
        except ExpressionError:
            return False  # the rules are then evaluated one by one, to find the failing one


def _terms(rule: PolicyRule, contract: Mapping[str, Any]) -> Terms:
    """Return the approval terms of a rule for this contract."""
    own = rule.approvers
    approvers = max(1, contract["approvers"]) if own == "contract" else own
    terms = section_terms(rule.approval, approvers=approvers, reason=rule.reason, rule=rule.id)
    return merged([terms])


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


def _together(conditions: Sequence[Expression]) -> tuple[Expression, ...]:
    """Join conditions with `||` into few expressions. An error in one stays an error."""
    texts: list[str] = []
    for condition in conditions:
        part = f"({condition.text}\n)"  # a trailing comment would swallow the bracket
        joined = f"{texts[-1]} || {part}" if texts else part
        if texts and len(joined) <= MAX_LENGTH:
            texts[-1] = joined
        else:
            texts.append(part if len(part) <= MAX_LENGTH else condition.text)
    try:
        return tuple(Expression(text, names=NAMES) for text in texts)
    except ExpressionError:
        return tuple(conditions)


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
    return tuple(frozenset(principal[f]) if f in _SETS else principal[f] for f in fields)


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


def _decide(rules: Iterable[_Live], context: Any, version: str) -> PolicyDecision:
    matched: list[_Live] = []
    failed, error = None, ""
    for one in rules:
        try:
            if one.settled or one.rule.when.holds(context):
                matched.append(one)
        except ExpressionError as failure:
            if failed is None:
                failed, error = one.rule, str(failure)
    ids = tuple([one.rule.id for one in matched])
    if failed is not None:
        reason = f"The rule {failed.id} can't be checked for this call."
        return PolicyDecision(PolicyVerdict.DENY, failed.id, reason, version, 0, ids, error)
    if not matched:
        reason = "No rule allows this call."
        return PolicyDecision(PolicyVerdict.DENY, NO_RULE, reason, version)
    # The first of the strictest; among approvals, the first with the most approvers.
    verdict = max(_STRICTNESS[one.rule.then] for one in matched)
    strictest = [one for one in matched if _STRICTNESS[one.rule.then] == verdict]
    decisive = max(strictest, key=_asks)
    rule = decisive.rule
    if rule.then is not PolicyVerdict.REQUIRE_APPROVAL:
        return PolicyDecision(rule.then, rule.id, rule.reason, version, 0, ids)
    terms = replace(merged(one.terms for one in strictest), rule=rule.id, reason=rule.reason)
    approvers = decisive.terms.approvers
    return PolicyDecision(rule.then, rule.id, rule.reason, version, approvers, ids, terms=terms)


def _asks(one: _Live) -> int:
    return one.terms.approvers


_STRICTNESS: Final = {verdict: rank for rank, verdict in enumerate(PolicyVerdict)}
