"""`counterseal policy`: show the rules of a policy, and run its test cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer import Argument, Option

from counterseal.cli.options import AsJson, command_group
from counterseal.cli.project import declared_tools, project_settings_if_any
from counterseal.cli.render import counted, fail, note, one_line, render, safe

if TYPE_CHECKING:
    from counterseal.config import Settings
    from counterseal.policy import Policy, PolicyError, PolicyRule
    from counterseal.policy.policy_tests import CaseResult, PolicyTestReport

app = command_group("Show and test the rules that decide about calls.")

Paths = Annotated[
    list[Path] | None,
    Argument(
        metavar="PATH",
        help="Policy files.  [default: the policy of the project, else the built-in one]",
    ),
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

    Cases are in the policy file under `tests:`, or next to it in NAME.tests.yaml. A case that names
    a tool of the project is about its contract. Exits with 1 if a case fails, and with
    --require-coverage also if a rule matched in no case.
    """
    from counterseal.policy import PolicyError
    from counterseal.policy.policy_files import DEFAULT
    from counterseal.policy.policy_tests import read_cases, run_cases

    settings = project_settings_if_any()
    policy, own, files = _load(settings, paths, no_default=no_default)
    contracts = {one["name"]: one for one in reversed(_contracts(settings))}  # the newest version
    try:
        cases = read_cases(*(files or [DEFAULT]), contracts=contracts)
    except PolicyError as error:
        _fail_unread(error)
    if not cases:
        fail(
            "There are no cases.", "Write them under `tests:`, or into NAME.tests.yaml next to it."
        )
    report = run_cases(policy, cases, covering=own)
    render(
        {
            "version": policy.version,
            "cases": [_case_record(result) for result in report.results],
            "uncovered": [rule.id for rule in report.uncovered],
            "summary": {
                "cases": len(report.results),
                "failed": len(report.failed),
                "rules": len(report.rules),
                "matched": len(report.rules) - len(report.uncovered),
            },
        },
        lambda: _report_page(report),
        as_json=as_json,
    )
    if report.failed or (require_coverage and report.uncovered):
        raise typer.Exit(1)


@app.command("show")
def show(paths: Paths = None, no_default: NoDefault = False, as_json: AsJson = False) -> None:
    """List the rules, which of them apply to each tool of the project, and the policy's version."""
    settings = project_settings_if_any()
    policy, _, _ = _load(settings, paths, no_default=no_default)
    tools = []
    for contract in _contracts(settings):
        rules = policy.compile_for(contract).rules
        tools.append(
            {
                "tool": contract["name"],
                "version": contract["version"],
                "always": [rule.id for rule, settled in rules if settled],
                "depending_on_call": [rule.id for rule, settled in rules if not settled],
            }
        )
    record: dict[str, Any] = {
        "version": policy.version,
        "rules": [rule.record() for rule in policy.rules],
        "contracts": tools,
    }
    render(record, lambda: _rules_page(policy, tools), as_json=as_json)


def _load(
    settings: Settings | None, paths: Sequence[Path] | None, *, no_default: bool
) -> tuple[Policy, tuple[PolicyRule, ...], Sequence[Path]]:
    """Return the policy, those of its rules that are not built in, and the files they are in."""
    from counterseal.config import ConfigError
    from counterseal.policy import Policy, PolicyError

    overlays: dict[str, Path] = {}
    try:
        if not paths and settings is not None:
            paths, overlays = settings.policy_paths(), settings.overlay_paths()
        if not paths and not overlays and no_default:
            fail("--no-default without a file leaves no rules.", "Name a policy file.")
        policy = Policy.load(*(paths or ()), default=not no_default, overlays=overlays)
    except ConfigError as error:
        fail(str(error))
    except PolicyError as error:
        _fail_unread(error)
    built_in = set() if no_default else {rule.id for rule in Policy.default().rules}
    own = tuple(rule for rule in policy.rules if rule.id not in built_in)
    return policy, own or policy.rules, paths or ()


def _contracts(settings: Settings | None) -> list[dict[str, Any]]:
    """Return the facts of the project's contracts, by name, newest version first."""
    from counterseal.policy import contract_facts

    records = () if settings is None else declared_tools(settings).records
    return [contract_facts(record.contract, record.risk) for record in records]


def _fail_unread(error: PolicyError) -> NoReturn:
    for problem in error.problems:
        note(f"{problem.source}: {one_line(problem.message)}")
        if problem.fix:
            note(f"    {problem.fix}")
    fail(f"{counted(len(error.problems), 'problem')}; nothing was done.", code=1)


# Pages and records -------------------------------------------------------------------------------


def _rules_page(policy: Policy, tools: Sequence[dict[str, Any]]) -> Iterator[str]:
    from counterseal.cli.contract_card import approval_terms
    from counterseal.policy import shown

    yield f"version {shown(policy.version)}, {len(policy.rules)} rules"
    for rule in policy.rules:
        approvers = ""
        if rule.approvers == "contract":
            approvers = ", as many approvers as the contract says"
        elif rule.approvers:
            approvers = f", {counted(rule.approvers, 'approver')}"
        fields = {
            "tools": ", ".join(rule.tools),
            "effects": ", ".join(rule.effects),
            "when": "" if rule.when.text == "true" else rule.when.text,
            "with": f"the role {' or '.join(rule.including)}" if rule.including else "",
            "instead": f"of {', '.join(rule.instead_of)}" if rule.instead_of else "",
            "reason": rule.reason,
            "asked": "; ".join(approval_terms(rule.approval)) if rule.approval else "",
        }
        yield f"\n{rule.id}: {rule.then}{approvers}"
        yield from (f"    {label:<8}{one_line(text)}" for label, text in fields.items() if text)
    for tool in tools:
        yield f"\n{one_line(tool['tool'])} {one_line(tool['version'])}"
        yield f"    always  {', '.join(tool['always']) or 'no rule'}"
        if tool["depending_on_call"]:
            yield f"    by call {', '.join(tool['depending_on_call'])}"


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
