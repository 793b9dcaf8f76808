"""`counterseal policy`: the rules of a policy, and the tests that lie beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from counterseal.cli.output import fail, note, one_line, print_json, safe

if TYPE_CHECKING:
    from counterseal.policy import Policy, PolicyError, PolicyRule
    from counterseal.policy.policy_tests import CaseResult, PolicyTestReport

__all__ = ["app"]

app = typer.Typer(
    help="Test and show the rules that decide about calls.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Paths = Annotated[
    list[Path] | None,
    typer.Argument(metavar="PATH", help="Policy files.  [default: the built-in policy]"),
]
NoDefault = Annotated[
    bool, typer.Option("--no-default", help="Leave the built-in rules out from under the files.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("test")
def run_tests(
    paths: Paths = None,
    no_default: NoDefault = False,
    require_coverage: Annotated[
        bool, typer.Option("--require-coverage", help="Fail when a rule took part in no case.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the cases that lie beside policies.

    They stand in a policy file under `tests:`, or beside it in NAME.tests.yaml. Exits with 1 when a
    case fails, and with --require-coverage also when a rule was never matched.
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
        fail("There are no cases.", "Write them under `tests:`, or into NAME.tests.yaml beside it.")
    report = run_cases(policy, cases, covering=own)
    if as_json:
        print_json(_record(policy, report))
    else:
        _print(report)
    if report.failed or (require_coverage and report.uncovered):
        raise typer.Exit(1)


@app.command("show")
def show(paths: Paths = None, no_default: NoDefault = False, as_json: AsJson = False) -> None:
    """List the rules, and the version that decisions name."""
    policy, _ = _load(paths, no_default=no_default)
    if as_json:
        print_json({"version": policy.version, "rules": [rule.record() for rule in policy.rules]})
        return
    from counterseal.policy import shown

    print(f"version {shown(policy.version)}, {len(policy.rules)} rules")
    for rule in policy.rules:
        print(f"\n{rule.id}: {_then(rule)}")
        for label, text in _about(rule):
            print(f"    {label:<8}{one_line(text)}")


def _load(paths: list[Path] | None, *, no_default: bool) -> tuple[Policy, tuple[PolicyRule, ...]]:
    """The policy, and the rules of it that the files brought."""
    from counterseal.policy import Policy, PolicyError

    if not paths:
        if no_default:
            fail("--no-default leaves no rules at all.", "Name a policy file.")
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
    count = len(error.problems)
    fail(f"{count} problem{'' if count == 1 else 's'}; nothing was done.", code=1)


# Printing ----------------------------------------------------------------------------------------


def _print(report: PolicyTestReport) -> None:
    for result in report.results:
        name = one_line(result.case.name)
        if result.passed:
            print(f"PASS {name}")
        else:
            print(f"FAIL {name}: expected {safe(result.case.expected)}, got {_got(result)}")
    rules, missing = len(report.rules), report.uncovered
    print(
        f"\n{len(report.results)} cases, {len(report.failed)} failed; "
        f"{rules - len(missing)} of {rules} rules matched"
    )
    for rule in missing:
        print(f"never matched: {rule.id} ({safe(str(rule.source))})")


def _got(result: CaseResult) -> str:
    error = result.decision.error
    return safe(result.got) + (f": {one_line(error)}" if error else "")


def _record(policy: Policy, report: PolicyTestReport) -> dict[str, Any]:
    return {
        "version": policy.version,
        "cases": [_case(result) for result in report.results],
        "uncovered": [rule.id for rule in report.uncovered],
        "summary": {
            "cases": len(report.results),
            "failed": len(report.failed),
            "rules": len(report.rules),
            "matched": len(report.rules) - len(report.uncovered),
        },
    }


def _case(result: CaseResult) -> dict[str, Any]:
    case, decision = result.case, result.decision
    return {
        "name": case.name,
        "passed": result.passed,
        "expected": {
            "verdict": case.verdict.value,
            "rule": case.rule,
            "approvers": case.approvers,
        },
        "verdict": decision.verdict.value,
        "rule": decision.rule,
        "approvers": decision.approvers,
        "matched": list(decision.matched),
        "error": decision.error or None,
        "file": case.source.file if case.source else None,
        "line": case.source.line if case.source else None,
    }


def _then(rule: PolicyRule) -> str:
    if rule.approvers == "contract":
        return f"{rule.then}, as many as the contract asks"
    return f"{rule.then}, {rule.approvers} to approve" if rule.approvers else rule.then.value


def _about(rule: PolicyRule) -> list[tuple[str, str]]:
    from counterseal.cli.card import terms_told

    fields = [
        ("tools", ", ".join(rule.tools)),
        ("effects", ", ".join(rule.effects)),
        ("when", "" if rule.when.text == "true" else rule.when.text),
        ("reason", rule.reason),
        ("asked", "; ".join(terms_told(rule.approval)) if rule.approval else ""),
    ]
    return [(label, text) for label, text in fields if text]
