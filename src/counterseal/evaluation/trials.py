"""Trials: an agent works on a scenario in a fresh runtime, and its record is scored.

Each trial has a runtime of its own on a store in memory, with the project's contracts, policy and
grants. Tools with prepared answers return those. Other tools are executed; those that change
something only with `allow_effects`. No webhook is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from counterseal.canonical import thaw
from counterseal.config import Settings
from counterseal.config.build import Project, open_runtime, runtime_parts
from counterseal.config.discovery import Discovered, discover
from counterseal.config.tables import KeysTable, NotificationsTable, ObservationsTable
from counterseal.contract.declare import Tool
from counterseal.contract.model import Contract, ExecutedBy, Isolation, KeepReads
from counterseal.contract.tool_context import Context
from counterseal.errors import ContractError, CountersealError, NotDoneError, Problem, Severity
from counterseal.evaluation.agents import AS_DECLARED, Agent, AgentTask, Wording
from counterseal.evaluation.scenarios import Scenario, contains
from counterseal.evaluation.scores import Score, Summary, score, summarise
from counterseal.evaluation.trajectories import Trajectory, of_run
from counterseal.proposal import Proposal
from counterseal.reconcile import Reconciler

Setup = Callable[[str], Any]
"""Prepares the systems behind the tools for the scenario of this name; may be async."""
FORMAT: Final = "counterseal-scenarios-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One try of an agent at a scenario."""

    scenario: str
    number: int
    score: Score
    trajectory: Trajectory

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "trajectory": self.trajectory.record()}

    @classmethod
    def from_record(cls, data: Mapping[str, Any]) -> Trial:
        return cls(
            scenario=data["scenario"],
            number=data["number"],
            score=Score.from_record(data["score"]),
            trajectory=Trajectory.from_record(data["trajectory"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioReport:
    """All trials of one agent: what `--save` writes, and what is compared and exported."""

    label: str
    agent: str
    wording: str
    contracts: Mapping[str, str]
    """The hash of each contract."""
    policy: str
    trials: tuple[Trial, ...]

    @property
    def summary(self) -> Summary:
        return summarise([(trial.scenario, trial.score) for trial in self.trials])

    @property
    def failed(self) -> int:
        return sum(not trial.score.passed for trial in self.trials)

    def record(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("label", "agent", "wording", "policy")}
        return {
            "format": FORMAT,
            **own,
            "contracts": dict(self.contracts),
            "trials": [trial.record() for trial in self.trials],
            "summary": asdict(self.summary),
        }

    @classmethod
    def from_record(cls, data: Any) -> ScenarioReport:
        """Return the report of a record. ValueError if it is none."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ValueError(f"expected a report that `scenarios run --save` wrote ({FORMAT})")
        try:
            own = {
                name: data[name] for name in ("label", "agent", "wording", "policy", "contracts")
            }
            return cls(**own, trials=tuple(map(Trial.from_record, data["trials"])))
        except (KeyError, TypeError) as error:
            raise ValueError(f"a field of the report is missing or invalid: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialProject:
    """The project whose tools scenarios use. It is read once for all trials."""

    settings: Settings
    contracts: tuple[Discovered, ...]
    allow_effects: bool = False
    setup: Setup | None = None

    @classmethod
    def of(cls, settings: Settings, **options: Any) -> TrialProject:
        """Read the project. Trials keep all observations, and use no key and no webhook of it."""
        contracts = discover(settings.tool_paths(), strict=settings.tools.strict)
        problems = [problem for item in contracts for problem in item.problems]
        if errors := [problem for problem in problems if problem.severity is Severity.ERROR]:
            raise ContractError(errors)
        instead = {
            "observations": ObservationsTable(keep_reads=KeepReads.ALL),
            "notifications": NotificationsTable(),
            "keys": KeysTable(),
        }
        return cls(settings=settings.model_copy(update=instead), contracts=contracts, **options)

    @property
    def tools(self) -> list[str]:
        return sorted({item.name for item in self.contracts if item.contract is not None})

    def refusals(self, scenarios: Sequence[Scenario]) -> Iterator[Problem]:
        """Yield a problem for each change that a scenario expects and can't execute."""
        for item in () if self.allow_effects else self.contracts:
            if item.contract is None or not item.contract.mutates:
                continue
            for scenario in scenarios:
                asked = {call.tool for call in (*scenario.start, *scenario.calls)}
                if item.name in asked and item.name not in scenario.answers:
                    yield Problem(
                        rule="scenario-effects",
                        tool=item.name,
                        message=f"{item.name} changes something, and the scenario "
                        f"{scenario.name!r} has no prepared answer for it",
                        fix=f"Write `answers: {{{item.name}: …}}`, or really execute it with "
                        "--allow-effects.",
                    )

    def runtime(self, scenario: Scenario, stopped: list[str]) -> Project:
        """Return a runtime on an empty store in memory, with the scenario's prepared answers.

        Tools that would change something and may not are added to `stopped` when they are called.
        """
        contracts = []
        for item in self.contracts:
            if item.name in scenario.answers:
                item = _with_answers(item, scenario.answers[item.name])  # noqa: PLW2901
            elif item.contract and item.contract.mutates and not self.allow_effects:
                item = _stopping(item, item.contract, stopped)  # noqa: PLW2901
            contracts.append(item)
        return open_runtime(self.settings, "memory:", contracts=contracts)


def _stopping(item: Discovered, contract: Contract, stopped: list[str]) -> Discovered:
    """Return a contract whose tool does nothing, and adds its name to `stopped`."""

    async def stop(**_arguments: Any) -> Any:
        stopped.append(item.name)
        raise NotDoneError("The scenario has no answer of this tool, so nothing was done.")

    instead = _stand_in(contract, stop)
    return replace(item, contract=instead.contract, tool=instead)


def _stand_in(contract: Contract, function: Callable[..., Any]) -> Tool[..., Any]:
    """Return a tool with another function, which takes the key if the tool changes something.

    It runs in this process, wherever the real one does: neither another process nor a client has
    the prepared answers.
    """
    function.__name__ = function.__qualname__ = contract.name
    injected = {"counterseal_call": Context} if contract.mutates else {}
    runtime = contract.runtime.model_copy(update={"sandbox_isolated": False})
    here = {
        "isolation": Isolation.AUTO,
        "runs_code": False,
        "executed_by": ExecutedBy.SERVER,
        "runtime": runtime,
    }
    return Tool(contract=contract.model_copy(update=here), function=function, injected=injected)


def _with_answers(item: Discovered, answers: Sequence[Any]) -> Discovered:
    """Return a contract whose tool returns these answers one after the other; the last repeats.

    `read_back` returns the last answer. The expected state is not probed, because nothing was
    executed that could lead to it.
    """
    contract: Contract | None = item.contract
    if contract is None:
        return item
    given, last = iter(answers), list[Any]()

    async def answer(**_arguments: Any) -> Any:
        last[:] = [next(given, *last)]
        return last[0]

    def read_back() -> Any:
        return last[0] if last else None

    instead: dict[str, Any] = {"expected": None}
    if callable(contract.read_back):
        instead["read_back"] = read_back
    contract = contract.model_copy(update=instead)
    tool = _stand_in(contract, answer)
    return replace(item, contract=tool.contract, tool=tool)


async def run_trial(
    project: TrialProject,
    scenario: Scenario,
    agent: Agent,
    number: int = 1,
    *,
    wording: Wording = AS_DECLARED,
    prompt: str = "",
) -> Trial:
    """Let an agent work on a scenario in a fresh runtime, and score its record."""
    refused = list(project.refusals([scenario]))
    if refused:
        raise ContractError(refused)
    if project.setup is not None:
        ready = project.setup(scenario.name)
        if inspect.isawaitable(ready):
            await ready
    stopped: list[str] = []
    async with project.runtime(scenario, stopped) as runtime:
        principal = runtime.principal(scenario.agent)
        run = await runtime.run(principal, "run_trial", objective=scenario.objective)
        await _start(runtime, scenario)
        task = AgentTask(
            scenario=scenario,
            runtime=runtime,
            principal=principal,
            run_id=run.id,
            trial=number,
            wording=wording,
            prompt=prompt,
        )
        words, failure = "", ""
        try:
            words = str(await agent(task) or "")
        except CountersealError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 - an agent is other people's code
            failure = f"{type(error).__name__}: {error}"
        if scenario.people:
            await task.decide()
        await Reconciler(runtime).once()  # verifications that are due
        trajectory = await of_run(runtime, principal.tenant, run.id, scenario.name)
        trajectory = replace(trajectory, words=words)
        wrong = [line async for line in _wrong_at_end(runtime, scenario)]
    wrong += [f"{tool} would have been carried out, without a prepared answer" for tool in stopped]
    if failure:
        wrong.insert(0, f"the agent failed: {failure}")
    return Trial(
        scenario=scenario.name,
        number=number,
        score=score(scenario, trajectory, wrong),
        trajectory=trajectory,
    )


async def _start(runtime: Project, scenario: Scenario) -> None:
    """Make the calls that were made before the scenario begins."""
    for call in scenario.start:
        principal = runtime.principal(call.acting or scenario.agent)
        proposal = Proposal(tool=call.tool, arguments=call.arguments, run_id="run_start")
        observation = await runtime.submit(proposal, principal)
        if not observation.ok:
            raise CountersealError(
                f"the scenario {scenario.name!r} can't start: {call} ended with {observation.code}"
            )


async def _wrong_at_end(runtime: Project, scenario: Scenario) -> Any:
    """Yield each check of the end that does not hold."""
    for call in scenario.end:
        principal = runtime.principal(call.acting or scenario.agent)
        proposal = Proposal(tool=call.tool, arguments=call.arguments, run_id="run_end")
        observation = await runtime.submit(proposal, principal)
        data = thaw(observation.data)
        if not observation.ok:
            yield f"at the end {call} ended with {observation.code}"
        elif not contains(data, call.output):
            yield f"at the end {call} returned {data}, expected {dict(call.output or {})}"


async def run_trials(
    project: TrialProject,
    scenarios: Sequence[Scenario],
    agent: Agent,
    *,
    name: str,
    trials: int = 1,
    label: str = "",
    wording: Wording = AS_DECLARED,
    prompt: str = "",
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> ScenarioReport:
    """Run every scenario `trials` times, one trial after the other, and return the report."""
    done: list[Trial] = []
    for number in range(1, trials + 1):
        for scenario in scenarios:
            progress(len(done), trials * len(scenarios))
            trial = await run_trial(
                project, scenario, agent, number, wording=wording, prompt=prompt
            )
            done.append(trial)
    declared = [item.contract for item in project.contracts if item.contract is not None]
    policy = runtime_parts(project.settings, {})["policy"]()
    return ScenarioReport(
        label=label or name,
        agent=name,
        wording=wording.name,
        contracts={contract.name: contract.hash for contract in declared},
        policy=policy.version,
        trials=tuple(done),
    )
