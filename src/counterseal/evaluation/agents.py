"""Ways to run an agent on a scenario: all of them propose calls to one runtime, which decides.

An agent is an async function of an `AgentTask`. It calls tools through the task, or gives the
task's runtime, principal and run to an adapter of its framework. A model is a function of messages
and tools, in OpenAI's chat form, that returns the next message; `chat` makes an agent of it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx

from counterseal.approvals.terms import Voter
from counterseal.contract.formats import NameMap, UnknownNameError
from counterseal.conversation import PROVIDERS
from counterseal.errors import CountersealError
from counterseal.evaluation.scenarios import Scenario, ScenarioPerson
from counterseal.evaluation.trajectories import Trajectory
from counterseal.observation import Observation
from counterseal.operations.approver import ApprovalError
from counterseal.proposal import Principal, Proposal, part
from counterseal.reconcile import Reconciler
from counterseal.runtime import Runtime

Agent = Callable[["AgentTask"], Awaitable[object]]
"""Works on a task, and returns its last words."""
ChatModel = Callable[[list[dict[str, Any]], list[dict[str, Any]]], Any]
"""Returns the next message for messages and tools; may be async."""
KEY_VARIABLE: Final = "COUNTERSEAL_AGENT_KEY"
_TURNS: Final = 20
_SECONDS: Final = 120.0


class AgentError(CountersealError):
    """An agent can't be loaded, or can't work on its scenario."""


@dataclass(frozen=True, slots=True)
class Wording:
    """The text of tools and refusals that a model reads. No decision depends on it."""

    name: str
    tool: Callable[[dict[str, Any]], dict[str, Any]] = lambda tool: tool
    answer: Callable[[Observation], str] = Observation.for_model


def _without_descriptions(value: Any) -> Any:
    if isinstance(value, Mapping):
        # A property can be named `description`; a schema's own description is a text.
        return {
            name: _without_descriptions(item)
            for name, item in value.items()
            if not (name == "description" and isinstance(item, str))
        }
    return [_without_descriptions(item) for item in value] if isinstance(value, list) else value


def _bare(observation: Observation) -> str:
    if observation.ok:
        return observation.for_model()
    return f"{observation.tool}: {observation.code.value}"


AS_DECLARED: Final = Wording("as declared")
WORDINGS: Final = (
    AS_DECLARED,
    Wording("no descriptions", tool=_without_descriptions),
    Wording("refusals without reasons", answer=_bare),
    Wording("neither", tool=_without_descriptions, answer=_bare),
)
"""For `--mutate descriptions`: how much a model depends on the wording."""


@dataclass(slots=True, kw_only=True)
class AgentTask:
    """A scenario for an agent: its objective, its tools, and the runtime that judges its calls."""

    scenario: Scenario
    runtime: Runtime
    principal: Principal
    run_id: str
    wording: Wording = AS_DECLARED
    trial: int = 1
    """The number of the trial."""
    prompt: str = ""
    """A system prompt for models."""
    tokens: int | None = None
    """Tokens of the model since the last call, counted with the next one."""
    calls_made: int = 0
    _deciding: asyncio.Lock = field(default_factory=asyncio.Lock)
    _names: NameMap | None = None

    @property
    def objective(self) -> str:
        return self.scenario.objective

    async def tools(self) -> list[dict[str, Any]]:
        """Return the tools that the agent may use now, in OpenAI's chat form."""
        contracts = await (await self.runtime.run(self.principal, self.run_id)).contracts()
        self._names = names = NameMap(contract.name for contract in contracts)
        form = PROVIDERS["openai"].tool
        return [self.wording.tool(form(contract, names=names).tool) for contract in contracts]

    async def call(self, tool: str, arguments: Any, *, id: str | None = None) -> Observation:  # noqa: A002
        """Propose a call. If it is held, the scenario's people decide, and it is proposed again."""
        self.calls_made += 1
        proposal = Proposal(
            tool=self._contract_name(tool),
            arguments=arguments,
            run_id=self.run_id,
            call_id=id or f"use_{self.calls_made}",
            conversation_id=self.run_id,
            tokens=self.tokens,
        )
        self.tokens = None
        observation = await self.runtime.submit(proposal, self.principal)
        if observation.next_action == "await_approval" and self.scenario.people:
            await self.decide()
            again = replace(proposal, tokens=None)
            observation = await self.runtime.submit(again, self.principal)
        return observation

    def text(self, observation: Observation) -> str:
        """Return the text of an observation that the model reads."""
        return self.wording.answer(observation)

    async def decide(self) -> None:
        """Let the scenario's people decide on held calls, and carry out the work that is due."""
        async with self._deciding:
            for person in self.scenario.people:
                await _vote(self.runtime, person)
            await Reconciler(self.runtime).once()

    def _contract_name(self, name: str) -> str:
        try:
            return name if self._names is None else self._names.to_contract(name)
        except UnknownNameError:
            return name  # as the model wrote it, for the gates to refuse


async def _vote(runtime: Runtime, person: ScenarioPerson) -> None:
    for held in await runtime.approvals.list():
        voter = Voter(user=person.name, tenant=held.tenant, roles=frozenset(person.roles))
        try:
            await runtime.approvals.decide(held.approval_id, voter, person.decides)
        except ApprovalError:
            continue  # this person may not decide on the call, or has already decided


# --- agents ---------------------------------------------------------------------------------------


def scripted() -> Agent:
    """Return the agent that proposes the calls of the scenario's own script, in order."""

    async def agent(task: AgentTask) -> None:
        if task.scenario.script is None:
            raise AgentError(
                f"the scenario {task.scenario.name!r} has no script; write one, or give --agent"
            )
        for call in task.scenario.script:
            await task.call(call.tool, dict(call.arguments))

    return agent


def recorded(trajectories: Iterable[Trajectory]) -> Agent:
    """Return the agent that proposes the calls of the trajectory with the scenario's name again.

    Of several trajectories with this name, the first trial gets the first one, and so on.
    """
    by_name: dict[str, list[Trajectory]] = {}
    for one in trajectories:
        by_name.setdefault(one.name, []).append(one)

    async def agent(task: AgentTask) -> str:
        mine = by_name.get(task.scenario.name)
        if mine is None:
            known = ", ".join(sorted(by_name)) or "none"
            raise AgentError(f"no trajectory is named {task.scenario.name!r}; there are: {known}")
        trajectory = mine[(task.trial - 1) % len(mine)]
        for number, use in enumerate(trajectory.uses, 1):
            arguments = {} if use.arguments is None else use.arguments
            await task.call(use.tool, arguments, id=use.id and f"{use.id}_{number}")
        return trajectory.words

    return agent


def chat(model: ChatModel, *, turns: int = _TURNS) -> Agent:
    """Return the agent that carries out a model's tool calls until it makes none."""

    async def agent(task: AgentTask) -> str:
        messages: list[dict[str, Any]] = []
        if task.prompt:
            messages.append({"role": "system", "content": task.prompt})
        messages.append({"role": "user", "content": task.objective})
        for _ in range(turns):
            tools = await task.tools()
            message = await _next_message(model, messages, tools)
            task.tokens = _tokens(message)
            calls = PROVIDERS["openai"].calls(message)
            messages.append(_plain(message, calls))
            if not calls:
                return str(part(message, "content", None) or "")
            for call in calls:
                proposal = Proposal.from_call(call)
                observation = await task.call(
                    proposal.tool, proposal.arguments, id=proposal.call_id
                )
                answer = {"role": "tool", "tool_call_id": proposal.call_id or ""}
                messages.append({**answer, "content": task.text(observation)})
        return f"stopped after {turns} turns"

    return agent


async def _next_message(model: ChatModel, messages: list[Any], tools: list[Any]) -> Any:
    if inspect.iscoroutinefunction(model):
        return await model(messages, tools)
    message = await asyncio.to_thread(model, messages, tools)  # it may block
    return await message if inspect.isawaitable(message) else message


def _plain(message: Any, calls: list[Any]) -> dict[str, Any]:
    """Return an assistant message as plain data, for the next request."""
    plain: dict[str, Any] = {"role": "assistant", "content": part(message, "content", None)}
    if calls:
        plain["tool_calls"] = [
            call if isinstance(call, Mapping) else call.model_dump(exclude_none=True)
            for call in calls
        ]
    return plain


def _tokens(message: Any) -> int | None:
    total = part(part(message, "usage", None), "total_tokens", None)
    return total if isinstance(total, int) and total > 0 else None


def http_model(url: str, *, model: str = "", key: str | None = None) -> ChatModel:
    """Return a model behind an endpoint of OpenAI's chat completions, hosted or on this machine."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def ask(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        body: dict[str, Any] = {"messages": messages}
        body |= {"tools": tools} if tools else {}
        body |= {"model": model} if model else {}
        async with httpx.AsyncClient(timeout=_SECONDS, headers=headers) as client:
            response = await client.post(url, json=body)
        if not response.is_success:
            raise AgentError(f"{url} answered {response.status_code}: {response.text[:200]}")
        try:
            answer = response.json()
            return {**answer["choices"][0]["message"], "usage": answer.get("usage")}
        except (ValueError, KeyError, IndexError, TypeError):
            raise AgentError(
                f"{url} did not answer with a chat completion: {response.text[:200]}"
            ) from None

    return ask


# --- by name --------------------------------------------------------------------------------------


def agent_named(name: str, *, model: str = "", turns: int = _TURNS) -> Agent:
    """Return the agent of a name: `script`, a URL, FILE.py:FUNCTION or MODULE:FUNCTION.

    A function with one parameter is an agent, one with two is a model. Recorded trajectories are
    read by `formats`.
    """
    if name == "script":
        return scripted()
    if name.startswith(("http://", "https://")):
        return chat(http_model(name, model=model, key=os.environ.get(KEY_VARIABLE)), turns=turns)
    function = function_named(name)
    wanted = [
        one
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if len(wanted) == 2:
        return chat(function, turns=turns)
    if len(wanted) == 1 and inspect.iscoroutinefunction(function):
        return function
    raise AgentError(
        f"{name} must be an async function of one task, or a function of messages and tools"
    )


def function_named(name: str) -> Callable[..., Any]:
    """Return the function that a command names. Importing its module executes it."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise AgentError(
            f"{name!r} is not an agent; write script, a URL, FILE.py:FUNCTION, MODULE:FUNCTION, or"
            " a file with trajectories"
        )
    try:
        module = _module(place)
    except (ImportError, OSError) as error:
        raise AgentError(f"{place} can't be imported: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise AgentError(f"{place} has no function {attribute}")
    return function  # type: ignore[no-any-return]


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    file = Path(place).resolve()
    name = f"counterseal_agent_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ImportError("there is no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up here
    spec.loader.exec_module(module)
    return module
