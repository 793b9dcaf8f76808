"""Checks before registration: each contract, and how all contracts fit together.

Pure functions that return problems and change nothing, so that registration is all or nothing:
`registry` checks first, and writes afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Protocol

from counterseal.contract.declare import Tool, is_plain_tool, wrap_plain_tool
from counterseal.contract.diff import Compatibility, diff, diff_records
from counterseal.contract.fill import compensation_problems
from counterseal.contract.lint import lint
from counterseal.contract.model import Contract, OnUnknown
from counterseal.contract.tool_context import Context
from counterseal.contract.version_steps import baseline
from counterseal.errors import ContractError, Problem, Severity
from counterseal.proposal import check_tenant
from counterseal.registry.records import Grant, RegistryRecord

Versions = Callable[[str], Sequence[RegistryRecord]]
"""Returns every version of a tool by its name, including those about to be registered."""

_HOOKS = ("probe", "preview", "read_back")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A contract to register, with the tool that carries it out if there is one."""

    contract: Contract
    tool: Tool[..., Any] | None = None


def read(things: Iterable[Any]) -> tuple[list[Candidate], list[Problem]]:
    """Return tools, contracts and plain tools as candidates, and the problems of the others."""
    candidates: list[Candidate] = []
    problems: list[Problem] = []
    for thing in things:
        try:
            foreign = not isinstance(thing, Tool | Contract)
            tool = wrap_plain_tool(thing) if foreign and is_plain_tool(thing) else thing
            if isinstance(tool, Tool):
                candidates.append(Candidate(contract=tool.contract, tool=tool))
                continue
            if isinstance(thing, Contract):
                candidates.append(Candidate(contract=thing))
                continue
            fault = "is neither a tool nor a contract"
            fix = "Decorate the function with @tool, or pass a Contract."
        except ContractError as error:
            problems.extend(error.problems)
            continue
        except Exception as error:  # noqa: BLE001 - the properties of a plain tool run foreign code
            fault = f"can't be read: {type(error).__name__}"
            fix = "Its name, description and schema must be readable without an error."
        message = f"{ascii(thing)[:80]} {fault}"
        problems.append(Problem(rule="not-a-tool", message=message, fix=fix))
    return candidates, problems


def contract_problems(candidate: Candidate, *, strict: bool = False) -> list[Problem]:
    """Return what lint finds in a contract, and whether its function can pass on the key."""
    contract, tool = candidate.contract, candidate.tool
    problems = list(lint(contract, strict=strict))
    retries = contract.on_unknown is OnUnknown.RETRY_SAME_KEY and contract.mutates
    if retries and tool is not None and Context not in tool.injected.values():
        problem = Problem(
            rule="key-unused",
            pointer="/on_unknown",
            message="on_unknown is retry_same_key, but the function takes no Context with the key",
            fix="Add a parameter of type Context, and send its `key` to the destination.",
        )
        problems.append(problem)
    if contract.by_client and tool is not None and tool.injected:
        problem = Problem(
            rule="client-injected",
            pointer="/executed_by",
            message=f"the client carries it out, so {', '.join(tool.injected)} can't be injected",
            fix="Remove these parameters: the client gets the arguments and the key.",
        )
        problems.append(problem)
    return [_placed(problem, candidate) for problem in problems]


def _placed(problem: Problem, owner: Candidate | RegistryRecord) -> Problem:
    """Return the problem with its tool's name and, if known, its position in a file."""
    named = problem.of(owner.contract.name)
    if named.source is not None or owner.tool is None:
        return named
    return named.at(owner.tool.source_of(named.pointer))


def duplicates(new: Iterable[RegistryRecord], versions: Versions) -> Iterator[Problem]:
    """Yield versions that already exist. 1.0 and 1.0.0 are the same version."""
    for record in new:
        same = [other for other in versions(record.name) if other.parsed == record.parsed]
        if same[0] is not record:
            spelled = "" if same[0].version == record.version else f" as {same[0].version}"
            problem = Problem(
                rule="version-duplicate",
                pointer="/identity/version",
                message=f"{record.name} {record.version} is already registered{spelled}",
                fix="Give the changed contract a new version.",
            )
            yield _placed(problem, record)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReference:
    """A contract's reference to another tool: a hook that reads, or the compensation tool."""

    contract: Contract
    pointer: str
    target: str
    undoes: bool

    def problems(self, targets: Sequence[RegistryRecord]) -> Iterator[Problem]:
        """Yield what is wrong. A run can get any version of the target, so all must fit."""
        if not targets:
            fix = "Register it together with this tool."
            yield self._problem("unknown", "is not registered", fix)
            return
        if any(one.contract.by_client for one in targets):
            fix = "Name a tool that is executed here."
            yield self._problem("by-client", "is carried out by the client", fix)
        unfit = next((one for one in targets if one.mutates != self.undoes), None)
        if unfit is None:
            for target in targets if self.undoes else ():
                yield from compensation_problems(self.contract, target.contract)
        elif self.undoes:
            fault = f"only reads in version {unfit.version}"
            yield self._problem("read-only", fault, "Name a tool that reverses the call.")
        else:
            fault = f"changes something in version {unfit.version}"
            yield self._problem("mutates", fault, "Name a tool that only reads.")

    def _problem(self, kind: str, fault: str, fix: str) -> Problem:
        role = self.pointer.rpartition("/")[2]
        return Problem(
            rule=f"{'compensation' if self.undoes else 'hook'}-{kind}",
            tool=self.contract.name,
            pointer=self.pointer,
            message=f"the {role} {self.target} {fault}",
            fix=fix,
        )


def references(contract: Contract) -> Iterator[ToolReference]:
    """Yield the tools that a contract refers to."""
    undo = contract.transactional.compensation_tool
    if undo is not None:
        place = "/transactional/compensation_tool"
        yield ToolReference(contract=contract, pointer=place, target=undo, undoes=True)
    for hook in _HOOKS:
        target = getattr(contract, hook)
        if isinstance(target, str):
            yield ToolReference(contract=contract, pointer=f"/{hook}", target=target, undoes=False)


def reference_problems(
    new: Sequence[RegistryRecord],
    versions: Versions,
    standing: Callable[[str], Iterable[ToolReference]],
) -> Iterator[Problem]:
    """Check references of the new contracts, and older ones to tools that get a new version."""
    for record in new:
        for reference in references(record.contract):
            for problem in reference.problems(versions(reference.target)):
                yield _placed(problem, record)
    for name in {record.name: None for record in new}:
        for reference in standing(name):
            yield from reference.problems(versions(name))


def variable_problems(
    new: Sequence[RegistryRecord], others: Iterable[RegistryRecord]
) -> Iterator[Problem]:
    """Yield conflicts of new records: a variable has one key, and a key is merged in one way."""
    keys: defaultdict[str, dict[str, str]] = defaultdict(dict)
    merges: defaultdict[str, dict[str, str]] = defaultdict(dict)
    fresh = {id(record) for record in new}
    for record in (*others, *new):
        for index, effect in enumerate(record.contract.state_effects):
            variable, place = effect.prompt_template_var, f"/state_effects/{index}"
            other = variable and _conflict(keys[variable], record.name, effect.key)
            merge = _conflict(merges[effect.key], record.name, effect.merge)
            if other and id(record) in fresh:
                problem = Problem(
                    rule="variable-ambiguous",
                    pointer=f"{place}/prompt_template_var",
                    message=f"the variable {variable} is {effect.key} here, but {other}",
                    fix="Rename one of them.",
                )
                yield _placed(problem, record)
            if merge and id(record) in fresh:
                problem = Problem(
                    rule="state-merge-conflict",
                    severity=Severity.WARNING,
                    pointer=f"{place}/merge",
                    message=f"{effect.key} is merged by {effect.merge} here, but by {merge}",
                    fix="Merge the key in the same way in all tools, or use another key.",
                )
                yield _placed(problem, record)


def _conflict(declared: dict[str, str], tool: str, value: str) -> str | None:
    """Store a tool's value, and return a different value of another tool, if there is one."""
    declared[tool] = value
    others = (f"{theirs} in {other}" for other, theirs in declared.items() if theirs != value)
    return next(others, None)


class EarlierContract(Protocol):
    """A contract of a tool as it is stored."""

    @property
    def tool(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def contract_hash(self) -> str: ...
    @property
    def record(self) -> Mapping[str, Any]: ...
    @property
    def held(self) -> tuple[str, ...]: ...


def hold_reasons(contract: Contract, earlier: Iterable[EarlierContract]) -> tuple[str, ...]:
    """Return the changes for guardians since a tool's earlier versions; none for a new tool."""
    base = baseline(contract.version, earlier)
    changes = () if base is None else diff_records(base.record, contract.record())
    return tuple(
        f"{change.id}: {change.message}"
        for change in changes
        if change.meaning.guardians is Compatibility.GOVERNANCE_REVIEW
    )


def missing_bumps(new: Sequence[RegistryRecord], versions: Versions) -> Iterator[Problem]:
    """Yield breaking changes between adjacent versions with the same major number."""
    fresh = {id(record) for record in new}
    for name in {record.name: None for record in new}:
        line = sorted(versions(name), key=lambda record: record.parsed)
        for older, newer in pairwise(line):
            before, after = older.parsed, newer.parsed
            rises = (after.epoch, after.major) > (before.epoch, before.major)
            if rises or not fresh & {id(older), id(newer)}:
                continue
            changes = diff(older.contract, newer.contract)
            breaking = [one for one in changes if one.meaning.callers is Compatibility.BREAKING]
            if breaking:
                more = f" (and {len(breaking) - 1} more)" if len(breaking) > 1 else ""
                what = f"{newer.version} breaks callers of {older.version}"
                problem = Problem(
                    rule="version-bump-missing",
                    severity=Severity.WARNING,
                    pointer=breaking[0].pointer,
                    message=f"{what}: {breaking[0].message}{more}",
                    fix=f"Make it version {older.parsed.major + 1}.0.0, or stay compatible.",
                )
                yield _placed(problem, newer)


def grant_problems(
    grants: Iterable[Any], versions: Versions, now: datetime, new: Sequence[RegistryRecord] = ()
) -> Iterator[Problem]:
    """Yield why grants can't be given.

    Grants that are declared together with a deprecated tool only get a warning: code repeats its
    old grants at every start. A deprecated tool that is already registered gets no new grants.
    """
    fresh = {id(record) for record in new}
    for grant in grants:
        if not isinstance(grant, Grant):
            yield Problem(rule="not-a-grant", message=f"{ascii(grant)[:80]} is not a grant")
            continue
        problem = _grant_problem(grant, versions(grant.tool), now, fresh)
        if problem is not None:
            yield problem


def _grant_problem(
    grant: Grant, versions: Sequence[RegistryRecord], now: datetime, fresh: set[int]
) -> Problem | None:
    if grant.tenant is not None:
        try:
            check_tenant("tenant", grant.tenant)
        except ValueError as error:
            fault, _, fix = str(error).partition("; ")
            return _refused(grant, "grant-tenant-invalid", fault, f"{fix[:1].upper()}{fix[1:]}.")
    if not versions:
        fix = "Check the name, or register the tool together with the grant."
        return _refused(grant, "grant-tool-unknown", "the tool is not registered", fix)
    covered = [record for record in versions if grant.covers(record.parsed)]
    if not covered:
        known = ", ".join(record.version for record in versions[:5])
        fault = f"no version matches {grant.version!r}; registered: {known}"
        return _refused(grant, "grant-version-unmatched", fault, "Widen the range.")
    if not any(record.exposed for record in covered):
        fault = "agents may not use this tool"
        return _refused(grant, "meta-granted", fault, "Remove the grant; people call the tool.")
    if all(record.is_deprecated(now) for record in covered):
        repeated = any(id(record) in fresh for record in covered)
        severity = Severity.WARNING if repeated else Severity.ERROR
        fault = f"version {covered[0].version} is deprecated"
        fix = "Move the agent to its replacement."
        return _refused(grant, "grant-deprecated", fault, fix, severity)
    return None


def _refused(
    grant: Grant, rule: str, fault: str, fix: str, severity: Severity = Severity.ERROR
) -> Problem:
    return Problem(
        rule=rule,
        tool=grant.tool,
        severity=severity,
        message=f"grant of {grant.tool} to {grant.agent!r}: {fault}",
        fix=fix,
    )
