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

from counterseal.canonical import pointer
from counterseal.contract.effects import Effect, RiskClass
from counterseal.contract.model import Contract
from counterseal.documents import SUFFIXES, read_document
from counterseal.errors import ContractError, Problem, Source
from counterseal.policy.policy_files import Place, Policy, Reader
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
    "name",
    "contract",
    "principal",
    "call",
    "proposal",
    "run",
    "tenant",
    "state",
    "spends",
    "spent",
    "target",
    "now",
    "expect",
)
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
    results = tuple(CaseResult(case=case, decision=_decided(policy, case)) for case in cases)
    return PolicyTestReport(results=results, rules=tuple(covering))


def _decided(policy: Policy, case: PolicyCase) -> PolicyDecision:
    rules, facts = policy.compile_for(case.contract), case.facts
    zero = dict.fromkeys(rules.currencies, 0.0)
    money = {
        "spends": {**zero, **facts["spends"]},
        "spent": {name: {**zero, **facts["spent"].get(name, {})} for name in FIELDS["spent"]},
    }
    return rules.decide({**facts, **money}, probed=TARGET in facts)


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
                reader = Reader(read_document(file))
            except ContractError as error:
                problems.extend(error.problems)
                continue
            cases += _read_file(reader, contracts, own=file == path)
            problems += reader.problems
    if problems:
        raise PolicyError(problems)
    return tuple(cases)


def _read_file(
    reader: Reader, contracts: Mapping[str, Mapping[str, Any]], *, own: bool
) -> list[PolicyCase]:
    known = ("rules", "tests") if own else ("tests",)
    document = reader.mapping(reader.file.data, (), "a policy" if own else "a test file", known)
    listed = reader.items(document.get("tests", []), ("tests",), "tests")
    cases = [_read_case(reader, item, ("tests", i), contracts) for i, item in enumerate(listed)]
    return [case for case in cases if case is not None]


def _read_case(
    reader: Reader, item: Any, place: Place, contracts: Mapping[str, Mapping[str, Any]]
) -> PolicyCase | None:
    before = len(reader.problems)
    data = reader.mapping(item, place, "a case", _FIELDS)
    if not data:
        return None
    name = reader.text(data, place, "name", "Say in a few words what is expected.")
    given = _section(reader, data, place, "contract")
    declared = contracts.get(str(given.get("name")))
    if declared is None:
        contract = _read_contract(reader, given, place)
    else:
        contract = _declared_contract(reader, given, declared, place)
    facts = _read_facts(reader, data, place, contract)
    verdict, rule, approvers = _read_expectation(reader, data, place)
    if len(reader.problems) > before or verdict is None:
        return None
    return PolicyCase(
        name=name,
        contract=contract,
        facts=facts,
        verdict=verdict,
        rule=rule,
        approvers=approvers,
        source=reader.file.source(pointer(*place)),
    )


def _section(reader: Reader, data: Mapping[str, Any], place: Place, name: str) -> Mapping[str, Any]:
    return reader.mapping(data.get(name, {}), (*place, name), name, sorted(FIELDS.get(name, ())))


def _read_contract(reader: Reader, given: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Return the facts of a standard contract of this effect, with the given ones over it."""
    here = (*place, "contract")
    effect = reader.one_of(
        Effect, given.get("effect", Effect.READ_ONLY.value), (*here, "effect"), "effect"
    )
    stated = given.get("risk")
    risk = None
    if stated is not None:
        risk = reader.one_of(RiskClass, stated, (*here, "risk"), "risk")
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
    for field, value in given.items():
        if field in _DERIVED:
            fix = f"Set {_DERIVED[field]} instead."
            reader.problem((*here, field), f"{field} is derived from {_DERIVED[field]}", fix)
        elif field in stock and type(value) is not type(stock[field]):
            wanted = {str: "a text", int: "a number", bool: "true or false", list: "a list"}
            reader.problem((*here, field), f"{field} must be {wanted[type(stock[field])]}")
    return {**stock, **given}


def _declared_contract(
    reader: Reader, given: Mapping[str, Any], declared: Mapping[str, Any], place: Place
) -> dict[str, Any]:
    """Return the facts of a contract of the project. A case can't say anything else of it."""
    for field, value in given.items():
        if field in declared and value != declared[field]:
            message = f"{field} of {declared['name']} is {declared[field]!r} in this project"
            fix = "Leave it out, or give the contract another name."
            reader.problem((*place, "contract", field), message, fix)
    return dict(declared)


def _read_facts(
    reader: Reader, data: Mapping[str, Any], place: Place, contract: Mapping[str, Any]
) -> dict[str, Any]:
    principal: dict[str, Any] = {
        "tenant": "acme",
        "user": "u_1",
        "agent": "some-agent",
        "roles": [],
        "scopes": [],
        "risk_level": "low",
    }
    run: dict[str, Any] = {
        "id": "run_1",
        "objective": None,
        "allowed_tools": None,
        "age_seconds": 0.0,
        "state": {},
        "calls": 0,
    }
    proposal = {"tool": contract["name"], "run_id": "run_1", "version": None, "has_key": False}
    given = {name: _section(reader, data, place, name) for name in ("principal", "run", "proposal")}
    for field in ("roles", "scopes"):
        if not isinstance(given["principal"].get(field, []), list):
            reader.problem((*place, "principal", field), f"{field} must be a list")
    world = {TARGET: _section(reader, data, place, TARGET)} if TARGET in data else {}
    return {
        **world,
        "call": _section(reader, data, place, "call"),
        "state": _section(reader, data, place, "state"),
        "spends": _section(reader, data, place, "spends"),
        "spent": _section(reader, data, place, "spent"),
        "principal": {**principal, **given["principal"]},
        "run": {**run, **given["run"]},
        "proposal": {**proposal, **given["proposal"]},
        "tenant": _section(reader, data, place, "tenant"),
        "now": _read_time(reader, data.get("now", NOON), (*place, "now")),
    }


def _read_time(reader: Reader, value: Any, place: Place) -> datetime:
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        time = datetime.min  # noqa: DTZ901 - without a zone, and so refused below
    if time.tzinfo is None:
        reader.problem(place, f"now must be a time with a time zone, such as {NOON}")
    return time.replace(tzinfo=time.tzinfo or UTC)


def _read_expectation(
    reader: Reader, data: Mapping[str, Any], place: Place
) -> tuple[PolicyVerdict | None, str | None, int | None]:
    expect = data.get("expect")
    here = (*place, "expect")
    if "expect" not in data:
        reader.problem(place, "expect is missing", "Say allow, require_approval or deny.")
        return None, None, None
    if not isinstance(expect, Mapping):
        return reader.one_of(PolicyVerdict, expect, here, "expect"), None, None
    wanted = reader.mapping(expect, here, "expect", _EXPECTED)
    verdict = reader.one_of(PolicyVerdict, wanted.get("verdict"), (*here, "verdict"), "verdict")
    rule = reader.text(wanted, here, "rule") if "rule" in wanted else None
    approvers = wanted.get("approvers")
    if approvers is not None and (not isinstance(approvers, int) or isinstance(approvers, bool)):
        reader.problem((*here, "approvers"), "approvers must be a number")
        approvers = None
    return verdict, rule, approvers
