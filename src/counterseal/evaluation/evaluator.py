"""Evaluate tools: generate the cases of each mode from their contracts, and carry them out.

`subjects_of` chooses, for each tool of a runtime, a caller, a grant and a good call. The runtime
itself is never called: each case has a scratch runtime of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from counterseal.config.build import Project
from counterseal.config.settings import ConfigError, Settings, without_notifications
from counterseal.config.tables import EvaluationTable, KeysTable
from counterseal.contract.model import Isolation
from counterseal.contract.schemas import listed
from counterseal.contract.tool_context import resolve_config
from counterseal.documents import read_document
from counterseal.errors import CountersealError
from counterseal.evaluation.cases import (
    CaseFailedError,
    EvaluationMode,
    GeneratedCase,
    NotTriedError,
)
from counterseal.evaluation.modes import MODES
from counterseal.evaluation.report import (
    Cell,
    CellStatus,
    EvaluatedCase,
    EvaluatedTool,
    EvaluationReport,
)
from counterseal.evaluation.samples import good_calls
from counterseal.evaluation.scratch import RUN, Subject
from counterseal.policy.policy_rules import PolicyVerdict, contract_facts
from counterseal.proposal import Principal, Proposal
from counterseal.registry import Grant, RegistryRecord
from counterseal.runtime import Runtime

_AGENT: Final = "evaluation"
_CALLS: Final = 20
"""Calls in a run, if a grant has to be made for a tool that no agent was granted."""
_MOST_TRIED: Final = 40
"""Good calls that are offered to the gates, for one grant."""
_MOST_SHRINKS: Final = 40

OnCase = Callable[[int, int, str], None]
"""Called after each case with the number of cases done, the number of all, and the tool."""


class EvaluationTarget(NamedTuple):
    """A tool to evaluate, with what the report says about it."""

    subject: Subject
    about: EvaluatedTool


def for_evaluation(settings: Settings) -> Settings:
    """Return a project's settings without keys and notifications.

    Scratch runtimes sign and notify nothing, so that neither has to be on this machine.
    """
    return without_notifications(settings).model_copy(update={"keys": KeysTable()})


# --- subjects -------------------------------------------------------------------------------------


async def subjects_of(
    runtime: Runtime,
    names: Sequence[str] = (),
    *,
    declared: Mapping[str, EvaluationTable | Mapping[str, Any]] | None = None,
    allow_effects: bool = False,
    reset: Callable[[], Any] | None = None,
) -> list[EvaluationTarget]:
    """Return the exposed tools of a runtime, or those that are named, ready to be evaluated.

    `declared` says how each tool is tried, before what a project's file says. Raises
    CountersealError for a name that is not an exposed tool.
    """
    tables: Mapping[str, Any] = declared or {}
    folder = Path()
    if isinstance(runtime, Project):
        tables = {**runtime.settings.evaluation, **tables}
        folder = runtime.settings.file.parent
    newest = {record.name: record for record in runtime.registry.records if record.exposed}
    for name in names or ():
        if name not in newest:
            known = ", ".join(sorted(newest)) or "none"
            raise CountersealError(f"{name} is not a tool for agents here; they are: {known}")
    unknown = sorted(tables.keys() - {record.name for record in runtime.registry.records})
    if unknown:
        raise ConfigError(f"evaluation.{unknown[0]}: there is no tool of this name; remove it")
    situation = _Situation(
        runtime=runtime,
        folder=folder,
        now=datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0),
        allow_effects=allow_effects,
        reset=reset,
    )
    found = []
    for name in names or sorted(newest):
        table = tables.get(name)
        table = table if isinstance(table, EvaluationTable) else EvaluationTable(**(table or {}))
        found.append(await _candidate(situation, newest[name], table))
    return found


class _Situation(NamedTuple):
    """The inputs that all tools of an evaluation share."""

    runtime: Runtime
    folder: Path
    """Where the paths of fixtures begin."""
    now: datetime
    allow_effects: bool
    reset: Callable[[], Any] | None


async def _candidate(
    situation: _Situation, record: RegistryRecord, table: EvaluationTable
) -> EvaluationTarget:
    """Return a tool with a caller and a good call that the gates do not refuse, if one is found."""
    real, ran, note = _what_runs(record, table, allow_effects=situation.allow_effects)
    declared = _fixture(table, situation.folder)
    first: Subject | None = None
    for grant in _grants(situation.runtime, record):
        for subject in islice(
            _subjects(situation, record, grant, declared, real=real), _MOST_TRIED
        ):
            problem, asks = subject.good.problem, False
            if not problem:
                problem, asks = await _preview(subject)
            tried = replace(subject, good=replace(subject.good, problem=problem), asks=asks)
            first = first or tried
            if not problem:
                first = tried
                break
        if first is not None and not first.good.problem:
            break
    if first is None:
        raise AssertionError("there is always a grant to try")
    made = (
        "No agent has a usable grant for it; one was made." if first.grant.agent == _AGENT else ""
    )
    about = EvaluatedTool(
        name=record.name,
        version=record.version,
        contract_hash=record.contract.hash,
        ran=ran,
        arguments=first.good.source,
        note=" ".join(filter(None, (note, made))),
    )
    return EvaluationTarget(first, about)


def _subjects(
    situation: _Situation,
    record: RegistryRecord,
    grant: Grant,
    declared: Mapping[str, Any],
    *,
    real: bool,
) -> Iterator[Subject]:
    """Yield the tool with one good call after the other; only generated ones are varied."""
    runtime, contract, now = situation.runtime, record.contract, situation.now
    caller = _principal(runtime, record, grant)
    facts = contract_facts(contract, record.risk)
    rules = [rule.when.text for rule in runtime.policy.rules if rule.concerns(facts)]
    calls = good_calls(
        contract,
        declared,
        facts={"principal": caller, "now": now},
        config=resolve_config(contract.config_params, None, {}),
        conditions=rules,
        made_up=not real,
    )
    for good in calls:
        yield Subject(
            record=record,
            source=runtime,
            caller=caller,
            grant=grant,
            good=good,
            real=real,
            now=now.timestamp(),
            reset=situation.reset,
        )


def _what_runs(
    record: RegistryRecord, table: EvaluationTable, *, allow_effects: bool
) -> tuple[bool, str, str]:
    """Return whether the tool's function runs, the words for what runs, and why it is a stub."""
    stub = "a recorded output" if table.output is not None or table.fixture else "a stub"
    if table.run != "real":
        return False, stub, ""
    if record.tool is None:
        return False, stub, "It has no Python function to run."
    if record.contract.by_client:
        return False, stub, "The client carries it out: its function is only its signature."
    if record.contract.isolation in (Isolation.PROCESS, Isolation.SANDBOX):
        return False, stub, f"Its function runs in a {record.contract.isolation}, not here."
    if record.mutates and not allow_effects:
        return False, stub, "Its function changes something: give --allow-effects to run it."
    return True, "its function", ""


def _fixture(table: EvaluationTable, folder: Path) -> dict[str, Any]:
    """Return the declared parts of a good call; those in the table replace the file's."""
    content: dict[str, Any] = {}
    if table.fixture is not None:
        data = read_document(folder / table.fixture).data
        if not isinstance(data, Mapping) or not data.keys() <= {"arguments", "target", "output"}:
            wanted = "a mapping with arguments, target and output"
            raise ConfigError(f"evaluation fixture {folder / table.fixture}: must be {wanted}")
        content = dict(data)
    own = {name: getattr(table, name) for name in ("arguments", "target", "output")}
    return content | {name: value for name, value in own.items() if value is not None}


def _grants(runtime: Runtime, record: RegistryRecord) -> Iterator[Grant]:
    """Yield the grants with which the tool can be called; a new one if there are none."""
    now, usable = datetime.now(UTC), False
    for grant in runtime.registry.grants:
        covers = grant.tool == record.name and grant.covers(record.parsed)
        lasts = grant.expires_at is None or grant.expires_at > now
        calls = grant.calls_per_run(record.contract)
        if covers and lasts and calls and grant.mode.allows(record.contract.effect):
            usable = True
            yield grant
    if not usable:
        yield Grant(agent=_AGENT, tool=record.name, max_calls_per_run=_CALLS)


def _principal(runtime: Runtime, record: RegistryRecord, grant: Grant) -> Principal:
    agents = runtime.settings.agents if isinstance(runtime, Project) else {}
    table = agents.get(grant.agent)
    tenants = [*sorted(record.allowed_tenants), *runtime.tenants, "evaluation"]
    own = None if table is None else table.tenant
    tenant = grant.tenant or (own if own and record.allows_tenant(own) else tenants[0])
    return Principal(
        tenant=tenant,
        agent=grant.agent,
        user=(None if table is None else table.user) or "evaluation-user",
        roles={*(() if table is None else table.roles), *record.allowed_agent_roles},
        scopes={*(() if table is None else table.scopes), *record.scopes, *grant.scopes},
    )


async def _preview(subject: Subject) -> tuple[str, bool]:
    """Return why the gates would refuse the good call, or "", and whether they require approval."""
    proposal = Proposal(tool=subject.name, arguments=subject.good.arguments, run_id=RUN)
    with _quiet():
        async with subject.scratch() as scratch:
            preview = await scratch.runtime.preview(proposal, subject.caller)
    if preview.verdict != PolicyVerdict.DENY.value:
        return "", preview.verdict == PolicyVerdict.REQUIRE_APPROVAL.value
    reason = f"its good call ({subject.good.source}) is refused: {preview.code}: {preview.reason}"
    return f"{reason} Declare one in [evaluation.{subject.name}].", False


# --- cases ----------------------------------------------------------------------------------------


def planned(
    candidate: EvaluationTarget, mode: EvaluationMode
) -> tuple[str, bool, list[GeneratedCase]]:
    """Return why a mode has no cases for a tool, whether it applies, and its cases."""
    subject = candidate.subject
    why_not = mode.why_not(subject)
    if why_not:
        return why_not, False, []
    if mode.needs_good_call and subject.good.problem:
        return subject.good.problem, True, []
    return "", True, list(mode.cases(subject))


async def evaluate(
    candidates: Iterable[EvaluationTarget],
    *,
    modes: Sequence[EvaluationMode] = MODES,
    on_case: OnCase | None = None,
) -> EvaluationReport:
    """Carry out every case of these modes, and return the table."""
    chosen = list(candidates)
    work = [(one, mode, *planned(one, mode)) for one in chosen for mode in modes]
    total, done = sum(len(cases) for *_, cases in work), 0
    cells = []
    for candidate, mode, reason, applies, cases in work:
        results = []
        for case in cases:
            results.append(await carried_out(candidate.subject, case))
            done += 1
            if on_case is not None:
                on_case(done, total, candidate.subject.name)
        untried = [case.message for case in results if case.status is CellStatus.NOT_TRIED]
        cells.append(
            Cell(
                tool=candidate.subject.name,
                mode=mode.name,
                cases=tuple(results),
                reason=reason or (untried[0] if untried else ""),
                applies=applies,
            )
        )
    return EvaluationReport(
        tools=tuple(one.about for one in chosen),
        modes=tuple(mode.name for mode in modes),
        cells=tuple(cells),
        evaluated_at=time.time(),
    )


async def carried_out(subject: Subject, case: GeneratedCase) -> EvaluatedCase:
    """Carry out one case, and shorten the arguments of a failure if the case allows that."""
    status, message = await _attempt(case, case.arguments)
    arguments: Mapping[str, Any] | None = None
    if status is CellStatus.FAILED:
        arguments = case.arguments
        if case.shrinks:
            arguments, message = await _shrunk(subject, case, message)
    return EvaluatedCase(
        name=case.name,
        why=case.why,
        status=status,
        kind=case.kind,
        message=message,
        arguments=arguments,
    )


async def _attempt(case: GeneratedCase, arguments: Mapping[str, Any]) -> tuple[CellStatus, str]:
    try:
        with _quiet():
            await case.run(arguments)
    except NotTriedError as error:
        return CellStatus.NOT_TRIED, str(error)
    except CaseFailedError as error:
        return CellStatus.FAILED, str(error)
    except Exception as error:  # noqa: BLE001 - the tool's own code can raise anything
        return CellStatus.FAILED, f"it ended with {type(error).__name__}: {error}"
    return CellStatus.PASSED, ""


async def _shrunk(
    subject: Subject, case: GeneratedCase, message: str
) -> tuple[Mapping[str, Any], str]:
    """Return the failing arguments without the optional ones that the failure does not need."""
    required = listed(subject.contract.affordance.input_schema, "required")
    arguments = dict(case.arguments)
    for name in [name for name in arguments if name not in required][:_MOST_SHRINKS]:
        fewer = {key: value for key, value in arguments.items() if key != name}
        status, again = await _attempt(case, fewer)
        if status is CellStatus.FAILED and again == message:
            arguments = fewer
    return arguments, message


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the failures that cases cause on purpose out of the operator's log."""
    log = logging.getLogger("counterseal")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before
