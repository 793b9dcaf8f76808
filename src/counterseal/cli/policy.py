"""`counterseal policy`: show the rules of a policy, and run its test cases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer import Argument, Option

from counterseal.cli.options import AsJson
from counterseal.cli.render import counted, fail, note, one_line, render, safe

if TYPE_CHECKING:
    from counterseal.policy import Policy, PolicyError, PolicyRule
    from counterseal.policy.policy_tests import CaseResult, PolicyTestReport

app = typer.Typer(
    help="Show and test the rules that decide about calls.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Paths = Annotated[
    list[Path] | None,
    Argument(metavar="PATH", help="Policy files.  [default: the built-in policy]"),
]
NoDefault = Annotated[bool, Option("--no-default", help="Leave out the built-in rules.")]


@app.command("test")
def run_tests(
    paths: Paths = None,
    no_default: NoDefault = False,
    require_coverage: Annotated[
        bool, Option("--require-coverage", help="Fail if a rule matched in no case.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the test cases of a policy.

    Cases are in the policy file under `tests:`, or next to it in NAME.tests.yaml. Exits with 1 if a
    case fails, and with --require-coverage also if a rule matched in no case.
    """
    from counterseal.policy import PolicyError
    from counterseal.policy.policy_files import DEFAULT
    from counterseal.policy.policy_tests import read_cases, run_cases

    policy, own = _load(paths, no_default=no_default)
    try:
        cases = read_cases(*(paths or [DEFAULT]))
    except PolicyError as error:
        _fail_unread(error)
    if not cases:
        fail(
            "There are no cases.", "Write them under `tests:`, or into NAME.tests.yaml next to it."
        )
    report = run_cases(policy, cases, covering=own)
    render(_report_record(policy, report), lambda: _report_page(report), as_json=as_json)
    if report.failed or (require_coverage and report.uncovered):
        raise typer.Exit(1)


@app.command("show")
def show(paths: Paths = None, no_default: NoDefault = False, as_json: AsJson = False) -> None:
    """List the rules, and the version that decisions refer to."""
    policy, _ = _load(paths, no_default=no_default)
    record = {"version": policy.version, "rules": [rule.record() for rule in policy.rules]}
    render(record, lambda: _rules_page(policy), as_json=as_json)


def _load(paths: list[Path] | None, *, no_default: bool) -> tuple[Policy, tuple[PolicyRule, ...]]:
    """Return the policy, and those of its rules that come from the files."""
    from counterseal.policy import Policy, PolicyError

    if not paths:
        if no_default:
            fail("--no-default without a file leaves no rules.", "Name a policy file.")
        return Policy.default(), Policy.default().rules
    try:
        policy = Policy.load(*paths, default=not no_default)
    except PolicyError as error:
        _fail_unread(error)
    built_in = set() if no_default else {rule.id for rule in Policy.default().rules}
    return policy, tuple(rule for rule in policy.rules if rule.id not in built_in)


def _fail_unread(error: PolicyError) -> NoReturn:
    for problem in error.problems:
        note(f"{problem.source}: {one_line(problem.message)}")
        if problem.fix:
            note(f"    {problem.fix}")
    fail(f"{counted(len(error.problems), 'problem')}; nothing was done.", code=1)


# Pages and records -------------------------------------------------------------------------------


def _rules_page(policy: Policy) -> Iterator[str]:
    from counterseal.policy import shown

    yield f"version {shown(policy.version)}, {len(policy.rules)} rules"
    for rule in policy.rules:
        yield ""
        yield f"{rule.id}: {_decision(rule)}"
        yield from (f"    {label:<8}{one_line(text)}" for label, text in _about(rule))


def _report_page(report: PolicyTestReport) -> Iterator[str]:
    for result in report.results:
        name = one_line(result.case.name)
        if result.passed:
            yield f"PASS {name}"
        else:
            error = f": {one_line(result.decision.error)}" if result.decision.error else ""
            yield f"FAIL {name}: expected {safe(result.case.expected)}, got {result.got}{error}"
    rules, missing = len(report.rules), report.uncovered
    yield ""
    yield (
        f"{len(report.results)} cases, {len(report.failed)} failed; "
        f"{rules - len(missing)} of {rules} rules matched"
    )
    for rule in missing:
        yield f"never matched: {rule.id} ({safe(str(rule.source))})"


def _report_record(policy: Policy, report: PolicyTestReport) -> dict[str, Any]:
    return {
        "version": policy.version,
        "cases": [_case_record(result) for result in report.results],
        "uncovered": [rule.id for rule in report.uncovered],
        "summary": {
            "cases": len(report.results),
            "failed": len(report.failed),
            "rules": len(report.rules),
            "matched": len(report.rules) - len(report.uncovered),
        },
    }


def _case_record(result: CaseResult) -> dict[str, Any]:
    case, decision = result.case, result.decision
    return {
        "name": case.name,
        "passed": result.passed,
        "expected": {"verdict": case.verdict.value, "rule": case.rule, "approvers": case.approvers},
        "verdict": decision.verdict.value,
        "rule": decision.rule,
        "approvers": decision.approvers,
        "matched": list(decision.matched),
        "error": decision.error or None,
        "file": case.source.file if case.source else None,
        "line": case.source.line if case.source else None,
    }


def _decision(rule: PolicyRule) -> str:
    if rule.approvers == "contract":
        return f"{rule.then}, as many approvers as the contract says"
    return (
        f"{rule.then}, {counted(rule.approvers, 'approver')}" if rule.approvers else rule.then.value
    )


def _about(rule: PolicyRule) -> list[tuple[str, str]]:
    from counterseal.cli.contract_card import approval_terms

    fields = [
        ("tools", ", ".join(rule.tools)),
        ("effects", ", ".join(rule.effects)),
        ("when", "" if rule.when.text == "true" else rule.when.text),
        ("reason", rule.reason),
        ("asked", "; ".join(approval_terms(rule.approval)) if rule.approval else ""),
    ]
    return [(label, text) for label, text in fields if text]
