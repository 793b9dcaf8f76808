"""The tests of a policy: cases in its file under `tests:`, or in a file beside it.

A case describes a call. A case that names a contract of the project is about that contract; else
missing parts come from a standard contract of the effect, and always from a standard caller, so
that a case states only what its rule is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from counterseal.contract.effects import Effect, RiskClass
from counterseal.contract.model import Contract
from counterseal.documents import SUFFIXES, read_document
from counterseal.errors import ContractError, Problem, Source
from counterseal.policy.policy_files import Policy, Section
from counterseal.policy.policy_rules import (
    FIELDS,
    TARGET,
    PolicyDecision,
    PolicyError,
    PolicyRule,
    PolicyVerdict,
    contract_facts,
)

NOON: Final = "2026-01-01T12:00:00Z"
"""The default time of a case: tests must not depend on the day on which they run."""

_FIELDS: Final = (
    *("name", "contract", "principal", "call", "proposal", "run", "tenant", "state"),
    *("spends", "spent", "target", "now", "expect"),
)
_CALLER: Final = {"tenant": "acme", "user": "u_1", "agent": "some-agent", "risk_level": "low"}
_RUN: Final = {
    "id": "run_1",
    "objective": None,
    "allowed_tools": None,
    "age_seconds": 0.0,
    "calls": 0,
}
_PROPOSAL: Final = {"run_id": "run_1", "version": None, "has_key": False}
_EXPECTED: Final = ("verdict", "rule", "approvers")
_NONE: Final[Mapping[str, Mapping[str, Any]]] = {}
_DERIVED: Final = {"mutates": "effect", "risk_rank": "risk"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCase:
    """A call, and the decision that is expected."""

    name: str
    contract: Mapping[str, Any]
    facts: Mapping[str, Any]
    verdict: PolicyVerdict
    rule: str | None = None
    approvers: int | None = None
    source: Source | None = None

    @property
    def expected(self) -> str:
        return _words(self.verdict, self.rule, self.approvers)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    case: PolicyCase
    decision: PolicyDecision

    @property
    def passed(self) -> bool:
        case, decision = self.case, self.decision
        return (
            decision.verdict is case.verdict
            and case.rule in (None, decision.rule)
            and case.approvers in (None, decision.approvers)
        )

    @property
    def got(self) -> str:
        decision = self.decision
        approvers = decision.approvers if self.case.approvers is not None else None
        return _words(decision.verdict, decision.rule, approvers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTestReport:
    """The results of all cases, and the rules that no case covers."""

    results: tuple[CaseResult, ...]
    rules: tuple[PolicyRule, ...]

    @property
    def failed(self) -> tuple[CaseResult, ...]:
        return tuple(result for result in self.results if not result.passed)

    @property
    def uncovered(self) -> tuple[PolicyRule, ...]:
        matched = {name for result in self.results for name in result.decision.matched}
        return tuple(rule for rule in self.rules if rule.id not in matched)


def _words(verdict: PolicyVerdict, rule: str | None, approvers: int | None) -> str:
    by = "" if approvers is None else f" by {approvers}"
    return f"{verdict}{by}" + (f" ({rule})" if rule else "")


def run_cases(
    policy: Policy, cases: Iterable[PolicyCase], *, covering: Iterable[PolicyRule] = ()
) -> PolicyTestReport:
    """Decide every case. `covering` are the rules that the cases should cover."""
    results = []
    for case in cases:
        rules, facts = policy.compile_for(case.contract), case.facts
        zero = dict.fromkeys(rules.currencies, 0.0)
        spent = {name: {**zero, **facts["spent"].get(name, {})} for name in FIELDS["spent"]}
        money = {"spends": {**zero, **facts["spends"]}, "spent": spent}
        decision = rules.decide({**facts, **money}, probed=TARGET in facts)
        results.append(CaseResult(case=case, decision=decision))
    return PolicyTestReport(results=tuple(results), rules=tuple(covering))


# --- reading -------------------------------------------------------------------------------------


def read_cases(
    *paths: str | Path, contracts: Mapping[str, Mapping[str, Any]] = _NONE
) -> tuple[PolicyCase, ...]:
    """Return the cases of these policy files and of the test files beside them.

    `contracts` are the facts of the project's contracts by name.
    """
    cases: list[PolicyCase] = []
    problems: list[Problem] = []
    for path in map(Path, paths):
        beside = [path.with_name(f"{path.stem}.tests{suffix}") for suffix in SUFFIXES]
        for file in [path, *filter(Path.is_file, beside)]:
            try:
                content = read_document(file)
            except ContractError as error:
                problems.extend(error.problems)
                continue
            if file == path:
                document = Section(content, content.data, "a policy", ("rules", "tests"))
            else:
                document = Section(content, content.data, "a test file", ("tests",))
            listed = document.sections("tests", "a case", _FIELDS)
            read = [_read_case(one, contracts) for one in listed]
            cases += [case for case in read if case is not None]
            problems += document.problems
    if problems:
        raise PolicyError(problems)
    return tuple(cases)


def _read_case(case: Section, contracts: Mapping[str, Mapping[str, Any]]) -> PolicyCase | None:
    name = case.text("name", "Say in a few words what is expected.")
    given = case.section("contract", sorted(FIELDS["contract"]))
    declared = contracts.get(str(given.data.get("name")))
    contract = _read_contract(given) if declared is None else dict(declared)
    for field, value in given.data.items() if declared else ():
        # A case can't say anything else of a contract of the project.
        if field in contract and value != contract[field]:
            message = f"{field} of {contract['name']} is {contract[field]!r} in this project"
            given.problem(message, "Leave it out, or give the contract another name.", field)
    facts = _read_facts(case, contract)
    verdict, rule, approvers = _read_expectation(case)
    if not case.sound or verdict is None:
        return None
    return PolicyCase(
        name=name,
        contract=contract,
        facts=facts,
        verdict=verdict,
        rule=rule,
        approvers=approvers,
        source=case.source,
    )


def _read_contract(given: Section) -> dict[str, Any]:
    """Return the facts of a standard contract of this effect, with the given ones over it."""
    data = given.data
    effect = given.one_of(Effect, data.get("effect", Effect.READ_ONLY.value), "effect")
    stated = data.get("risk")
    risk = None if stated is None else given.one_of(RiskClass, stated, "risk")
    stock = contract_facts(
        Contract.model_validate(
            {
                "identity": {"name": "some_tool", "version": "1.0.0", "owner": "somebody"},
                "effect": effect,
                "affordance": {"model_description": "A tool.", "input_schema": {"type": "object"}},
                "transactional": {"side_effect_class": risk} if risk else {},
            }
        ),
        risk,
    )
    for field, value in data.items():
        if field in _DERIVED:
            fix = f"Set {_DERIVED[field]} instead."
            given.problem(f"{field} is derived from {_DERIVED[field]}", fix, field)
        elif field in stock and type(value) is not type(stock[field]):
            wanted = {str: "a text", int: "a number", bool: "true or false", list: "a list"}
            given.problem(f"{field} must be {wanted[type(stock[field])]}", "", field)
    return {**stock, **data}


def _read_facts(case: Section, contract: Mapping[str, Any]) -> dict[str, Any]:
    usual: dict[str, dict[str, Any]] = {
        "call": {},
        "state": {},
        "spends": {},
        "spent": {},
        "principal": {**_CALLER, "roles": [], "scopes": []},
        "run": {**_RUN, "state": {}},
        "proposal": {"tool": contract["name"], **_PROPOSAL},
        "tenant": {},
    }
    if TARGET in case.data:
        usual[TARGET] = {}
    facts: dict[str, Any] = {}
    for name, values in usual.items():
        given = case.section(name, sorted(FIELDS.get(name, ())))
        facts[name] = {**values, **given.data}
        for field in ("roles", "scopes") if name == "principal" else ():
            if not isinstance(facts[name][field], list):
                given.problem(f"{field} must be a list", "", field)
    try:
        now = datetime.fromisoformat(str(case.data.get("now", NOON)))
    except ValueError:
        now = datetime.min  # noqa: DTZ901 - without a zone, and so refused below
    if now.tzinfo is None:
        case.problem(f"now must be a time with a time zone, such as {NOON}", "", "now")
    return {**facts, "now": now.replace(tzinfo=now.tzinfo or UTC)}


def _read_expectation(case: Section) -> tuple[PolicyVerdict | None, str | None, int | None]:
    if "expect" not in case.data:
        case.problem("expect is missing", "Say allow, require_approval or deny.")
        return None, None, None
    if not isinstance(case.data["expect"], Mapping):
        return case.one_of(PolicyVerdict, case.data["expect"], "expect"), None, None
    wanted = case.section("expect", _EXPECTED)
    verdict = wanted.one_of(PolicyVerdict, wanted.data.get("verdict"), "verdict")
    rule = wanted.text("rule") if "rule" in wanted.data else None
    approvers = wanted.data.get("approvers")
    if approvers is not None and (not isinstance(approvers, int) or isinstance(approvers, bool)):
        wanted.problem("approvers must be a number", "", "approvers")
        approvers = None
    return verdict, rule, approvers
